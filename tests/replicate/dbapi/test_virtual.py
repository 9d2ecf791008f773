"""Full-text indexes and R*Trees: the secondary's are the primary's, shadow row by shadow row, and sound.

Every program runs on a real primary and on plain SQLite, and the primary's journal through the real applier.
"""

from __future__ import annotations

import contextlib
import sqlite3
from random import Random
from typing import Any

import apsw
import pytest

from replicate.errors import ConflictError
from tests.harness.differential import Plain, Sides, street
from tests.harness.sql_programs import Step

SCRIPT = """
CREATE TABLE d (id INTEGER PRIMARY KEY, a, b);
CREATE TABLE u (a UNIQUE);
"""
MAPPED = """
CREATE VIRTUAL TABLE x USING fts5 (a, content = 'd', content_rowid = 'id');
CREATE TRIGGER di AFTER INSERT ON d BEGIN INSERT INTO x (rowid, a) VALUES (new.id, new.a); END;
CREATE TRIGGER dd AFTER DELETE ON d BEGIN INSERT INTO x (x, rowid, a) VALUES ('delete', old.id, old.a); END;
CREATE TRIGGER du AFTER UPDATE ON d BEGIN
  INSERT INTO x (x, rowid, a) VALUES ('delete', old.id, old.a);
  INSERT INTO x (rowid, a) VALUES (new.id, new.a);
END;
"""
TEXTS = {
    "fts5": "CREATE VIRTUAL TABLE v USING fts5 (a, b)",
    "fts5 trigram": "CREATE VIRTUAL TABLE v USING fts5 (a, b, tokenize = 'trigram')",
    "fts4": "CREATE VIRTUAL TABLE v USING fts4 (a, b)",
    "fts3": "CREATE VIRTUAL TABLE v USING fts3 (a, b)",
}
_WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]


def words(dice: Random) -> str:
    return " ".join(f"{dice.choice(_WORDS)}{dice.randint(0, 40)}" for _ in range(12))


def execute(sides: Sides, text: str, *parameters: Any) -> None:
    sides.step(Step(0, "execute", ((text, parameters),)))


