"""The manners of a connection: what a programmer who knows sqlite3 expects of it."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from replicate.errors import ReplicateError
from tests.harness.fake_door import FakeDoor


def test_the_context_manager_commits_or_rolls_back(door: FakeDoor, connection: Any) -> None:
    with connection:
        connection.execute("INSERT INTO n VALUES (1)")
    with pytest.raises(sqlite3.OperationalError), connection:
        connection.executescript("BEGIN; INSERT INTO n VALUES (2); SELECT nonsense")
    assert connection.execute("SELECT x FROM n").fetchall() == [(1,)]
    assert len(door.commits) == 1


def test_a_commit_that_fails_in_the_context_manager_is_rolled_back(door: FakeDoor, connection: Any) -> None:
    door.fail_commit = ReplicateError("the door is shut")
    with pytest.raises(sqlite3.OperationalError, match="INTERNAL: the door is shut"), connection:
        connection.execute("INSERT INTO n VALUES (1)")
    assert not connection.in_transaction
    door.fail_commit = None
    with connection:
        connection.execute("INSERT INTO n VALUES (1)")


def test_blobs_opened_for_reading(connection: Any) -> None:
    connection.execute("INSERT INTO n VALUES (x'01020304')")
    with connection.blobopen("n", "x", 1, readonly=True) as blob:
        assert (len(blob), blob.read(2), blob.tell(), blob[-1], blob[::2]) == (4, b"\1\2", 2, 4, b"\1\3")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            blob.write(b"x")
    with pytest.raises(sqlite3.NotSupportedError):
        connection.deserialize(b"")


def test_copies(door: FakeDoor, connection: Any) -> None:
    connection.executescript(
        "CREATE INDEX i ON t(b); INSERT INTO t VALUES (1, 'it''s', x'00'); INSERT INTO n VALUES (NULL)"
    )
    script = list(connection.iterdump())
    assert not [line for line in script if "_replicate_" in line]
    plain = sqlite3.connect(":memory:")
    plain.executescript("".join(script))
    assert plain.execute("SELECT * FROM t").fetchall() == [(1, "it's", b"\0")]
    target = sqlite3.connect(":memory:")
    steps: list[tuple[int, int, int]] = []
    connection.backup(target, pages=1, progress=lambda *step: steps.append(step), sleep=0)
    assert target.execute("SELECT * FROM n").fetchall() == [(None,)]
    assert len(steps) > 1
    assert connection.serialize().startswith(b"SQLite format 3\0")


def test_wait_durable_asks_for_the_last_commit(connection: Any) -> None:
    connection.execute("INSERT INTO n VALUES (1)")
    connection.commit()
    connection.wait_durable()
    assert connection._state.opened.waited == [1]


def test_isolation_level(door: FakeDoor, connection: Any) -> None:
    assert connection.isolation_level == ""
    connection.isolation_level = "immediate"
    assert connection.isolation_level == "IMMEDIATE"
    with pytest.raises(ValueError, match="isolation_level"):
        connection.isolation_level = "nonsense"
    connection.execute("INSERT INTO n VALUES (1)")
    connection.isolation_level = None
    assert len(door.commits) == 1
