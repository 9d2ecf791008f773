"""What is captured, compared with what the database holds: every committed stream is replayed into a copy."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replicate.model.transaction import Op
from tests.harness.fake_door import FakeDoor, make_region
from tests.harness.replay import Replica

SCHEMA = """
CREATE TABLE t(id INTEGER PRIMARY KEY, a UNIQUE, b);
CREATE TABLE n(x, y);
CREATE TABLE w(k TEXT, v, PRIMARY KEY(k)) WITHOUT ROWID;
CREATE TABLE g(a, s AS (a * 2) STORED, b);
CREATE TABLE c(id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE TABLE log(what);
CREATE TABLE p(id INTEGER PRIMARY KEY);
CREATE TABLE ch(id INTEGER PRIMARY KEY, p REFERENCES p ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED);
CREATE TRIGGER t_log AFTER INSERT ON t BEGIN INSERT INTO log VALUES ('t ' || new.id); END;
INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2);
"""


@pytest.fixture
def door(tmp_path: Path) -> FakeDoor:
    return make_region(tmp_path / "region.db", SCHEMA)


@pytest.fixture
def replica(door: FakeDoor, tmp_path: Path) -> Replica:
    return Replica(door, tmp_path / "replica.db")


def changes(door: FakeDoor) -> list[tuple[Op, list[Any]]]:
    return [(op, values) for op, _, _, values in door.commits[-1].changes]


def test_images_of_each_kind_of_table(door: FakeDoor, replica: Replica) -> None:
    with door.connect() as connection:
        connection.execute("INSERT INTO n VALUES (1, x'00')")
        connection.execute("UPDATE n SET y = 2.5")
        connection.execute("UPDATE n SET rowid = 77")
        connection.execute("INSERT INTO w VALUES ('k', NULL)")
        connection.execute("UPDATE w SET k = 'l'")
        connection.execute("INSERT INTO g(a, b) VALUES (3, 4)")
        connection.execute("UPDATE g SET a = 5")
        connection.execute("DELETE FROM t WHERE id = 2")
    assert changes(door) == [
        (Op.INSERT, [1, 1, b"\x00"]),
        (Op.UPDATE, [2.5, 1, 1, b"\x00"]),
        (Op.UPDATE, [77, 1, 1, 2.5]),
        (Op.INSERT, ["k", None]),
        (Op.UPDATE, ["l", "k", None]),
        (Op.INSERT, [1, 3, 4]),
        (Op.UPDATE, [5, 1, 3, 4]),
        (Op.DELETE, [2, "two", 2]),
    ]
    replica.check()


FAILING: list[tuple[str, Callable[[sqlite3.Cursor], Any]]] = [
    ("abort", lambda c: c.execute("INSERT INTO t VALUES (8, 8, 8), (9, 'one', 9)")),
    ("fail", lambda c: c.execute("INSERT OR FAIL INTO t VALUES (8, 8, 8), (9, 'one', 9)")),
    ("update abort", lambda c: c.execute("UPDATE t SET a = 'same'")),
    ("update fail", lambda c: c.execute("UPDATE OR FAIL t SET a = 'same'")),
    ("many", lambda c: c.executemany("INSERT INTO t VALUES (?, ?, ?)", [(8, 8, 8), (9, "one", 9)])),
    ("function", lambda c: c.execute("UPDATE n SET x = fails(y)")),
]


@pytest.mark.parametrize("implicit", [True, False], ids=["transaction", "autocommit"])
@pytest.mark.parametrize(("name", "statement"), FAILING, ids=[name for name, _ in FAILING])
def test_a_failed_statement_leaves_what_sqlite_leaves(
    door: FakeDoor, replica: Replica, name: str, statement: Callable[[Any], Any], implicit: bool
) -> None:
    connection = door.connect(isolation_level="" if implicit else None)

    def fails(value: int) -> int:
        return 10 // (value - 2)

    connection.create_function("fails", 1, fails)
    connection.execute("INSERT INTO n VALUES (1, 1), (2, 2), (3, 3)")
    with pytest.raises(sqlite3.Error):
        statement(connection.cursor())
    connection.execute("INSERT INTO log VALUES ('after')")
    connection.commit()
    replica.check()


def test_conflict_clause_rollback_ends_the_transaction(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("INSERT INTO n VALUES (1, 1)")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT OR ROLLBACK INTO t VALUES (5, 'one', 1)")
    assert not connection.in_transaction
    assert door.commits == []
    connection.execute("INSERT INTO n VALUES (2, 2)")
    connection.commit()
    assert [values for _, values in changes(door)] == [[1, 2, 2]]
    replica.check()


@pytest.mark.parametrize("kind", ["ABORT", "FAIL", "ROLLBACK", "IGNORE"])
def test_raise_in_a_trigger(door: FakeDoor, replica: Replica, kind: str) -> None:
    connection = door.connect()
    argument = "IGNORE" if kind == "IGNORE" else f"{kind}, 'no'"
    connection.execute(
        "CREATE TRIGGER r AFTER INSERT ON n WHEN new.x = 3 "
        f"BEGIN INSERT INTO log VALUES ('r'); SELECT RAISE({argument}); END"
    )
    connection.execute("INSERT INTO log VALUES ('before')")
    try:
        connection.execute("INSERT INTO n VALUES (1, 1), (3, 3), (4, 4)")
    except sqlite3.IntegrityError:
        assert kind != "IGNORE"
    connection.execute("INSERT INTO log VALUES ('after')")
    connection.commit()
    replica.check()


def test_a_failed_statement_whose_outcome_cannot_be_told_refuses_the_commit(door: FakeDoor) -> None:
    connection = door.connect()
    connection.execute("CREATE TABLE u(a UNIQUE ON CONFLICT FAIL, b)")
    connection.execute("INSERT INTO u VALUES (1, 1)")
    rows = [(i + 10, b"x" * 100_000) for i in range(30)] + [(1, b"")]
    connection.execute("CREATE TEMP TABLE source(a, b)")
    connection.executemany("INSERT INTO source VALUES (?, ?)", rows)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO u SELECT a, b FROM source")
    with pytest.raises(sqlite3.NotSupportedError, match="cannot be told"):
        connection.commit()
    assert connection.in_transaction
    connection.rollback()
    connection.execute("INSERT INTO n VALUES (1, 1)")
    connection.commit()


def test_savepoints_nested_and_rolled_back(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("INSERT INTO n VALUES (0, 0)")
    connection.execute("SAVEPOINT a")
    connection.execute("INSERT INTO n VALUES (1, 1)")
    connection.execute("SAVEPOINT b")
    connection.execute("INSERT INTO n VALUES (2, 2)")
    connection.execute("ROLLBACK TO b")
    connection.execute("INSERT INTO n VALUES (3, 3)")
    connection.execute("RELEASE b")
    connection.execute("SAVEPOINT A")
    connection.execute("INSERT INTO n VALUES (4, 4)")
    connection.execute("ROLLBACK TO a")
    connection.execute("RELEASE a")
    connection.execute("ROLLBACK TO a")
    connection.execute("INSERT INTO n VALUES (5, 5)")
    connection.commit()
    assert [values[1] for _, values in changes(door)] == [0, 5]
    replica.check()


def test_a_savepoint_outside_of_a_transaction_is_one(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect(isolation_level=None)
    connection.execute("SAVEPOINT outer")
    connection.execute("INSERT INTO n VALUES (1, 1)")
    connection.execute("SAVEPOINT inner")
    connection.execute("INSERT INTO n VALUES (2, 2)")
    connection.execute("ROLLBACK TO inner")
    connection.execute("RELEASE inner")
    assert door.commits == []
    connection.execute("RELEASE outer")
    assert not connection.in_transaction
    assert [values[1] for _, values in changes(door)] == [1]
    connection.execute("SAVEPOINT outer")
    connection.execute("INSERT INTO n VALUES (9, 9)")
    connection.execute("ROLLBACK TO outer")
    connection.execute("RELEASE outer")
    assert len(door.commits) == 1
    replica.check()


def test_schema_changes_in_their_place(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("BEGIN")
    connection.execute("INSERT INTO n VALUES (1, 1)")
    connection.execute("ALTER TABLE n ADD COLUMN z DEFAULT 'd'")
    connection.execute("UPDATE n SET z = 'e'")
    connection.execute("CREATE TABLE new(a, b)")
    connection.execute("INSERT INTO new VALUES (1, 2)")
    connection.execute("SAVEPOINT s")
    connection.execute("ALTER TABLE new RENAME TO newer")
    connection.execute("INSERT INTO newer VALUES (3, 4)")
    connection.execute("ROLLBACK TO s")
    connection.execute("INSERT INTO new VALUES (5, 6)")
    connection.execute("CREATE INDEX i ON new(a)")
    connection.execute("CREATE TABLE copied AS SELECT * FROM new")
    connection.execute("DROP TABLE w")
    connection.execute("PRAGMA user_version = 12")
    connection.commit()
    assert door.commits[-1].captured.defines
    assert door.commits[-1].captured.schema_changed
    assert [op for op, _ in changes(door)].count(Op.SCHEMA) == 6
    replica.check()
    connection.execute("INSERT INTO new VALUES (7, 8)")
    connection.execute("DELETE FROM copied")
    connection.commit()
    replica.check()


def test_a_rolled_back_schema_change_is_forgotten(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE gone(a)")
    connection.execute("INSERT INTO gone VALUES (1)")
    connection.rollback()
    assert door.commits == []
    connection.execute("CREATE TABLE gone(b, c)")
    connection.execute("INSERT INTO gone VALUES (1, 2)")
    connection.commit()
    replica.check()


def test_a_failing_schema_change_leaves_the_transaction_usable(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("INSERT INTO n VALUES (1, 1)")
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("CREATE TABLE t(a)")
    with pytest.raises(sqlite3.NotSupportedError, match="virtual"):
        connection.execute("CREATE VIRTUAL TABLE f USING dbstat")
    with pytest.raises(sqlite3.NotSupportedError, match="rowid"):
        connection.execute("CREATE TABLE bad(rowid, _rowid_, oid)")
    connection.commit()
    assert [op for op, _ in changes(door)] == [Op.INSERT]
    replica.check()


def test_counters_of_autoincrement_travel(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("INSERT INTO c(v) VALUES (1), (2)")
    connection.execute("DELETE FROM c")
    connection.commit()
    assert door.commits[-1].changes[-1][0] is Op.SEQUENCE
    assert door.commits[-1].changes[-1][3] == [None, 2]
    connection.execute("SAVEPOINT s")
    connection.execute("INSERT INTO c(v) VALUES (3)")
    connection.execute("ROLLBACK TO s")
    connection.execute("INSERT INTO n VALUES (1, 1)")
    connection.execute("RELEASE s")
    assert [op for op, _ in changes(door)] == [Op.INSERT]
    replica.check()


def test_triggers_and_foreign_key_actions_are_captured_as_what_they_did(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("INSERT INTO p VALUES (1)")
    connection.execute("INSERT INTO ch VALUES (1, 1), (2, 1)")
    connection.execute("DELETE FROM p")
    connection.execute("INSERT INTO t VALUES (3, 'three', 3)")
    connection.execute("REPLACE INTO t VALUES (4, 'one', 4)")
    connection.commit()
    replica.check()


def test_a_deferred_foreign_key_fails_the_commit_and_may_be_mended(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("INSERT INTO ch VALUES (1, 5)")
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        connection.commit()
    assert connection.in_transaction
    connection.execute("INSERT INTO p VALUES (5)")
    connection.commit()
    assert len(door.commits) == 1
    replica.check()


def test_what_cannot_be_captured_can_only_be_rolled_back(door: FakeDoor) -> None:
    connection = door.connect()
    connection.execute("INSERT INTO n VALUES (1, 1)")
    with pytest.raises(sqlite3.NotSupportedError, match="UTF-8"):
        connection.execute("INSERT INTO n VALUES (CAST(x'ff' AS TEXT), 1)")
    with pytest.raises(sqlite3.NotSupportedError, match="UTF-8"):
        connection.commit()
    connection.rollback()
    connection.execute("CREATE TABLE v(a PRIMARY KEY, b AS (a + 1)) WITHOUT ROWID")
    with pytest.raises(sqlite3.NotSupportedError, match="VIRTUAL"):
        connection.execute("INSERT INTO v VALUES (1)")
    connection.rollback()
    connection.execute("SAVEPOINT s")
    with pytest.raises(sqlite3.NotSupportedError, match="VIRTUAL"):
        connection.execute("INSERT INTO v VALUES (1)")
    connection.execute("ROLLBACK TO s")
    connection.execute("INSERT INTO n VALUES (2, 2)")
    connection.execute("RELEASE s")
    assert [op for op, _ in changes(door)] == [Op.INSERT]


def test_temporary_and_attached_tables_are_not_captured(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("CREATE TEMP TABLE n(x)")
    connection.execute("INSERT INTO temp.n VALUES (1)")
    connection.execute("INSERT INTO main.n VALUES (2, 2)")
    connection.execute("DROP TABLE n")
    connection.commit()
    connection.execute("ATTACH ':memory:' AS other")
    connection.execute("CREATE TABLE other.n(x)")
    connection.execute("INSERT INTO other.n VALUES (1)")
    connection.commit()
    assert door.operations() == [["INSERT"]]
    replica.check()


def test_a_large_transaction_goes_to_the_spool(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("INSERT INTO n VALUES (0, 0)")
    connection.execute("SAVEPOINT s")
    connection.executemany("INSERT INTO n VALUES (?, ?)", ((i, b"x" * 1000) for i in range(3000)))
    connection.execute("ROLLBACK TO s")
    connection.executemany("INSERT INTO n VALUES (?, ?)", ((i, "y" * 500) for i in range(2000)))
    connection.commit()
    assert door.commits[-1].spooled
    assert door.commits[-1].captured.payload == b""
    assert door.commits[-1].captured.count == 2001 * 4
    connection.executemany("INSERT INTO n VALUES (?, ?)", ((i, None) for i in range(20_000)))
    connection.commit()
    assert door.commits[-1].spooled
    connection.execute("INSERT INTO n VALUES (0, 0)")
    connection.commit()
    assert not door.commits[-1].spooled
    replica.check()


def test_wide_rows_have_a_mask_of_bytes(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    names = ", ".join(f"c{i}" for i in range(70))
    connection.execute(f"CREATE TABLE wide({names})")
    connection.execute(f"INSERT INTO wide VALUES ({', '.join(str(i) for i in range(70))})")
    connection.execute("UPDATE wide SET c0 = 'a', c69 = 'b'")
    connection.commit()
    assert isinstance(door.commits[-1].changes[-1][2], bytes)
    replica.check()


def test_another_connection_changes_the_schema(door: FakeDoor, replica: Replica) -> None:
    one, other = door.connect(), door.connect()
    one.execute("INSERT INTO n VALUES (1, 1)")
    one.commit()
    other.execute("ALTER TABLE n ADD COLUMN z")
    one.execute("INSERT INTO n VALUES (2, 2, 2)")
    one.commit()
    replica.check()


def test_counters_written_by_hand_travel(door: FakeDoor, replica: Replica) -> None:
    connection = door.connect()
    connection.execute("INSERT INTO c(v) VALUES (1)")
    connection.commit()
    connection.execute("UPDATE sqlite_sequence SET seq = 50 WHERE name = 'c'")
    connection.execute("INSERT INTO n VALUES (1, 1)")
    connection.commit()
    assert [op for op, _ in changes(door)] == [Op.INSERT, Op.SEQUENCE]
    connection.execute("UPDATE sqlite_sequence SET seq = 60 WHERE name = 'c'")
    connection.commit()
    replica.check()
