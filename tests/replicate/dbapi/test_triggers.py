"""Our guards do not fire for a connection of ours while the application has no triggers; its own ones always do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

import replicate
from replicate.transaction import Op
from tests.harness.fake_door import FakeDoor, make_region

TRIGGER = "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.a); END"


@pytest.fixture
def door(tmp_path: Path) -> FakeDoor:
    return make_region(
        tmp_path / "region.db", "CREATE TABLE t (a); CREATE TABLE log (a); CREATE VIEW v AS SELECT a FROM t"
    )


def fires(connection: replicate.Connection) -> bool:
    made: Any = connection
    return bool(made._apsw.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, -1))


def logged(connection: replicate.Connection) -> list[Any]:
    return [a for (a,) in connection.execute("SELECT a FROM log")]


def test_guards_rest_and_still_keep_others_out(door: FakeDoor) -> None:
    with door.connect() as ours:
        ours.execute("INSERT INTO t VALUES (1)")
        assert not fires(ours)
    assert door.operations() == [["INSERT"]]
    other = apsw.Connection(str(door.path))
    with pytest.raises(apsw.SQLError, match="replicate_connect_is_required"):
        other.execute("INSERT INTO t VALUES (2)")
    other.close()


def test_a_trigger_fires_from_the_statement_behind_it_on(door: FakeDoor) -> None:
    with door.connect() as ours:
        ours.execute("BEGIN")
        ours.execute("INSERT INTO t VALUES (1)")
        ours.execute(TRIGGER)
        ours.execute("INSERT INTO t VALUES (2)")
        assert logged(ours) == [2]
    kinds = [op for op in door.operations()[0] if op != Op.DEFINE.name]
    assert kinds == ["INSERT", "SCHEMA", "INSERT", "INSERT"]


def test_another_connections_trigger_fires(door: FakeDoor) -> None:
    first, second = door.connect(), door.connect()
    first.execute("INSERT INTO t VALUES (1)")
    first.commit()
    second.execute(TRIGGER)
    for connection in (first, second):
        connection.execute("INSERT INTO t VALUES (2)")
        connection.commit()
    assert logged(first) == [2, 2]
    second.execute("DROP TRIGGER g")
    first.execute("INSERT INTO t VALUES (3)")
    first.commit()
    assert logged(first) == [2, 2]
    third = door.connect()
    assert not fires(third)
    for connection in (first, second, third):
        connection.close()


def test_a_trigger_that_was_taken_back_fires_no_more(door: FakeDoor) -> None:
    with door.connect() as ours:
        ours.execute("BEGIN")
        ours.execute(TRIGGER)
        ours.rollback()
        ours.execute("INSERT INTO t VALUES (1)")
        assert logged(ours) == []


def test_a_view_is_written_to(door: FakeDoor) -> None:
    with door.connect() as ours:
        with pytest.raises(replicate.OperationalError, match="because it is a view"):
            ours.execute("INSERT INTO v VALUES (1)")
        ours.execute("CREATE TRIGGER g INSTEAD OF INSERT ON v BEGIN INSERT INTO t VALUES (new.a); END")
        ours.execute("INSERT INTO v VALUES (1)")
        ours.commit()
        assert ours.execute("SELECT a FROM t").fetchall() == [(1,)]


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TEMP TRIGGER g AFTER INSERT ON main.t BEGIN INSERT INTO log VALUES (new.a); END",
        "CREATE TRIGGER temp.g AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.a); END",
    ],
)
def test_a_temporary_trigger_fires(door: FakeDoor, script: str) -> None:
    with door.connect() as ours:
        ours.execute(script)
        ours.execute("INSERT INTO t VALUES (1)")
        assert logged(ours) == [1]
    assert door.operations()[-1] == ["INSERT", "INSERT"]


def test_a_trigger_in_a_database_in_memory_fires(door: FakeDoor) -> None:
    with door.connect() as ours:
        ours.execute("ATTACH ':memory:' AS m")
        ours.execute("CREATE TABLE m.u (a)")
        ours.execute("CREATE TABLE m.seen (a)")
        ours.execute("CREATE TRIGGER m.g AFTER INSERT ON u BEGIN INSERT INTO seen VALUES (new.a); END")
        ours.execute("INSERT INTO m.u VALUES (1)")
        assert ours.execute("SELECT a FROM m.seen").fetchall() == [(1,)]
