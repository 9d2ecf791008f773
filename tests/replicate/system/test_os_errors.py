"""Which errno at which call says what: it fails alone, the disk is full, or the journal takes nothing more
(os_errors.py).

Faults 20, 26 and 28.
"""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import replicate
from replicate.errors import (
    DiskFullError,
    ExhaustedError,
    JournalIOError,
    OutcomeUnknownError,
    ReplicateError,
)
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.system import boot
from tests.harness.instances import (
    Writer,
    begin_insert,
    begin_large,
    check,
    insert,
    make_primary,
    rows,
    session_of,
)

pytestmark = pytest.mark.usefixtures("shared_memory")

ALONE, FULL, FATAL = "alone", "full", "fatal"
OPENED = {errno.EMFILE: ALONE, errno.ENFILE: ALONE, errno.ENOMEM: ALONE, errno.ENOSPC: FULL, errno.EIO: FATAL}
WRITTEN = {errno.ENOMEM: ALONE, errno.ENOSPC: FULL, errno.EIO: FATAL}
SYNCED = {errno.ENOMEM: FATAL, errno.ENOSPC: FATAL, errno.EIO: FATAL}
PLACED = {errno.ENOMEM: FATAL, errno.ENOSPC: FULL, errno.EIO: FATAL}
SWITCH: dict[str, tuple[str, str, dict[int, str]]] = {
    "the directory is opened": ("open", "/journal", OPENED),
    "the new segment is opened": ("open", ".tmp", OPENED),
    "the new segment is written": ("pwrite", ".tmp", WRITTEN),
    "the new segment is synced": ("fsync", ".tmp", PLACED),
    "the new segment is renamed": ("rename", ".tmp", PLACED),
    "the directory is synced": ("fsync", "/journal", SYNCED),
}
ADOPTION: dict[str, tuple[str, str, dict[int, str]]] = {
    "the directory is opened": ("open", "/journal", OPENED),
    "the spool is renamed": ("rename", ".spool", PLACED),
    "the directory is synced": ("fsync", "/journal", SYNCED),
}
FRAME: dict[str, tuple[str, str, dict[int, str]]] = {"a frame is written": ("pwrite", ".journal", WRITTEN)}
KINDS: dict[str, type[ReplicateError]] = {ALONE: ExhaustedError, FULL: DiskFullError, FATAL: JournalIOError}


def cases(table: dict[str, tuple[str, str, dict[int, str]]]) -> list[Any]:
    return [
        pytest.param(call, suffix, number, verdict, id=f"{name}, {errno.errorcode[number]}")
        for name, (call, suffix, verdicts) in table.items()
        for number, verdict in verdicts.items()
    ]


