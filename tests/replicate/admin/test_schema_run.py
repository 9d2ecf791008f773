"""admin/schema_run.py: a secondary whose definitions are the operator's own, and each way in which they may not fit."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.admin import partitions, subscriptions
from replicate.admin.schema_run import own_elements, run_schema
from replicate.compare.compare import compare, digest
from replicate.compare.digest import compare_digests
from replicate.daemon.files import DaemonFiles
from replicate.errors import AlreadyRunningError, ConflictError, NotFoundError, PermissionRefusedError, UsageError
from replicate.model.elements import DEFINITION, PLACED, SECTION, STORAGE
from replicate.region.sqlite.digest import TableVerdict
from replicate.roles.promote_demote import promote
from replicate.transfer.seed.partition import load_from_file, loading
from tests.harness.instances import lose_pool
from tests.harness.pair import Pair
from tests.replicate.transfer.seed.test_partition import file

PLACES = {DEFINITION: "defs", STORAGE: "indexes", SECTION: "triggers"}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Each element in a partition of its own, as both sites say."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path)
    for instance in (made.primary, made.secondary):
        for element, name in PLACES.items():
            partitions.create(instance, name)
            partitions.place_element(instance, element, name)
    return made


def without(pair: Pair, *elements: str) -> None:
    """The secondary gets all rows, and none of these elements; it is seeded."""
    subscriptions.set_(pair.secondary, ["DEFAULT", *(name for one, name in PLACES.items() if one not in elements)])
    pair.seed()


def write(pair: Pair, *texts: str) -> None:
    """One transaction."""
    with closing(pair.connect()) as connection:
        connection.execute("BEGIN")
        for text in texts:
            connection.execute(text)
        connection.execute("COMMIT")


def run(pair: Pair, *texts: str) -> None:
    run_schema(pair.secondary, ";\n".join(texts), where="there")


def stops(pair: Pair, *words: str) -> None:
    """Applying stops by name, as often as it is tried, and before the transaction."""
    for _ in range(2):
        before = pair.last_seqno(pair.secondary)
        with pytest.raises(ConflictError) as caught:
            pair.catch_up()
        for word in (*words, "schema run FILE"):
            assert word in str(caught.value)
        assert pair.last_seqno(pair.secondary) >= before


def names(pair: Pair, kind: str) -> set[str]:
    with closing(apsw.Connection(str(pair.secondary.region("main").path), flags=apsw.SQLITE_OPEN_READONLY)) as found:
        query = "SELECT name FROM sqlite_schema WHERE type = ? AND name NOT LIKE '%replicate%'"
        return {name for (name,) in found.execute(query, (kind,))}


def equal(pair: Pair) -> None:
    found = compare(pair.primary, pair.secondary, timeout_s=60)
    assert found.equal, found
    assert compare_digests(*(digest(one, timeout_s=60) for one in (pair.primary, pair.secondary))).equal


def test_a_table_that_is_new_is_made_by_the_operator(pair: Pair) -> None:
    without(pair, *PLACED)
    pair.write(1)
    write(pair, "CREATE TABLE fresh (id INTEGER PRIMARY KEY, v)", "INSERT INTO fresh VALUES (1, 'a')")
    write(pair, "CREATE UNIQUE INDEX fresh_v ON fresh (v)")
    write(pair, "CREATE TRIGGER made AFTER INSERT ON fresh BEGIN DELETE FROM entry; END")
    write(pair, "CREATE VIEW seen AS SELECT * FROM fresh")
    write(pair, "INSERT INTO fresh VALUES (2, 'b')")
    stops(pair, "table fresh is not as the stream defines it", "there is no such table")
    assert len(pair.rows("account")) == 1
    run(
        pair,
        "CREATE TABLE fresh (id INTEGER PRIMARY KEY, v DEFAULT 7, CHECK (id > 0))",
        "CREATE INDEX mine ON fresh (id)",
    )
    pair.catch_up()
    assert pair.rows("fresh") == [(1, 1, "a"), (2, 2, "b")]
    assert names(pair, "index") == {"entry_at", "mine"}
    assert names(pair, "trigger") == names(pair, "view") == set()
    equal(pair)
    (region,) = compare(pair.primary, pair.secondary, timeout_s=60).regions
    assert region.comparison is not None
    assert {(one.kind, one.name) for one in region.comparison.schema if one.left_out} == {
        ("index", "fresh_v"), ("index", "mine"), ("table", "fresh"), ("trigger", "made"), ("view", "seen"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "same", "told"),
    [
        ("ALTER TABLE account ADD COLUMN more TEXT", "", 'it lacks "more" TEXT'),
        ("ALTER TABLE account DROP COLUMN note", "", 'it has "note" (no type) besides'),
        ("ALTER TABLE account RENAME COLUMN note TO remark", "", 'it lacks "remark" (no type)'),
        ("ALTER TABLE account RENAME TO client", "", "table client is not as the stream defines it"),
        ("CREATE VIRTUAL TABLE found USING fts5(body)", "", "there is no such table"),
        ("CREATE TABLE copied AS SELECT 1 AS one", "CREATE TABLE copied (one)", "table copied"),
    ],
)
def test_each_change_of_a_table_stops_before_the_first_row(
    pair: Pair, change: str, same: str | None, told: str
) -> None:
    without(pair, *PLACED)
    pair.write(2)
    write(pair, change)
    with closing(pair.connect()) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM pragma_table_list WHERE schema = 'main'")]
        table = next(name for name in ("client", "account") if name in tables)
        connection.execute(f"INSERT INTO {table} (owner, balance) VALUES ('after', 3)")
        connection.execute(f"UPDATE {table} SET balance = 4 WHERE owner = 'o'")
        if "found" in tables:
            connection.execute("INSERT INTO found VALUES ('words of it')")
        connection.commit()
    stops(pair, told)
    run(pair, same or change)
    pair.catch_up()
    equal(pair)
    assert [row[2] for row in pair.rows(table)] == ["o", "o", "after"]


def test_several_changes_of_one_table_in_one_transaction(pair: Pair) -> None:
    """What counts is what the table is in the end: no local table could be as each of them says."""
    without(pair, *PLACED)
    texts = [
        "ALTER TABLE account ADD COLUMN a",
        "ALTER TABLE account ADD COLUMN b",
        "ALTER TABLE account DROP COLUMN a",
    ]
    write(pair, *texts, "INSERT INTO account (owner, b) VALUES ('x', 5)")
    stops(pair, 'it lacks "b"')
    run(pair, "ALTER TABLE account ADD COLUMN b")
    pair.catch_up()
    equal(pair)


def test_a_large_transaction_is_looked_at_in_the_end_too(pair: Pair) -> None:
    without(pair, *PLACED)
    with closing(pair.connect()) as connection:
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO entry (data) VALUES (?)", ((b"x" * 400,) for _ in range(3000)))
        connection.execute("ALTER TABLE account ADD COLUMN a")
        connection.execute("COMMIT")
    stops(pair, 'it lacks "a"')
    assert pair.rows("entry") == []
    run(pair, "ALTER TABLE account ADD COLUMN a")
    pair.catch_up()
    equal(pair)


def test_a_table_that_was_dropped_and_made_again(pair: Pair) -> None:
    """Rows of the former one are never taken for those of the new one: they went with it, though it is still here."""
    without(pair, *PLACED)
    pair.write(3)
    write(pair, "DROP TABLE account")
    pair.catch_up()
    assert pair.rows("account") == []
    equal(pair)  # it is left out: its definition went elsewhere
    again = "CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT NOT NULL, balance INTEGER, note)"
    write(pair, again)
    write(pair, "INSERT INTO account (owner) VALUES ('new')")
    pair.catch_up()
    assert [row[2] for row in pair.rows("account")] == ["new"]
    equal(pair)
    # With other columns, and a counter.
    counted = "CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, name)"
    write(pair, "DROP TABLE account")
    write(pair, counted, "INSERT INTO account (name) VALUES ('newest')")
    stops(pair, 'it lacks "name"')
    run(pair, "DROP TABLE account", counted)
    pair.catch_up()
    write(pair, "DROP TABLE account", counted, "INSERT INTO account (name) VALUES ('the first again')")
    pair.catch_up()
    assert pair.rows("account") == [(1, 1, "the first again")]
    equal(pair)


def test_rows_and_then_columns_in_one_transaction_fit_no_table(pair: Pair) -> None:
    """It stops by name before as after the operator's change, and nothing of it is applied: a seed is the way out."""
    without(pair, *PLACED)
    pair.write(2)
    pair.catch_up()
    write(pair, "DROP TABLE account", "CREATE TABLE account (id INTEGER PRIMARY KEY, name)")
    stops(pair, 'it lacks "name"')
    run(pair, "DROP TABLE account", "CREATE TABLE account (id INTEGER PRIMARY KEY, name)")
    stops(pair, 'it has "name"', "seed this region again")
    pair.seed(restart=True)
    pair.catch_up()
    equal(pair)


