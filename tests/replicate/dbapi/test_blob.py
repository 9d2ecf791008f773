"""BLOBs written in place: on a plain SQLite database, a primary and its secondary the outcome is the same.

Every program runs on a real primary, and its journal through the real applier.
"""

from __future__ import annotations

import gc
import sqlite3
import tracemalloc
from typing import Any

import pytest

from replicate.dbapi import Connection
from tests.harness.differential import Sides

SCRIPT = """
CREATE TABLE t (id INTEGER PRIMARY KEY, x BLOB, y TEXT, z UNIQUE);
CREATE TABLE n (x, y);
INSERT INTO t VALUES (1, zeroblob(100), 'texttext', 1), (2, zeroblob(10), 'b', 2);
INSERT INTO n VALUES (zeroblob(10), 'abcd'), (zeroblob(10), 'abcd');
"""


@pytest.fixture
def connection(sides: Sides) -> Any:
    return sides.calls.connections[0]


def rows(connection: Connection, table: str) -> list[tuple[Any, ...]]:
    return list(connection.execute(f"SELECT * FROM {table}"))


def test_a_blob_outside_of_a_transaction_is_one_of_its_own(sides: Sides, connection: Any) -> None:
    before = sides.pair.last_seqno()
    with connection.blobopen("t", "x", 1) as blob:
        blob.write(b"hello")
        blob.seek(50)
        blob.write(b"abc")
        blob[0], blob[10:13], blob[20:26:2] = 200, b"xyz", b"123"
        assert (blob[0], blob[10:13], blob.tell()) == (200, b"xyz", 53)
    assert not connection.in_transaction
    assert sides.pair.last_seqno() == before + 1
    sides.prove(plain=False)
    assert rows(connection, "t")[0][1][:14] == b"\xc8ello\0\0\0\0\0xyz\0"


def test_writes_among_other_changes_of_the_row(sides: Sides, connection: Any) -> None:
    with connection:
        with connection.blobopen("n", "y", 1) as blob:
            blob.write(b"ZZ")
        connection.execute("UPDATE n SET y = y || 'more'")
        with connection.blobopen("n", "x", 1) as blob:
            blob.write(b"QQ")
        connection.execute("UPDATE n SET rowid = rowid + 10")
        with connection.blobopen("n", "x", 12) as blob:
            blob.write(b"T")
        connection.execute("CREATE TABLE other (a)")
        with connection.blobopen("t", "y", 1) as blob:
            blob.write("\xe9".encode())
        connection.execute("REPLACE INTO t VALUES (1, zeroblob(5), 't', 3)")
        with connection.blobopen("t", "x", 2) as blob:
            blob.write(b"1")
            connection.execute("DELETE FROM n WHERE rowid = 11")
            blob.write(b"2")
    sides.prove(plain=False)
    assert rows(connection, "n") == [(b"T" + bytes(9), "abcdmore")]


def test_writes_are_taken_back_with_their_savepoint(sides: Sides, connection: Any) -> None:
    connection.execute("INSERT INTO n VALUES (1, 2)")
    with connection.blobopen("n", "x", 1) as blob:
        blob.write(b"kept")
    connection.execute("SAVEPOINT one")
    with connection.blobopen("n", "x", 1) as blob:
        blob.write(b"gone")
    connection.execute("ROLLBACK TO one")
    with connection.blobopen("t", "x", 2) as blob:
        blob.write(b"also kept")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO t VALUES (3, 3, 3, 7), (4, 4, 4, 7)")
    connection.commit()
    sides.prove(plain=False)
    assert rows(connection, "n")[0][0] == b"kept" + bytes(6)
    assert rows(connection, "t")[1][1] == b"also kept\0"
    with connection.blobopen("n", "x", 1) as blob:
        blob.write(b"no")
        connection.rollback()
    sides.prove(plain=False)


def test_a_row_that_goes_from_under_a_blob(sides: Sides, connection: Any) -> None:
    with connection:
        blob = connection.blobopen("t", "x", 2)
        blob.write(b"9")
        connection.execute("DELETE FROM t WHERE id = 2")
        with pytest.raises(sqlite3.OperationalError):
            blob.write(b"8")
        blob.close()
    sides.prove(plain=False)


def test_commit_with_an_open_blob_fails_before_anything_is_journaled(sides: Sides, connection: Any) -> None:
    blob = connection.blobopen("t", "x", 1)
    blob.write(b"5")
    before = sides.pair.last_seqno()
    with pytest.raises(sqlite3.OperationalError, match="open for writing"):
        connection.commit()
    assert connection.in_transaction
    assert sides.pair.last_seqno() == before
    del blob
    gc.collect()
    assert not connection.in_transaction
    assert sides.pair.last_seqno() == before + 1
    sides.prove(plain=False)


def test_a_blob_of_an_ended_transaction_is_refused_by_name(sides: Sides, connection: Any) -> None:
    blob = connection.blobopen("t", "x", 1)
    blob.write(b"5")
    connection.rollback()
    connection.execute("INSERT INTO n VALUES (1, 1)")
    with pytest.raises(sqlite3.NotSupportedError, match="has ended"):
        blob.write(b"6")
    with pytest.raises(sqlite3.OperationalError, match="open for writing"):
        connection.commit()
    blob.close()
    connection.commit()
    sides.prove(plain=False)
    assert rows(connection, "t")[0][1] == bytes(100)


def test_what_cannot_be_opened_or_written_changes_nothing(sides: Sides, connection: Any) -> None:
    before = sides.pair.last_seqno()
    for table, column, row in (("t", "x", 9), ("nowhere", "x", 1), ("t", "z", 1)):
        with pytest.raises(sqlite3.OperationalError):
            connection.blobopen(table, column, row)
        assert not connection.in_transaction
    with pytest.raises(sqlite3.NotSupportedError, match="bookkeeping"):
        connection.blobopen("_replicate_ring", "record", 1)
    blob = connection.blobopen("t", "y", 1)
    blob.write(b"\xff")
    with pytest.raises(sqlite3.NotSupportedError, match="not UTF-8"):
        blob.close()
    assert not connection.in_transaction
    assert sides.pair.last_seqno() == before
    with connection.blobopen("t", "x", 2) as blob:
        with pytest.raises(ValueError, match="longer than blob"):
            blob.write(bytes(11))
        with pytest.raises(IndexError):
            blob[0:3] = b"1"
        with pytest.raises(ValueError, match="range"):
            blob[0] = 256
    sides.prove(plain=False)


def test_blobs_written_one_after_the_other_are_not_kept_in_memory(sides: Sides, connection: Any) -> None:
    """Each row's image before its writes waited for the next statement, and there may be none before the commit."""
    size, count = 256 * 1024, 64
    connection.executemany("INSERT INTO n VALUES (zeroblob(?), ?)", [(size, number) for number in range(count)])
    connection.commit()
    connection.execute("BEGIN IMMEDIATE")
    tracemalloc.start()
    try:
        for row in range(3, count + 3):
            with connection.blobopen("n", "x", row) as blob:
                blob.write(b"written")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    connection.commit()
    assert peak < size * count / 4
    sides.prove(plain=False)
    assert {data[:8] for data, number in rows(connection, "n") if type(number) is int} == {b"written\0"}
