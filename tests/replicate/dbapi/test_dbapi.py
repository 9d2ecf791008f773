"""The connection's manners: what a programmer who knows sqlite3 expects, and what we refuse by name."""

from __future__ import annotations

import datetime
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from replicate import dbapi
from replicate.errors import BusyError, ForkedError, NotPrimaryError, ReplicateError
from replicate.errors import NotSupportedError as NotReplicable
from tests.harness.fake_door import FakeDoor, make_region

SCHEMA = "CREATE TABLE t(id INTEGER PRIMARY KEY, a UNIQUE, b); CREATE TABLE n(x)"


@pytest.fixture
def door(tmp_path: Path) -> FakeDoor:
    return make_region(tmp_path / "region.db", SCHEMA)


@pytest.fixture
def connection(door: FakeDoor) -> Any:
    made = door.connect()
    yield made
    made.close()


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


def test_a_stale_reader_can_not_write(door: FakeDoor, connection: Any) -> None:
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


def test_the_context_manager_commits_or_rolls_back(door: FakeDoor, connection: Any) -> None:
    with connection:
        connection.execute("INSERT INTO n VALUES (1)")
    with pytest.raises(sqlite3.OperationalError), connection:
        connection.executescript("BEGIN; INSERT INTO n VALUES (2); SELECT nonsense")
    assert connection.execute("SELECT x FROM n").fetchall() == [(1,)]
    assert len(door.commits) == 1


def test_a_commit_that_fails_in_the_context_manager_is_rolled_back(door: FakeDoor, connection: Any) -> None:
    door.fail_commit = ReplicateError("the door is shut")
    with pytest.raises(sqlite3.OperationalError, match="INTERNAL: the door is shut"), connection:
        connection.execute("INSERT INTO n VALUES (1)")
    assert not connection.in_transaction
    door.fail_commit = None
    with connection:
        connection.execute("INSERT INTO n VALUES (1)")


def test_executescript_commits_first(door: FakeDoor, connection: Any) -> None:
    connection.execute("INSERT INTO n VALUES (1)")
    connection.executescript("INSERT INTO n VALUES (2); BEGIN; INSERT INTO n VALUES (3); SELECT 1; COMMIT; -- end")
    assert door.operations() == [["INSERT"]] * 3
    assert not connection.in_transaction


def test_rowcount_lastrowid_description(connection: Any) -> None:
    cursor = connection.execute("INSERT INTO t(a) VALUES (1), (2)")
    assert (cursor.rowcount, cursor.lastrowid, cursor.description) == (2, 2, None)
    cursor.executemany("INSERT INTO t(a) VALUES (?)", [(3,), (4,), (5,)])
    assert (cursor.rowcount, cursor.lastrowid) == (3, 2)
    cursor.execute("SELECT id, a AS renamed FROM t WHERE 0")
    assert [column[0] for column in cursor.description] == ["id", "renamed"]
    assert cursor.rowcount == -1
    cursor.execute("DELETE FROM t")
    assert cursor.rowcount == 5


def test_fetching(connection: Any) -> None:
    connection.executemany("INSERT INTO n VALUES (?)", [(i,) for i in range(10)])
    cursor = connection.execute("SELECT x FROM n ORDER BY x")
    assert cursor.fetchone() == (0,)
    assert cursor.fetchmany() == [(1,)]
    assert cursor.fetchmany(3) == [(2,), (3,), (4,)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(5,), (6,)]
    assert next(cursor) == (7,)
    assert cursor.fetchall() == [(8,), (9,)]
    assert cursor.fetchone() is None


def test_a_statement_whose_last_row_was_fetched_holds_nothing(connection: Any) -> None:
    connection.execute("INSERT INTO n VALUES (1)")
    connection.commit()
    cursor = connection.execute("SELECT x FROM n")
    assert cursor.fetchone() == (1,)
    connection.execute("DROP TABLE n")
    dropped = connection.execute("SELECT * FROM t UNION ALL VALUES (1,2,3), (4,5,6)")
    del dropped
    connection.execute("DROP TABLE t")


