"""What a differential fuzzer found to end otherwise than with the standard library's sqlite3, each with the shortest
program that showed it (see test_as_sqlite3.py).

Guarantees: what the program returns and the tables below it are the same on both, and the secondary's too.
Leaves to others: what has been promised otherwise (test_differences.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from replicate.region.sqlite.capture.capture import Capture
from tests.harness.differential import Sides
from tests.replicate.dbapi.test_as_sqlite3 import SCRIPT as SCRIPT
from tests.replicate.dbapi.test_as_sqlite3 import same


def told(action: Callable[[], Any]) -> str:
    """What an action raises: its class in sqlite3 or Python, and what it says."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# Interrupts.


@pytest.mark.parametrize("isolation_level", [None, ""])
@pytest.mark.parametrize("sql", ["INSERT INTO counted (a) VALUES (5)", "INSERT INTO t (a) VALUES (5)"])
def test_a_progress_handler_stops_a_write(sides: Sides, isolation_level: str | None, sql: str) -> None:
    """Our look at the counters of AUTOINCREMENT was stopped, and the statement's own transaction stayed open."""

    def program(connection: Any) -> Any:
        connection.isolation_level = isolation_level
        connection.commit()
        found = []
        for run in (lambda: connection.execute(sql), lambda: connection.executemany(sql, [()])):
            connection.set_progress_handler(lambda: True, 1)
            found.append((told(run), connection.in_transaction))
            connection.set_progress_handler(None, 1)
            connection.rollback()
        return found

    assert same(sides, program) == [("OperationalError: interrupted", False)] * 2


@pytest.mark.parametrize("isolation_level", [None, ""])
def test_whatever_stops_our_look_at_the_counters_leaves_no_transaction(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, isolation_level: str | None
) -> None:
    connection = sides.calls.connections[0]  # type: ignore[union-attr]
    connection.isolation_level = isolation_level

    def interrupted(self: Capture) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Capture, "watch_sequences", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.execute("INSERT INTO counted (a) VALUES (5)")
    assert not connection.in_transaction
    connection.execute("INSERT INTO counted (a) VALUES (6)")
    connection.commit()
    sides.prove(plain=False)


@pytest.mark.turns(4)
@pytest.mark.parametrize("isolation_level", [None, "", "IMMEDIATE"])
@pytest.mark.parametrize("begin", ["", "BEGIN", "BEGIN IMMEDIATE"])
def test_an_interrupt_while_the_region_is_taken(sides: Sides, isolation_level: str | None, begin: str) -> None:
    """It was shown as an I/O error of the disk. (SQLite stops all that begins until what ran then has ended.)"""

    def program(connection: Any) -> Any:
        connection.isolation_level = isolation_level
        connection.commit()
        rows = connection.execute("WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c")
        rows.fetchone()
        if begin == "BEGIN":
            connection.execute(begin)
        connection.interrupt()
        found = [told(lambda: connection.execute("INSERT INTO t VALUES (9, 9)")), connection.in_transaction]
        if begin == "BEGIN IMMEDIATE":
            found += [told(lambda: connection.execute(begin)), connection.in_transaction]
        rows.close()
        found += [told(lambda: connection.execute("INSERT INTO t VALUES (10, 10)")), connection.in_transaction]
        return found

    assert same(sides, program)[0] == "OperationalError: interrupted"


def test_an_interrupt_that_ends_the_transaction_of_a_reader(sides: Sides) -> None:
    """SQLite rolls back when it stops a statement that writes, and what takes the region is one (but the first time,
    when it is stopped as it is prepared). We took the transaction for open, and no commit could end it."""

    def program(connection: Any) -> Any:
        connection.isolation_level = None
        for text in ("BEGIN", "INSERT INTO t VALUES (9, 9)", "DELETE FROM t WHERE id = 9", "COMMIT", "BEGIN"):
            connection.execute(text)
        rows = connection.execute("WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c")
        rows.fetchone()
        connection.interrupt()
        found = [told(lambda: connection.execute("INSERT INTO t VALUES (9, 9)")), connection.in_transaction]
        rows.close()
        return [*found, told(connection.commit), connection.in_transaction]

    assert same(sides, program) == ["OperationalError: interrupted", False, "", False]


