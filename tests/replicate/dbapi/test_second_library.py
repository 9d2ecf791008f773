"""The standard library's sqlite3 must not meet our APSW on one file in one process."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from pathlib import Path

import apsw
import pytest

from replicate.dbapi import second_library
from replicate.errors import NotSupportedError


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "a b.db")
    connection = apsw.Connection(file)
    connection.execute("CREATE TABLE t(a)")
    connection.close()
    return file


def test_sqlite3_is_kept_from_an_open_region(path: str) -> None:
    key = second_library.enter(path)
    os.symlink(path, path + ".link")
    for name in (path, Path(path), path.encode(), path + ".link"):
        with pytest.raises(NotSupportedError, match="standard library"):
            sqlite3.connect(name)
    with pytest.raises(NotSupportedError):
        sqlite3.connect("file:" + path.replace(" ", "%20") + "?mode=ro", uri=True)
    with pytest.raises(sqlite3.Error, match="standard library"):  # what a program that calls it catches
        sqlite3.connect(path)
    sqlite3.connect(":memory:").close()
    again = second_library.enter(path)
    second_library.leave(again)
    with pytest.raises(NotSupportedError):
        sqlite3.connect(path)
    second_library.leave(key)
    sqlite3.connect(path).close()


def test_a_region_that_sqlite3_has_open_is_refused(path: str) -> None:
    other = sqlite3.connect(path)
    other.execute("SELECT * FROM t")
    with pytest.raises(NotSupportedError, match="second SQLite library"):
        second_library.enter(path)
    other.close()
    second_library.leave(second_library.enter(path))


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
            second_library.enter(path)
    finally:
        finish.set()
        thread.join()


def test_another_apsw_connection_is_no_danger(path: str) -> None:
    other = apsw.Connection(path)
    other.execute("SELECT * FROM t")
    second_library.leave(second_library.enter(path))
    other.close()


@pytest.fixture
def elsewhere(tmp_path: Path) -> sqlite3.Connection:
    """A connection of another thread, to another file: it says nothing of itself here, closed or not."""
    made: list[sqlite3.Connection] = []
    thread = threading.Thread(target=lambda: made.append(sqlite3.connect(tmp_path / "other.db")))
    thread.start()
    thread.join()
    with pytest.raises(sqlite3.ProgrammingError, match="thread"):
        made[0].execute("PRAGMA database_list")
    return made[0]


def test_a_silent_connection_to_another_file_is_no_danger(path: str, elsewhere: sqlite3.Connection) -> None:
    """The file is open here, by a snapshot that a seed is made of, say; an application's thread has its own cache."""
    main, attached = apsw.Connection(path), apsw.Connection(":memory:")
    attached.execute("ATTACH ? AS other", (path,))
    main.execute("SELECT * FROM t")
    second_library.leave(second_library.enter(path))
    main.close()
    second_library.leave(second_library.enter(path))
    attached.close()


def test_a_silent_connection_is_suspected_where_a_descriptor_is_nobodys(
    path: str, elsewhere: sqlite3.Connection
) -> None:
    own = apsw.Connection(path)
    with open(path, "rb"), pytest.raises(NotSupportedError, match="second SQLite library"):
        second_library.enter(path)
    own.close()


def test_a_busy_connection_is_waited_for(path: str, elsewhere: sqlite3.Connection) -> None:
    """It does not say what file it has, either."""
    own, began, go_on = apsw.Connection(path), threading.Event(), threading.Event()
    own.create_scalar_function("hold", lambda: began.set() or go_on.wait(60))
    thread = threading.Thread(target=lambda: own.execute("SELECT hold()").fetchall())
    thread.start()
    assert began.wait(60)
    looks, ours, kept = iter(range(1000)), threading.get_ident(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.get_ident() != ours:  # a thread of another test's, as Spark leaves some
            kept(seconds)
        elif next(looks) == 3:
            go_on.set()
            thread.join()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second_library.time, "sleep", sleep)
        second_library.leave(second_library.enter(path))
    assert next(looks) == 4
    own.close()


def test_what_does_not_exist_is_somebody_elses_error(tmp_path: Path) -> None:
    assert second_library.enter(str(tmp_path / "none")) is None
    second_library.leave(None)


class OfAnApplication(sqlite3.Connection):
    """A subclass, as frameworks have."""


def test_to_look_for_connections_does_no_other_thread_any_harm() -> None:
    """A thread that was making a tuple of what an iterator gives got a SystemError."""
    plain, other = sqlite3.connect(":memory:"), sqlite3.connect(":memory:", factory=OfAnApplication)
    is_over, failed = threading.Event(), list[BaseException]()

    def make_tuples() -> None:
        while not is_over.is_set():
            try:
                tuple(number for number in range(50))
            except SystemError as error:
                failed.append(error)

    threads = [threading.Thread(target=make_tuples) for _ in range(4)]
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(50):
            found = second_library._connections_of_the_standard_library()
            assert {id(plain), id(other)} <= set(map(id, found))
    finally:
        sys.setswitchinterval(before_s)
        is_over.set()
        for thread in threads:
            thread.join()
    assert failed == []
    plain.close()
    other.close()
