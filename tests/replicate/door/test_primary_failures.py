"""Commits when something around them fails: the region's file swapped, a sync refused, the pool gone, a kill.

Faults 22, 26, 36 and 48.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

import replicate
from replicate.door import durability, primary
from replicate.door.primary import RegionSession
from replicate.door.recovery import recovery
from replicate.door.recovery.opening import open_door
from replicate.errors import BusyError, JournalIOError, OutcomeUnknownError, PoolReplacedError, RegionReplacedError
from replicate.journal.durable import DurableSidecar
from replicate.journal.segment import SegmentFile, segment_name
from replicate.journal.spool import remove_orphans
from replicate.limits import LOOK_S
from replicate.pool import control as word
from replicate.pool import shared_memory
from replicate.pool.shared_memory import PoolKind, pool_path, retire
from replicate.region.kind import KIND
from replicate.region.sqlite import writing
from replicate.region.sqlite.open import open_region
from replicate.system.locks import FileLock
from tests.harness.instances import (
    Writer,
    begin_insert,
    begin_large,
    captured,
    change_schema,
    check,
    door_of,
    insert,
    insert_change,
    make_primary,
    session_of,
)

pytestmark = pytest.mark.usefixtures("shared_memory")


def swap(path: Path) -> None:
    """Put a copy in the place of a database, as a careless restore does."""
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


def test_a_clock_that_is_far_ahead_costs_an_application_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told so by name, and never that its database is corrupt."""
    instance = make_primary(tmp_path / "p")
    with contextlib.closing(replicate.connect(instance.path)) as connection:
        connection.execute("INSERT INTO t VALUES (1, 'lost')")
        with monkeypatch.context() as patched:
            patched.setattr(time, "time_ns", lambda: 4_102_444_800_000_000_000)
            with pytest.raises(sqlite3.OperationalError, match="CLOCK_AHEAD") as raised:
                connection.commit()
        assert raised.value.sqlite_errorname == "SQLITE_ERROR"
        assert not connection.in_transaction
        connection.execute("INSERT INTO t VALUES (2, 'kept')")
        connection.commit()
        assert connection.execute("SELECT * FROM t").fetchall() == [(2, "kept")]


def test_a_region_file_swapped_under_an_open_connection_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "p")
    path = instance.region("main").path
    with session_of(instance) as session:
        last = insert(session, 1)
        swap(path)
        time.sleep(LOOK_S)
        for _ in range(2):
            with pytest.raises(RegionReplacedError, match="was replaced while it was open"):
                begin_insert(session, 2)
        session.connection.execute("BEGIN")
        with pytest.raises(RegionReplacedError):
            session.upgrade(timeout_s=1)
        session.rollback()
        os.unlink(path)
        with pytest.raises(RegionReplacedError, match="is gone"):
            begin_insert(session, 2)
        assert session.door.words[word.LAST_SEQNO] == last


def test_a_region_file_swapped_while_it_is_being_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = make_primary(tmp_path / "p")
    path = instance.region("main").path
    shutil.copy(path, path.with_suffix(".right"))

    def opened_and_swapped(*arguments: Any, **options: Any) -> apsw.Connection:
        connection = open_region(*arguments, **options)
        swap(path)
        return connection

    monkeypatch.setattr(writing, "open_region", opened_and_swapped)
    with session_of(instance) as session, pytest.raises(RegionReplacedError, match="was replaced while it was open"):
        begin_insert(session, 1)


def test_a_durable_mark_that_cannot_be_written_after_the_commit_says_that_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that raises anything but OutcomeUnknownError has not happened; these have."""
    instance = make_primary(tmp_path / "p")

    def failing(mark: DurableSidecar, seqno: int) -> None:
        raise JournalIOError("planted", where=mark.path, errno=5)

    with session_of(instance) as session:
        with monkeypatch.context() as patch:
            patch.setattr(DurableSidecar, "write", failing)
            with pytest.raises(OutcomeUnknownError, match="is committed, but what has to follow failed: planted"):
                change_schema(session, "CREATE TABLE later (a)", "later")
        insert(session, 1)
        with monkeypatch.context() as patch:
            patch.setattr(DurableSidecar, "write", failing)
            with pytest.raises(OutcomeUnknownError, match="planted"):
                session.commit(begin_large(session, 100, 300))
    with session_of(instance) as session:
        insert(session, 2)
    assert {1, 2, 100, 399} <= check(instance).rows["main"].keys()


def test_a_sync_lock_that_another_process_keeps_after_the_commit_fails_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 32; found by the simulation. It was told as BUSY, which says that nothing has happened; but it is on the
    disk, and the next flush says so."""
    instance = make_primary(tmp_path / "p")
    monkeypatch.setattr(durability, "SYNC_LOCK_TIMEOUT_S", 0.05)
    other = FileLock(instance.locks_directory / "sync.lock")
    with session_of(instance) as session:
        insert(session, 1)
        monkeypatch.setattr(session.door.durability, "after_commit", lambda _seqno: None)
        for call in (
            lambda: change_schema(session, "CREATE TABLE later (a)", "later"),
            lambda: insert(session, 2, "x" * 100_000),
        ):
            other.acquire(5)
            call()
            last_seqno = session.last_seqno
            assert session.door.words[word.LAST_DURABLE_SEQNO] < last_seqno == session.door.words[word.LAST_SEQNO]
            other.release()
            assert session.door.sync_to_end() == last_seqno
            insert(session, 10 + session.last_seqno)
        other.acquire(5)
        last_seqno = session.door.words[word.LAST_SEQNO]
        # Before the append, when everything is to be synced, it is what it was: nothing has happened.
        large = begin_large(session, 100, 300, timeout_s=0.1)
        with pytest.raises(BusyError):
            session.commit(large)
        other.close()
        assert session.door.words[word.LAST_SEQNO] == last_seqno
    found = check(instance).rows["main"]
    assert {1, 2} <= found.keys()
    assert 100 not in found


