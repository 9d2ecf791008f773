"""INSERT … SELECT unheard: what is read back is what the hook would have told, and where it would not be, the hook is
asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import replicate
from replicate.database.capture import Capture
from replicate.database.statements import classify
from tests.harness.fake_door import FakeDoor, make_region
from tests.harness.replay import Replica

SCHEMA = """
CREATE TABLE alias (id INTEGER PRIMARY KEY, a, b REAL);
CREATE TABLE bare (a TEXT, b REAL);
CREATE TABLE oid (rowid TEXT, b);
CREATE TABLE "odd name" ("a b" INTEGER PRIMARY KEY, a, b NUMERIC);
CREATE TABLE unique_ (id INTEGER PRIMARY KEY, a UNIQUE, b);
CREATE TABLE strict_ (id INTEGER PRIMARY KEY, a INTEGER, b ANY) STRICT;
CREATE TABLE auto (id INTEGER PRIMARY KEY AUTOINCREMENT, a, b);
CREATE TABLE pushy (id INTEGER PRIMARY KEY, a UNIQUE ON CONFLICT REPLACE, b);
CREATE TABLE without (id INTEGER PRIMARY KEY, a, b) WITHOUT ROWID;
CREATE TABLE stored (id INTEGER PRIMARY KEY, a, g AS (hex(a)) STORED);
CREATE TABLE virtual_ (id INTEGER PRIMARY KEY, a, g AS (hex(a)));
CREATE TABLE source (k INTEGER PRIMARY KEY, a, b);
INSERT INTO source VALUES (1, 'text', 1.5), (2, x'00ff', 2), (3, NULL, -0.0), (4, 9007199254740993, 1e300),
  (5, -9223372036854775808, 3.0), (6, '', x''), (7, 'ä€😀', 9223372036854775807), (8, 0.0, -1);
"""
COUNTING = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
UNHEARD = ("alias", "bare", "oid", '"odd name"', "unique_")


@pytest.fixture
def door(tmp_path: Path) -> FakeDoor:
    return make_region(tmp_path / "region.db", SCHEMA)


@pytest.fixture
def replica(door: FakeDoor, tmp_path: Path) -> Replica:
    return Replica(door, tmp_path / "replica.db")


@pytest.fixture
def read_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were read back, each time that it was tried."""
    counts: list[int] = []
    real = Capture.appended

    def appended(self: Capture, table: Any, rows: Any) -> int:
        counts.append(real(self, table, rows))
        return counts[-1]

    monkeypatch.setattr(Capture, "appended", appended)
    return counts


def columns(table: str) -> str:
    return {"bare": "a, b", "oid": "rowid, b", "stored": "a", "virtual_": "a"}.get(table, "a, b")


def fill(connection: replicate.Connection, table: str, where: str = "") -> None:
    names = columns(table)
    chosen = "a, b" if "," in names else "a"
    connection.execute(f"INSERT INTO {table} ({names}) SELECT {chosen} FROM source {where}")


