"""Applying rows: every kind of table, exact before-images, and each conflict with both of its images."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgpack
import pytest

from replicate.errors import ConflictError, FormatUnknownError, InternalError, JournalDamagedError, NotSupportedError
from replicate.model.transaction import Op, TableDefinition
from replicate.region.sqlite import digest, schema
from replicate.region.sqlite.apply.rows import Conflict, RowApplier
from replicate.region.sqlite.bookkeeping import check_schema_version
from replicate.region.sqlite.open import open_region
from tests.harness.regions import make_region

SCRIPT = """
    CREATE TABLE plain (id INTEGER PRIMARY KEY, name TEXT, amount REAL, any_, body BLOB);
    CREATE TABLE hidden (k, rowid TEXT, g AS (k), s AS (k || 'x') STORED);
    CREATE TABLE texts (k TEXT COLLATE NOCASE, n INT, v TEXT COLLATE RTRIM, PRIMARY KEY (k, n)) WITHOUT ROWID;
    CREATE TABLE strict_ (k TEXT PRIMARY KEY, n INT, a ANY) STRICT;
    CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, u INT UNIQUE CHECK (u > 0));
    CREATE TABLE child (id INTEGER PRIMARY KEY, parent INT REFERENCES counted (id) ON DELETE CASCADE);
    CREATE TRIGGER doubled AFTER INSERT ON plain BEGIN INSERT INTO hidden (k) VALUES (new.id); END;
