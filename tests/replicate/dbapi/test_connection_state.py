"""Who may use a connection: the process and the thread that opened it, while it is open."""

from __future__ import annotations

import os
import sqlite3
import threading
from typing import Any

import pytest

from replicate.errors import ForkedError
from tests.harness.fake_door import FakeDoor


def test_a_fork_cannot_use_the_connection(connection: Any) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            connection.execute("SELECT 1")
        except ForkedError as error:
            code = 0 if isinstance(error, sqlite3.ProgrammingError) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    connection.execute("INSERT INTO n VALUES (1)")
    connection.commit()


def test_threads(door: FakeDoor, connection: Any) -> None:
    errors: list[BaseException] = []

    def use(one: Any) -> None:
        try:
            one.execute("INSERT INTO n VALUES (1)")
            one.commit()
        except BaseException as error:
            errors.append(error)

    shared = door.connect(check_same_thread=False)
    for one in (connection, shared):
        thread = threading.Thread(target=use, args=(one,))
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert isinstance(errors[0], sqlite3.ProgrammingError)
    assert "same thread" in str(errors[0])


def test_closed(door: FakeDoor) -> None:
    connection = door.connect()
    cursor = connection.cursor()
    connection.execute("INSERT INTO n VALUES (1)")
    connection.close()
    connection.close()
    for use in (connection.commit, connection.cursor, cursor.fetchone, lambda: connection.in_transaction):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            use()
    assert door.connect().execute("SELECT count(*) FROM n").fetchone() == (0,)
