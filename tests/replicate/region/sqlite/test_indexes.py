"""The indexes of a table against its rows: nothing is found where nothing is wrong, and every planted damage is.

The plants are real: rows that were changed while SQLite did not know the index, and bits of pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from replicate.region.sqlite.indexes import ROWS, Walked, Wrong, checked_in, packed_entry, unpacked_entry, walk
from tests.harness.stale_index import change_without_index, flip_in_tree

SCHEMA = """
CREATE TABLE t (
    id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE UNIQUE, a, b REAL, d,
    v AS (a || 'x'), s AS (b * 2) STORED, c TEXT AS (lower(name)) STORED
);
CREATE INDEX plain ON t (name, a DESC);
CREATE INDEX falling ON t (a DESC, d);
CREATE INDEX [some, (of)] ON t (name) WHERE d IS NULL;
CREATE INDEX large ON t (name COLLATE BINARY) WHERE a > 3;
CREATE INDEX named ON t (name) WHERE name <> 'x';
CREATE INDEX expressed ON t (lower(name) COLLATE RTRIM DESC, a + 1 /* ), */, "d" ASC);
CREATE INDEX cast_some ON t (CAST(a AS REAL)) WHERE d > 0;
CREATE INDEX virtual ON t (v);
CREATE INDEX kept ON t (s);
CREATE INDEX real ON t (b);
CREATE INDEX arrow ON t (d ->> '$.x');
CREATE TABLE w (a TEXT COLLATE NOCASE, b, c, d, e TEXT UNIQUE, PRIMARY KEY (a, b DESC)) WITHOUT ROWID;
CREATE INDEX w_both ON w (c, b);
CREATE INDEX w_some ON w (d) WHERE c > 1;
CREATE INDEX w_one ON w (d);
CREATE TABLE x (k TEXT PRIMARY KEY, v);
CREATE TABLE bare (x);
CREATE TABLE one (id INTEGER PRIMARY KEY, k UNIQUE);
"""
TABLES = ("t", "w", "x", "bare", "one")
ROWS_OF = """
CREATE TEMP TABLE n AS
    WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 50) SELECT i FROM n;
INSERT INTO t (id, name, a, b, d) SELECT i, iif(i % 7 = 0, NULL, 'Name ' || i),
    CASE i % 5 WHEN 0 THEN NULL WHEN 1 THEN i % 3 WHEN 2 THEN 'x' || (i % 4) WHEN 3 THEN zeroblob(i % 3)
        ELSE i / 3.0 END,
    i * 1.0, iif(i % 3 = 0, NULL, i % 6) FROM n;
UPDATE t SET a = CAST(x'ff41' AS TEXT) WHERE id % 9 = 0;
INSERT INTO w SELECT coalesce(name, 'q' || id), a IS NULL, iif(id % 4, id, NULL), d, 'e' || id FROM t;
INSERT INTO x SELECT name || '', a FROM t WHERE name NOTNULL;
INSERT INTO one SELECT i, 'k' || i FROM n;
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "some.db"
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("journal_mode", "wal")
        connection.execute(SCHEMA + ROWS_OF)
    return path


@contextmanager
def reading(path: Path) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        connection.pragma("query_only", True)
        connection.execute("BEGIN; SELECT count(*) FROM main.sqlite_schema").fetchall()
        yield connection


def looked_through(path: Path, limit: int = 20) -> tuple[set[tuple[str, str, str]], dict[str, str], dict[str, int]]:
    """(table, index, what) of all that is wrong; what is left out; how many rows or entries were looked at."""
    wrong, left_out, counts = set(), {}, {}
    with reading(path) as connection:
        there = [(table, index) for table in TABLES for index in checked_in(connection, table)]
    for table, index in there:
        found: Walked | None = None
        counts[f"{table}.{index}"] = 0
        while found is None or found.upto is not None:
            after = None if found is None or found.upto is None else unpacked_entry(packed_entry(found.upto))
            with reading(path) as connection:  # one for each, as the patrol has it
                found = walk(connection, table, index, after, limit=limit)
            assert found.count <= limit
            wrong |= {(table, one.index, one.what) for one in found.wrong}
            left_out |= found.left_out
            counts[f"{table}.{index}"] += found.count
    return wrong, left_out, counts


