"""Bugs that were found, each with the shortest program that showed it, most by tests/system/test_differential.py.

Every program runs on a real primary, and its journal through the real applier; the secondary must be the same then.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from replicate import connect
from replicate.errors import NotSupportedError
from replicate.region.sqlite.capture import spill
from tests.harness.conversation import ROOT
from tests.harness.differential import Plain, Sides, play, street
from tests.harness.sql_calls import content
from tests.harness.sql_programs import Step

SCRIPT = """
CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE, b);
CREATE TABLE auto (id INTEGER PRIMARY KEY AUTOINCREMENT, a NOT NULL, b UNIQUE);
CREATE TABLE n (x);
CREATE VIEW v AS SELECT a FROM t;
"""


def test_executemany_with_returning_runs_all_sets(sides: Sides) -> None:
    sides.step(Step(0, "many", (("INSERT INTO n VALUES (?) RETURNING x", [(1,), (2,), (3,)]),)))
    sides.step(Step(2, "rollback"))
    sides.finish()
    sides.step(Step(2, "many", (("INSERT INTO n VALUES (?) RETURNING x", [(4,), (5,)]),)))
    sides.finish()
    sides.prove()
    assert sides.calls.connections[0].execute("SELECT count(*) FROM n").fetchone() == (5,)
    with pytest.raises(sqlite3.ProgrammingError, match="only execute DML"):
        sides.calls.connections[0].executemany("SELECT 1", [])


def test_executemany_in_a_writing_transaction_keeps_what_was_captured(sides: Sides) -> None:
    """`run_many` went through the door again when it was a writer already, and dropped the rows captured so far."""
    before = sides.pair.last_seqno()
    sides.step(Step(0, "execute", (("INSERT INTO n VALUES ('first')", ()),)))
    sides.step(Step(0, "many", (("INSERT INTO n VALUES (?)", [(1,), (2,)]),)))
    sides.step(Step(0, "many", (("INSERT INTO n VALUES (?)", [(3,)]),)))
    sides.finish()
    assert sides.pair.last_seqno() == before + 1
    sides.prove()


@pytest.mark.parametrize("name", ["user_version", "application_id"])
def test_user_version_is_applied(sides: Sides, name: str) -> None:
    play(sides, f"PRAGMA {name} = 7", "BEGIN", f"PRAGMA {name} = 8", "INSERT INTO n VALUES (1)")


def test_drop_view_is_applied(sides: Sides) -> None:
    play(sides, "DROP VIEW v")


def test_zeros_of_both_signs_are_two_values(sides: Sides) -> None:
    """APSW calls a column unchanged that goes from -0.0 to 0.0."""
    play(
        sides,
        "INSERT INTO n VALUES (-0.0), (0.0), (0)",
        "INSERT INTO t VALUES (1, 0.0, 1), (2, 'a', -0.0)",
        "COMMIT",
        "UPDATE n SET x = -x",
        "UPDATE t SET a = -0.0, b = 0.0",
    )


def test_insert_or_fail_keeps_rows_and_raises_no_counter(sides: Sides) -> None:
    play(
        sides,
        "INSERT OR FAIL INTO auto VALUES (4, 1, 1), (5, 2, 2), (4, 3, 3)",
        "COMMIT",
        "INSERT INTO auto VALUES (3, 3, 3)",
    )


def test_insert_or_ignore_raises_a_counter_and_inserts_nothing(sides: Sides) -> None:
    play(
        sides, "INSERT INTO auto VALUES (1, 1, 1)", "COMMIT", "INSERT OR IGNORE INTO auto VALUES (NULL, 1, 1)", "COMMIT"
    )
    play(sides, "INSERT INTO auto VALUES (NULL, 2, 2)")


def test_a_counter_raised_by_an_ignored_insert_of_a_trigger(sides: Sides) -> None:
    play(
        sides,
        "INSERT INTO auto VALUES (1, 1, 1)",
        "CREATE TRIGGER g AFTER UPDATE ON n BEGIN INSERT OR IGNORE INTO auto VALUES (NULL, 1, 1); END",
        "INSERT INTO n VALUES (1)",
        "COMMIT",
        "UPDATE n SET x = 2",
    )


def test_a_counter_at_zero_is_none(sides: Sides) -> None:
    """An INSERT of no rows makes one; the next change of the counter met another one on the secondary."""
    play(sides, "INSERT INTO auto SELECT x, x, x FROM n", "INSERT INTO t VALUES (1, 1, 1)", "COMMIT")
    play(sides, "INSERT INTO auto VALUES (NULL, 1, 1)")


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE sqlite_sequence SET seq = 1 WHERE name = 'auto'",
        "DELETE FROM sqlite_sequence",
        "DELETE FROM sqlite_sequence; INSERT INTO sqlite_sequence VALUES ('auto', 50)",
    ],
)
def test_a_counter_written_by_hand(sides: Sides, text: str) -> None:
    play(
        sides, "INSERT INTO auto VALUES (7, 1, 1)", *text.split("; "), "COMMIT", "INSERT INTO auto VALUES (NULL, 2, 2)"
    )


def test_two_counters_of_one_table_are_refused(sides: Sides) -> None:
    connection = sides.calls.connections[0]
    connection.execute("INSERT INTO auto VALUES (7, 1, 1)")
    connection.execute("INSERT INTO sqlite_sequence VALUES ('auto', 50)")
    with pytest.raises(NotSupportedError, match="sqlite_sequence"):
        connection.commit()
    connection.rollback()
    sides.prove()


def test_update_or_fail_in_a_region_with_counters(sides: Sides) -> None:
    play(
        sides,
        "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3)",
        "COMMIT",
        "UPDATE OR FAIL t SET a = a + 1",
        "COMMIT",
    )
    play(sides, "UPDATE OR FAIL t SET a = 9, b = 5")


def test_guards_do_not_change_which_constraint_fails(sides: Sides) -> None:
    """As BEFORE triggers they had a row's types checked before its NULLs."""
    play(
        sides,
        "CREATE TABLE s (a INTEGER NOT NULL, b INTEGER) STRICT",
        "INSERT INTO s VALUES (NULL, 'text')",
        "INSERT INTO s VALUES (1, 2)",
    )


