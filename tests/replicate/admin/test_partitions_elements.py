"""Audit elements in partitions of their own: where each kind of schema change goes, and how it is told of."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import pytest

import replicate
from replicate.admin import partitions
from replicate.admin.regions import add_region
from replicate.audit.changes import records_of
from replicate.audit.count import Counts
from replicate.audit.query import Query
from replicate.audit.sources import find_in_instance
from replicate.compare.scr import array_of, compare_with
from replicate.errors import UsageError
from replicate.instance.file import decode, encode
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import changes_of, decode_batch
from replicate.model.elements import DEFINITION, PLACED, SECTION, STORAGE
from replicate.model.transaction import Kind, Op
from tests.harness.pair import Pair, assert_equal

PLACES = {DEFINITION: 2, STORAGE: 3, SECTION: 4}

OF_EACH = (
    (DEFINITION, "CREATE TABLE fresh (a, b)"),
    (DEFINITION, "CREATE VIRTUAL TABLE found USING fts5(body)"),
    (STORAGE, "CREATE INDEX fresh_a ON fresh (a)"),
    (STORAGE, "CREATE UNIQUE INDEX fresh_b ON fresh (b)"),
    (SECTION, "CREATE TRIGGER made AFTER INSERT ON fresh BEGIN UPDATE account SET note = 'x'; END"),
    (DEFINITION, "CREATE VIEW seen AS SELECT * FROM fresh"),
    (DEFINITION, "ALTER TABLE fresh ADD COLUMN c"),
    (DEFINITION, "ALTER TABLE fresh RENAME TO older"),
    (STORAGE, "ANALYZE older"),
    (STORAGE, "DROP INDEX fresh_a"),
    (SECTION, "DROP TRIGGER made"),
    (DEFINITION, "DROP VIEW seen"),
    (DEFINITION, "PRAGMA user_version = 5"),
    (DEFINITION, "CREATE TABLE copied AS SELECT 1 AS one"),
    (DEFINITION, "DROP TABLE older"),
)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path)
    for instance in (made.primary, made.secondary):
        for name in ("defs", "indexes", "triggers"):
            partitions.create(instance, name)
    return made


def place(pair: Pair, *elements: str) -> None:
    for element in elements:
        partitions.place_element(pair.primary, element, str(PLACES[element]))


def bodies(pair: Pair, first_seqno: int) -> list[Any]:
    found: list[Any] = []
    with closing(ChainReader(Chain(pair.primary.journal_directory), first_seqno)) as reader:
        while (piece := reader.read(1 << 20, pair.last_seqno())) is not None:
            assert not isinstance(piece, LargeTransaction)
            found += decode_batch(piece.data)[2::3]
    return found


def schema_changes(body: Any) -> list[tuple[int, str]]:
    flat = changes_of(body)
    return [(flat[at + 1], flat[at + 3][0]) for at in range(0, len(flat), 4) if flat[at] == Op.SCHEMA]


@pytest.mark.parametrize("placed", [tuple(one for one, is_in in zip(PLACED, mask, strict=True) if is_in)
                                    for mask in product((False, True), repeat=3)])  # fmt: skip
def test_each_kind_of_schema_change_goes_where_its_element_is(pair: Pair, placed: tuple[str, ...]) -> None:
    pair.seed()
    place(pair, *placed)
    first = pair.last_seqno() + 1
    with closing(pair.connect()) as connection:
        for _, text in OF_EACH:
            connection.execute("INSERT INTO account (owner) VALUES ('a')")
            connection.execute(text)
            connection.commit()
    found = bodies(pair, first)
    assert len(found) == len(OF_EACH)
    for (element, text), body in zip(OF_EACH, found, strict=True):
        wanted = PLACES[element] if element in placed else PLACES[DEFINITION] if DEFINITION in placed else 0
        if not text.startswith("CREATE TABLE copied"):
            assert (wanted, text) in schema_changes(body)
        assert {number for number, _ in schema_changes(body)} == {wanted}
        assert body[0] == (Kind.MIXED if wanted else Kind.TRANSACTION), text
    pair.catch_up()
    assert_equal(pair)
    scr = {one.partition_id: one.state for one in compare_with(pair.primary, pair.secondary).rows}
    assert set(scr.values()) == {"even"}
    # Who puts it back finds everything as it was.
    for element in placed:
        partitions.place_element(pair.primary, element, "ALL")
    with closing(pair.connect()) as connection:
        connection.execute("CREATE TABLE last (a)")
        connection.commit()
    (body,) = bodies(pair, pair.last_seqno())
    assert (body[0], schema_changes(body)) == (Kind.TRANSACTION, [(0, "CREATE TABLE last (a)")])


def test_what_is_rolled_back_is_in_no_section(pair: Pair) -> None:
    place(pair, STORAGE)
    with closing(pair.connect()) as connection:
        connection.execute("INSERT INTO account (owner) VALUES ('a')")
        connection.execute("SAVEPOINT one")
        connection.execute("CREATE INDEX gone ON account (owner)")
        connection.execute("ROLLBACK TO one")
        connection.commit()
    (body,) = bodies(pair, pair.last_seqno())
    assert (body[0], schema_changes(body)) == (Kind.TRANSACTION, [])


def test_an_alter_under_legacy_rules_is_of_one_element(pair: Pair) -> None:
    pair.seed()
    place(pair, *PLACED)
    with closing(pair.connect()) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA legacy_alter_table = ON")
        connection.execute("ALTER TABLE account RENAME TO client")
        connection.commit()
    (body,) = bodies(pair, pair.last_seqno())
    assert [number for number, _ in schema_changes(body)] == [2, 2, 2]
    pair.catch_up()
    assert_equal(pair)


def test_of_an_attached_region_too(pair: Pair, tmp_path: Path) -> None:
    apsw.Connection(str(tmp_path / "more.db")).close()
    add_region(pair.primary, tmp_path / "more.db", name="more")
    pair.primary.reload()
    place(pair, DEFINITION)
    with closing(replicate.connect(pair.primary.path, region="main")) as connection:
        connection.execute(f"ATTACH '{tmp_path / 'more.db'}' AS beside")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE beside.one (a)")
        connection.execute("CREATE INDEX beside.one_a ON one (a)")
        connection.execute("PRAGMA beside.application_id = 3")
        connection.execute("INSERT INTO account (owner) VALUES ('a')")
        connection.execute("COMMIT")
    (body,) = bodies(pair, pair.last_seqno())
    assert [number for number, _ in schema_changes(body)] == [2, 2, 2]
    assert body[0] == Kind.MIXED


def test_each_element_has_its_checkpoint_record(pair: Pair) -> None:
    pair.seed()
    place(pair, *PLACED)
    with closing(pair.connect()) as connection:
        for text in ("CREATE TABLE fresh (a)", "CREATE INDEX fresh_a ON fresh (a)"):
            connection.execute(text)
            connection.commit()
    last = pair.last_seqno()

    def behind() -> dict[str, str]:
        return {one.partition_id: one.state for one in compare_with(pair.primary, pair.secondary).rows}

    assert (behind()["defs"], behind()["indexes"], behind()["triggers"]) == ("behind by 1", "behind by 1", "even")
    pair.catch_up()
    both = [{one.partition_id: one for one in array_of(one).partitions} for one in (pair.primary, pair.secondary)]
    for array in both:
        assert {name: array[name].local_commit_id for name in ("defs", "indexes")} == {
            "defs": last - 1,
            "indexes": last,
        }
    assert set(behind().values()) == {"even"}


def test_the_viewer_tells_them_apart(pair: Pair) -> None:
    place(pair, STORAGE)
    first = pair.last_seqno() + 1
    with closing(pair.connect()) as connection:
        for text in (
            "CREATE TABLE fresh (a)",
            "CREATE INDEX fresh_a ON fresh (a)",
            "CREATE TRIGGER made AFTER INSERT ON fresh BEGIN SELECT 1; END",
        ):
            connection.execute("INSERT INTO account (owner) VALUES ('a')")
            connection.execute(text)
            connection.log_comment("why")
            connection.commit()
        connection.execute("CREATE INDEX alone ON fresh (a)")
        connection.commit()

    def found(*elements: str, ops: tuple[str, ...] = ()) -> list[str]:
        asked = find_in_instance(pair.primary, Query(first, elements=elements, ops=ops))
        return [one.op if one.op != "schema" else one.text[:13] for match in asked for one in records_of(match)]

    assert found("storage") == ["CREATE INDEX ", "CREATE INDEX "]
    assert found("SECTION") == ["CREATE TRIGGE"]
    assert found("DEFINITION", ops=("schema",)) == ["CREATE TABLE "]
    assert found("DEFINITION")[-2:] == ["CREATE TABLE ", "define"]
    assert found("DATA") == ["insert"] * 3
    assert found("DATA", "COMMENT") == ["insert", "comment"] * 3
    by = Counts(["op"])
    by.add(find_in_instance(pair.primary, Query(first, elements=("STORAGE", "comment"))).frames())
    assert sorted(by.rows()) == [("comment", 3, 3), ("schema", 2, 2)]
    for elements, ops in ((("AUTHORIZATION",), ()), (("STORAGE",), ("insert",)), (("tables",), ())):
        with pytest.raises(UsageError):
            found(*elements, ops=ops)


def test_the_file_says_so_only_where_one_is_placed(pair: Pair) -> None:
    place(pair, STORAGE)
    raw = encode(pair.primary.content)
    assert b'"format": 9' in raw
    assert decode(raw, "here") == pair.primary.content
    assert decode(raw, "here").partitions.elements == {"STORAGE": 3}
    partitions.place_element(pair.primary, "STORAGE", "ALL")
    assert b'"format": 5' in encode(pair.primary.content)


def test_a_connection_that_is_open_goes_by_the_new_place(pair: Pair) -> None:
    with closing(replicate.connect(pair.primary.path)) as early:
        early.execute("CREATE TABLE one (a)")
        early.commit()
        place(pair, DEFINITION)
        early.execute("CREATE TABLE two (a)")
        early.commit()
    before, after = bodies(pair, pair.last_seqno() - 1)
    assert [number for body in (before, after) for number, _ in schema_changes(body)] == [0, 2]


DROPPED = """
CREATE TABLE parent (id INTEGER PRIMARY KEY AUTOINCREMENT, v REAL);
CREATE TABLE child (id INTEGER PRIMARY KEY, parent REFERENCES parent ON DELETE CASCADE);
CREATE TABLE wide (a TEXT, b BLOB, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE loose (rowid, v);
INSERT INTO parent (v) VALUES (0.0), (-0.0), (1e300);
INSERT INTO child VALUES (1, 1), (2, 3);
INSERT INTO wide VALUES ('x', x'00'), ('x', x'01');
INSERT INTO loose VALUES (NULL, 1), (NULL, 1);
"""


@pytest.mark.parametrize("is_placed", [False, True])
@pytest.mark.parametrize("keys", ["ON", "OFF"])
def test_rows_of_a_table_that_is_dropped_are_told_of(pair: Pair, keys: str, is_placed: bool) -> None:
    """Once, whatever SQLite tells of them; and those that a cascade deletes. Where nobody can miss the statement none
    is, but for those that SQLite deletes one by one."""
    with closing(pair.connect()) as connection:
        connection.executescript(DROPPED)
    pair.seed()
    if is_placed:
        place(pair, DEFINITION)
    with closing(pair.connect()) as connection:
        connection.execute(f"PRAGMA foreign_keys = {keys}")
        connection.execute("CREATE TEMP TABLE passing (a)")
        for table, count in (
            ("parent", 3),
            ("MAIN.wide", 2),
            ("IF EXISTS loose", 2),
            ("passing", 0),
            ("IF EXISTS x", 0),
        ):
            before = pair.last_seqno()
            connection.execute("BEGIN")
            connection.execute("INSERT INTO account (owner) VALUES ('a')")
            connection.execute("SAVEPOINT one")
            connection.execute(f"DROP TABLE {table}")
            connection.execute("ROLLBACK TO one")
            connection.execute(f"DROP TABLE {table}")
            connection.execute("COMMIT")
            (body,) = bodies(pair, before + 1)
            ops = [one for one in changes_of(body)[0::4] if one in (Op.DELETE, Op.SEQUENCE)]
            cascade = 2 if (table, keys) == ("parent", "ON") else 0
            if is_placed:
                assert ops.count(Op.DELETE) == count + cascade, table
                assert ops.count(Op.SEQUENCE) == (table == "parent")
            elif not cascade:
                assert ops.count(Op.DELETE) == 0
    pair.catch_up()
    assert_equal(pair)


def test_a_table_that_cannot_be_dropped_goes_on(pair: Pair) -> None:
    pair.seed()
    place(pair, DEFINITION)
    with closing(pair.connect()) as connection:
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE child (id INTEGER PRIMARY KEY, parent REFERENCES parent)")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("INSERT INTO parent VALUES (1)")
        connection.execute("INSERT INTO child VALUES (1, 1)")
        with pytest.raises(replicate.IntegrityError):
            connection.execute("DROP TABLE parent")
        connection.execute("INSERT INTO parent VALUES (2)")
        connection.execute("UPDATE parent SET id = 3 WHERE id = 2")
        connection.commit()
    pair.catch_up()
    assert_equal(pair)