@pytest.mark.parametrize("limit", [3, 7, 10_000])
def test_what_is_right_is_found_so_row_by_row_and_entry_by_entry(database: Path, limit: int) -> None:
    wrong, left_out, counts = looked_through(database, limit)
    assert wrong == set()
    with reading(database) as connection:
        for name, count in counts.items():
            table, index = name.split(".")
            where = {
                "some, (of)": "d IS NULL", "large": "a > 3", "named": "name <> 'x'", "cast_some": "d > 0",
                "w_some": "c > 1",
            }.get(index, "1")  # fmt: skip
            assert count == connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").get, name
    assert set(left_out) == {"sqlite_autoindex_w_1", "w_some"}
    assert set(left_out.values()) == {"SQLite passes over an entry whose row is gone"}


LACKS, STRAY = "lacks the entry of the row", "has an entry that no row gives it"
ROW = "INSERT INTO t (id, name, a, b, d) VALUES (500, 'Name 500', 7, 7, {}); INSERT INTO t (id, a, d) VALUES (-5, 9, 1)"
OF_T = ("plain", "falling", "some, (of)", "large", "named", "expressed", "cast_some", "virtual", "kept", "real")


@pytest.mark.parametrize("index", [*OF_T, "arrow", "sqlite_autoindex_t_1"])
def test_a_row_that_an_index_lacks(database: Path, index: str) -> None:
    change_without_index(database, index, ROW.format("NULL" if index == "some, (of)" else "1"))
    wrong, _, _ = looked_through(database)
    assert wrong == {("t", index, LACKS)}


@pytest.mark.parametrize("index", [*OF_T, "arrow", "sqlite_autoindex_t_1"])
def test_entries_whose_rows_are_gone(database: Path, index: str) -> None:
    change_without_index(database, index, "DELETE FROM t WHERE id IN (1, 4, 33, 34, 50)")
    wrong, _, _ = looked_through(database)
    assert wrong == {("t", index, STRAY)}


@pytest.mark.parametrize("index", [*OF_T, "sqlite_autoindex_t_1"])
def test_a_row_that_is_another_one_now(database: Path, index: str) -> None:
    """It lacks the one entry, and has one too many."""
    change_without_index(
        database, index, "UPDATE t SET name = 'other', a = 77, b = b + 1 WHERE id = 4",
        "UPDATE t SET d = NULL WHERE id = 5",
        "UPDATE t SET d = 5, name = name || 'y', a = 5, b = -1 WHERE id = 6",
        "UPDATE t SET a = 0 WHERE id = 2",
    )  # fmt: skip
    wrong, _, _ = looked_through(database)
    assert wrong == {("t", index, LACKS), ("t", index, STRAY)}


@pytest.mark.parametrize("index", ["plain", "sqlite_autoindex_t_1"])
def test_texts_that_compare_alike_are_not_the_same(database: Path, index: str) -> None:
    change_without_index(database, index, "UPDATE t SET name = 'nAME 4' WHERE id = 4")
    wrong, _, _ = looked_through(database)
    assert wrong == {("t", index, STRAY)}


@pytest.mark.parametrize("index", ["w_both", "w_some", "w_one"])
def test_tables_without_rowid(database: Path, index: str) -> None:
    change_without_index(database, index, "INSERT INTO w VALUES ('new', 1, 2, 3, 'f')")
    assert looked_through(database)[0] == {("w", index, LACKS)}
    change_without_index(database, index, "UPDATE w SET c = 50, d = 50 WHERE a = 'NAME 5'")
    assert looked_through(database)[0] == {("w", index, LACKS), ("w", index, STRAY)}


def test_an_entry_whose_row_is_gone_of_a_table_without_rowid(database: Path) -> None:
    change_without_index(database, "w_one", "DELETE FROM w WHERE a = 'name 4'")
    assert looked_through(database)[0] == {("w", "w_one", STRAY)}


@pytest.mark.parametrize(("table", "index"), [("one", "sqlite_autoindex_one_1"), ("w", "sqlite_autoindex_w_1")])
def test_unique_columns(database: Path, table: str, index: str) -> None:
    change = f"UPDATE {table} SET {'k' if table == 'one' else 'e'} = 'kk' WHERE rowid = 5"
    change_without_index(database, index, change if table == "one" else change.replace("rowid = 5", "e = 'e5'"))
    assert looked_through(database)[0] == {(table, index, LACKS), (table, index, STRAY)}


