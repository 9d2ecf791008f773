"""When the journal is on the disk: group commit, the policies, the thread of the policy interval, forks."""

from __future__ import annotations

import errno
import os
import platform
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from replicate.door.durability import Durability
from replicate.door.interval_sync import IntervalSync
from replicate.errors import JournalIOError, OutcomeUnknownError, TryAgainError
from replicate.journal.durable import DurableSidecar
from replicate.pool import control as word
from replicate.pool import doorbell, wake_word
from replicate.pool.wake_word import WakeWord
from replicate.system import locks
from tests.harness.instances import Writer, check, door_of, insert, lose_pool, make_primary, session_of
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("shared_memory")

FUTEX = str(wake_word._CALL_NUMBERS[platform.machine()])
ROUNDS = 25
REGIONS = ("main", "two", "three", "four")


def test_committers_share_syncs_and_none_returns_before_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each round all commit at once. The first sync does not return before all of them have appended: it may have
    set out before some of them did, and one more is enough for those."""
    instance = make_primary(tmp_path / "alpha", regions=REGIONS)
    late: list[int] = []
    syncs = rounds = 0
    sync = os.fdatasync

    with door_of(instance) as door:
        words = door.words
        begun_with = words[word.LAST_SEQNO]

        def next_round() -> None:
            nonlocal rounds
            rounds += 1

        def counted(fd: int) -> None:
            nonlocal syncs
            syncs += 1
            wait_until(lambda: words[word.LAST_SEQNO] >= begun_with + len(REGIONS) * rounds, what="all have appended")
            sync(fd)

        together = threading.Barrier(len(REGIONS), action=next_round)

        def work(region: str) -> None:
            with session_of(instance, region) as session:
                for row_id in range(ROUNDS):
                    together.wait(60)
                    seqno = insert(session, row_id, timeout_s=60)
                    if words[word.LAST_DURABLE_SEQNO] < seqno:
                        late.append(seqno)

        monkeypatch.setattr(os, "fdatasync", counted)
        threads = [threading.Thread(target=work, args=(region,)) for region in REGIONS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert words[word.LAST_SEQNO] == begun_with + len(REGIONS) * ROUNDS
    assert not late
    assert ROUNDS <= syncs <= 2 * ROUNDS
    check(instance)


def test_who_waits_for_anothers_flush_sleeps_until_that_is_done_and_is_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two doors on one instance, as of two processes. A waiter that nobody wakes would look again after an hour."""
    instance = make_primary(tmp_path / "alpha", regions=("main", "two"), durability="off")
    monkeypatch.setattr(locks, "PAUSE_S_MAX", 3600.0)
    sync, begun, go_on = os.fdatasync, threading.Event(), threading.Event()
    syncs: list[int] = []

    def held_up(fd: int) -> None:
        syncs.append(fd)
        begun.set()
        assert go_on.wait(60)
        sync(fd)

    with session_of(instance) as session:
        door = session.door
        words = door.words
        others = [Durability(instance, words, door.open_segment, memory=door.pool.memory) for _ in range(3)]
        insert(session, 1)
        monkeypatch.setattr(os, "fdatasync", held_up)
        leader = threading.Thread(target=door.sync_to_end)
        leader.start()
        assert begun.wait(60)
        covered = words[word.LAST_SEQNO]
        late = insert(session, 2)  # while the disk works: the next flush is for it
        waiters = [threading.Thread(target=group.wait, args=(seqno,))
                   for group, seqno in zip(others, (covered, late, late), strict=True)]  # fmt: skip
        for waiter in waiters:
            waiter.start()
        wait_until(lambda: asleep(waiters), what="all sleep")
        assert words[word.LAST_DURABLE_SEQNO] < covered
        assert len(syncs) == 1
        go_on.set()
        for thread in (leader, *waiters):
            thread.join(60)
            assert not thread.is_alive()
        assert (words[word.LAST_DURABLE_SEQNO], len(syncs)) == (late, 2)
        for group in others:
            group.close()