def test_largest_and_smallest_numbers(sides: Sides) -> None:
    play(
        sides,
        "INSERT INTO t VALUES (9223372036854775807, -9223372036854775808, 1.7976931348623157e308)",
        "INSERT INTO t VALUES (-9223372036854775808, 5e-324, 9223372036854775807)",
        "UPDATE t SET a = NULL, b = -9223372036854775808 WHERE id < 0",
    )


# ALTER TABLE under the old rules.

RENAMES = (
    "CREATE TABLE parent (id INTEGER PRIMARY KEY)",
    "CREATE TABLE child (a REFERENCES parent)",
    "PRAGMA legacy_alter_table = ON",
    "ALTER TABLE parent RENAME TO other",
    "PRAGMA legacy_alter_table = OFF",
)


def test_alter_table_under_legacy_rules_is_applied(sides: Sides) -> None:
    play(sides, *RENAMES, "CREATE TABLE more (a REFERENCES other)", "ALTER TABLE other RENAME TO third")
    connection = sides.calls.connections[0]
    child = "SELECT sql FROM sqlite_schema WHERE name = 'child'"
    assert connection.execute(child).fetchone() == ("CREATE TABLE child (a REFERENCES parent)",)


def test_alter_table_under_legacy_rules_with_foreign_keys_is_refused(sides: Sides) -> None:
    connection = sides.calls.connections[0]
    connection.execute("PRAGMA foreign_keys = ON")
    for text in RENAMES[:3]:
        connection.execute(text)
    with pytest.raises(NotSupportedError, match="legacy_alter_table"):
        connection.execute(RENAMES[3])
    sides.prove(plain=False)


def test_double_quoted_strings_in_a_schema_are_applied(sides: Sides) -> None:
    """A connection of sqlite3 takes them for strings where no column has that name; the applier has to, too."""
    play(
        sides,
        'CREATE TABLE q (a CHECK (a <> "nothing"), b DEFAULT "text")',
        'CREATE INDEX qi ON q (a) WHERE a <> "other"',
        "INSERT INTO q (a) VALUES (1)",
        "COMMIT",
    )


# Cursors and connections that are no more.


def test_a_cursor_of_a_connection_that_was_opened_again(sides: Sides) -> None:
    path = sides.pair.primary.path
    connection = connect(path)
    cursor = connection.execute("SELECT 1 UNION SELECT 2")
    connection.__init__(path)  # type: ignore[misc]
    assert connection.execute("SELECT 3").fetchall() == [(3,)]
    with pytest.raises(sqlite3.ProgrammingError):
        cursor.fetchall()
    with pytest.raises(sqlite3.ProgrammingError):
        cursor.execute("SELECT 1")
    cursor.close()
    connection.close()


def test_calling_a_closed_connection(sides: Sides) -> None:
    connection = connect(sides.pair.primary.path)
    assert connection("SELECT 1") is not None
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        connection("SELECT 1")


# Redo of what a killed writer left.