def test_an_index_of_texts_that_was_dropped_and_made_again(pair: Pair) -> None:
    """What a virtual table keeps goes by no row, so that is refused by name."""
    without(pair, *PLACED)
    again = "CREATE VIRTUAL TABLE found USING fts5(body)"
    write(pair, again, "INSERT INTO found VALUES ('words')")
    stops(pair, "there is no such table")
    run(pair, again)
    pair.catch_up()
    write(pair, "DROP TABLE found", again, "INSERT INTO found VALUES ('other words')")
    stops(pair, "was dropped and made again on the primary", "rows of the former one are here")
    run(pair, "DROP TABLE found", again)
    pair.catch_up()
    equal(pair)


def test_a_redo_finds_what_the_operator_has_changed(pair: Pair) -> None:
    """The regions are those of a moment after the change and before the rows: the journal brings the rest."""
    without(pair, *PLACED)
    pair.write(1)
    pair.catch_up()
    run(pair, "ALTER TABLE account ADD COLUMN a", "ALTER TABLE account ADD COLUMN b")
    path = pair.secondary.region("main").path
    with closing(apsw.Connection(str(path))) as connection:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    old = path.read_bytes()
    write(pair, "ALTER TABLE account ADD COLUMN a", "ALTER TABLE account ADD COLUMN b")
    write(pair, "INSERT INTO account (owner, a, b) VALUES ('x', 1, 2)")
    pair.catch_up()
    equal(pair)
    with closing(apsw.Connection(str(path))) as connection:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    for shm in (pair.directory / "shm").iterdir():
        shm.unlink()
    path.write_bytes(old)
    pair.secondary.reload()
    pair.catch_up()
    equal(pair)


