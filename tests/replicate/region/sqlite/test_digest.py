"""Digests and comparison: what must count does, down to the storage class, and what must not does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicate.region.sqlite import bookkeeping, digest, open
from replicate.region.sqlite.digest import CHUNK_ROWS, ColumnDifference, Comparison, TableVerdict
from tests.harness.regions import INSTANCE, NETWORK, REGION

SCRIPT = """
    CREATE TABLE t (id INTEGER PRIMARY KEY, v, g AS (id * 2));
    CREATE TABLE h (a TEXT, b);
    CREATE TABLE w (k TEXT COLLATE NOCASE, n, v, PRIMARY KEY (k, n)) WITHOUT ROWID;
    CREATE TABLE c (id INTEGER PRIMARY KEY AUTOINCREMENT);
    INSERT INTO c VALUES (9); DELETE FROM c;
    INSERT INTO w VALUES ('b', 1, 1), ('A', 2, 2), ('a', 1, 3), ('B', 0, 4);
"""
Pair = tuple[apsw.Connection, apsw.Connection]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two equal databases; the rows of the second were inserted in another order."""
    one, other = apsw.Connection(":memory:"), apsw.Connection(":memory:")
    rows = [(n, f"text {n}") for n in range(1, 3 * CHUNK_ROWS)]
    for connection, ordered in ((one, rows), (other, rows[::-1])):
        connection.execute(SCRIPT)
        connection.executemany("INSERT INTO t VALUES (?, ?)", ordered)
        connection.executemany(
            "INSERT INTO h (rowid, a, b) VALUES (?2 || '0', ?1, 5)", [(str(n), n) for n, _ in ordered]
        )
    yield one, other
    one.close()
    other.close()


def check_different(pair: Pair, table: str) -> Comparison:
    """Only `table` differs, in the digests and in the comparison; returned the other way round too."""
    one, other = (digest.digest_region(connection) for connection in pair)
    assert one.digest != other.digest
    assert [a.table for a, b in zip(one.tables, other.tables, strict=True) if a != b] == [table]
    comparison = digest.compare(*pair)
    assert not comparison.equal
    assert [found.table for found in comparison.tables if found.status is not TableVerdict.EQUAL] == [table]
    assert not digest.compare(pair[1], pair[0]).equal
    return comparison


def only(comparison: Comparison, table: str) -> digest.TableComparison:
    return next(found for found in comparison.tables if found.table == table)


def test_equal_content_gives_equal_digests(pair: Pair) -> None:
    one, other = (digest.digest_region(connection) for connection in pair)
    assert one == other
    assert [(found.table, found.rows) for found in one.tables] == [
        ("c", 0),
        ("h", 3 * CHUNK_ROWS - 1),
        ("t", 3 * CHUNK_ROWS - 1),
        ("w", 4),
        ("sqlite_sequence", 1),
    ]
    comparison = digest.compare(*pair)
    assert comparison.equal
    assert only(comparison, "t").rows_first == only(comparison, "t").rows_second == 3 * CHUNK_ROWS - 1


VALUES = [1, 1.0, "1", b"1", None, "", b"", 0, 0.0, 2**63 - 1, 9.223372036854775807e18, "x", "X"]


@pytest.mark.slow
def test_values_differ_by_their_storage_class(pair: Pair) -> None:
    for first in VALUES:
        for second in VALUES:
            pair[0].execute("UPDATE t SET v = ? WHERE id = 700", (first,))
            pair[1].execute("UPDATE t SET v = ? WHERE id = 700", (second,))
            same = first is second
            assert (digest.digest_table(pair[0], "t") == digest.digest_table(pair[1], "t")) == same
            assert (digest.compare_table(*pair, "t").status is TableVerdict.EQUAL) == same


def test_the_first_differing_rows_are_shown(pair: Pair) -> None:
    pair[1].execute(
        "UPDATE t SET v = 5 WHERE id = 700; DELETE FROM t WHERE id = 900; INSERT INTO t VALUES (5000, x'00')"
    )
    found = only(check_different(pair, "t"), "t")
    assert (found.status, found.reason) == (TableVerdict.DIFFERENT, "rows differ")
    assert [(row.key, row.status) for row in found.differences] == [
        ((700,), TableVerdict.DIFFERENT),
        ((900,), TableVerdict.ONLY_FIRST),
        ((5000,), TableVerdict.ONLY_SECOND),
    ]
    assert found.differences[0].columns == (ColumnDifference("v", "text 700", 5),)
    assert len(digest.compare_table(*pair, "t", limit=2).differences) == 2


def test_a_hidden_rowid_counts(pair: Pair) -> None:
    pair[1].execute("UPDATE h SET rowid = 77 WHERE rowid = 70")
    found = only(check_different(pair, "h"), "h")
    assert [(row.key, row.status) for row in found.differences] == [
        ((70,), TableVerdict.ONLY_FIRST),
        ((77,), TableVerdict.ONLY_SECOND),
    ]


def test_the_letter_case_of_a_key_counts(pair: Pair) -> None:
    pair[1].execute("UPDATE w SET k = 'B' WHERE k = 'b' AND n = 1")
    found = only(check_different(pair, "w"), "w")
    assert [(row.key, row.status) for row in found.differences] == [
        (("B", 1), TableVerdict.ONLY_SECOND),
        (("b", 1), TableVerdict.ONLY_FIRST),
    ]


def test_sequences_count(pair: Pair) -> None:
    pair[1].execute("UPDATE sqlite_sequence SET seq = 10")
    found = only(check_different(pair, "sqlite_sequence"), "sqlite_sequence")
    assert found.differences[0].columns == (ColumnDifference("seq", 9, 10),)