"""


class Site:
    """A secondary region with its applier."""

    def __init__(self, path: Path, script: str = SCRIPT) -> None:
        make_region(path, script)
        self.connection = open_region(path, applier=True)
        definitions = schema.recorded_definitions(self.connection)
        self.table = {d.table: d for d in definitions}
        self.applier = RowApplier(self.connection, {d.table_id: d for d in definitions}, region="main")

    def apply(self, op: Op, table: str, arg: Any, *values: Any) -> None:
        self.applier.apply(op, self.table[table].table_id, arg, list(values))

    def rows(self, sql: str) -> list[Any]:
        return self.connection.execute(sql).fetchall()

    def conflict(self, op: Op, table: str, arg: Any, *values: Any) -> Conflict:
        """The conflict of a change; the region is as before it."""
        before = digest.digest_region(self.connection)
        self.applier.seqno = 77
        with pytest.raises(ConflictError) as caught:
            self.apply(op, table, arg, *values)
        assert digest.digest_region(self.connection) == before
        assert "seqno 77" in str(caught.value)
        assert table in str(caught.value)
        found = caught.value.conflict
        assert isinstance(found, Conflict)
        assert (found.table, found.seqno, found.op, found.region) == (table, 77, op, "main")
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "secondary.db")
    yield site
    site.connection.close()


def test_insert_update_delete(site: Site) -> None:
    site.apply(Op.INSERT, "plain", 0, 1, "Ada", 1.5, None, b"\x00\x01")
    site.apply(Op.UPDATE, "plain", 0b01010, "Bob", 2, 1, "Ada", 1.5, None, b"\x00\x01")
    assert site.rows("SELECT * FROM plain") == [(1, "Bob", 1.5, 2, b"\x00\x01")]
    site.apply(Op.UPDATE, "plain", 0b00001, 9, 1, "Bob", 1.5, 2, b"\x00\x01")
    site.apply(Op.UPDATE, "plain", b"\x02", None, 9, "Bob", 1.5, 2, b"\x00\x01")
    site.apply(Op.UPDATE, "plain", 0, 9, None, 1.5, 2, b"\x00\x01")
    site.apply(Op.DELETE, "plain", 0, 9, None, 1.5, 2, b"\x00\x01")
    assert site.rows("SELECT id FROM plain UNION ALL SELECT k FROM hidden") == []


def test_hidden_rowids_are_kept_and_may_change(site: Site) -> None:
    site.apply(Op.INSERT, "hidden", 0, 50, 1, "a")
    site.apply(Op.INSERT, "hidden", 0, 40, 1, "a")
    site.apply(Op.UPDATE, "hidden", 0b001, 45, 50, 1, "a")
    site.apply(Op.UPDATE, "hidden", 0b010, 7, 40, 1, "a")
    assert site.rows("SELECT _rowid_, * FROM hidden ORDER BY 1") == [(40, 7, "a", 7, "7x"), (45, 1, "a", 1, "1x")]
    site.apply(Op.DELETE, "hidden", 0, 45, 1, "a")
    assert site.conflict(Op.DELETE, "hidden", 0, 45, 1, "a").columns == ("rowid", "k", "rowid")


def test_keys_with_collations(site: Site) -> None:
    site.apply(Op.INSERT, "texts", 0, "Key", 1, "v")
    found = site.conflict(Op.UPDATE, "texts", 0b100, "w", "KEY", 1, "v")
    assert (found.key, found.found) == (("KEY", 1), ("Key", 1, "v"))
    assert site.conflict(Op.DELETE, "texts", 0, "Key", 1, "v ").found == ("Key", 1, "v")
    site.apply(Op.UPDATE, "texts", 0b101, "KEY", "v ", "Key", 1, "v")
    site.apply(Op.DELETE, "texts", 0, "KEY", 1, "v ")


def test_strict_tables(site: Site) -> None:
    site.apply(Op.INSERT, "strict_", 0, 1, "k", 5, 1.0)
    assert site.conflict(Op.DELETE, "strict_", 0, 1, "k", 5, 1).found == (1, "k", 5, 1.0)
    assert "cannot store TEXT" in site.conflict(Op.UPDATE, "strict_", 0b100, "x", 1, "k", 5, 1.0).reason
    site.apply(Op.UPDATE, "strict_", 0b1000, 1, 1, "k", 5, 1.0)
    assert site.rows("SELECT typeof(a) FROM strict_") == [("integer",)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("name", "ada"),
        ("name", None),
        ("name", b"Ada"),
        ("amount", 1.5000001),
        ("any_", 1.0),
        ("any_", "1"),
        ("body", b""),
    ],
)
def test_a_drift_of_any_column_or_type_is_a_conflict(site: Site, column: str, value: object) -> None:
    before = (1, "Ada", 1.5, 1, b"\x00\x01")
    site.apply(Op.INSERT, "plain", 0, *before)
    site.connection.execute(f"UPDATE plain SET {column} = ?", (value,))
    found = site.conflict(Op.UPDATE, "plain", 0b00010, "Bob", *before)
    assert found.reason == "the row differs from its before-image"
    assert found.columns == ("id", "name", "amount", "any_", "body")
    assert found.key == (1,)
    assert found.expected == before
    assert found.found is not None
    assert found.found[found.columns.index(column)] == value
    assert found.after == (1, "Bob", 1.5, 1, b"\x00\x01")
    assert site.conflict(Op.DELETE, "plain", 0, *before).after is None


def test_missing_and_existing_rows_are_conflicts(site: Site) -> None:
    row = (1, "Ada", 1.5, 1, b"")
    missing = site.conflict(Op.UPDATE, "plain", 0b00010, "Bob", *row)
    assert (missing.reason, missing.found) == ("the row is missing", None)
    assert site.conflict(Op.DELETE, "plain", 0, *row).found is None
    site.apply(Op.INSERT, "plain", 0, *row)
    existing = site.conflict(Op.INSERT, "plain", 0, 1, "Bob", None, None, None)
    assert (existing.reason, existing.expected, existing.found) == ("the row exists already", None, row)


def test_a_rival_for_a_unique_value_is_found(site: Site) -> None:
    site.apply(Op.INSERT, "counted", 0, 1, 10)
    site.apply(Op.INSERT, "counted", 0, 2, 20)
    inserted = site.conflict(Op.INSERT, "counted", 0, 3, 20)
    assert (inserted.found, "UNIQUE constraint failed: counted.u" in inserted.reason) == ((2, 20), True)
    assert site.conflict(Op.UPDATE, "counted", 0b10, 20, 1, 10).found == (2, 20)


def test_an_image_that_holds_raw_bytes_as_text_is_still_shown(site: Site) -> None:
    site.connection.execute("INSERT INTO plain (id, name) VALUES (1, CAST(x'ff' AS TEXT))")
    assert site.conflict(Op.DELETE, "plain", 0, 1, "x", None, None, None).found == (1, b"\xff", None, None, None)


def test_triggers_cascades_and_checks_do_not_happen_again(site: Site) -> None:
    site.apply(Op.INSERT, "plain", 0, 1, None, None, None, None)
    site.apply(Op.INSERT, "counted", 0, 1, -5)
    site.apply(Op.INSERT, "child", 0, 1, 1)
    site.apply(Op.DELETE, "counted", 0, 1, -5)
    assert site.rows("SELECT * FROM hidden") == []
    assert site.rows("SELECT * FROM child") == [(1, 1)]


def test_sequences_follow_the_stream(site: Site) -> None:
    def seq() -> list[Any]:
        return site.rows("SELECT seq FROM sqlite_sequence WHERE name = 'counted'")

    site.apply(Op.INSERT, "counted", 0, 5, 10)
    site.apply(Op.INSERT, "counted", 0, 6, 11)
    site.apply(Op.SEQUENCE, "counted", 0, None, 6)
    site.apply(Op.INSERT, "counted", 0, 7, 12)
    site.apply(Op.SEQUENCE, "counted", 0, 6, 100)
    assert seq() == [(100,)]
    site.applier.begin()
    site.apply(Op.INSERT, "counted", 0, 101, 13)
    site.apply(Op.SEQUENCE, "counted", 0, 100, 101)
    site.apply(Op.SEQUENCE, "counted", 0, 101, None)
    assert seq() == []
    site.apply(Op.SEQUENCE, "counted", 0, None, 4)
    assert seq() == [(4,)]
    found = site.conflict(Op.SEQUENCE, "counted", 0, 3, 9)
    assert (found.expected, found.found, found.after) == ((3,), (4,), (9,))


def test_a_rolled_back_insert_leaves_no_trace_in_sequences(site: Site) -> None:
    site.connection.execute("BEGIN")
    site.apply(Op.INSERT, "counted", 0, 5, 10)
    site.apply(Op.SEQUENCE, "counted", 0, None, 5)
    site.connection.execute("ROLLBACK")
    site.applier.begin()
    site.apply(Op.INSERT, "counted", 0, 5, 10)
    site.apply(Op.SEQUENCE, "counted", 0, None, 5)


# Schema changes.


def change_schema(site: Site, statement: str, *changed: TableDefinition) -> None:
    site.applier.apply(Op.SCHEMA, 0, "main", [statement])
    for definition in changed:
        site.applier.apply(Op.DEFINE, definition.table_id, definition.version, definition.pack())


def new_definition(script: str, table: str, version: int) -> TableDefinition:
    connection = apsw.Connection(":memory:")
    connection.execute(script)
    definition = schema.read_definition(connection, table, region="main", version=version)
    connection.close()
    return definition


def test_schema_changes_are_applied_guarded_and_versioned(site: Site, tmp_path: Path) -> None:
    site.apply(Op.INSERT, "texts", 0, "k", 1, "v")
    made = new_definition("CREATE TABLE made (a, b)", "made", 1)
    wider = new_definition("CREATE TABLE made (a, b, c DEFAULT 5)", "made", 2)
    site.connection.execute("BEGIN IMMEDIATE")
    change_schema(site, "CREATE TABLE made (a, b)", made)
    site.applier.apply(Op.INSERT, made.table_id, 0, [1, 2, 3])
    change_schema(site, "ALTER TABLE made ADD COLUMN c DEFAULT 5", wider)
    site.applier.apply(Op.UPDATE, wider.table_id, 0b1000, [6, 1, 2, 3, 5])
    site.apply(Op.DELETE, "texts", 0, "k", 1, "v")
    change_schema(site, "CREATE INDEX made_a ON made (a)")
    change_schema(site, "CREATE TRIGGER made_t AFTER INSERT ON made BEGIN DELETE FROM plain; END")
    change_schema(site, "CREATE VIEW seen AS SELECT * FROM made")
    change_schema(site, "ALTER TABLE hidden RENAME TO renamed")
    change_schema(site, "ALTER TABLE plain RENAME COLUMN amount TO cost")
    change_schema(site, "ALTER TABLE plain DROP COLUMN body")
    change_schema(site, "ALTER TABLE plain ADD COLUMN checked NOT NULL DEFAULT 1 CHECK (checked > 0)")
    change_schema(site, "DROP TABLE child; ")
    change_schema(site, "REINDEX")
    change_schema(site, "ANALYZE")
    site.connection.execute("COMMIT")
    check_schema_version(site.connection)
    assert site.rows("SELECT rowid, * FROM made") == [(1, 2, 3, 6)]
    recorded = {d.table: d for d in schema.recorded_definitions(site.connection)}
    assert recorded["made"] == wider
    assert not {"hidden", "child"} & recorded.keys()
    stranger = apsw.Connection(site.connection.filename)
    for table in ("made", "renamed", "plain"):
        with pytest.raises(apsw.SQLError, match="replicate_connect_is_required"):
            stranger.execute(f"DELETE FROM {table}")
    stranger.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM plain", "DELETE is no schema change"),
        ("CREATE TABLE x (a); INSERT INTO plain (id) VALUES (4)", "several statements"),
        ("UPDATE _replicate_scr SET seqno = 0", "UPDATE is no schema change"),
        ("DROP TABLE _replicate_ring", "_replicate_ring"),
        ("CREATE INDEX i ON _replicate_scr (seqno)", "_replicate_scr"),
        ("ATTACH 'other.db' AS other", "ATTACH"),
        ("PRAGMA journal_mode = DELETE", "PRAGMA journal_mode"),
        ("CREATE VIRTUAL TABLE f USING dbstat", "virtual table f of module dbstat"),
        ("COMMIT", "COMMIT is no schema change"),
        ("CREATE TEMP TABLE x (a)", "a temporary object"),
    ],
)
def test_nothing_but_schema_changes_comes_from_the_stream(site: Site, statement: str, message: str) -> None:
    site.connection.execute("BEGIN IMMEDIATE; INSERT INTO plain (id) VALUES (1)")
    with pytest.raises(NotSupportedError, match=message):
        change_schema(site, statement)
    assert site.connection.in_transaction
    assert site.rows("SELECT id FROM plain") == [(1,)]
    site.connection.execute("ROLLBACK")


def test_a_definition_that_is_not_the_local_table_is_a_conflict(site: Site) -> None:
    with pytest.raises(ConflictError, match="fails here: table plain already exists"):
        change_schema(site, "CREATE TABLE plain (a)")
    other = new_definition("CREATE TABLE plain (id INTEGER PRIMARY KEY, title TEXT)", "plain", 2)
    with pytest.raises(ConflictError, match="table plain is not as the stream defines it"):
        site.applier.apply(Op.DEFINE, other.table_id, 2, other.pack())
    site.applier.define(other.table_id, other)
    with pytest.raises(ConflictError, match="5 columns instead of 2"):
        site.applier.apply(Op.INSERT, other.table_id, 0, [1, "x"])


# Whole transactions, and content that makes no sense.


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: (Op.INSERT, t, 0, [1, "a"]), JournalDamagedError, "does not fit"),
        (lambda t: (Op.INSERT, t, 0, [1, "a", 1, 1, 1, 1]), JournalDamagedError, "does not fit"),
        (lambda t: (Op.INSERT, t, 5, [1, "a", 1, 1, 1]), JournalDamagedError, "carries an argument"),
        (lambda t: (Op.INSERT, 12345, 0, [1]), JournalDamagedError, "12345"),
        (lambda t: (Op.UPDATE, t, 1 << 5, [1]), JournalDamagedError, "mask"),
        (lambda t: (Op.UPDATE, t, "x", [1]), JournalDamagedError, "mask"),
        (lambda t: (Op.UPDATE, t, [], [1]), JournalDamagedError, "plain"),
        (lambda t: (Op.INSERT, t, 0, [1, {}, 1, 1, 1]), JournalDamagedError, "cannot be stored"),
        (lambda t: (Op.INSERT, t, 0, [2**64 - 1, "a", 1, 1, 1]), JournalDamagedError, "cannot be stored"),
        (lambda t: (Op.INSERT, t, 0, 5), JournalDamagedError, "plain"),
        (
            lambda t: (Op.INSERT, t, 0, [1, msgpack.ExtType(1, b"\xff"), 1, 1, 1]),
            NotSupportedError,
            "plain.*not valid UTF-8",
        ),
        (lambda t: (Op.INSERT, t, 0, [1, "\udcff", 1, 1, 1]), NotSupportedError, "not valid UTF-8"),
        (lambda t: (99, t, 0, []), FormatUnknownError, "kind 99"),
        (lambda t: (Op.SCHEMA, 0, "main", [5]), JournalDamagedError, "no statement"),
        (lambda t: (Op.DEFINE, t, 1, ["x"]), JournalDamagedError, "definition"),
        (lambda t: (Op.SEQUENCE, t, 0, [1]), JournalDamagedError, "two values"),
    ],
)
def test_content_that_makes_no_sense(
    site: Site, change: Callable[[int], tuple[Any, ...]], error: type[Exception], message: str
) -> None:
    before = digest.digest_region(site.connection)
    with pytest.raises(error, match=message):
        site.applier.apply_all(change(site.table["plain"].table_id))
    assert digest.digest_region(site.connection) == before


def test_a_stream_must_end_at_a_change(site: Site) -> None:
    with pytest.raises(JournalDamagedError, match="ends inside"):
        site.applier.apply_all([1, 2, 3])


def test_triggers_must_be_off(tmp_path: Path) -> None:
    make_region(tmp_path / "r.db")
    connection = open_region(tmp_path / "r.db")
    with pytest.raises(InternalError, match="applier=True"):
        RowApplier(connection, {})
    connection.close()


def test_tables_of_any_width(tmp_path: Path) -> None:
    """SQLite bounds the depth of an expression, and masks beyond 64 columns are bytes."""
    site = Site(tmp_path / "wide.db", f"CREATE TABLE wide ({', '.join(f'c{n}' for n in range(1999))})")
    row = [1, *range(1999)]
    site.apply(Op.INSERT, "wide", 0, *row)
    mask = (1 << 1999 | 2).to_bytes(250, "little")
    site.apply(Op.UPDATE, "wide", mask, "first", "last", *row)
    assert site.rows("SELECT c0, c1, c1998 FROM wide") == [("first", 1, "last")]
    row[1], row[1999] = "first", "last"
    site.apply(Op.DELETE, "wide", 0, *row)
    site.connection.close()


# A random workload, captured naively.


class Recorder:
    """What the preupdate hook says of ordinary tables without generated columns, as a flat change stream."""

    def __init__(self, connection: apsw.Connection, definitions: dict[str, TableDefinition]) -> None:
        self.changes: list[Any] = []
        self._definitions = definitions
        connection.preupdate_hook(self._note, id="recorder")

    def _note(self, update: Any) -> None:
        definition = self._definitions[update.table_name]
        old, new = (
            [*((rowid,) if definition.rowid else ()), *row] if row is not None else None
            for rowid, row in ((update.rowid, update.old), (update.rowid_new, update.new))
        )
        head = {"INSERT": Op.INSERT, "DELETE": Op.DELETE}.get(update.op, Op.UPDATE), definition.table_id
        if old is None or new is None:
            self.changes += [*head, 0, new if old is None else old]
            return
        changed = [n for n, (a, b) in enumerate(zip(old, new, strict=True)) if a != b or type(a) is not type(b)]
        mask = sum(1 << n for n in changed)
        self.changes += [*head, mask, [*(new[n] for n in changed), *old]]


TABLES = """
    CREATE TABLE a (id INTEGER PRIMARY KEY, u UNIQUE, v);
    CREATE TABLE b (k, v TEXT, w REAL);
    CREATE TABLE c (k TEXT COLLATE NOCASE, v, n NUMERIC, PRIMARY KEY (k)) WITHOUT ROWID;
    CREATE TRIGGER ab AFTER UPDATE ON a BEGIN INSERT INTO b VALUES (new.id, new.v, 1); END;