@pytest.mark.parametrize("table", UNHEARD)
def test_rows_are_told_as_the_hook_tells_them(
    door: FakeDoor, replica: Replica, read_back: list[int], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with door.connect() as connection:
        fill(connection, table, "WHERE k < 3")
        fill(connection, table, "WHERE k > 2")
    with door.connect() as connection:
        connection.execute(f"DELETE FROM {table}")
    assert read_back == [2, 6]
    monkeypatch.setattr("replicate.dbapi.appended.fitting", lambda *_: None)
    with door.connect() as connection:
        fill(connection, table, "WHERE k < 3")
        fill(connection, table, "WHERE k > 2")
    unheard, heard = door.commits[0].captured, door.commits[2].captured
    assert unheard.payload == heard.payload
    assert unheard[1:] == heard[1:]
    assert read_back == [2, 6]
    replica.check()


@pytest.mark.parametrize("table", ["auto", "pushy", "without", "stored", "virtual_"])
def test_tables_that_must_be_heard(door: FakeDoor, replica: Replica, read_back: list[int], table: str) -> None:
    with door.connect() as connection:
        if table == "without":
            connection.execute("INSERT INTO without SELECT k, a, b FROM source")
        else:
            fill(connection, table)
            fill(connection, table, "WHERE k = 1")
    assert read_back == []
    replica.check()


def test_rows_between_others_are_heard_the_second_time(door: FakeDoor, replica: Replica, read_back: list[int]) -> None:
    with door.connect() as connection:
        connection.execute("INSERT INTO alias VALUES (5, 'there', 0)")
        changes = connection.total_changes
        for number in range(2):
            connection.execute(f"INSERT INTO alias SELECT k + {number} * 100, a, b FROM source WHERE k <> 5")
        assert connection.total_changes == changes + 14
        connection.execute("INSERT INTO alias VALUES (9223372036854775807, 'the last', 0)")
        cursor = connection.execute("INSERT INTO alias (a) SELECT a FROM source")  # SQLite tries rowids at random
        assert (cursor.rowcount, connection.execute("SELECT changes()").fetchone()) == (8, (8,))
    assert read_back == [3]  # and then that table is not tried again
    assert door.operations() == [["INSERT"] * 24]
    replica.check()


def test_rows_told_by_their_net_change_are_not_forgotten(door: FakeDoor, replica: Replica) -> None:
    """Found by a fuzzer: what had been touched before was forgotten with the statement that was taken back."""
    with door.connect() as connection:
        connection.execute("INSERT INTO virtual_ (a) VALUES (1), (2)")
        connection.execute("INSERT INTO alias VALUES (5, 'there', 0)")
        connection.commit()
        connection.execute("UPDATE virtual_ SET a = a + 1")
        connection.execute("INSERT INTO alias SELECT k, a, b FROM source WHERE k <> 5")
        with pytest.raises(replicate.IntegrityError):
            connection.execute("INSERT INTO alias SELECT k, a, b FROM source")
    replica.check()


def test_what_fails_is_taken_back_or_stays_as_sqlite_does(door: FakeDoor, replica: Replica) -> None:
    with door.connect() as connection:
        connection.execute("INSERT INTO unique_ VALUES (1, 'text', 0)")
        with pytest.raises(replicate.IntegrityError, match=r"unique_\.a"):
            connection.execute("INSERT INTO unique_ (a) SELECT a FROM source ORDER BY k DESC")
        with pytest.raises(replicate.IntegrityError, match="cannot store"):
            connection.execute("INSERT INTO strict_ (a) SELECT a FROM source WHERE k >= 4 UNION ALL SELECT 'x'")
        connection.execute("INSERT OR IGNORE INTO unique_ (a, b) SELECT a, b FROM source")
        connection.execute("INSERT OR REPLACE INTO unique_ (a, b) SELECT a, k FROM source")
        connection.execute("INSERT INTO unique_ (a) SELECT a FROM source WHERE 1 ON CONFLICT DO UPDATE SET b = 'met'")
        with pytest.raises(replicate.OperationalError, match="integer overflow"):
            connection.execute("INSERT INTO alias (a) SELECT abs(a) FROM source")
        assert connection.execute("SELECT count(*) FROM alias").fetchone() == (0,)
    replica.check()


def test_what_added_few_rows_is_heard_until_it_adds_many(
    door: FakeDoor, replica: Replica, read_back: list[int]
) -> None:
    text = f"{COUNTING} INSERT INTO alias (a) SELECT i FROM n"
    with door.connect() as connection:
        for count in (3, 4, 64, 65, 5, 6):
            connection.execute(text, (count,))
    assert read_back == [3, 65, 5]
    replica.check()


def test_savepoints_and_many_rows(door: FakeDoor, replica: Replica, read_back: list[int]) -> None:
    many = f"{COUNTING} INSERT INTO alias (a) SELECT i FROM n"
    with door.connect() as connection:
        connection.execute("BEGIN")
        connection.execute(many, (100,))
        connection.execute("SAVEPOINT s")
        connection.execute(many, (20_000,))  # more than a frame holds
        connection.execute("ROLLBACK TO s")
        connection.execute(many, (16_000,))
        connection.execute("UPDATE alias SET b = a WHERE id % 1000 = 0")
        connection.commit()
    assert read_back == [100, 20_000, 16_000]
    assert door.commits[-1].spooled
    replica.check()


def test_functions_of_the_connection_and_triggers_have_it_heard(
    door: FakeDoor, replica: Replica, read_back: list[int]
) -> None:
    with door.connect() as connection:
        inner = connection.cursor()
        connection.execute("CREATE TABLE noted (a)")

        def note(value: int) -> int:
            inner.execute("INSERT INTO noted VALUES (?)", (value,))
            return value

        connection.create_function("note", 1, note)
        connection.execute("INSERT INTO alias (a) SELECT note(k) FROM source")
    with door.connect() as connection:
        connection.execute("CREATE TRIGGER g AFTER INSERT ON bare BEGIN INSERT INTO noted VALUES (new.a); END")
        connection.execute("INSERT INTO bare SELECT a, b FROM source")
    assert read_back == []
    replica.check()


def test_an_interrupt_on_the_way_lets_nothing_through(
    door: FakeDoor, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    with door.connect() as connection:
        with monkeypatch.context() as patch:

            def interrupted(*_: object) -> int:
                raise KeyboardInterrupt

            patch.setattr(Capture, "appended", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.execute("INSERT INTO alias (a) SELECT a FROM source")
        assert connection.execute("SELECT count(*) FROM alias").fetchone() == (0,)
        with monkeypatch.context() as patch:
            patch.setattr(Capture, "appended", interrupted)
            patch.setattr(Capture, "resume", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.execute("INSERT INTO alias (a) SELECT a FROM source")
        connection.execute("INSERT INTO alias (a) VALUES ('unheard')")
        with pytest.raises(replicate.Error, match="not heard of"):
            connection.commit()
        connection.rollback()
        connection.execute("INSERT INTO alias (a) VALUES ('heard')")
    assert door.operations() == [["INSERT"]]
    replica.check()


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("INSERT INTO t SELECT 1", "t"),
        ("insert into main.t (a, b) select 1, 2", "t"),
        ('WITH x AS (SELECT 1) INSERT INTO "t t" SELECT * FROM x', "t t"),
        ("INSERT INTO t(a) SELECT replace(a, 'x', 'y') FROM u WHERE b = 'ON CONFLICT'", ""),
        ("INSERT INTO t VALUES (1)", ""),
        ("INSERT INTO t SELECT 1 RETURNING a", ""),
        ("INSERT OR REPLACE INTO t SELECT 1", ""),
        ("REPLACE INTO t SELECT 1", ""),
        ("INSERT INTO t SELECT 1 WHERE 1 ON CONFLICT DO NOTHING", ""),
        ("INSERT INTO t AS x SELECT 1", ""),
        ("INSERT INTO other.t SELECT 1", ""),
        ("WITH x AS (INSERT INTO t SELECT 1) SELECT 1", ""),
        ("UPDATE t SET a = (SELECT 1)", ""),
    ],
)
def test_which_statements(text: str, table: str) -> None:
    assert classify(text).into == table