@pytest.mark.parametrize("what", ["schema", "large row"])
def test_a_sync_that_fails_after_the_append_says_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    instance = make_primary(tmp_path / "p")
    commits: dict[str, Callable[[RegionSession], int]] = {
        "schema": lambda session: change_schema(session, "CREATE TABLE later (a)", "later"),
        "large row": lambda session: insert(session, 2, "x" * 100_000),
    }
    with session_of(instance) as session:
        insert(session, 1)

        def failing(segment: SegmentFile) -> None:
            raise JournalIOError("fsync of the journal failed: planted", where=segment.path, errno=5)

        monkeypatch.setattr(SegmentFile, "sync", failing)
        with pytest.raises(OutcomeUnknownError, match="was being written"):
            commits[what](session)
        monkeypatch.undo()
    # What unknown means: after recovery it is either wholly there or not at all, and journal and region agree.
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    with session_of(instance) as session:
        insert(session, 3)
    check(instance)


def test_a_connection_survives_a_pool_that_was_made_again(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "p")
    with session_of(instance) as session:
        first = insert(session, 1)
        retire(PoolKind.JOURNAL, instance.content.uuid)  # closed: noticed before anything begins
        assert insert(session, 2) == first + 1
        pool_path(PoolKind.JOURNAL, instance.content.uuid).unlink()  # only unlinked: a commit soon notices
        time.sleep(LOOK_S)
        with pytest.raises(PoolReplacedError):
            insert(session, 3)
        assert insert(session, 3) == first + 2
    check(instance)


def test_who_waits_for_a_region_while_the_pool_is_retired_goes_on_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a change of the role is killed before the role has changed: nothing is lost, and nothing to be told."""
    instance = make_primary(tmp_path / "p")
    waits, really = threading.Event(), primary.wait_for

    def wait_for(parts: Any, timeout_s: float) -> None:
        waits.set()
        really(parts, timeout_s)

    with session_of(instance) as session, session_of(instance) as holder:
        first = insert(holder, 1)
        holder.begin(timeout_s=5)
        monkeypatch.setattr(primary, "wait_for", wait_for)
        with ThreadPoolExecutor(1) as beside:
            waiting = beside.submit(insert, session, 2)
            assert waits.wait(30)
            retire(PoolKind.JOURNAL, instance.content.uuid)
            holder.rollback()
            assert waiting.result(30) == first + 1
    check(instance)


class Clock:
    """Seconds, which pass only where somebody waits for what others remember to have seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        for module in (primary, shared_memory):
            monkeypatch.setattr(module, "monotonic", lambda: self.now_s)
        for module in (primary, shared_memory):
            monkeypatch.setattr(module, "time", SimpleNamespace(sleep=self.sleep, monotonic=lambda: self.now_s))

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_s += seconds


