"""When the journal is on the disk: group commit, the policies, the thread of the policy interval, forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate import failpoint
from replicate.errors import JournalIOError, TryAgainError
from replicate.interval_sync import IntervalSync
from replicate.journal.durable import DurableSidecar
from replicate.pool import control as word
from tests.harness.instances import Writer, check, door_of, insert, lose_pool, make_primary, session_of
from tests.harness.waiting import wait_until


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    directory = tmp_path / "shm"
    directory.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(directory))
    yield
    failpoint.disarm()


def test_committers_share_syncs_and_none_returns_before_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = make_primary(tmp_path / "alpha", regions=("main", "two", "three", "four"))
    count, late = 0, []
    sync = os.fdatasync

    def work(region: str, first: int) -> None:
        with session_of(instance, region) as session:
            for row_id in range(first, first + 25):
                seqno = insert(session, row_id, timeout_s=60)
                if session.door.words[word.LAST_DURABLE_SEQNO] < seqno:
                    late.append(seqno)

    with door_of(instance):

        def counted(fd: int) -> None:
            """A disk so slow that others commit meanwhile."""
            nonlocal count
            count += 1
            time.sleep(0.01)
            sync(fd)

        monkeypatch.setattr(os, "fdatasync", counted)
        threads = [
            threading.Thread(target=work, args=(region, first))
            for region in ("main", "two", "three", "four")
            for first in (0, 1000)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not late
    assert count < 180  # of 200 commits: about 100, as the next to sync sets out while the others come back
    check(instance)


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
        seqno = insert(session, 1)
        wait_until(lambda: words[word.LAST_DURABLE_SEQNO] >= seqno, timeout_s=1.0)
        seqno = insert(session, 2)
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
