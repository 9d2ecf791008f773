"""Cursors as a programmer who knows sqlite3 expects them: what execute says of itself, fetching, rows, errors."""

from __future__ import annotations

import datetime
import sqlite3
from typing import Any

import pytest

from replicate import dbapi
from tests.harness.fake_door import FakeDoor


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