# BLOBs.


def test_nothing_is_assigned_to_an_empty_slice_of_a_blob(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        connection.execute("INSERT INTO log VALUES (x'00', 1)")
        with connection.blobopen("log", "what", 1) as blob:
            for value in (b"ab", b"", 3, None):
                blob[1:3] = value
            return told(lambda: blob.__setitem__(slice(0, 3), b"ab")), blob.read()

    assert same(sides, program) == ("IndexError: Blob slice assignment is wrong size", b"\0")


@pytest.mark.parametrize("begin", ["", "BEGIN", "INSERT INTO t VALUES (9, 9)"])
@pytest.mark.parametrize("data", [b"z", b""])
def test_a_blob_opened_for_reading_is_not_written_to(sides: Sides, data: bytes, begin: str) -> None:
    """The hook had heard of the write before SQLite refused it, and the next commit failed with INTERNAL."""

    def program(connection: Any) -> Any:
        connection.execute("INSERT INTO log (value) VALUES (zeroblob(4))")
        connection.commit()
        if begin:
            connection.execute(begin)
        with connection.blobopen("log", "value", 1, readonly=True) as blob:
            found = [told(lambda: blob.write(data)), told(lambda: blob.__setitem__(0, 5)), blob.tell(), blob.read()]
        found += [told(connection.commit), told(lambda: connection.execute("INSERT INTO t VALUES (10, 10)"))]
        return found

    refused = "OperationalError: attempt to write a readonly database"
    assert same(sides, program) == [refused, refused, 0, bytes(4), "", ""]


# Rows of a cursor.


@pytest.mark.parametrize("script", ["", "INSERT INTO log VALUES (1, 2); SELECT 5", "SELECT 1; SELECT nonsense"])
def test_a_script_leaves_the_cursors_rows(sides: Sides, script: str) -> None:
    def program(connection: Any) -> Any:
        cursor = connection.execute("SELECT a FROM t")
        found = [cursor.fetchone(), told(lambda: cursor.executescript(script))]
        return [*found, cursor.description, cursor.rowcount, cursor.fetchall(), cursor.execute("SELECT 3").fetchall()]

    assert same(sides, program)[4]


@pytest.mark.parametrize("first", [False, True])
def test_a_script_is_told_to_the_trace_callback_and_what_follows_it(sides: Sides, first: bool) -> None:
    def program(connection: Any) -> Any:
        texts: list[str] = []
        cursor = connection.cursor()
        for trace in (texts.append, None, texts.append):
            if first:
                cursor.execute("SELECT 1")
            connection.set_trace_callback(trace)
            cursor.executescript("SELECT 2; SELECT 3;")
            cursor.execute("SELECT 4")
        return [text.strip("; ") for text in texts]

    same(sides, program)


def test_a_row_factory_that_fails_has_had_its_row(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        def picky(cursor: Any, row: tuple[Any, ...]) -> Any:
            if row[0] == 2:
                raise ValueError("not this one")
            return row

        connection.row_factory = picky
        cursor = connection.execute("SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4")
        connection.row_factory = None
        return [cursor.fetchone(), told(cursor.fetchone), cursor.fetchone(), cursor.fetchall()]

    assert same(sides, program) == [(1,), "ValueError: not this one", (3,), [(4,)]]


def test_a_row_factory_may_use_its_cursor(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        connection.row_factory = lambda cursor, row: (row, next(cursor, None) if row[0] == 1 else None)
        cursor = connection.execute("SELECT 1 UNION SELECT 2 UNION SELECT 3")
        connection.row_factory = None
        return cursor.fetchall()

    assert same(sides, program) == [((1,), ((2,), None)), ((3,), None)]


def test_a_row_that_a_text_factory_failed_at_is_still_the_next_one(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        failures = [LookupError("no")]

        def picky(text: bytes) -> Any:
            if text == b"b" and failures:
                raise failures.pop()
            return text

        connection.text_factory = picky
        cursor = connection.execute("SELECT 'a' UNION SELECT 'b' UNION SELECT 'c'")
        found = [cursor.fetchone(), told(cursor.fetchone), cursor.fetchone(), cursor.fetchone(), cursor.fetchone()]
        connection.text_factory = str
        return found

    assert same(sides, program) == [(b"a",), "LookupError: no", (b"b",), (b"c",), None]


@pytest.mark.parametrize("size", [None, 1.0, "2", 0, -1, 2, True])
def test_how_many_rows_are_fetched(sides: Sides, size: Any) -> None:
    def program(connection: Any) -> Any:
        cursor = connection.execute("SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4")
        found: list[Any] = []
        return [told(lambda: found.extend(cursor.fetchmany(size))), found, cursor.fetchmany(), cursor.fetchall()]

    same(sides, program)


# Sets of parameters.

RUNS_RETURNING = sys.version_info < (3, 12)
"""Later ones keep a row of the last set, and then misuse the statement or cannot commit; ours stays with 3.11."""


if RUNS_RETURNING:

    @pytest.mark.parametrize("count", [0, 1, 2])
    @pytest.mark.parametrize("isolation_level", [None, ""])
    def test_sets_for_a_statement_that_returns_rows(sides: Sides, count: int, isolation_level: str | None) -> None:
        def program(connection: Any) -> Any:
            connection.isolation_level = isolation_level
            cursor = connection.cursor()
            cursor.executemany("INSERT INTO t (a) VALUES (?) RETURNING a AS x, id", [(n + 5,) for n in range(count)])
            return cursor.description, cursor.fetchall(), cursor.rowcount, connection.in_transaction

        assert (same(sides, program)[0] is None) == (count == 0)


@pytest.mark.parametrize("returning", ["", *(["RETURNING a"] if RUNS_RETURNING else [])])
def test_sets_begin_one_transaction(sides: Sides, returning: str) -> None:
    """One began with each set of a statement that returns rows."""

    def program(connection: Any) -> Any:
        def give() -> Iterator[tuple[int]]:
            yield (5,)
            connection.commit()
            yield (6,)

        connection.executemany(f"INSERT INTO t (a) VALUES (?) {returning}", give())
        return connection.in_transaction

    assert same(sides, program) is False


@pytest.mark.turns(4)
@pytest.mark.parametrize("isolation_level", [None, ""])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "sql", ["INSERT INTO nowhere VALUES (?)", "INSERT INTO t (a) VALUES (?) RETURNING b", "UPDATE"]
)
def test_sql_is_looked_at_before_the_sets(sides: Sides, isolation_level: str | None, fails: bool, sql: str) -> None:
    def program(connection: Any) -> Any:
        connection.isolation_level = isolation_level

        def give() -> Iterator[tuple[int]]:
            if fails:
                raise LookupError("no set")
            yield from ()

        return told(lambda: connection.executemany(sql, give())), connection.in_transaction

    assert same(sides, program)[0].startswith("OperationalError")


@pytest.mark.parametrize(
    "sql",
    ["PRAGMA table_info(t)", "PRAGMA user_version", "SELECT b FROM t", "SELECT 1", "COMMIT", "RELEASE s", "-- none"],
)
def test_what_takes_no_sets(sides: Sides, sql: str) -> None:
    same(sides, lambda connection: told(lambda: connection.executemany(sql, [()])))


@pytest.mark.parametrize("sets", [[], [()]])
@pytest.mark.parametrize("sql", ["ALTER TABLE nowhere RENAME TO x", "DROP TABLE log", "DROP TABLE nowhere"])
def test_a_definition_takes_sets(sides: Sides, sql: str, sets: list[Any]) -> None:
    def program(connection: Any) -> Any:
        found = told(lambda: connection.executemany(sql, sets)), connection.in_transaction
        connection.execute("CREATE TABLE IF NOT EXISTS log (what, value)")
        return found

    same(sides, program)


# Parameters that fail, and texts that do.


@pytest.mark.turns(4)
@pytest.mark.parametrize("isolation_level", [None, ""])
@pytest.mark.parametrize("given", [(object(),), (2**70,), {"x": 1}, 5, (), (1, 2)])
@pytest.mark.parametrize(
    "sql", ["INSERT INTO t (a) VALUES (:a)", "INSERT INTO t (b) VALUES (:a)", "SELECT :a", "NO :a"]
)
def test_parameters_that_fail(sides: Sides, isolation_level: str | None, given: Any, sql: str) -> None:
    """What is wrong with the text is said first, and the transaction has begun when the parameters are looked at."""

    def program(connection: Any) -> Any:
        connection.isolation_level = isolation_level
        cursor = connection.cursor()
        return told(lambda: cursor.execute(sql, given)), connection.in_transaction, cursor.rowcount

    assert same(sides, program)[0]


@pytest.mark.parametrize("given", [{"a": 1, "b": object()}, {"a": 1}])
def test_named_parameters_that_fail(sides: Sides, given: Any) -> None:
    assert same(sides, lambda connection: told(lambda: connection.execute("SELECT :a, :b", given)))


@pytest.mark.parametrize("text", ["COMMIT", "END", "commit transaction", "ROLLBACK", "rollback transaction"])
def test_the_trace_callback_is_told_the_end_as_it_was_written(sides: Sides, text: str) -> None:
    def program(connection: Any) -> Any:
        texts: list[str] = []
        connection.execute("INSERT INTO t (a) VALUES (5)")
        connection.set_trace_callback(texts.append)
        connection.execute(text)
        connection.set_trace_callback(None)
        return texts

    assert same(sides, program) == [text]


def test_the_trace_callback_is_told_of_the_commit_before_a_script(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        texts: list[str] = []
        connection.execute("INSERT INTO t (a) VALUES (5)")
        connection.set_trace_callback(texts.append)
        connection.executescript("")
        connection.set_trace_callback(None)
        return texts

    assert same(sides, program) == ["COMMIT"]


@pytest.mark.parametrize("sql", ["SELECT 1", "SELECT nothing", "NO", "INSERT INTO t VALUES (?, :x)", "", "COMMIT"])
def test_a_connection_that_is_called_prepares(sides: Sides, sql: str) -> None:
    def program(connection: Any) -> Any:
        return told(lambda: connection(sql)), connection.in_transaction

    same(sides, program)


def test_several_statements_have_no_count_of_rows_and_no_description(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        cursor = connection.execute("INSERT INTO t (a) VALUES (5) RETURNING a")
        return told(lambda: cursor.execute("SELECT 1; SELECT 2")), cursor.rowcount, cursor.description

    assert same(sides, program)[1:] == (-1, None)


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO child VALUES (5, 13)",
        "INSERT INTO child VALUES (5, 13), (6, 13)",
        "INSERT OR FAIL INTO child VALUES (5, 13), (6, 13), (1, 1)",
        "INSERT INTO child SELECT 5, 13 WHERE 0",
        "UPDATE child SET t = 13",
        "DELETE FROM t WHERE id = 1",
    ],
)
@pytest.mark.parametrize("way", ["execute", "executemany", "executescript"])
def test_rows_of_a_statement_whose_own_commit_failed_are_not_counted(sides: Sides, way: str, sql: str) -> None:
    """What is its own transaction counts nothing when a foreign key that waits for the COMMIT is broken then; what its
    triggers wrote SQLite has counted by then."""

    def program(connection: Any) -> Any:
        connection.executescript(
            "CREATE TABLE child (id INTEGER PRIMARY KEY, t REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED);"
            "CREATE TRIGGER noted AFTER INSERT ON child BEGIN INSERT INTO log VALUES ('child', new.id); END;"
            "INSERT INTO child VALUES (1, 1)"
        )
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")
        before, cursor = connection.total_changes, connection.cursor()
        ways: dict[str, Callable[[], Any]] = {
            "execute": lambda: cursor.execute(sql).fetchall(),
            "executemany": lambda: cursor.executemany(sql, [()]),
            "executescript": lambda: cursor.executescript(sql),
        }
        return (
            told(ways[way]),
            connection.total_changes - before,
            cursor.rowcount,
            connection.in_transaction,
            connection.execute("SELECT * FROM child").fetchall(),
        )

    assert same(sides, program)[0] == ("" if "WHERE 0" in sql else "IntegrityError: FOREIGN KEY constraint failed")