def test_no_commit_goes_by_a_pool_that_another_was_made_in_place_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pools in use would have two ends of one journal. The name was seen just now, so a writer does not look: who
    makes the other one waits until it does."""
    instance = make_primary(tmp_path / "p")
    Clock(monkeypatch)
    with session_of(instance) as session:
        first = insert(session, 1)
        path = pool_path(PoolKind.JOURNAL, instance.content.uuid)
        path.unlink()
        assert insert(session, 2) == first + 1  # a process that comes now finds it in the journal
        assert not path.exists()
        with session_of(instance) as other:
            assert path.exists()
            with pytest.raises(PoolReplacedError):
                insert(session, 3)
            assert insert(other, 3) == first + 2
            assert insert(session, 4) == first + 3
    monkeypatch.undo()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    check(instance)


def test_no_commit_goes_by_a_pool_after_a_recovery_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cuts and completes the journal before it makes a pool. If it is killed there, nobody appends to that by the
    pool that there was."""
    instance = make_primary(tmp_path / "p")
    Clock(monkeypatch)
    with session_of(instance) as session:
        first = insert(session, 1)
        pool_path(PoolKind.JOURNAL, instance.content.uuid).unlink()
        monkeypatch.setattr(recovery, "remove_orphans", _fail)
        with pytest.raises(KeyboardInterrupt):
            open_door(instance)
        monkeypatch.setattr(recovery, "remove_orphans", remove_orphans)
        with pytest.raises(PoolReplacedError):
            insert(session, 2)
        assert insert(session, 2) == first + 1


