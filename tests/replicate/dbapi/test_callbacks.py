"""Callbacks of the application, and the door: neither meets the other."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from replicate import dbapi


def test_trace_and_total_changes_show_only_the_applications_work(connection: Any) -> None:
    told: list[str] = []
    connection.set_trace_callback(told.append)
    with connection:
        connection.execute("CREATE TABLE z(a)")
        connection.executemany("INSERT INTO z VALUES (?)", [(1,), (2,)])
    connection.set_trace_callback(None)
    connection.execute("SELECT 1")
    assert told == ["CREATE TABLE z(a)", "BEGIN ", "INSERT INTO z VALUES (1)", "INSERT INTO z VALUES (2)", "COMMIT"]
    assert connection.total_changes == 2


def test_callbacks_are_kept_away_from_the_door(connection: Any) -> None:
    connection.set_authorizer(lambda action, one, *_: dbapi.SQLITE_DENY if str(one).startswith("_replicate") else 0)
    connection.set_progress_handler(lambda: False, 1)
    connection.execute("INSERT INTO n VALUES (1)")
    connection.commit()
    with pytest.raises(sqlite3.DatabaseError, match="prohibited"):
        connection.execute("SELECT * FROM _replicate_ring")
    connection.set_progress_handler(lambda: True, 1)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        connection.execute("SELECT count(*) FROM n AS a, n AS b")
    connection.set_progress_handler(None, 0)
