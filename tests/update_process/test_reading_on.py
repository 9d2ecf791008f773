"""What is read from the receive pool while a batch is being committed in a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from replicate.errors import DiskFullError, JournalDamagedError
from replicate.pool.receive_pool import RecordKind
from replicate.settings.table import UpdateConfig
from tests.harness.interrupts import interrupting
from tests.harness.pair import Pair, assert_equal, work_all
from tests.harness.waiting import wait_until
from update_process.work_result import Waiting


def wide(pair: Pair, count: int) -> None:
    """Transactions of which a window takes three."""
    connection = pair.connect()
    for number in range(1, 1 + count):
        connection.execute("INSERT INTO account VALUES (?, ?, ?, NULL)", (number, "o" * 80_000, number))
        connection.commit()
    connection.close()


def test_windows_read_while_a_batch_is_committed_are_applied_in_their_turn(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide(pair, 60)
    with pair.receive_pool(32 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool, UpdateConfig(batch_bytes=500_000)) as applier:
            real = applier.session.commit
            ahead = []

            def commit(*arguments: Any, **options: Any) -> None:
                if not ahead:
                    wait_until(lambda: len(applier._intake.ahead) >= 3, what="windows are ahead")
                ahead.append(len(applier._intake.ahead))
                real(*arguments, **options)

            monkeypatch.setattr(applier.session, "commit", commit)
            done = work_all(applier)
            assert max(ahead) >= 3
            assert done.transactions == 60
            assert pool.used_bytes == 0
    assert_equal(pair)


def test_a_commit_that_fails_while_we_read_on_leaves_nothing_behind(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide(pair, 60)
    with pair.receive_pool(32 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool, UpdateConfig(batch_bytes=500_000)) as applier:
            first = applier.next_seqno
            real, calls = applier.session.commit, 0

            def commit(*arguments: Any, **options: Any) -> None:
                nonlocal calls
                calls += 1
                if calls == 3:
                    applier.session.rollback()
                    raise DiskFullError("no room for the third batch")
                real(*arguments, **options)

            monkeypatch.setattr(applier.session, "commit", commit)
            with pytest.raises(DiskFullError):
                work_all(applier)
            assert 0 < applier.next_seqno - first < 60
            assert pool.applied_seqno == applier.applied_seqno
            assert work_all(applier).waiting is Waiting.NOTHING
            assert pool.used_bytes == 0
    assert_equal(pair)


def test_damage_that_is_met_while_we_read_on_is_told_in_its_turn(pair: Pair) -> None:
    wide(pair, 30)
    with pair.receive_pool(32 * 1024 * 1024) as pool:
        with pair.applier(pool, UpdateConfig(batch_bytes=500_000)) as applier:
            pair.deliver(pool)
            last = pool.last_received_seqno
            pool.offer(b"\xce" * 100, last + 1, last + 1, 1, RecordKind.FRAMES)
            with pytest.raises(JournalDamagedError):
                work_all(applier)
            assert last - 4 < applier.applied_seqno <= last  # all windows but the one with the damage


def test_interrupts_roll_nothing_back_that_is_being_committed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    wide(pair, 20)
    with pair.receive_pool(32 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool, UpdateConfig(batch_bytes=500_000)) as applier:
            session, first = applier.session, applier.next_seqno
            commit, rollback = session.commit, session.rollback
            committing = False
            torn: list[str] = []

            def slow(*arguments: Any, **options: Any) -> None:
                nonlocal committing
                committing = True
                for _ in range(2):
                    interrupts.send()
                    with contextlib.suppress(AssertionError):
                        wait_until(lambda: bool(torn), what="it is torn away", timeout_s=0.2)
                commit(*arguments, **options)
                committing = False

            def watched() -> None:
                if committing:
                    torn.append("rolled back while it was being committed")
                rollback()

            monkeypatch.setattr(session, "commit", slow)
            monkeypatch.setattr(session, "rollback", watched)
            with interrupting() as interrupts, pytest.raises(KeyboardInterrupt):
                work_all(applier)
            assert torn == []
            assert applier.applied_seqno == pool.applied_seqno >= first
            monkeypatch.setattr(session, "commit", commit)
            work_all(applier)
            assert pool.used_bytes == 0
    assert_equal(pair)


def test_a_commit_without_a_thread_to_be_had_is_made_all_the_same(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    wide(pair, 20)

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pair.receive_pool(32 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool, UpdateConfig(batch_bytes=500_000)) as applier:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", start)
                assert work_all(applier).transactions == 20
    assert_equal(pair)


def test_duplicates_that_are_met_while_we_read_on_are_counted(pair: Pair) -> None:
    wide(pair, 30)
    with pair.receive_pool(32 * 1024 * 1024) as pool:
        start = pool.last_received_seqno
        pair.deliver(pool, upto=start + 20)
        pool.words[17] = start + 18  # LAST_RECEIVED_SEQNO: as if the source had begun again two too early
        pair.deliver(pool, record_bytes=10**6)
        with pair.applier(pool, UpdateConfig(batch_bytes=500_000)) as applier:
            done = work_all(applier)
            assert (done.transactions, done.skipped) == (30, 2)
            assert pool.used_bytes == 0
    assert_equal(pair)
