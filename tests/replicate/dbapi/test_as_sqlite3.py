"""Programs that were found to end otherwise than with the standard library's sqlite3, or otherwise on the secondary, by
a comparison of the three.

Each program runs on a connection of sqlite3 and on one of ours; what it returns, and the tables, must be the same, and
the secondary's too.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.differential import Sides

SCRIPT = """
CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE);
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, a UNIQUE);
CREATE TABLE log (what, value);
CREATE TABLE folded (k TEXT COLLATE NOCASE PRIMARY KEY, a UNIQUE) WITHOUT ROWID;
CREATE TABLE made (id INTEGER PRIMARY KEY, a, twice AS (a + a));
INSERT INTO t VALUES (1, 1), (2, 2);
INSERT INTO counted (a) VALUES (1);
INSERT INTO folded VALUES ('a', 1), ('b', 2);
"""
TABLES = ("t", "counted", "log", "folded", "sqlite_sequence")


def same(sides: Sides, program: Callable[[Any], Any], script: str = SCRIPT, tables: tuple[str, ...] = TABLES) -> Any:
    """What a program returns, on both connections and with the same tables below it, on the secondary too. `script`:
    of the street."""
    ours = sides.calls.connections[0]  # type: ignore[union-attr]
    with contextlib.closing(sqlite3.connect(":memory:")) as plain:
        plain.executescript(script)
        ends = []
        for connection in (plain, ours):
            result = program(connection)
            open_then = connection.in_transaction
            connection.commit()
            ends.append(
                (result, open_then, [repr(connection.execute(f"SELECT * FROM {t}").fetchall()) for t in tables])
            )
    assert ends[0] == ends[1]
    sides.prove(plain=False)
    return ends[1][0]


def raised(action: Callable[[], Any]) -> str:
    """The name of what an action raises."""
    try:
        action()
    except Exception as error:
        return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ in ("sqlite3", "builtins"))
    return ""


# Sets of parameters whose giver uses the connection.


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "between", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "COMMIT; DELETE FROM log", "ROLLBACK; SAVEPOINT s"]
)
@pytest.mark.parametrize("table", ["t", "counted"])
def test_a_giver_of_parameters_ends_the_transaction(sides: Sides, between: str, table: str) -> None:
    def program(connection: Any) -> Any:
        cursor = connection.cursor()

        def give() -> Iterator[tuple[int]]:
            yield (10,)
            for text in between.split("; "):
                connection.execute(text)
            yield (11,)
            yield (12,)

        cursor.executemany(f"INSERT INTO {table} (a) VALUES (?)", give())
        return cursor.rowcount

    assert same(sides, program) == 3


def test_a_row_after_the_end_of_the_transaction_fails(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        cursor = connection.cursor()

        def give() -> Iterator[tuple[int]]:
            yield (10,)
            connection.commit()
            yield (11,)
            yield (1,)
            yield (12,)

        return raised(lambda: cursor.executemany("INSERT INTO t (a) VALUES (?)", give())), cursor.rowcount

    assert same(sides, program) == ("IntegrityError", -1)


# Counters of AUTOINCREMENT that no row tells of.


@pytest.mark.parametrize("between", [("ROLLBACK TO s",), ("COMMIT", "DELETE FROM t WHERE a = 2")])
def test_a_counter_that_is_watched_again(sides: Sides, between: tuple[str, ...]) -> None:
    """An ignored row raises the counter. A ROLLBACK TO had us forget to look at it, as a new transaction had."""

    def program(connection: Any) -> None:
        connection.execute("DELETE FROM t WHERE a = 1")
        connection.execute("SAVEPOINT s")

        def give() -> Iterator[tuple[int]]:
            yield (1,)
            for text in between:
                connection.execute(text)
            yield (1,)
            yield (1,)

        connection.executemany("INSERT OR IGNORE INTO counted (a) VALUES (?)", give())

    same(sides, program)


@pytest.mark.parametrize(
    "insert", ["INSERT OR IGNORE INTO counted (a) VALUES (1)", "INSERT OR FAIL INTO counted (a) VALUES (5), (1)"]
)
@pytest.mark.parametrize("many", [False, True])
def test_a_counter_that_a_temporary_trigger_moves(sides: Sides, insert: str, many: bool) -> None:
    def program(connection: Any) -> str:
        connection.execute(f"CREATE TEMP TRIGGER g AFTER DELETE ON t BEGIN {insert}; END")
        if many:
            return raised(lambda: connection.executemany("DELETE FROM t WHERE a = ?", [(1,), (2,)]))
        return raised(lambda: connection.execute("DELETE FROM t"))

    same(sides, program)


# What is left of a statement that failed.


@pytest.mark.parametrize("before", [0.0, -0.0])
def test_the_sign_of_a_zero_is_left_by_a_statement_that_failed(sides: Sides, before: float) -> None:
    """That it is all that a failed statement changed, was taken for no change."""

    def program(connection: Any) -> str:
        connection.execute("INSERT INTO log VALUES ('a', ?), ('b', ?)", (before, before))
        connection.execute(
            "CREATE TEMP TRIGGER g AFTER UPDATE ON log WHEN new.what = 'b' BEGIN SELECT RAISE(FAIL, ''); END"
        )
        connection.commit()
        return raised(lambda: connection.execute("UPDATE log SET value = ?", (-before,)))

    assert same(sides, program) == "IntegrityError"


def test_a_key_that_is_equal_under_its_collation(sides: Sides) -> None:
    def program(connection: Any) -> str:
        return raised(lambda: connection.execute("UPDATE OR FAIL folded SET k = upper(k), a = 1"))

    assert same(sides, program) == "IntegrityError"


def test_a_large_statement_that_a_temporary_trigger_ends_is_not_committed(sides: Sides) -> None:
    """Its rows stay in the database and had left memory: they were taken for taken back."""
    connection = sides.calls.connections[0]  # type: ignore[union-attr]
    connection.execute(
        "CREATE TEMP TRIGGER g AFTER INSERT ON log WHEN new.what = 900 BEGIN SELECT RAISE(FAIL, ''); END"
    )
    connection.execute("INSERT INTO t (a) VALUES (7)")
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(f"{numbers} INSERT INTO log SELECT i, zeroblob(1000) FROM n")
    assert connection.execute("SELECT count(*) FROM log").fetchone() == (900,)
    with pytest.raises(sqlite3.NotSupportedError, match="cannot be told"):
        connection.commit()
    connection.rollback()
    sides.prove(plain=False)


# Functions of the application that use their connection.


def test_a_schema_change_within_a_writing_statement_leaves_callbacks_at_work(sides: Sides) -> None:
    """It is refused (its savepoint is); progress handlers, authorizers and interrupts were kept away from then on."""
    connection = sides.calls.connections[0]  # type: ignore[union-attr]
    found = []

    def define() -> int:
        found.append(raised(lambda: connection.execute("CREATE TABLE made (a)")))
        connection.set_progress_handler(lambda: found.append("progress"), 1)
        return 1

    connection.create_function("define", 0, define)
    connection.execute("INSERT INTO log VALUES (define(), 1)")
    connection.execute("SELECT count(*) FROM log").fetchall()
    assert found[:2] == ["OperationalError", "progress"]
    connection.commit()
    sides.prove(plain=False)


@pytest.mark.parametrize("text", ["ROLLBACK", "INSERT OR ROLLBACK INTO t VALUES (1, 1)", "ROLLBACK; BEGIN"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_that_ends_within_a_statement_spoils_none_after_it(sides: Sides, text: str, fails: bool) -> None:
    """SQLite goes on with the statement (where the table has triggers, as our guards are), and leaves its rows in the
    cache: the next COMMIT wrote them."""
    connection = sides.calls.connections[0]  # type: ignore[union-attr]

    def end() -> int:
        for one in text.split("; "):
            with contextlib.suppress(sqlite3.Error):
                connection.execute(one)
        return 1

    connection.create_function("end_it", 0, end)
    connection.execute("INSERT INTO log VALUES (1, 1)")
    values = "SELECT 30 + end_it() + id, 30 + id FROM t" + (" UNION ALL SELECT 1, 1" if fails else "")
    with pytest.raises(sqlite3.OperationalError, match="abort due to ROLLBACK"):
        connection.execute(f"INSERT INTO t {values}")
    assert not connection.in_transaction
    assert connection.execute("SELECT * FROM t").fetchall() == [(1, 1), (2, 2)]
    connection.execute("INSERT INTO log VALUES (2, 2)")
    connection.commit()
    assert connection.execute("SELECT * FROM log").fetchall() == [(2, 2)]
    sides.prove(plain=False)


def test_a_commit_within_a_writing_statement(sides: Sides) -> None:
    """SQLite refuses it after the append to the journal, which then took the whole transaction back."""

    def program(connection: Any) -> list[str]:
        found = []

        def commit() -> int:
            found.append(raised(connection.commit))
            return 1

        connection.create_function("commit_it", 0, commit)
        connection.execute("INSERT INTO log VALUES (1, 1)")
        connection.execute("INSERT INTO log SELECT commit_it(), 5")
        connection.execute("SELECT commit_it()").fetchall()
        return found

    assert same(sides, program) == ["OperationalError", ""]


def test_a_statement_that_outlives_its_transaction_while_others_write(sides: Sides) -> None:
    connection, other = (sides.calls.connections[number] for number in (0, 1))  # type: ignore[union-attr]

    def end() -> int:
        connection.rollback()
        if not other.in_transaction:
            other.execute("BEGIN IMMEDIATE")
        return 1

    connection.create_function("end_it", 0, end)
    with pytest.raises(sqlite3.OperationalError, match="abort due to ROLLBACK"):
        connection.execute("INSERT INTO log SELECT end_it(), id FROM t")
    other.rollback()
    connection.execute("INSERT INTO log VALUES (2, 2)")
    with pytest.raises(sqlite3.NotSupportedError, match="outlived"):
        connection.commit()
    connection.rollback()
    connection.execute("INSERT INTO log VALUES (3, 3)")
    connection.commit()
    assert connection.execute("SELECT * FROM log").fetchall() == [(3, 3)]
    sides.prove(plain=False)


def test_a_savepoint_taken_back_within_a_statement_that_fails(sides: Sides) -> None:
    """What had been captured before the statement was gone as well: the failure was looked for in half a change."""
    connection = sides.calls.connections[0]  # type: ignore[union-attr]

    def take_back(value: int) -> int:
        connection.execute("INSERT INTO log VALUES ('in', 1)")
        connection.execute("ROLLBACK TO s")
        connection.execute("INSERT INTO log VALUES ('it', 2)")
        return value

    connection.create_function("take_back", 1, take_back)
    for text in ("INSERT INTO log VALUES ('before', 1)", "SAVEPOINT s", "INSERT INTO log VALUES ('after', 22222222)"):
        connection.execute(text)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT OR FAIL INTO t SELECT take_back(id) + 10, CASE id WHEN 2 THEN 1 ELSE 9 END FROM t")
    with pytest.raises(sqlite3.NotSupportedError, match="cannot be told"):
        connection.commit()
    connection.rollback()
    sides.prove(plain=False)


@pytest.mark.parametrize("many", [False, True])
def test_what_was_touched_before_a_statement_that_fails_around_another(sides: Sides, many: bool) -> None:
    """Rows of a table with a VIRTUAL column were told of within the statement, and taken back with it."""

    def program(connection: Any) -> str:
        def nest(value: int) -> int:
            with contextlib.suppress(sqlite3.IntegrityError):
                connection.execute("INSERT OR FAIL INTO t VALUES (70, 70), (1, 1)")
            return value

        connection.create_function("nest", 1, nest)
        connection.execute("INSERT INTO made (id, a) VALUES (1, 1)")
        text = "INSERT INTO t SELECT nest(id) + 60, 60 FROM t WHERE id < ?"
        return raised(lambda: connection.executemany(text, [(3,)]) if many else connection.execute(text, (3,)))

    assert same(sides, program) == "IntegrityError"


# The interface.


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "action",
    [
        lambda cursor: cursor.execute("INSERT INTO t (a) VALUES (1)"),
        lambda cursor: cursor.execute("INSERT INTO nowhere VALUES (1)"),
        lambda cursor: cursor.execute("INSERT INTO t (a) VALUES (?)"),
        lambda cursor: cursor.executemany("INSERT INTO t (a) VALUES (?)", [(8,), (1,)]),
        lambda cursor: cursor.executemany("INSERT INTO t (a) VALUES (?)", None),
        lambda cursor: cursor.executemany("BEGIN", [()]),
        lambda cursor: cursor.executemany("SAVEPOINT s", [()]),
        lambda cursor: cursor.executemany("COMMIT", [()]),
        lambda cursor: cursor.executemany("", [()]),
        lambda cursor: cursor.execute("SELECT ?1", {1: 2}),
        lambda cursor: cursor.execute("SELECT ?1", {"1": 2}),
    ],
)
def test_failures(sides: Sides, action: Callable[[Any], Any]) -> None:
    def program(connection: Any) -> Any:
        cursor = connection.cursor()
        return raised(lambda: action(cursor)), cursor.rowcount

    same(sides, program)


def test_parameters_in_a_script_are_null(sides: Sides) -> None:
    def program(connection: Any) -> None:
        connection.executescript(
            "INSERT INTO log VALUES (?, ?); INSERT INTO log VALUES (:a, :a); INSERT INTO log SELECT ?3, '?'; "
            "INSERT INTO log VALUES (@b, $c); CREATE TEMP TABLE k (a DEFAULT '?')"
        )

    same(sides, program)


def test_a_row_factory_may_be_set_between_two_rows(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        cursor = connection.execute("SELECT a FROM t UNION ALL VALUES (3), (4)")
        rows = [cursor.fetchone()]
        cursor.row_factory = sqlite3.Row
        rows.append(cursor.fetchone()["a"])
        cursor.row_factory = lambda _, row: list(row)
        rows.append(cursor.fetchone())
        cursor.row_factory = None
        return [*rows, cursor.fetchone(), cursor.fetchone()]

    assert same(sides, program) == [(1,), 2, [3], (4,), None]


def test_the_release_that_commits_is_told_to_the_trace_callback(sides: Sides) -> None:
    def program(connection: Any) -> list[str]:
        told: list[str] = []
        connection.set_trace_callback(told.append)
        for text in ("SAVEPOINT s", "INSERT INTO log VALUES (1, 1)", "RELEASE s"):
            connection.execute(text)
        connection.set_trace_callback(None)
        return told

    assert same(sides, program)[-1] == "RELEASE s"


def test_what_another_thread_and_a_closed_cursor_may_be_asked(sides: Sides) -> None:
    def program(connection: Any) -> list[str]:
        cursor = connection.cursor()
        cursor.close()
        found = [raised(lambda: iter(cursor)), raised(lambda: next(cursor))]

        def ask() -> None:
            for action in (
                lambda: connection.total_changes,
                lambda: connection.isolation_level,
                lambda: connection.in_transaction,
                lambda: connection.__enter__(),
                lambda: connection.execute("SELECT 1"),
            ):
                found.append(raised(action))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return found

    same(sides, program)


def test_a_closed_connection_has_no_isolation_level(sides: Sides) -> None:
    connection = sides.calls.connections[0]  # type: ignore[union-attr]
    connection.close()
    assert raised(lambda: connection.isolation_level) == "ProgrammingError"