def asleep(threads: list[threading.Thread]) -> bool:
    """Whether the kernel has all of them waiting in a futex that processes share (Python's own locks are private)."""
    calls = [Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split() for thread in threads]
    return all(call[0] == FUTEX and int(call[2], 16) == 0 for call in calls)


def test_waiters_of_a_flusher_that_is_killed_flush_themselves(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", regions=("main", "two"))
    with Writer(instance, failpoint="sync.before:3:stop") as leader, Writer(instance) as other:
        begun = leader.ask("insert", "main", 1)
        leader.ask("insert", "main", 2)
        leader.send("insert", "main", 3)
        wait_until(lambda: is_stopped(leader.process.pid), what="it stands before its flush")
        other.send("insert", "two", 1)
        with door_of(instance) as door:
            wait_until(lambda: door.words[word.LAST_SEQNO] == begun + 3, what="both have appended")
            assert door.words[word.LAST_DURABLE_SEQNO] == begun + 1  # nobody robs one who is stopped
            leader.process.kill()
            assert other.answer() == begun + 3
            assert door.words[word.LAST_DURABLE_SEQNO] == begun + 3
    check(instance)


def is_stopped(pid: int) -> bool:
    """Whether the process has been stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_commit_that_is_alone_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for company in its flush either."""
    instance = make_primary(tmp_path / "alpha")

    def never(*_: object) -> None:
        raise AssertionError("it waits")

    with session_of(instance) as session:
        insert(session, 1)
        monkeypatch.setattr(WakeWord, "_call", never)
        monkeypatch.setattr(time, "sleep", never)
        for row_id in range(2, 50):
            insert(session, row_id)


def test_only_what_was_there_before_a_sync_is_durable_and_only_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = make_primary(tmp_path / "alpha", regions=("main", "two"), durability="off")
    sync, seen = os.fdatasync, []
    with session_of(instance) as session, session_of(instance, "two") as other:
        words = session.door.words
        seqno = insert(session, 1)

        def slow(fd: int) -> None:
            seen.append(words[word.LAST_DURABLE_SEQNO])
            assert insert(other, 1) == seqno + 1  # while the disk works
            sync(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", slow)
            assert session.door.sync_to_end() == seqno
        assert len(seen) == 1
        assert seen[0] < seqno
        assert words[word.LAST_DURABLE_SEQNO] == seqno
        assert session.door.sync_to_end() == seqno + 1


def test_the_first_failed_sync_is_the_last_one_for_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed fsync the kernel has dropped the pages: the next one would "succeed", and prove nothing."""
    instance = make_primary(tmp_path / "alpha")
    calls: list[int] = []

    def failing(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with session_of(instance) as session, Writer(instance) as other:
        last = other.ask("insert", "main", 1)
        words = session.door.words
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", failing)
            with pytest.raises(OutcomeUnknownError, match="is committed, but syncing the journal failed"):
                insert(session, 2)
        assert (len(calls), words[word.FATAL], words[word.LAST_DURABLE_SEQNO]) == (1, errno.EIO, last)
        # Descriptors of their own, opened later: as another process would come to it, with a disk that is well again.
        fresh = Durability(instance, words, session.door.open_segment)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", calls.append)
            with pytest.raises(JournalIOError, match="failed earlier"):
                fresh.sync_to_end()
            with pytest.raises(OutcomeUnknownError):
                fresh.wait(last + 1)
        fresh.close()
        assert len(calls) == 1
        assert words[word.LAST_DURABLE_SEQNO] == last


def test_who_sleeps_until_it_is_durable_is_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Source Server does; the ring at the commit comes too early for it."""
    instance = make_primary(tmp_path / "alpha")
    monkeypatch.setattr(doorbell, "CAP_S", 3600.0)
    sync = os.fdatasync
    with session_of(instance) as session:
        pool, words = session.door.pool, session.door.words
        wanted = words[word.LAST_SEQNO] + 1

        def asleep_again(fd: int) -> None:
            wait_until(pool.sleeping, what="the reader, rung once, sleeps again")
            sync(fd)

        with closing(doorbell.Doorbell.claim(pool, instance.run_directory)) as bell:
            reader = threading.Thread(
                target=bell.wait_sync, args=(lambda: words[word.LAST_DURABLE_SEQNO] >= wanted, 3600.0), daemon=True
            )
            reader.start()
            wait_until(pool.sleeping)
            monkeypatch.setattr(os, "fdatasync", asleep_again)
            assert insert(session, 1) == wanted
            reader.join(60)
            assert not reader.is_alive()


def test_processes_share_syncs(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", regions=("main", "two"))
    with Writer(instance) as one, Writer(instance) as two, door_of(instance) as door:
        one.send("many", "main", 1, 100)
        two.send("many", "two", 1, 100)
        last = max(one.answer(), two.answer())
        assert door.words[word.LAST_DURABLE_SEQNO] >= last
    sidecar = DurableSidecar(instance.journal_directory / "durable")
    assert sidecar.read() >= last - 1  # two may write it at once: a lower bound
    sidecar.close()
    check(instance)


def test_the_policy_interval_syncs_within_a_second_and_at_the_end(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", durability="interval")
    with session_of(instance) as session:
        words = session.door.words
        took_s: list[float] = []
        while not took_s or (took_s[-1] > 1.0 and len(took_s) < 5):  # a busy machine may be late, but not each time
            seqno = insert(session, len(took_s))
            begun_s = time.monotonic()
            wait_until(lambda seqno=seqno: words[word.LAST_DURABLE_SEQNO] >= seqno)  # type: ignore[misc]
            took_s.append(time.monotonic() - begun_s)
        assert min(took_s) <= 1.0
        seqno = insert(session, 100)
    with door_of(instance) as door:
        assert door.words[word.LAST_DURABLE_SEQNO] >= seqno


def test_a_killed_writers_last_second_is_synced_by_the_next_one(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", durability="interval")
    with Writer(instance) as dying, door_of(instance) as door:
        seqno = dying.ask("insert", "main", 1)
        dying.process.kill()
        assert dying.died()
        assert door.sync_to_end() == seqno
        assert door.wait_durable(seqno) == seqno
    lose_pool(instance)
    check(instance)


def test_the_policy_off_never_syncs(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", durability="off")
    with session_of(instance) as session:
        before = session.door.words[word.LAST_DURABLE_SEQNO]
        for row_id in range(20):
            insert(session, row_id)
        assert session.door.words[word.LAST_DURABLE_SEQNO] == before


def test_the_durable_number_never_falls(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", durability="off")
    with session_of(instance) as session:
        last = insert(session, 1)
        session.door.sync_to_end()
        session.door.durability.note_durable(last - 1)
        assert session.door.words[word.LAST_DURABLE_SEQNO] == last


def test_interval_thread_goes_on_after_a_busy_lock_and_ends_after_a_failure() -> None:
    outcomes: list[BaseException | None] = [TryAgainError("busy"), None, JournalIOError("gone")]
    calls: list[int] = []

    def sync() -> None:
        calls.append(1)
        outcome = outcomes.pop(0) if outcomes else None
        if outcome is not None:
            raise outcome

    interval = IntervalSync(sync, 0.02)
    interval.wake()
    wait_until(lambda: len(calls) == 2)
    interval.wake()
    wait_until(lambda: len(calls) == 3)
    interval.close()
    interval.close()
    assert len(calls) == 4


def test_an_interval_that_nobody_woke_has_no_thread() -> None:
    before = threading.active_count()
    IntervalSync(lambda: None, 0.02).close()
    assert threading.active_count() == before
