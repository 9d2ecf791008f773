"""The stages of a connection's transaction as an application meets them, and what goes to the door.

Guarantees: over a door of one process (tests/harness/fake_door.py), which keeps what it was given.
Leaves to others: what each step does in each stage (test_transaction_stages.py), and the real door (../door).
"""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from replicate.errors import BusyError, NotPrimaryError
from replicate.errors import NotSupportedError as NotReplicable
from tests.harness.fake_door import FakeDoor


def test_a_data_change_begins_a_transaction_and_reading_does_not(door: FakeDoor, connection: Any) -> None:
    connection.execute("SELECT * FROM t").fetchall()
    assert not connection.in_transaction
    assert door.begun == 0
    connection.execute("INSERT INTO n VALUES (1)")
    assert connection.in_transaction
    assert door.begun == 1
    connection.rollback()
    assert not connection.in_transaction
    assert door.commits == []


def test_explicit_begin_reads_without_the_region_and_upgrades(door: FakeDoor, connection: Any) -> None:
    connection.execute("BEGIN")
    assert connection.execute("SELECT count(*) FROM n").fetchone() == (0,)
    assert door.begun == 0
    connection.execute("INSERT INTO n VALUES (1)")
    assert door.begun == 1
    connection.execute("COMMIT")
    assert len(door.commits) == 1
    connection.execute("BEGIN")
    connection.execute("SELECT 1").fetchall()
    connection.commit()
    assert not connection.in_transaction
    with pytest.raises(sqlite3.OperationalError, match="no transaction is active"):
        connection.execute("COMMIT")


def test_begin_immediate_takes_the_region(door: FakeDoor, connection: Any) -> None:
    connection.execute("BEGIN IMMEDIATE")
    assert door.begun == 1
    other = door.connect()
    with pytest.raises(sqlite3.OperationalError, match="database is locked") as caught:
        other.execute("INSERT INTO n VALUES (1)")
    assert isinstance(caught.value, BusyError)
    assert caught.value.code == "BUSY"
    assert caught.value.sqlite_errorname == "SQLITE_BUSY"
    connection.execute("ROLLBACK")
    other.execute("INSERT INTO n VALUES (1)")
    other.commit()


def test_a_stale_reader_cannot_write(door: FakeDoor, connection: Any) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM n").fetchall()
    with door.connect() as other:
        other.execute("INSERT INTO n VALUES (1)")
    with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
        connection.execute("INSERT INTO n VALUES (2)")
    assert caught.value.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT"
    assert connection.in_transaction
    connection.rollback()
    connection.execute("INSERT INTO n VALUES (2)")


def test_autocommit_makes_every_statement_a_transaction(door: FakeDoor) -> None:
    connection = door.connect(isolation_level=None)
    connection.execute("INSERT INTO n VALUES (1)")
    connection.execute("UPDATE n SET x = 2")
    connection.executemany("INSERT INTO n VALUES (?)", [(3,), (4,)])
    assert connection.execute("INSERT INTO n VALUES (5) RETURNING x").fetchall() == [(5,)]
    assert door.operations() == [["INSERT"], ["UPDATE"], ["INSERT"], ["INSERT"], ["INSERT"]]
    assert connection.last_seqno == 5
    connection.execute("UPDATE n SET x = 1 WHERE x > 100")
    assert connection.last_seqno == 5
    assert connection.total_changes == 5


def test_with_insert_and_schema_changes_are_their_own_transactions(door: FakeDoor, connection: Any) -> None:
    connection.execute("WITH q AS (SELECT 1) INSERT INTO n SELECT * FROM q")
    connection.execute("CREATE TABLE z(a)")
    assert not connection.in_transaction
    assert door.operations() == [["INSERT"], ["SCHEMA", "DEFINE"]]


def test_a_text_that_is_no_sql_opens_no_transaction(connection: Any) -> None:
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("INSERT INTO nowhere VALUES (1)")
    assert not connection.in_transaction
    with pytest.raises(sqlite3.IntegrityError) as caught:
        connection.execute("INSERT INTO t(a) VALUES (1), (1)")
    assert connection.in_transaction
    assert caught.value.sqlite_errorname == "SQLITE_CONSTRAINT_UNIQUE"


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA journal_mode = DELETE",
        "PRAGMA writable_schema = ON",
        "VACUUM",
        "ATTACH 'other.db' AS other",
        "CREATE VIRTUAL TABLE f USING dbstat",
        "DROP TABLE _replicate_ring",
        "DROP TRIGGER _replicate_guard_insert_t",
        "CREATE INDEX i ON t(mine(a))",
    ],
)
def test_what_would_break_replication_is_refused_by_name(door: FakeDoor, connection: Any, sql: str) -> None:
    connection.create_function("mine", 1, lambda x: x, deterministic=True)
    with pytest.raises(sqlite3.NotSupportedError, match="NOT_SUPPORTED") as caught:
        connection.execute(sql)
    assert isinstance(caught.value, NotReplicable)
    assert caught.value.do
    assert not connection.in_transaction
    assert door.commits == []


def test_a_secondary_reads_and_refuses_to_write(door: FakeDoor) -> None:
    with door.connect() as writer:
        writer.execute("INSERT INTO n VALUES (1)")
    door.primary = False
    connection = door.connect()
    assert connection.execute("SELECT x FROM n").fetchall() == [(1,)]
    for sql in ("INSERT INTO n VALUES (2)", "CREATE TABLE z(a)", "PRAGMA user_version = 1", "BEGIN IMMEDIATE"):
        with pytest.raises(sqlite3.OperationalError, match=r"NOT_PRIMARY.*readonly") as caught:
            connection.execute(sql)
        assert isinstance(caught.value, NotPrimaryError)
        assert caught.value.do == "Write on the primary"
        assert not connection.in_transaction


def test_a_function_that_writes_by_itself_is_captured(door: FakeDoor, connection: Any) -> None:
    connection.create_function("dup", 1, lambda x: connection.execute("INSERT INTO n VALUES (?)", (x,)) and None)
    connection.execute("SELECT dup(5)").fetchall()
    connection.commit()
    assert door.operations() == [["INSERT"]]


def test_a_commit_round_the_door_becomes_a_rollback(door: FakeDoor, connection: Any) -> None:
    raw = connection._state.apsw
    with pytest.raises(Exception, match="constraint"):
        raw.execute("INSERT INTO n VALUES (1)")
    with pytest.raises(sqlite3.Error):
        connection.execute("SELECT nonsense")
    assert connection.execute("SELECT count(*) FROM n").fetchone() == (0,)
    connection.execute("INSERT INTO n VALUES (2)")
    connection.commit()
    assert len(door.commits) == 1
