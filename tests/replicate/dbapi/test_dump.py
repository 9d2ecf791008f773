"""dbapi/dump.py: the text makes the same database, and holds nothing of ours; beside sqlite3's own iterdump."""

from __future__ import annotations

import sqlite3

import pytest

from replicate.dbapi.dump import dump

PLAIN = """
CREATE TABLE "odd ""name" (id INTEGER PRIMARY KEY AUTOINCREMENT, v TEXT, b BLOB, r REAL);
INSERT INTO "odd ""name" VALUES (7, 'it''s', x'00ff', 1.5), (9, NULL, NULL, NULL);
CREATE TABLE t (a UNIQUE, b);
INSERT INTO t VALUES ('x', 1), (2, 'y'), (NULL, 1e300);
CREATE INDEX i ON t (b); CREATE VIEW v AS SELECT a FROM t;
CREATE TRIGGER g AFTER INSERT ON t BEGIN UPDATE t SET b = 3 WHERE 0; END;
"""
OURS = """
CREATE TABLE _replicate_state (key, value); INSERT INTO _replicate_state VALUES ('a', 'b');
CREATE TRIGGER _replicate_guard_insert_1 BEFORE INSERT ON t BEGIN SELECT 1; END;
"""


def made(text: str) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(text)
    return connection


def content(connection: sqlite3.Connection) -> list[object]:
    names = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
    tables = [name.replace('"', '""') for kind, name, _ in names if kind == "table"]
    return [names, *(connection.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables)]


def test_it_says_what_iterdump_says() -> None:
    connection = made(PLAIN)
    assert list(dump(connection)) == list(connection.iterdump())


def test_nothing_of_ours_is_in_it_and_the_rest_is_made_again() -> None:
    text = "\n".join(dump(made(PLAIN + OURS)))
    assert "_replicate" not in text
    assert content(made(text)) == content(made(PLAIN))


@pytest.mark.parametrize("module", ["fts5(a)", "rtree(a, b, c)"])
def test_virtual_tables_are_made_again_with_their_rows(module: str) -> None:
    columns = "'one word'" if module.startswith("fts5") else "1, 2, 3"
    before = made(f"CREATE TABLE p (x); CREATE VIRTUAL TABLE m USING {module}; INSERT INTO m VALUES ({columns});")
    text = "\n".join(dump(before))
    after = sqlite3.connect(":memory:")
    after.deserialize(made(text).serialize())  # opened again: only then SQLite knows of tables that were written so
    again = after.execute("SELECT * FROM m").fetchall()
    assert again == before.execute("SELECT * FROM m").fetchall() != []
