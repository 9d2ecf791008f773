"""region/sqlite/table_facts.py: all that holds a table together is read, whatever its names."""

from __future__ import annotations

import apsw
import pytest

from replicate.errors import UsageError
from replicate.model.column_list import IndexFacts
from replicate.model.transaction import TableDefinition
from replicate.region.sqlite.schema import read_definition
from replicate.region.sqlite.table_facts import require_bearable, table_facts

SCHEMA = """
CREATE TABLE "odd ""name" (a TEXT, b INTEGER UNIQUE, c, d AS (c + 1), PRIMARY KEY (a, b));
CREATE INDEX "i 1" ON "odd ""name" (c, b DESC);
CREATE UNIQUE INDEX i2 ON "odd ""name" (lower(c)) WHERE b > 3;
CREATE TABLE lone (id PRIMARY KEY, x NOT NULL) WITHOUT ROWID;
CREATE TABLE child (id INTEGER PRIMARY KEY, of REFERENCES LONE (x), up REFERENCES lone, body);
CREATE VIRTUAL TABLE words USING fts5 (body, content='child', content_rowid=id);
"""


@pytest.fixture
def connection() -> apsw.Connection:
    made = apsw.Connection(":memory:")
    made.execute(SCHEMA)
    return made


def test_facts(connection: apsw.Connection) -> None:
    odd = table_facts(connection, 'odd "name')
    assert odd.sql.startswith('CREATE TABLE "odd ""name"')
    assert odd.primary == ("a", "b")
    assert {(one.name, one.is_unique, one.columns, one.is_partial) for one in odd.indexes} == {
        ("i 1", False, ("c", "b"), False),
        ("i2", True, (None,), True),
        ('sqlite_autoindex_odd "name_1', True, ("b",), False),
        ('sqlite_autoindex_odd "name_2', True, ("a", "b"), False),
    }
    assert next(one.sql for one in odd.indexes if one.name == "i2").startswith("CREATE UNIQUE INDEX i2")
    lone = table_facts(connection, "lone")
    assert lone.indexes == (IndexFacts("sqlite_autoindex_lone_1", True, ("id",), False, ""),)
    assert lone.referred == ("x",)
    assert lone.references == ()
    child = table_facts(connection, "child")
    assert set(child.references) == {"of", "up"}
    assert child.indexed_by == ("words",)


@pytest.mark.parametrize(
    ("table", "left", "told"),
    [
        ("lone", ("X",), "rows of other tables refer to column x"),
        ("child", ("body",), "the virtual table words"),
        ("child", (), ""),
        ('odd "name', ("c",), "column c is in a CHECK, or another column is computed from it"),
    ],
)
def test_required(connection: apsw.Connection, table: str, left: tuple[str, ...], told: str) -> None:
    definition = read_definition_of(connection, table)
    if told:
        with pytest.raises(UsageError, match=told):
            require_bearable(connection, definition, left)
    else:
        require_bearable(connection, definition, left)


def read_definition_of(connection: apsw.Connection, table: str) -> TableDefinition:
    connection.execute("CREATE TABLE IF NOT EXISTS _replicate_table (name, version, partition, definition)")
    return read_definition(connection, table, region="")