def test_rows_and_factories(connection: Any) -> None:
    connection.row_factory = sqlite3.Row
    row = connection.execute("SELECT 1 AS One, 'x' AS two").fetchone()
    assert isinstance(row, sqlite3.Row)
    assert (row["one"], row["TWO"], row[0], row.keys(), tuple(row)) == (1, "x", 1, ["One", "two"], (1, "x"))
    connection.row_factory = lambda cursor, values: {c[0]: v for c, v in zip(cursor.description, values, strict=True)}
    assert connection.execute("SELECT 1 AS a").fetchall() == [{"a": 1}]
    connection.row_factory = None
    connection.text_factory = bytes
    assert connection.execute("SELECT 'é', 1").fetchone() == ("é".encode(), 1)


def test_adapters_and_converters(door: FakeDoor) -> None:
    connection = door.connect(detect_types=dbapi.PARSE_DECLTYPES | dbapi.PARSE_COLNAMES)
    connection.execute("CREATE TABLE d(day date, at timestamp)")
    day, at = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, 2, 3, 4)
    connection.execute("INSERT INTO d VALUES (?, ?)", (day, at))
    assert connection.execute("SELECT day, at FROM d").fetchone() == (day, at)
    cursor = connection.execute("SELECT '2024-01-01' AS \"x [date]\"")
    assert cursor.fetchone() == (datetime.date(2024, 1, 1),)
    assert cursor.description[0][0] == "x"
    assert connection.execute("SELECT ?, ?", (True, memoryview(b"ab"))).fetchone() == (1, b"ab")
    assert connection.execute("SELECT :a", {"a": 5, "b": 6}).fetchone() == (5,)


