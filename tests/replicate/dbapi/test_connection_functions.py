"""Functions and collations that an application registers with a connection: what the region uses of that name is found,
whatever its schema became meanwhile, and a connection that registers dozens (Django's does) reads the schema once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

import replicate
from replicate.dbapi import connection_functions
from replicate.region.sqlite.sql.own_functions import names_used
from tests.harness.pair import Pair

TABLES = 20
SCHEMA = "".join(
    f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, name varchar(9));CREATE INDEX i{number} ON t{number} (name);"
    for number in range(TABLES)
)


def call(*_: Any) -> int:
    return 0


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Pair.create(tmp_path, SCHEMA)


def test_the_schema_is_read_once_for_many_functions(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django's 70 functions took 20 s to register in a region of 600 tables, at every request."""
    read = []

    def count(connection: apsw.Connection, schema: str = "main") -> frozenset[str]:
        read.append(schema)
        return names_used(connection, schema)

    monkeypatch.setattr(connection_functions, "names_used", count)
    connection = pair.connect()
    for number in range(70):
        connection.create_function(f"django_{number}", 1, call)
    connection.execute("INSERT INTO t1 VALUES (1, 'a')")
    assert read == ["main"]
    connection.close()


def test_what_another_connection_has_made_since_is_felt(pair: Pair) -> None:
    one, other = pair.connect(), pair.connect()
    one.create_function("lower", 1, call)
    other.execute("CREATE INDEX upper_name ON t1 (upper(name))")
    with pytest.raises(replicate.NotSupportedError, match="depends on upper"):
        one.create_function("upper", 1, call)
    one.close()
    other.close()


def test_a_schema_that_was_rolled_back_is_not_taken_for_the_next(pair: Pair) -> None:
    """Both have the same number."""
    one, other = pair.connect(), pair.connect()
    one.execute("BEGIN IMMEDIATE")
    one.execute("CREATE INDEX plain_name ON t1 (name)")
    one.create_function("lower", 1, call)
    one.rollback()
    other.execute("CREATE INDEX upper_name ON t1 (upper(name))")
    with pytest.raises(replicate.NotSupportedError, match="depends on upper"):
        one.create_function("upper", 1, call)
    one.close()
    other.close()


def test_an_authorizer_is_not_asked_what_a_function_may_stand_in_place_of(pair: Pair) -> None:
    """sqlite3 asks it nothing when a function is registered."""
    connection = pair.connect()
    connection.set_authorizer(lambda *_: apsw.SQLITE_DENY)
    connection.create_function("shorten", 1, call)
    connection.close()


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("CREATE TABLE t (a TEXT COLLATE NoCase)", {"nocase"}),
        ("CREATE TABLE t (a varchar(9) DEFAULT (abs(-1)), CHECK (length(a) > 1))", set()),
        ("CREATE TABLE t (a, b generated always AS(abs(a)))", {"abs", "t", "as"}),
        ("CREATE TABLE t (a, b/**/aS--x\n(abs(a)) STORED)", {"abs", "t", "as"}),
        ("CREATE TABLE t (a, b AS (a LIKE 'x'))", {"like", "t", "as"}),
        ('CREATE TABLE t (a, b); CREATE INDEX i ON t (lower(a), b COLLATE "RTrim")', {"lower", "rtrim", "t"}),
        ("CREATE TABLE t (a); CREATE VIEW v AS SELECT abs(a) FROM t", set()),
        ("CREATE VIRTUAL TABLE t USING fts5([as], b)", set()),
    ],
)
def test_names_used(schema: str, found: set[str]) -> None:
    connection = apsw.Connection(":memory:")
    connection.execute(schema)
    assert names_used(connection) == found