def prove(sides: Sides) -> None:
    """All sides are the same, and the secondary's indexes are sound in SQLite's own judgement."""
    sides.finish()
    sides.prove()
    path = str(sides.pair.secondary.region("main").path)
    with contextlib.closing(apsw.Connection(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE sql LIKE 'create virtual table%using fts_ %'"
        ).fetchall():
            connection.execute(f"INSERT INTO {name} ({name}) VALUES ('integrity-check')")


def savepoints_and_errors(sides: Sides, dice: Random, table: str) -> None:
    """What may go wrong between an index's own writes, which come when they come."""
    execute(sides, "SAVEPOINT one")
    execute(sides, f"INSERT INTO {table} VALUES (?, ?)", words(dice), "gone")
    execute(sides, f"DELETE FROM {table} WHERE rowid % 5 = 0")
    execute(sides, "ROLLBACK TO one")
    execute(sides, f"INSERT INTO {table} VALUES (?, ?)", words(dice), "kept")
    execute(sides, "RELEASE one")
    number = dice.randint(0, 10**9)
    execute(sides, "INSERT INTO u VALUES (?)", number)
    execute(sides, f"INSERT INTO {table} VALUES (?, ?)", words(dice), "pending")
    execute(
        sides, "INSERT INTO u SELECT value FROM (SELECT ? + 1 AS value UNION ALL SELECT ?)", number, number
    )  # fails
    execute(sides, f"INSERT INTO {table} (rowid, a) VALUES (?, 'first'), (1, 'there already')", number)  # fails


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(TEXTS))
def test_full_text_indexes(plain: Plain, kind: str) -> None:
    dice = Random(7)
    with street(plain, SCRIPT + TEXTS[kind]) as sides:
        for number in range(60):
            execute(sides, "INSERT INTO v VALUES (?, ?)", words(dice), words(dice))
            execute(sides, "UPDATE v SET b = ? WHERE rowid = ?", words(dice), number // 2)
            execute(sides, "DELETE FROM v WHERE rowid = ?", number // 3)
            if number % 9 == 0:
                savepoints_and_errors(sides, dice, "v")
            if number % 7 == 0:
                sides.step(Step(0, ("commit", "rollback")[number % 3 == 1]))
            if number % 20 == 10:
                sides.step(Step(0, "many", (("INSERT INTO v VALUES (?, ?)", [(words(dice), 1), (words(dice), 2)]),)))
        prove(sides)
        execute(sides, "INSERT INTO v (v) VALUES ('optimize')")
        prove(sides)
        found = sides.calls.connections[0].execute("SELECT count(*) FROM v WHERE v MATCH 'alpha1'").fetchone()
        assert found[0] > 0


def test_an_index_that_triggers_keep(plain: Plain) -> None:
    dice = Random(8)
    with street(plain, SCRIPT + MAPPED) as sides:
        for number in range(60):
            execute(sides, "INSERT INTO d (a, b) VALUES (?, ?)", words(dice), number)
            execute(sides, "UPDATE d SET a = ? WHERE id = ?", words(dice), number // 2)
            execute(sides, "DELETE FROM d WHERE id = ?", number // 4)
            if number % 11 == 0:
                sides.finish()
        prove(sides)
        execute(sides, "INSERT INTO x (x) VALUES ('rebuild')")
        execute(sides, "INSERT INTO x (x, rank) VALUES ('rank', 'bm25(10.0)')")
        prove(sides)


@pytest.mark.parametrize(
    ("create", "insert", "update"),
    [
        (
            "rtree (id, x0, x1, +note)",
            "INSERT INTO v VALUES (?1, ?1, ?1 + 2, 'note ' || ?1)",
            "x1 = x1 + 3, note = 'n'",
        ),
        ("rtree_i32 (id, x0, x1, y0, y1)", "INSERT INTO v VALUES (?1, ?1, ?1 + 2, -?1, ?1)", "x1 = x1 + 3"),
        (
            "geopoly (label)",
            "INSERT INTO v (_shape, label) VALUES ('[[0,0],[' || ?1 || ',0],[0,1],[0,0]]', ?1)",
            "label = label + 1",
        ),
    ],
)
def test_trees(plain: Plain, create: str, insert: str, update: str) -> None:
    with street(plain, f"{SCRIPT} CREATE VIRTUAL TABLE v USING {create}") as sides:
        for number in range(1, 200):
            execute(sides, insert, number)
            if number % 3 == 0:
                execute(sides, f"UPDATE v SET {update} WHERE rowid = ?", number // 2)
                execute(sides, "DELETE FROM v WHERE rowid = ?", number // 5)
            if number % 40 == 0:
                execute(sides, "SAVEPOINT one")
                execute(sides, "DELETE FROM v")
                execute(sides, "ROLLBACK TO one")
                sides.finish()
        prove(sides)


def test_virtual_tables_come_and_go_in_a_transaction(plain: Plain) -> None:
    with street(plain, SCRIPT) as sides:
        for text in (
            "BEGIN",
            "CREATE VIRTUAL TABLE v USING fts5 (a)",
            "INSERT INTO v VALUES ('one two'), ('three')",
            "CREATE VIRTUAL TABLE terms USING fts5vocab (v, row)",
            "CREATE VIRTUAL TABLE r USING rtree (id, x0, x1)",
            "INSERT INTO r VALUES (1, 2, 3)",
            "SAVEPOINT one",
            "DROP TABLE v",
            "ROLLBACK TO one",
            "INSERT INTO v VALUES ('four')",
            "ALTER TABLE v RENAME TO w",
            "ALTER TABLE r RENAME TO s",
            "INSERT INTO w VALUES ('five')",
            "INSERT INTO s VALUES (2, 2, 3)",
            "COMMIT",
            "BEGIN",
            "DROP TABLE w",
            "CREATE VIRTUAL TABLE w USING fts4 (a)",
            "INSERT INTO w VALUES ('six')",
            "ROLLBACK",
            "INSERT INTO w VALUES ('seven')",
            "COMMIT",
            "CREATE VIRTUAL TABLE IF NOT EXISTS w USING fts5 (a)",
            "CREATE VIRTUAL TABLE bare USING fts5 (a, content = '', columnsize = 0)",
            "INSERT INTO bare (rowid, a) VALUES (1, 'kept in memory until COMMIT')",
            "COMMIT",
            "DROP TABLE terms",
            "DROP TABLE s",
        ):
            execute(sides, text)
        prove(sides)
        assert sides.refused == 0
        connection = sides.calls.connections[0]
        assert connection.execute("SELECT count(*) FROM bare WHERE bare MATCH 'memory'").fetchone() == (1,)
        with pytest.raises(sqlite3.NotSupportedError, match="module dbstat"):
            connection.execute("CREATE VIRTUAL TABLE pages USING dbstat")


def test_a_foreign_write_to_an_index_stops_the_secondary_at_the_next_one(plain: Plain) -> None:
    with street(plain, SCRIPT + TEXTS["fts5"]) as sides:
        execute(sides, "INSERT INTO v VALUES ('a', 'b')")
        sides.finish()
        sides.calls.close()
        with contextlib.closing(apsw.Connection(str(sides.pair.primary.region("main").path))) as foreign:
            foreign.execute("INSERT INTO v VALUES ('foreign', 'b')")
        connection = sides.pair.connect()
        with connection:
            connection.execute("INSERT INTO v VALUES ('ours', 'b')")
        connection.close()
        with pytest.raises(ConflictError, match="differs from its before-image"):
            sides.prove(plain=False)
        sides.calls.connections.clear()