def test_an_index_that_a_seed_brought_is_in_the_way(pair: Pair) -> None:
    without(pair, STORAGE)
    assert own_elements(pair.secondary) == [STORAGE]
    write(pair, "DROP INDEX entry_at", "ALTER TABLE entry DROP COLUMN at")
    write(pair, "CREATE TABLE later (a)")
    stops(pair, "the schema change of seqno")
    with pytest.raises(UsageError, match="it is of DEFINITION"):
        run(pair, "DROP INDEX entry_at", "CREATE TABLE mine (a)")
    run(pair, "DROP INDEX entry_at")
    pair.catch_up()
    assert "later" in names(pair, "table")
    equal(pair)


def test_definitions_without_rows(pair: Pair) -> None:
    """A mirror of the schema: every table is there, and empty."""
    pair.write(2)
    subscriptions.set_(pair.secondary, ["defs", "indexes", "triggers"])
    pair.seed()
    write(
        pair, "CREATE TABLE fresh (a UNIQUE)", "INSERT INTO fresh VALUES (1)", "CREATE VIEW seen AS SELECT * FROM fresh"
    )
    write(pair, "CREATE INDEX fresh_a ON fresh (a)", "ALTER TABLE account ADD COLUMN more")
    write(pair, "CREATE TRIGGER made AFTER INSERT ON fresh BEGIN DELETE FROM entry; END")
    pair.write(2)
    pair.catch_up()
    found = compare(pair.primary, pair.secondary, timeout_s=60)
    assert found.equal
    (region,) = found.regions
    assert region.comparison is not None
    assert region.comparison.schema == ()
    assert {one.status for one in region.comparison.tables} == {TableVerdict.LEFT_OUT}
    assert pair.rows("account") == pair.rows("fresh") == []


@pytest.mark.parametrize("left", [(STORAGE,), (SECTION,), (STORAGE, SECTION)])
def test_tables_and_views_without_the_rest(pair: Pair, left: tuple[str, ...]) -> None:
    """A view or trigger that comes finds its tables: all are there, those of partitions that are not wanted empty."""
    partitions.create(pair.primary, "sales", 20)
    without(pair, *left)
    write(pair, "CREATE TABLE fresh (a)")
    partitions.assign(pair.primary, "sales", ["fresh"])
    write(pair, "CREATE UNIQUE INDEX fresh_a ON fresh (a)", "INSERT INTO fresh VALUES (1)")
    write(pair, "CREATE TRIGGER made AFTER INSERT ON fresh BEGIN DELETE FROM entry; END")
    write(pair, "CREATE VIEW seen AS SELECT * FROM fresh JOIN entry")
    write(pair, "ALTER TABLE fresh RENAME COLUMN a TO b", "ALTER TABLE entry RENAME TO item")
    pair.catch_up()
    assert ("fresh_a" in names(pair, "index")) == (STORAGE not in left)
    assert ("made" in names(pair, "trigger")) == (SECTION not in left)
    assert names(pair, "view") == {"seen"}
    equal(pair)