@contextmanager
def failing(call: str, suffix: str, number: int) -> Iterator[list[str]]:
    """The first such call of this process on a file of that name fails with `number`; the list gets the file then."""
    real: Callable[..., Any] = getattr(os, call)
    met: list[str] = []

    def fake(what: Any, *rest: Any, **more: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
        if not met and path.endswith(suffix):
            met.append(path)
            raise OSError(number, os.strerror(number))
        return real(what, *rest, **more)

    setattr(os, call, fake)
    try:
        yield met
    finally:
        setattr(os, call, real)


def judge(
    tmp_path: Path, call: str, suffix: str, number: int, verdict: str, *, switch: bool, large: bool = False
) -> None:
    instance = make_primary(tmp_path / "p")
    with session_of(instance) as session, session_of(instance) as other:
        words = session.door.words
        insert(session, 1)
        insert(other, 2)
        changes = begin_large(session, 10, 300) if large else begin_insert(session, 10)
        words[word.SEGMENT_SEALED] |= switch  # the next append begins a segment
        with failing(call, suffix, number) as met, pytest.raises(ReplicateError) as raised:
            session.commit(changes)
        assert met
        assert isinstance(raised.value, (KINDS[verdict], OutcomeUnknownError) if verdict == FATAL else KINDS[verdict])
        assert os.strerror(number) in str(raised.value)
        if verdict == FATAL:
            assert words[word.FATAL] == number
            for one in (other, session):
                with pytest.raises(JournalIOError, match="failed earlier"):
                    insert(one, 3)
        else:
            assert words[word.FATAL] == words[word.INTENT_SEQNO] == 0
            assert raised.value.do
            assert insert(other, 3) == insert(session, 4) - 1
            assert rows(session.entry.path).keys() == {1, 2, 3, 4}
    with session_of(Instance.open(instance.path)) as session:
        insert(session, 5)
    found = check(instance).rows["main"].keys()
    assert {1, 2, 5} <= found
    assert verdict == FATAL or 10 not in found


@pytest.mark.turns(4)
@pytest.mark.parametrize(("call", "suffix", "number", "verdict"), cases(SWITCH))
def test_a_segment_switch(tmp_path: Path, call: str, suffix: str, number: int, verdict: str) -> None:
    judge(tmp_path, call, suffix, number, verdict, switch=True)


@pytest.mark.turns(4)
@pytest.mark.parametrize(("call", "suffix", "number", "verdict"), cases(ADOPTION))
def test_a_large_transaction_enters_the_chain(
    tmp_path: Path, call: str, suffix: str, number: int, verdict: str
) -> None:
    judge(tmp_path, call, suffix, number, verdict, switch=False, large=True)


@pytest.mark.parametrize(("call", "suffix", "number", "verdict"), cases(FRAME))
def test_a_frame_is_appended(tmp_path: Path, call: str, suffix: str, number: int, verdict: str) -> None:
    judge(tmp_path, call, suffix, number, verdict, switch=False)


@pytest.mark.parametrize("number", SYNCED)
def test_a_failed_sync_of_the_journal_is_fatal_whatever_it_says(tmp_path: Path, number: int) -> None:
    judge(tmp_path, "fdatasync", ".journal", number, FATAL, switch=False)


# Real limits.


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many files in the block, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = [os.open(os.devnull, os.O_RDONLY)]
    while fillers[-1] < highest:  # the limit is of numbers: none below it may be free
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


def try_with_fewer(act: Callable[[int], None], *, undo: Callable[[], None]) -> list[str]:
    """`act` with no descriptor left, with one, with two …, until it succeeds; the codes of its errors."""
    codes: list[str] = []
    for count in range(40):
        try:
            with descriptors_left(count):
                act(count)
        except sqlite3.Error as error:
            undo()
            codes.append(error.code if isinstance(error, ReplicateError) else type(error).__name__)
        else:
            return codes
    raise AssertionError(codes)


def test_a_writer_without_descriptors_fails_alone_at_each_of_its_files(tmp_path: Path) -> None:
    """With a real limit, at a segment switch, where the others are another process."""
    instance = make_primary(tmp_path / "p", durability="durable")
    with Writer(instance) as other, closing(replicate.connect(instance.path)) as connection:
        other.ask("open", "main")
        connection.execute("INSERT INTO t VALUES (0, 'x')")
        connection.commit()
        words = connection._state.opened.session.door.words
        told = iter(range(1000, 2000))

        def act(count: int) -> None:
            connection.execute("INSERT INTO t VALUES (?, 'x')", (count + 1,))
            words[word.SEGMENT_SEALED] = 1
            connection.commit()

        def undo() -> None:
            assert words[word.FATAL] == 0
            connection.rollback()
            assert isinstance(other.ask("insert", "main", next(told)), int)
            words[word.SEGMENT_SEALED] = 1

        codes = try_with_fewer(act, undo=undo)
        assert codes
        assert {*codes} == {"EXHAUSTED"}
        other.ask("insert", "main", next(told))
        connection.execute("INSERT INTO t VALUES (999, 'x')")
        connection.commit()
    assert {0, len(codes) + 1, 999, 1000} <= check(instance).rows["main"].keys()


def test_who_connects_without_descriptors_is_told_so_by_name_and_leaves_nothing(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "p")
    with Writer(instance) as other:
        assert isinstance(other.ask("insert", "main", 1), int)
        told = iter(range(10, 100))

        def act(count: int) -> None:
            connection = replicate.connect(instance.path)
            try:
                connection.execute("INSERT INTO t VALUES (?, 'x')", (100 + count,))
                connection.commit()
            finally:
                connection.close()

        act(99)  # everything is imported
        before = os.listdir("/proc/self/fd")
        codes = try_with_fewer(act, undo=lambda: other.ask("insert", "main", next(told)))
        assert len(codes) > 5
        # It may be committed already when there is no descriptor for the sync: then the error says that.
        assert codes == sorted(codes), "after the first commit nothing is refused as not done"
        assert {*codes} <= {"EXHAUSTED", "OUTCOME_UNKNOWN"}, codes
        unknown = range(100 + codes.count("EXHAUSTED"), 100 + len(codes))
        assert os.listdir("/proc/self/fd") == before
        assert isinstance(other.ask("insert", "main", 2), int)
    found = check(instance).rows["main"].keys()
    assert {*unknown} <= found
    assert not {*range(100, unknown.start)} & found


def test_which_boot_it_is_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guess said that the machine was restarted: then the journal pool of the others would be made again."""
    monkeypatch.delenv("REPLICATE_BOOT_ID", raising=False)
    told = boot.boot_word()
    boot._kernels.cache_clear()
    with descriptors_left(0), pytest.raises(ExhaustedError, match="boot id"):
        boot.boot_word()
    assert boot.boot_word() == told != 1
