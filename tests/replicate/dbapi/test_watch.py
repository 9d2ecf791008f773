"""The standard library's sqlite3 must not meet our APSW on one file in one process."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import apsw
import pytest

from replicate.dbapi import watch as dbapi_watch
from replicate.errors import NotSupportedError


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "a b.db")
    connection = apsw.Connection(file)
    connection.execute("CREATE TABLE t(a)")
    connection.close()
    return file


def test_sqlite3_is_kept_from_an_open_region(path: str) -> None:
    key = dbapi_watch.enter(path)
    os.symlink(path, path + ".link")
    for name in (path, Path(path), path.encode(), path + ".link"):
        with pytest.raises(NotSupportedError, match="standard library"):
            sqlite3.connect(name)
    with pytest.raises(NotSupportedError):
        sqlite3.connect("file:" + path.replace(" ", "%20") + "?mode=ro", uri=True)
    sqlite3.connect(":memory:").close()
    again = dbapi_watch.enter(path)
    dbapi_watch.leave(again)
    with pytest.raises(NotSupportedError):
        sqlite3.connect(path)
    dbapi_watch.leave(key)
    sqlite3.connect(path).close()


def test_a_region_that_sqlite3_has_open_is_refused(path: str) -> None:
    other = sqlite3.connect(path)
    other.execute("SELECT * FROM t")
    with pytest.raises(NotSupportedError, match="second SQLite library"):
        dbapi_watch.enter(path)
    other.close()
    dbapi_watch.leave(dbapi_watch.enter(path))


def test_also_in_another_thread(path: str) -> None:
    opened, finish = threading.Event(), threading.Event()

    def hold() -> None:
        other = sqlite3.connect(path)
        other.execute("SELECT * FROM t")
        opened.set()
        finish.wait(60)
        other.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert opened.wait(60)
        with pytest.raises(NotSupportedError):
            dbapi_watch.enter(path)
    finally:
        finish.set()
        thread.join()


def test_another_apsw_connection_is_no_danger(path: str) -> None:
    other = apsw.Connection(path)
    other.execute("SELECT * FROM t")
    dbapi_watch.leave(dbapi_watch.enter(path))
    other.close()


def test_what_does_not_exist_is_somebody_elses_error(tmp_path: Path) -> None:
    assert dbapi_watch.enter(str(tmp_path / "none")) is None
    dbapi_watch.leave(None)