def test_the_schema_counts(pair: Pair) -> None:
    pair[1].execute("CREATE INDEX i ON t (v)")
    one, other = (digest.digest_region(connection) for connection in pair)
    assert (one.tables, one.schema == other.schema, one.digest == other.digest) == (other.tables, False, False)
    (difference,) = digest.compare(*pair).schema
    assert (difference.kind, difference.name, difference.first, difference.second) == (
        "index",
        "i",
        None,
        "CREATE INDEX i ON t (v)",
    )


@pytest.mark.parametrize("name", ["user_version", "application_id"])
def test_a_number_that_the_application_gives_its_schema_counts(pair: Pair, name: str) -> None:
    before = [digest.digest_region(connection).schema for connection in pair]
    pair[1].execute(f"PRAGMA {name} = 7")
    assert digest.digest_region(pair[1]).schema != before[1]
    (difference,) = digest.compare(*pair).schema
    assert (difference.kind, difference.name) == ("pragma", name)
    assert (difference.first, difference.second) == (None, f"PRAGMA {name} = 7")
    pair[1].execute(f"PRAGMA {name} = 0")
    assert [digest.digest_region(connection).schema for connection in pair] == before


def test_missing_and_redefined_tables(pair: Pair) -> None:
    pair[0].execute("CREATE TABLE first (a); ALTER TABLE h ADD COLUMN x")
    pair[1].execute("CREATE TABLE second (a)")
    comparison = digest.compare(*pair)
    assert only(comparison, "first").status is TableVerdict.ONLY_FIRST
    assert only(comparison, "second").status is TableVerdict.ONLY_SECOND
    assert only(comparison, "h").reason == "in the second: 2 columns instead of 3"
    assert only(comparison, "t").status is TableVerdict.EQUAL


def test_text_that_is_not_utf_8_is_compared_as_it_is(pair: Pair) -> None:
    for connection in pair:
        connection.execute("UPDATE t SET v = CAST(x'ff' AS TEXT) WHERE id = 800; UPDATE t SET v = 0.1 WHERE id = 801")
    assert digest.compare(*pair).equal
    assert digest.digest_region(pair[0]) == digest.digest_region(pair[1])
    pair[1].execute("UPDATE t SET v = x'ff' WHERE id = 800")
    found = only(check_different(pair, "t"), "t")
    assert found.differences[0].key == (800,)
    assert found.differences[0].columns[0] == ColumnDifference("v (storage class)", "text", "blob")


def test_bookkeeping_and_guards_do_not_count(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "r.db"))
    connection.execute(SCRIPT)
    before = digest.digest_region(connection)
    connection.close()
    region = open.open_region(tmp_path / "r.db", plain=True)
    open.install(region, network=NETWORK, instance=INSTANCE, region=REGION, name="main")
    bookkeeping.write_slot(region, 5, b"record")
    assert digest.digest_region(region) == before
    region.close()


def test_one_snapshot_is_read_while_others_write(tmp_path: Path) -> None:
    writer = apsw.Connection(str(tmp_path / "r.db"))
    writer.pragma("journal_mode", "wal")
    writer.execute("CREATE TABLE a (v); CREATE TABLE b (v); INSERT INTO a VALUES (1)")
    reader = apsw.Connection(str(tmp_path / "r.db"))
    before = digest.digest_region(reader)
    calls: list[tuple[str, int]] = []

    def write_meanwhile(table: str, rows: int) -> None:
        calls.append((table, rows))
        writer.execute("INSERT INTO b VALUES (2)")

    assert digest.digest_region(reader, progress=write_meanwhile) == before
    assert calls == [("a", 1)]
    assert not reader.in_transaction
    reader.execute("BEGIN; SELECT * FROM b").fetchall()
    writer.execute("DELETE FROM a")
    held = digest.digest_region(reader)
    assert held.tables[0] == before.tables[0]
    assert reader.in_transaction
    reader.execute("ROLLBACK")
    assert digest.digest_region(reader) != held
    writer.close()
    reader.close()


SQL_VALUES = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=9), st.binary(max_size=9)
)
ROWS = st.dictionaries(
    st.one_of(st.integers(-9, 9), st.text(max_size=2), st.binary(max_size=2)), SQL_VALUES, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(first=ROWS, second=ROWS)
def test_differences_are_complete_for_any_keys(first: dict[object, object], second: dict[object, object]) -> None:
    pair = apsw.Connection(":memory:"), apsw.Connection(":memory:")
    for connection, rows in zip(pair, (first, second), strict=True):
        connection.execute("CREATE TABLE t (k PRIMARY KEY, v) WITHOUT ROWID")
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows.items())
    found = digest.compare_table(*pair, "t", limit=100)
    assert {
        row.key[0] for row in found.differences if row.status is TableVerdict.ONLY_FIRST
    } == first.keys() - second.keys()
    assert {
        row.key[0] for row in found.differences if row.status is TableVerdict.ONLY_SECOND
    } == second.keys() - first.keys()
    changed = {
        key
        for key in first.keys() & second.keys()
        if (type(first[key]), repr(first[key])) != (type(second[key]), repr(second[key]))
    }
    assert {row.key[0] for row in found.differences if row.status is TableVerdict.DIFFERENT} == changed
    equal = digest.digest_table(pair[0], "t").digest == digest.digest_table(pair[1], "t").digest
    assert equal == (found.status is TableVerdict.EQUAL)
    for connection in pair:
        connection.close()