def _fail(_directory: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["begin", "upgrade"])
def test_no_commit_goes_into_a_file_that_another_is_written_to_in_place_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Somebody puts a copy of the region, a current one, in its place; one who has it open saw the name just now, and
    does not look. Who opens the other one waits until it does, before it writes."""
    instance = make_primary(tmp_path / "p")
    Clock(monkeypatch)
    with session_of(instance) as session:
        insert(session, 0)
        first = insert(session, 1)
        copy_whole(session)
        put_whole(session)
        with session_of(instance) as other:
            assert insert_as(other, 2, how) == first + 1
            with pytest.raises(RegionReplacedError, match="was replaced while it was open"):
                insert(session, 3)
            assert insert_as(other, 3, how) == first + 2
    monkeypatch.undo()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    check(instance)


@pytest.mark.parametrize("when", ["begun before", "begun after"])
@pytest.mark.parametrize("how", ["begin", "upgrade"])
def test_a_file_that_lacks_what_was_committed_since_it_was_opened_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, when: str
) -> None:
    """It was a current copy when it was put in the other's place, and when it was opened. The transaction that went
    into the other file then was accepted: who goes on without it would lose it."""
    instance = make_primary(tmp_path / "p")
    clock = Clock(monkeypatch)
    with session_of(instance) as session:
        insert(session, 0)
        last = insert(session, 1)
        copy_whole(session)
        begun = begin_insert(session, 2) if when == "begun before" else None
        put_whole(session)
        with session_of(instance) as other:
            assert session.commit(begun or begin_insert(session, 2)) == last + 1
            clock.now_s += 10
            for _ in range(2):  # as often as it is tried
                with pytest.raises(RegionReplacedError, match=f"up to {last}, it held {last + 1} before"):
                    insert_as(other, 3, how)
                other.rollback()
            assert other.door.words[word.LAST_SEQNO] == last + 1


@pytest.mark.parametrize("how", ["begin", "upgrade"])
@pytest.mark.parametrize("lacks", [False, True])
def test_so_it_is_where_the_file_was_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: bool, how: str
) -> None:
    instance = make_primary(tmp_path / "p", regions=("main", "two"))
    clock = Clock(monkeypatch)
    with session_of(instance, "two") as session, contextlib.closing(replicate.connect(instance.path, "main")) as other:
        other.execute("INSERT INTO t VALUES (1, 'x')")
        other.commit()
        insert(session, 0)
        last = insert(session, 1)
        copy_whole(session)
        put_whole(session)
        other.attach("two")
        if lacks:
            assert insert(session, 2) == last + 1
            clock.now_s += 10
        for row_id in (2, 3):
            if how == "upgrade":
                other.execute("BEGIN")
                assert other.execute("SELECT count(*) FROM two.t").fetchone() == (2,)
            if lacks:
                told = f"region two holds .* up to {last}, it held {last + 1} before"
                with pytest.raises(replicate.Error, match=told):
                    other.execute("INSERT INTO main.t VALUES (2, 'x')")
                other.rollback()
            else:
                other.execute(f"INSERT INTO main.t VALUES ({row_id}, 'x')")
                other.commit()
                with pytest.raises(RegionReplacedError, match="was replaced while it was open"):
                    begin_insert(session, 2)
        assert session.door.words[word.LAST_SEQNO] == last + (1 if lacks else 2)


def test_who_has_only_read_too_early_is_told_that_and_not_of_another_file(tmp_path: Path) -> None:
    """Before the first write, when it is not proved yet whose the file is."""
    instance = make_primary(tmp_path / "p", regions=("main", "two"))
    with session_of(instance, "two") as session, contextlib.closing(replicate.connect(instance.path, "main")) as other:
        insert(session, 0)
        other.attach("two")
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM two.t").fetchone() == (1,)
        insert(session, 1)
        with pytest.raises(replicate.OperationalError, match="another transaction has written"):
            other.execute("INSERT INTO main.t VALUES (2, 'x')")
        other.rollback()
        other.execute("INSERT INTO main.t VALUES (2, 'x')")
        other.commit()


def test_what_a_region_holds_cannot_be_read_and_is_told_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> int:
        raise apsw.IOError("planted")

    with session_of(make_primary(tmp_path / "p")) as session:
        monkeypatch.setattr(writing, "region_seqno", failing)
        with pytest.raises(JournalIOError, match="planted"):
            begin_insert(session, 1)
        monkeypatch.undo()
        assert not session.holds_region


def copy_whole(session: RegionSession) -> None:
    """Copy a region with all that it holds."""
    session.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(session.where, f"{session.where}.copy")


def put_whole(session: RegionSession) -> None:
    """Put that in its place."""
    for companion in ("-wal", "-shm"):
        os.unlink(session.where + companion)
    os.rename(f"{session.where}.copy", session.where)


def insert_as(session: RegionSession, row_id: int, how: str) -> int:
    """One row, by a transaction that begins as a writer or as a reader."""
    if how == "begin":
        return insert(session, row_id)
    session.connection.execute("BEGIN")
    assert session.connection.execute("SELECT count(*) FROM t").get >= 1
    session.upgrade(timeout_s=1)
    session.connection.execute("INSERT INTO t VALUES (?, 'x')", (row_id,))
    return session.commit(captured(*insert_change(session, row_id, "x")))


def test_writing_again_and_again_looks_for_the_regions_file_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    looks: list[str] = []
    instance = make_primary(tmp_path / "p")
    monkeypatch.setattr(primary, "monotonic", lambda: now_s[0])
    look = KIND.check_same_file
    monkeypatch.setattr(KIND, "check_same_file", lambda *a, **b: (looks.append(a[0]), look(*a, **b)))
    with session_of(instance) as session:
        proved: list[object] = []
        prove = session._prove
        monkeypatch.setattr(session, "_prove", lambda: proved.append(prove()))
        for number in range(1, 51):
            insert(session, number)
            now_s[0] += LOOK_S / 100
        assert looks == [session.where]
        assert proved == [None]
        swap(Path(session.where))
        now_s[0] += LOOK_S * 0.6
        for _ in range(2):  # that it is another one is no reason to look less often
            with pytest.raises(RegionReplacedError, match="was replaced while it was open"):
                begin_insert(session, 60)
        assert looks == [session.where] * 3


def test_a_kill_between_rename_and_sync_of_the_directory_is_synced_by_the_next_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = make_primary(tmp_path / "p")
    with Writer(instance, "adopt.renamed:1:kill") as writer:
        writer.send("large", "main", 100, 3000)
        assert writer.died()
    synced: list[str] = []
    real = os.fsync

    def noting(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", noting)
    with door_of(instance) as door:
        with door.locked():
            adopted = door.words[word.SEGMENT_FIRST_SEQNO]
        assert str(instance.journal_directory) in synced
        assert door.words[word.LAST_DURABLE_SEQNO] == adopted
        assert (instance.journal_directory / segment_name(adopted)).exists()
    with session_of(instance) as session:
        insert(session, 1)  # finishes what the killed writer left undone in the region
    check(instance)


def test_a_primary_without_consumers_prunes_by_itself_when_it_begins_a_segment(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "p", durability="off", segment_bytes=1024 * 1024, cap_bytes=4 * 1024 * 1024)
    with session_of(instance) as session:
        for row_id in range(60):
            insert(session, row_id, "x" * 90_000)
    assert len(list(instance.journal_directory.glob("*.journal"))) <= 4
    check(instance, first_seqno=int(min(instance.journal_directory.glob("*.journal")).stem))


def test_a_multiprocessing_child_syncs_under_interval_when_it_ends(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "p", durability="interval")
    program = """
import multiprocessing, sys
import replicate
def child(path):
    connection = replicate.connect(path)
    connection.execute("INSERT INTO t VALUES (77, 'child')")
    connection.commit()
    global kept
    kept = connection
process = multiprocessing.get_context("fork").Process(target=child, args=(sys.argv[1],))
process.start(); process.join()
assert process.exitcode == 0
"""
    subprocess.run([sys.executable, "-c", program, str(instance.path)], check=True, timeout=300)
    door = open_door(instance)
    try:
        assert door.words[word.LAST_DURABLE_SEQNO] == door.words[word.LAST_SEQNO] > 2
    finally:
        door.close()


def test_large_transactions_still_commit_after_a_failed_one(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "p")
    with session_of(instance) as session:
        captured = begin_large(session, 100, 2000)
        session.rollback()
        if captured.spool is not None:
            captured.spool.abort()
        assert session.commit(begin_large(session, 100, 2000)) == insert(session, 1) - 1
    check(instance)