def test_what_is_refused(pair: Pair, tmp_path: Path) -> None:
    for text in ("CREATE TABLE mine (a)", "CREATE INDEX mine ON account (note)"):
        with pytest.raises(PermissionRefusedError, match="east is primary"):
            run_schema(pair.primary, text, where="there")
        with pytest.raises(UsageError, match="gets with the stream"):
            run(pair, text)
    with pytest.raises(UsageError, match=r"STORAGE would come \(partition indexes\) without DEFINITION"):
        subscriptions.set_(pair.secondary, ["DEFAULT", "indexes"])
    with pytest.raises(UsageError, match=r"SECTION would come"):
        subscriptions.set_(pair.secondary, ["DEFAULT", "triggers"])
    subscriptions.set_(pair.secondary, ["DEFAULT"])
    with pytest.raises(NotFoundError):
        run(pair, "CREATE TABLE mine (a)")  # not seeded
    pair.seed()
    for text, why in (
        ("INSERT INTO account (owner) VALUES ('x')", "INSERT is no schema change"),
        ("DELETE FROM main.sqlite_sequence WHERE name IS 'x'", "it writes rows"),
        ("SELECT 1", "SELECT is no schema change"),
        ("PRAGMA synchronous = OFF", "PRAGMA synchronous = OFF is refused"),
        ("ATTACH 'x' AS y", "ATTACH is no schema change"),
        ("CREATE TEMP TABLE x (a)", "a temporary object"),
        ("CREATE TABLE other.x (a)", "database other"),
        ("CREATE TABLE x AS SELECT 1", "a CREATE TABLE AS"),
        ("CREATE TABLE _replicate_x (a)", "bookkeeping"),
        ("CREATE TABLE good (a); CREATE TABLE account (a)", "statement 2 fails here: .*already exists"),
        ("CREATE INDEX x ON absent (a)", "statement 1 fails here: .*no such table"),
        ("CREATE TABLE broken (", "statement 1 fails here"),
        ("  -- nothing", "no statement"),
    ):
        with pytest.raises(UsageError, match=why):
            run(pair, text)
    assert names(pair, "table") == {"account", "entry"}
    with pytest.raises(NotFoundError):
        run_schema(pair.secondary, "CREATE TABLE mine (a)", where="there", region="nothing")
    with DaemonFiles(pair.secondary.path, "update").lock.kept_down("test"), pytest.raises(AlreadyRunningError):
        run(pair, "CREATE TABLE mine (a)")
    pair.catch_up()
    equal(pair)
    with pytest.raises(UsageError, match="DEFAULT only, and does not get DEFINITION, STORAGE, SECTION"):
        promote(pair.secondary, finish=lambda: 0, timeout_s=5)


def test_a_table_of_a_partition_that_does_not_come_is_not_asked_for(pair: Pair) -> None:
    """Until it is loaded: then by name, and it is made, and comes."""
    for instance in (pair.primary, pair.secondary):
        partitions.create(instance, "stock", 9)
    without(pair, *PLACED)
    partitions.change(pair.primary, lambda known: known.with_default("stock"))
    write(pair, "CREATE TABLE fresh (id INTEGER PRIMARY KEY, v)", "INSERT INTO fresh VALUES (1, 'a')")
    write(pair, "INSERT INTO fresh VALUES (2, 'b')")
    pair.write(1)
    pair.catch_up()
    assert len(pair.rows("account")) == 1
    assert names(pair, "table") == {"account", "entry"}
    write(pair, "INSERT INTO fresh VALUES (3, 'c')")
    lose_pool(pair.secondary)
    pair.catch_up()
    equal(pair)
    subscriptions.add(pair.secondary, ["stock"])
    with loading(pair.secondary, [9]):
        pass
    write(pair, "INSERT INTO fresh VALUES (4, 'd')")
    pair.catch_up()
    with pytest.raises(ConflictError, match=r"table fresh is not as .*: there is no such table.*schema run FILE"):
        load_from_file(pair.secondary, file(pair, 9), [9])
    run(pair, "CREATE TABLE fresh (id INTEGER PRIMARY KEY, v)")
    load_from_file(pair.secondary, file(pair, 9), [9])
    write(pair, "INSERT INTO fresh VALUES (5, 'e')")
    pair.catch_up()
    assert pair.rows("fresh") == [(place, place, value) for place, value in enumerate("abcde", 1)]
    equal(pair)


def test_a_table_that_is_put_into_a_partition_that_comes_is_asked_for(pair: Pair) -> None:
    for instance in (pair.primary, pair.secondary):
        partitions.create(instance, "stock", 9)
    without(pair, *PLACED)
    partitions.change(pair.primary, lambda known: known.with_default("stock"))
    write(pair, "CREATE TABLE fresh (id INTEGER PRIMARY KEY, v)")
    pair.catch_up()
    partitions.assign(pair.primary, "DEFAULT", ["fresh"])
    write(pair, "INSERT INTO fresh VALUES (1, 'a')")
    stops(pair, "table fresh is not as the stream defines it", "there is no such table")
    run(pair, "CREATE TABLE fresh (id INTEGER PRIMARY KEY, v)")
    pair.catch_up()
    assert pair.rows("fresh") == [(1, 1, "a")]
    equal(pair)