WRITER = """
import sys
from replicate import connect
connection = connect(sys.argv[1], isolation_level=None)
for text in sys.argv[2:]:
    connection.executescript(text)
"""
TRANSACTIONS = (
    "BEGIN; INSERT INTO t VALUES (1, 1, -0.0), (2, 2, x'00'); INSERT INTO auto VALUES (9, 1, 1); COMMIT",
    "BEGIN; UPDATE t SET b = -b, a = a + 10; INSERT OR REPLACE INTO t VALUES (3, 11, 'z'); "
    "INSERT INTO n VALUES (1), (2.5); DELETE FROM sqlite_sequence; COMMIT",
    "BEGIN; CREATE TABLE z (a, b AS (a + 1) STORED); INSERT INTO z VALUES (5); ALTER TABLE t ADD COLUMN c DEFAULT 4; "
    "UPDATE t SET c = id; DROP VIEW v; PRAGMA user_version = 3; COMMIT",
    "BEGIN; WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 40000) "
    "INSERT INTO n SELECT i FROM r; COMMIT",
)
PLACES = (
    ("commit.before_append", False),
    ("append.before_write", False),
    ("append.after_write", True),
    ("commit.after_commit", True),
    ("finish.before_publish", True),
    ("publish.after_early", True),
    ("publish.after_data", True),
)
LARGE = len(TRANSACTIONS)
KILLS = [(place, number, kept) for place, kept in PLACES for number in range(1, LARGE)]
KILLS += [(place, LARGE, True) for place in ("commit.after_commit", "publish.after_early", "publish.after_data")]
KILLS += [("adopt.before_rename", 1, False), ("adopt.after_rename", 1, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "hits", "kept"), KILLS)
def test_a_writer_killed_at_the_door(sides: Sides, place: str, hits: int, kept: bool) -> None:
    """Its last transaction is there or not, whole, on all sides, once a second connection has written."""
    number = LARGE if place.startswith("adopt.") else hits
    sides.close()
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(sides.pair.primary.path), *TRANSACTIONS[:number]],
        env={**os.environ, "REPLICATE_FAILPOINT": f"{place}:{hits}:kill", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == -9, place
    second = "INSERT INTO n VALUES ('second')"
    connection: Any = connect(sides.pair.primary.path)
    connection.execute(second)
    connection.commit()
    connection.close()
    for text in [*TRANSACTIONS[: number if kept else number - 1], second]:
        sides.step_plain(Step(2, "script", ((text, ()),)))
    sides.prove()


def test_content_tells_values_apart(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x")
    connection.execute("CREATE TABLE x (a)")
    seen = set()
    for value in (1, 1.0, "1", b"1", None, -0.0, 0.0):
        connection.execute("DELETE FROM x")
        connection.execute("INSERT INTO x VALUES (?)", (value,))
        seen.add(str(content(connection.execute)["x"]))
    connection.close()
    assert len(seen) == 7


def in_place_of_lower(connection: Any) -> None:
    connection.create_function("Lower", 1, lambda value: f"{value}!", deterministic=True)


def in_place_of_nocase(connection: Any) -> None:
    connection.create_collation("NoCase", lambda one, other: (one > other) - (one < other))


def in_place_of_like(connection: Any) -> None:
    connection.execute("PRAGMA case_sensitive_like = ON")


IN_PLACE = [
    (in_place_of_lower, "CREATE TABLE g (a, s AS (lower(a)) STORED)"),
    (in_place_of_lower, "CREATE UNIQUE INDEX i ON t (lower(a))"),
    (in_place_of_nocase, "CREATE TABLE g (a TEXT COLLATE nocase UNIQUE)"),
    (in_place_of_like, "CREATE TABLE g (a, s AS (a LIKE 'a%') STORED)"),
]


@pytest.mark.parametrize(("bring", "create"), IN_PLACE)
def test_what_stands_in_place_of_sqlites_own_is_refused_where_it_would_be_felt(
    sides: Sides, bring: Any, create: str
) -> None:
    """The primary stored what the application's function made of a row, the secondary what SQLite's made of it."""
    first, second = sides.calls.connections[0], sides.calls.connections[1]
    with first:
        first.execute(create)
    with pytest.raises(sqlite3.NotSupportedError, match="other values"):
        bring(first)
    first.execute("INSERT INTO n VALUES (1)")  # nothing has come of it
    first.commit()
    with first:
        first.execute("DROP TABLE IF EXISTS g")
        first.execute("DROP INDEX IF EXISTS i")
    bring(second)
    with second:
        second.execute("INSERT INTO n VALUES (2)")
    with first:
        first.execute(create)
    with pytest.raises(sqlite3.DatabaseError, match=r"other values|non-deterministic functions prohibited"):
        second.execute("INSERT INTO n VALUES (3)")  # (SQLite itself says the latter of the pragma)
    second.rollback()
    sides.prove(plain=False)


@pytest.mark.parametrize("level", [0, 2])
def test_begin_immediate_within_a_savepoint_does_not_empty_the_database(sides: Sides, level: int) -> None:
    """A connection of SQLite that has read nothing yet loses every table by these four statements (releases 3.40.1 and
    3.54.1; the differential test found it on its plain side). Ours have read when they are opened."""
    connection = sides.calls.connections[level]
    connection.execute("SAVEPOINT one")
    with pytest.raises(sqlite3.OperationalError, match="within a transaction"):
        connection.execute("BEGIN IMMEDIATE")
    connection.execute("ROLLBACK TO one")
    connection.execute("COMMIT")
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    sides.prove()


VIRTUAL = """
CREATE TABLE g (id INTEGER PRIMARY KEY, a UNIQUE, v AS (a * 2) VIRTUAL, z DEFAULT 5);
CREATE INDEX gv ON g (v);
CREATE TABLE h (x, v AS (x || '!') VIRTUAL, y);
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, x UNIQUE, v AS (x) VIRTUAL);
"""


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "texts",
    [
        ["INSERT INTO g (a) VALUES (1), (2), (3)", "UPDATE g SET a = a + 1", "COMMIT", "DELETE FROM g WHERE v = 6"],
        ["INSERT INTO g (a) VALUES (1), (2)", "COMMIT", "UPDATE g SET a = 3 - a", "UPDATE g SET id = id + 7, z = -0.0"],
        [
            "INSERT INTO g (a) VALUES (1)",
            "SAVEPOINT s",
            "DELETE FROM g",
            "ROLLBACK TO s",
            "INSERT INTO g (a) VALUES (2)",
        ],
        [
            "INSERT INTO g (a) VALUES (1)",
            "COMMIT",
            "REPLACE INTO g (id, a) VALUES (9, 1)",
            "COMMIT",
            "REPLACE INTO g VALUES (9, 1, 0.0)",
        ],
        [
            "INSERT INTO h (x, y) VALUES (1, 1), (1, 1), (0, 2)",
            "COMMIT",
            "UPDATE h SET rowid = 9 WHERE rowid = 2",
            "DELETE FROM h WHERE rowid = 1",
        ],
        [
            "INSERT INTO counted (x) VALUES (1)",
            "DELETE FROM counted",
            "COMMIT",
            "INSERT OR IGNORE INTO counted (x) VALUES (1), (1)",
        ],
        [
            "CREATE TABLE m (a, v AS (a))",
            "INSERT INTO m (a) VALUES (1)",
            "UPDATE m SET a = 2",
            "COMMIT",
            "DELETE FROM m",
        ],
        [
            *("CREATE TABLE m (a, v AS (a))", "INSERT INTO m (a) VALUES (1)", "COMMIT", "BEGIN"),
            *("INSERT INTO m (a) VALUES (2)", "SAVEPOINT s", "DROP TABLE m", "CREATE TABLE m (b, v AS (b))"),
            *("INSERT INTO m (b) VALUES (1)", "ROLLBACK TO s", "UPDATE m SET a = a + 1"),
        ],
        [
            "INSERT INTO h (x) VALUES (1)",
            "COMMIT",
            "BEGIN",
            "DROP TABLE h",
            "CREATE TABLE h (b, v AS (b))",
            "INSERT INTO h (b) VALUES (1)",
        ],
    ],
)
@pytest.mark.parametrize("buffered", [2, spill.BUFFERED_MAX])
def test_virtual_generated_columns(
    plain: Plain, texts: list[str], buffered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "BUFFERED_MAX", buffered)
    with street(plain, VIRTUAL) as sides:
        play(sides, *texts)
        assert sides.refused == 0


@pytest.mark.turns(4)
@pytest.mark.parametrize("how", ["FAIL", "ABORT", "IGNORE", "REPLACE", "ROLLBACK"])
@pytest.mark.parametrize("connection", [0, 2])
def test_a_statement_that_fails_on_a_table_with_a_virtual_column(plain: Plain, how: str, connection: int) -> None:
    with street(plain, VIRTUAL) as sides:
        for text in (
            "INSERT INTO g (a) VALUES (7)",
            f"INSERT OR {how} INTO g (a) VALUES (1000), (7), (1001)",
            f"UPDATE OR {how} g SET a = 3",
        ):
            sides.step(Step(connection, "execute", ((text, ()),)))
        sides.finish()
        sides.prove()


def test_rows_of_an_altered_table_with_a_virtual_column_are_refused_by_name(plain: Plain) -> None:
    with street(plain, VIRTUAL) as sides:
        play(sides, "INSERT INTO g (a) VALUES (1)")
        connection = sides.calls.connections[0]
        connection.execute("BEGIN")
        connection.execute("ALTER TABLE g ADD COLUMN q")
        connection.execute("UPDATE g SET q = 1")
        with pytest.raises(sqlite3.NotSupportedError, match="in the transaction that alters it"):
            connection.commit()
        connection.rollback()
        sides.prove()