@pytest.mark.parametrize("index", ["named", "plain", "sqlite_autoindex_t_1"])
def test_a_bit_of_a_page(database: Path, index: str) -> None:
    flip_in_tree(database, index, b"Name 46", by=6)
    wrong, _, _ = looked_through(database)
    assert wrong == {("t", index, LACKS), ("t", index, STRAY)}


def test_the_head_of_a_page(database: Path) -> None:
    with closing(apsw.Connection(str(database))) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'falling'").get
        size = connection.pragma("page_size")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    data = bytearray(database.read_bytes())
    data[(root - 1) * size] ^= 0xFF
    database.write_bytes(data)
    wrong, _, _ = looked_through(database)
    assert {(table, index) for table, index, _ in wrong} == {("t", "falling")}
    assert all("cannot be read: database disk image is malformed" in what for _, _, what in wrong)


def test_a_stored_column_that_does_not_follow(database: Path) -> None:
    flip_in_tree(database, "t", b"name 46", by=6)  # the one of `name` begins with a capital
    wrong, _, _ = looked_through(database)
    assert wrong == {("t", ROWS, "has STORED generated columns (s, c) that do not follow from the row")}


def test_large_rows_and_keys_are_taken_a_few_at_a_time(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part ends early, and the same is found."""
    monkeypatch.setattr("replicate.region.sqlite.indexes.BYTES_MAX", 60)
    with reading(database) as connection:
        found = walk(connection, "t", "named", None, limit=1000)
        assert 1 < found.count < 20
        assert found.upto is not None
        rows = walk(connection, "t", ROWS, None, limit=1000)
        assert (rows.count, rows.wrong) == (50, [])
    wrong, _, counts = looked_through(database)
    assert wrong == set()
    assert counts["t."] == counts["t.plain"] == 50
    flip_in_tree(database, "t", b"name 46", by=6)
    change_without_index(database, "named", "UPDATE t SET name = 'other' WHERE id = 5")
    wrong, _, _ = looked_through(database)
    assert {(index, what.split()[0]) for _, index, what in wrong} == {
        ("", "has"), ("named", "lacks"), ("named", "has"),
    }  # fmt: skip


def test_what_needs_the_applications_functions_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    with closing(apsw.Connection(str(path))) as connection:
        connection.create_scalar_function("mine", lambda one: one, 1, deterministic=True)
        connection.create_collation("backwards", lambda one, other: (other > one) - (other < one))
        connection.execute(
            "CREATE TABLE t (a, b, c AS (mine(b)) STORED); CREATE INDEX i ON t (mine(a));"
            "CREATE INDEX j ON t (a COLLATE backwards); CREATE INDEX k ON t (a);"
            "INSERT INTO t VALUES ('a', 1), ('b', 2)"
        )
    wrong, left_out, counts = looked_through(path)
    assert wrong == set()
    assert left_out["i"] == left_out[""] == "no such function: mine"
    assert left_out.keys() == {"", "i", "j"}
    assert counts["t.k"] == 2


def test_what_is_gone_meanwhile_is_no_error(database: Path) -> None:
    with reading(database) as connection:
        assert walk(connection, "t", "no such", (1,), limit=5) == Walked()
        assert walk(connection, "no such", ROWS, (1,), limit=5).count == 0
        assert walk(connection, "t", "plain", (1,), limit=5).count == 0  # it is another index now
        assert checked_in(connection, "bare") == []


def test_what_was_read_is_told(database: Path) -> None:
    with reading(database) as connection:
        found = walk(connection, "t", "plain", None, limit=50)
        assert found.size > 0
        assert found.size % connection.pragma("page_size") == 0


@pytest.mark.parametrize("packed", [b"", b"\x90", b"\x91\x80", b"\x01", b"\xc1", b"\x91\xc3"])
def test_what_is_no_key(packed: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        unpacked_entry(packed)


def test_a_key_is_kept_as_it_is() -> None:
    key = (None, 1, 1.5, "a", "\udcff", b"\x00")
    assert unpacked_entry(packed_entry(key)) == key
    assert Wrong("i", "w") == Wrong("i", "w", None)