@pytest.mark.parametrize(
    ("sql", "parameters", "kind", "text"),
    [
        ("SELECT ?", (), sqlite3.ProgrammingError, "bindings"),
        ("SELECT ?", (1, 2), sqlite3.ProgrammingError, "bindings"),
        ("SELECT :a", {}, sqlite3.ProgrammingError, "binding parameter :a"),
        ("SELECT ?", (object(),), sqlite3.ProgrammingError, "type 'object' is not supported"),
        ("SELECT ?", 5, sqlite3.ProgrammingError, "unsupported type"),
        ("SELECT ?", (1 << 63,), OverflowError, "too large"),
        ("SELECT 1; SELECT 2", (), sqlite3.ProgrammingError, "one statement"),
        ("SELEC", (), sqlite3.OperationalError, "syntax error"),
        ("SELECT * FROM nowhere", (), sqlite3.OperationalError, "no such table"),
        ("INSERT INTO t(a) VALUES (1), (1)", (), sqlite3.IntegrityError, "UNIQUE constraint failed: t.a"),
    ],
)
def test_errors(connection: Any, sql: str, parameters: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        connection.execute(sql, parameters)


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


def test_blobs_opened_for_reading(connection: Any) -> None:
    connection.execute("INSERT INTO n VALUES (x'01020304')")
    with connection.blobopen("n", "x", 1, readonly=True) as blob:
        assert (len(blob), blob.read(2), blob.tell(), blob[-1], blob[::2]) == (4, b"\1\2", 2, 4, b"\1\3")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            blob.write(b"x")
    with pytest.raises(sqlite3.NotSupportedError):
        connection.deserialize(b"")


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


def test_a_fork_can_not_use_the_connection(connection: Any) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            connection.execute("SELECT 1")
        except ForkedError as error:
            code = 0 if isinstance(error, sqlite3.ProgrammingError) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    connection.execute("INSERT INTO n VALUES (1)")
    connection.commit()


def test_threads(door: FakeDoor, connection: Any) -> None:
    errors: list[BaseException] = []

    def use(one: Any) -> None:
        try:
            one.execute("INSERT INTO n VALUES (1)")
            one.commit()
        except BaseException as error:
            errors.append(error)

    shared = door.connect(check_same_thread=False)
    for one in (connection, shared):
        thread = threading.Thread(target=use, args=(one,))
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert isinstance(errors[0], sqlite3.ProgrammingError)
    assert "same thread" in str(errors[0])


def test_closed(door: FakeDoor) -> None:
    connection = door.connect()
    cursor = connection.cursor()
    connection.execute("INSERT INTO n VALUES (1)")
    connection.close()
    connection.close()
    for use in (connection.commit, connection.cursor, cursor.fetchone, lambda: connection.in_transaction):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            use()
    assert door.connect().execute("SELECT count(*) FROM n").fetchone() == (0,)


def test_copies(door: FakeDoor, connection: Any) -> None:
    connection.executescript(
        "CREATE INDEX i ON t(b); INSERT INTO t VALUES (1, 'it''s', x'00'); INSERT INTO n VALUES (NULL)"
    )
    script = list(connection.iterdump())
    assert not [line for line in script if "_replicate_" in line]
    plain = sqlite3.connect(":memory:")
    plain.executescript("".join(script))
    assert plain.execute("SELECT * FROM t").fetchall() == [(1, "it's", b"\0")]
    target = sqlite3.connect(":memory:")
    steps: list[tuple[int, int, int]] = []
    connection.backup(target, pages=1, progress=lambda *step: steps.append(step), sleep=0)
    assert target.execute("SELECT * FROM n").fetchall() == [(None,)]
    assert len(steps) > 1
    assert connection.serialize().startswith(b"SQLite format 3\0")


def test_trace_and_total_changes_show_only_the_applications_work(connection: Any) -> None:
    told: list[str] = []
    connection.set_trace_callback(told.append)
    with connection:
        connection.execute("CREATE TABLE z(a)")
        connection.executemany("INSERT INTO z VALUES (?)", [(1,), (2,)])
    connection.set_trace_callback(None)
    connection.execute("SELECT 1")
    assert told == ["CREATE TABLE z(a)", "BEGIN ", "INSERT INTO z VALUES (1)", "INSERT INTO z VALUES (2)", "COMMIT"]
    assert connection.total_changes == 2


def test_callbacks_are_kept_away_from_the_door(connection: Any) -> None:
    connection.set_authorizer(lambda action, one, *_: dbapi.SQLITE_DENY if str(one).startswith("_replicate") else 0)
    connection.set_progress_handler(lambda: False, 1)
    connection.execute("INSERT INTO n VALUES (1)")
    connection.commit()
    with pytest.raises(sqlite3.DatabaseError, match="prohibited"):
        connection.execute("SELECT * FROM _replicate_ring")
    connection.set_progress_handler(lambda: True, 1)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        connection.execute("SELECT count(*) FROM n AS a, n AS b")
    connection.set_progress_handler(None, 0)


def test_a_function_that_writes_by_itself_is_captured(door: FakeDoor, connection: Any) -> None:
    connection.create_function("dup", 1, lambda x: connection.execute("INSERT INTO n VALUES (?)", (x,)) and None)
    connection.execute("SELECT dup(5)").fetchall()
    connection.commit()
    assert door.operations() == [["INSERT"]]


def test_a_commit_round_the_door_becomes_a_rollback(door: FakeDoor, connection: Any) -> None:
    raw = connection._apsw
    with pytest.raises(Exception, match="constraint"):
        raw.execute("INSERT INTO n VALUES (1)")
    with pytest.raises(sqlite3.Error):
        connection.execute("SELECT nonsense")
    assert connection.execute("SELECT count(*) FROM n").fetchone() == (0,)
    connection.execute("INSERT INTO n VALUES (2)")
    connection.commit()
    assert len(door.commits) == 1


def test_wait_durable_asks_for_the_last_commit(connection: Any) -> None:
    connection.execute("INSERT INTO n VALUES (1)")
    connection.commit()
    connection.wait_durable()
    assert connection._opened.waited == [1]


def test_isolation_level(door: FakeDoor, connection: Any) -> None:
    assert connection.isolation_level == ""
    connection.isolation_level = "immediate"
    assert connection.isolation_level == "IMMEDIATE"
    with pytest.raises(ValueError, match="isolation_level"):
        connection.isolation_level = "nonsense"
    connection.execute("INSERT INTO n VALUES (1)")
    connection.isolation_level = None
    assert len(door.commits) == 1


def test_module_interface() -> None:
    assert (dbapi.apilevel, dbapi.paramstyle, dbapi.threadsafety) == ("2.0", "qmark", 1)
    assert dbapi.IntegrityError is sqlite3.IntegrityError
    assert dbapi.Row is sqlite3.Row
    assert dbapi.SQLITE_DENY == 1
    with pytest.raises(AttributeError):
        _ = dbapi.nonsense


def test_a_standard_library_without_its_driver_version_is_enough() -> None:
    """As Python 3.14's: it took `sqlite3.version` away, after two releases of warnings."""
    program = (
        "import sqlite3\n"
        "for name in ('version', 'version_info', '__getattr__'):\n"
        "    vars(sqlite3).pop(name, None)\n"
        "import replicate.dbapi as driver\n"
        "print(driver.version, driver.version_info)"
    )
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("2.6.0 (2, 6, 0)\n", "")
