"""More bugs that tests/system/test_differential.py found, each with the shortest program that showed it (see
test_bugs.py), and some that reviews found.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import Any

import apsw
import pytest

from replicate import connect
from replicate.dbapi.row import columns_of_text
from tests.harness.differential import Sides, play

SCRIPT = """
CREATE TABLE auto (id INTEGER PRIMARY KEY AUTOINCREMENT, a NOT NULL, b UNIQUE);
CREATE TABLE n (x);
"""


COUNTED = "CREATE TABLE c (id INTEGER PRIMARY KEY AUTOINCREMENT, g AS (a) VIRTUAL, a)"


@pytest.mark.parametrize("between", ["COMMIT", "SELECT 1", "CREATE INDEX i ON c (a)"])
def test_a_changed_rowid_beside_a_virtual_column_moves_no_counter(sides: Sides, between: str) -> None:
    """Such a row goes and comes on the secondary, and what came there raised the AUTOINCREMENT counter (found by the
    differential test, seed 102-wild-2-0)."""
    play(sides, COUNTED, "BEGIN", "INSERT INTO c (id, a) VALUES (7, 1)", between, "UPDATE c SET id = id + 10")
    play(sides, "INSERT INTO c (a) VALUES (2)", "UPDATE c SET id = 40 WHERE id = 8")
    play(sides, "UPDATE c SET a = 3")
    play(sides, "DELETE FROM c", "INSERT INTO c (a) VALUES (4)")


@pytest.mark.parametrize("table", ["auto (a) VALUES (1)", "c (a) VALUES (1)"])
def test_a_counter_that_moved_before_a_pragma_that_travels(sides: Sides, table: str) -> None:
    """The counter came after the pragma, and was compared with what the rows had made of it (found by the differential
    test, seed 103-plain-0-9)."""
    play(sides, COUNTED, "COMMIT")
    play(sides, "BEGIN", f"INSERT INTO {table}", "SAVEPOINT s", "PRAGMA user_version = 1", f"INSERT INTO {table}")
    play(sides, "BEGIN", f"INSERT INTO {table}", "PRAGMA user_version = 2")


LIKE_SLOTS = "CREATE TABLE like_slots (id INTEGER PRIMARY KEY, n INTEGER, name TEXT)"


def test_a_table_that_looks_like_our_ring_is_taken_for_no_old_copy(sides: Sides) -> None:
    """A row (N, N, NULL) was taken for transaction N's slot of the ring, and the region for an old copy beside
    a newer -wal (found by the differential test, seed 115-wild-0-12)."""
    play(sides, LIKE_SLOTS, "COMMIT", "INSERT INTO n VALUES (1)")
    sides.calls.close()  # the last one to close takes all of the -wal over
    sides.calls.connections.clear()
    connection = connect(sides.pair.primary.path)
    after = sides.pair.last_seqno() + 2
    connection.execute("INSERT INTO like_slots VALUES (?, ?, NULL)", (after, after))
    connection.commit()
    connection.execute("INSERT INTO n VALUES (2)")
    connection.commit()
    assert os.path.getsize(f"{sides.pair.primary.region('main').path}-wal") > 0
    sides.prove(plain=False)
    connection.close()


SHORT = (
    "CREATE TABLE src (id INTEGER PRIMARY KEY, a)",
    "INSERT INTO src VALUES (1, 1), (2, 2)",
    "ALTER TABLE src ADD z DEFAULT 7",
    "CREATE TABLE dst (id INTEGER PRIMARY KEY, a, z DEFAULT 7)",
)


@pytest.mark.parametrize("insert", ["INSERT", "INSERT OR ABORT", "REPLACE"])
def test_short_records_that_are_copied_whole_arrive_whole(sides: Sides, insert: str) -> None:
    """Where a table has no trigger, SQLite copies the records of INSERT ... SELECT * as they are, and the hook is given
    NULL for what ALTER TABLE ADD left to the default: our guards keep it from that (found while they rested)."""
    play(sides, *SHORT, f"{insert} INTO dst SELECT * FROM src", "UPDATE dst SET a = a + 1")


def test_deleting_all_rows_is_heard_no_matter_who_prepared_it_first(sides: Sides) -> None:
    """The DELETE that clears a whole table at once calls no hook: our guards keep SQLite from it, always."""
    clear = "DELETE FROM dst"
    play(sides, *SHORT, clear, "INSERT INTO dst SELECT * FROM src", clear, "INSERT INTO dst (a) VALUES (5)", clear)


READ = "SELECT a.id FROM auto a JOIN auto b USING (id) JOIN auto c USING (id) WHERE a.id = -1"
WRITE = "UPDATE auto SET b = (SELECT max(a.id) FROM auto a JOIN auto c USING (id)) WHERE id = -1 RETURNING id, b"


@pytest.mark.parametrize(("call", "sql"), [("execute", READ), ("execute", WRITE), ("executemany", WRITE)])
def test_a_progress_handler_takes_no_description_away(sides: Sides, call: str, sql: str) -> None:
    """For the columns of a statement that gave no row it is prepared once more, if it is too long to be kept."""
    said: list[set[object]] = []
    for connection in (connect(sides.pair.primary.path), sqlite3.connect(":memory:")):
        with contextlib.closing(connection):
            if isinstance(connection, sqlite3.Connection):
                connection.executescript(SCRIPT)
            said.append({_stopped(connection, call, f"{sql} /*{'x' * 40_000}*/", stop) for stop in range(400)})
    assert said[0] == said[1]
    assert len(said[0]) == 2  # some were stopped, and some have run


def _stopped(connection: Any, call: str, sql: str, stop: int) -> object:
    """The columns of the statement, or how it failed: the progress handler stops it when it is called the time after
    `stop`, if it is."""
    calls = iter(range(stop))
    connection.set_progress_handler(lambda: next(calls, None) is None, 1)
    try:
        cursor = getattr(connection.cursor(), call)(sql, *([[()]] if call == "executemany" else []))
        return tuple(column[0] for column in cursor.description or ())
    except sqlite3.Error as error:
        return type(error).__name__
    finally:
        connection.set_progress_handler(None, 0)
        connection.rollback()


def test_an_interrupt_takes_no_description_away_unheard() -> None:
    connection = apsw.Connection(":memory:")
    reading = connection.execute("SELECT 1 UNION ALL SELECT 2")
    next(reading)
    connection.interrupt()
    with pytest.raises(apsw.InterruptError):
        columns_of_text(connection, "SELECT 3 AS x WHERE 0", ())
    reading.close()
    assert columns_of_text(connection, "SELECT 3 AS x WHERE 0", ()) == (("x", None),)