"""
VALUES: list[Any] = [None, 0, 1, 1.0, -1, 2**63 - 1, 1e300, "", "1", "Ä", "x" * 5000, b"", b"1", b"\xff\x00"]


@pytest.mark.parametrize("seed", range(8))
def test_a_random_workload_leaves_equal_databases(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    site = Site(tmp_path / "secondary.db", TABLES)
    make_region(tmp_path / "primary.db", TABLES)
    primary = open_region(tmp_path / "primary.db")
    recorder = Recorder(primary, site.table)
    for _ in range(400):
        table = chance.choice("abc")
        columns = [name.name for name in site.table[table].columns]
        column, value, other = chance.choice(columns), chance.choice(VALUES), chance.choice(VALUES)
        some = f"(SELECT {columns[0]} FROM {table} ORDER BY random() LIMIT 2)"
        statement, bindings = chance.choice(
            [
                (f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", (chance.randrange(60), value, other)),
                (f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)", (chance.randrange(60), value, other)),
                (f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {columns[0]} IN {some}", (value,)),
                (f"UPDATE OR IGNORE {table} SET {columns[0]} = {columns[0]} + 7 WHERE {columns[0]} IN {some}", ()),
                (f"DELETE FROM {table} WHERE {columns[0]} IN {some}", ()),
            ]
        )
        mark = len(recorder.changes)
        try:
            primary.execute(statement, bindings)
        except (apsw.ConstraintError, apsw.MismatchError):
            del recorder.changes[mark:]  # the hook has seen what the failed statement took back
    site.connection.execute("BEGIN IMMEDIATE")
    assert site.applier.apply_all(recorder.changes) > 300
    site.connection.execute("COMMIT")
    comparison = digest.compare(primary, site.connection)
    assert comparison.equal, comparison
    assert digest.digest_region(primary) == digest.digest_region(site.connection)
    primary.close()
    site.connection.close()
