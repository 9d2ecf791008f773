"""dbapi/prepare.py: SQLite judges a text, and nothing happens by it."""

from __future__ import annotations

import apsw
import pytest

from replicate.dbapi.prepare import can_prepare, prepare
from replicate.region.sqlite.sql.statements import classify


@pytest.fixture
def connection() -> apsw.Connection:
    made = apsw.Connection("")
    made.execute("CREATE TABLE t (a UNIQUE)")
    return made


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("SELECT a FROM t WHERE a = ? AND a > :x", True),
        ("INSERT INTO t VALUES (?)", False),
        ("DELETE FROM t", False),
        ("DROP TABLE t", False),
        ("CREATE TABLE two (a)", False),
        ("PRAGMA user_version = 4", False),
    ],
)
def test_it_is_judged_and_not_run(connection: apsw.Connection, sql: str, reads: bool) -> None:
    connection.execute("INSERT INTO t VALUES (7)")
    assert prepare(connection, sql) is reads
    assert connection.execute("SELECT a FROM t").fetchall() == [(7,)]
    assert connection.pragma("user_version") == 0
    assert connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall() == [("t",)]


@pytest.mark.parametrize("sql", ["SELEC", "SELECT b FROM t", "INSERT INTO nowhere VALUES (1)"])
def test_what_sqlite_says_of_the_text_is_raised(connection: apsw.Connection, sql: str) -> None:
    with pytest.raises(apsw.SQLError):
        prepare(connection, sql)


def test_a_text_that_fits_the_schema_is_told_from_one_that_does_not(connection: apsw.Connection) -> None:
    for sql, fits in (("INSERT INTO t VALUES (?)", True), ("INSERT INTO t VALUES (1, 2)", False)):
        statement = classify(sql)
        assert can_prepare(connection, statement, apsw.SQLError("x")) is fits
        assert can_prepare(connection, statement, apsw.ConstraintError("x")), "it was run, so it is SQL"
    assert connection.execute("SELECT count(*) FROM t").get == 0
