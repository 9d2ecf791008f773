"""region/sqlite/sql/own_functions.py: each place in which stored values depend on a function or collation is found."""

from __future__ import annotations

import apsw
import pytest

from replicate.region.sqlite.sql.own_functions import names_used


@pytest.fixture
def connection() -> apsw.Connection:
    made = apsw.Connection("")
    for name in ("mine", "other", "UPPER"):
        made.create_scalar_function(name, lambda *_: 1, deterministic=True)
    made.create_collation("by_hand", lambda a, b: (a > b) - (a < b))
    return made


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("CREATE TABLE t (a)", set()),
        ("CREATE TABLE t (a COLLATE by_hand)", {"by_hand"}),
        ("CREATE TABLE t (a COLLATE [By_Hand], b)", {"by_hand"}),
        ("CREATE TABLE t (a, b AS (mine(a)))", {"mine"}),
        ('CREATE TABLE t (a, b GENERATED ALWAYS AS ( "Mine" ( a ) ) STORED)', {"mine"}),
        ("CREATE TABLE t (a, b AS (a LIKE 'x'))", {"like"}),
        ("CREATE TABLE t (a, b AS (a /* c */ GLOB 'x'))", {"glob"}),
        ("CREATE TABLE t (a CHECK (mine(a) = 1), c DEFAULT (other()))", set()),
        ("CREATE TABLE t (a); CREATE INDEX i ON t (mine(a))", {"mine"}),
        ("CREATE TABLE t (a); CREATE INDEX i ON t (a COLLATE by_hand)", {"by_hand"}),
        ("CREATE TABLE t (a); CREATE INDEX i ON t (a) WHERE mine(a) > 0", {"mine"}),
        ("CREATE TABLE t (a); CREATE VIEW v AS SELECT mine(a) FROM t", set()),
        ("CREATE TABLE t (a, b DEFAULT 'collate by_hand mine(a)')", set()),
    ],
)
def test_what_is_felt_is_found(connection: apsw.Connection, sql: str, found: set[str]) -> None:
    """A table's or a type's name before a parenthesis is found, too: more is told than need be, never less."""
    connection.execute(sql)
    used = names_used(connection)
    assert used >= found
    assert not used & ({"mine", "other", "by_hand", "like", "glob", "upper"} - found)


def test_of_another_schema_its_own_are_told(connection: apsw.Connection) -> None:
    connection.execute("ATTACH '' AS two; CREATE TABLE two.t (a, b AS (mine(a)))")
    assert (names_used(connection), "mine" in names_used(connection, "two")) == (frozenset(), True)
