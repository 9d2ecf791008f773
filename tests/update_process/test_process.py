"""The Update Process as a daemon under trio: attaches, sleeps, applies, drains, stops, dies by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from structlog.testing import capture_logs

from replicate.compare.compare import compare
from replicate.daemon.daemon import DaemonContext
from replicate.dbapi import OperationalError
from replicate.door.barrier import Barrier
from replicate.door.recovery.opening import make_chain
from replicate.door.secondary import ApplySession, open_apply_session
from replicate.door.snapshot import door_of
from replicate.errors import ClockAheadError, ConflictError, NotFoundError, TryAgainError
from replicate.pool.control import SLEEPERS_OFFSET
from replicate.pool.doorbell import Doorbells
from replicate.pool.receive_pool import LAST_RECEIVED_SEQNO, UPDATE_PID, UPDATE_SLOT, ReceivePool
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.settings.load import load
from tests.harness.pair import Pair
from tests.harness.suppliers import Suppliers
from tests.harness.waiting import wait_until, wait_until_async
from update_process import process
from update_process.applier import Applier
from update_process.process import finish_received, serve
from update_process.work_result import Done, Waiting


def context_of(pair: Pair) -> DaemonContext:
    path = pair.secondary.path
    return DaemonContext("update", path, config=load(path / "replicate.toml"))


def write(pair: Pair, count: int, first: int = 1) -> None:
    connection = pair.connect()
    for number in range(first, first + count):
        connection.execute("INSERT INTO account VALUES (?, 'o', 0, NULL)", (number,))
        connection.commit()
    connection.close()


def deliver(pair: Pair, pool: ReceivePool) -> None:
    pair.deliver(pool)
    bells = Doorbells(pair.secondary.run_directory)
    bells.ring(pool)
    bells.close()


@pytest.mark.trio
async def test_it_waits_for_the_pool_applies_and_drains(pair: Pair) -> None:
    context = context_of(pair)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, context)
        await wait_until_async(lambda: context.state == "serving")
        write(pair, 10)
        with pair.receive_pool() as pool:
            await wait_until_async(lambda: pool.words[UPDATE_PID] == os.getpid())
            deliver(pair, pool)
            await wait_until_async(lambda: pool.applied_seqno == pair.last_seqno())
            assert pool.durable_seqno == pool.applied_seqno
            assert pool.update_alive_since_s(0) is not None
            # What has been received when the stop is asked for is applied.
            write(pair, 10, first=100)
            pair.deliver(pool)
            context.stop_requested.set()
            await wait_until_async(lambda: pool.words[UPDATE_PID] == 0)
            assert pool.applied_seqno == pair.last_seqno()
    assert context.facts["last_applied_seqno"] == pair.last_seqno()
    assert compare(pair.primary, pair.secondary, timeout_s=60).equal


@pytest.mark.trio
async def test_what_arrives_is_applied_without_a_turn_of_the_loop_and_a_stop_wakes_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("update_process.process.NAP_S", 3600.0)
    monkeypatch.setattr("replicate.pool.doorbell.CAP_S", 3600.0)
    context = context_of(pair)
    with pair.receive_pool() as pool, trio.fail_after(200):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, context)
            asleep = SLEEPERS_OFFSET + UPDATE_SLOT
            await wait_until_async(lambda: pool.memory.view[asleep])
            write(pair, 3)
            deliver(pair, pool)
            wait_until(lambda: pool.applied_seqno == pair.last_seqno())  # blocks the loop
            await wait_until_async(lambda: pool.memory.view[asleep])
            context.stop_requested.set()


@pytest.mark.trio
async def test_a_supplier_whose_clock_is_ahead_of_all_others_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is right, or nobody says so any more."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    context = DaemonContext("update", two.by["b"].path, config=load(two.by["b"].path / "replicate.toml"))
    same_ns = time.time_ns() - time.monotonic_ns()
    two_days_ns = 2 * 86_400 * 1_000_000_000

    def is_refused() -> bool:
        try:
            two.write("b")
        except OperationalError as error:
            return isinstance(error.__cause__, ClockAheadError)
        return False

    with two.receive_pool("b", 1) as pool, capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, context)
            await wait_until_async(lambda: pool.words[UPDATE_PID] == os.getpid())
            assert not is_refused()
            for note in ((same_ns, time.monotonic_ns()), (same_ns - two_days_ns, 1)):
                pool.note_clocks(same_ns - two_days_ns, time.monotonic_ns())
                await wait_until_async(is_refused)
                pool.note_clocks(*note)
                await wait_until_async(lambda: not is_refused())
            context.stop_requested.set()
    told = [line["event"] for line in logs if "clock" in line["event"]]
    assert told == ["nothing is committed here: this host's clock is ahead", "this host's clock is right again"] * 2


@pytest.mark.trio
async def test_a_foreign_lock_is_logged_once_a_period(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert process.REPORT_PERIOD_S[Waiting.LOCK] == 10.0
    monkeypatch.setitem(process.REPORT_PERIOD_S, Waiting.LOCK, 3600.0)
    waits = 0
    real = Applier.work

    def work(applier: Applier, seconds: float, stop: Callable[[], bool] = lambda: False) -> Done:
        nonlocal waits
        done = real(applier, seconds, stop)
        waits += done.waiting is Waiting.LOCK
        return done

    monkeypatch.setattr(Applier, "work", work)
    foreign = apsw.Connection(str(pair.secondary.region("main").path))
    foreign.execute("BEGIN IMMEDIATE")
    context = context_of(pair)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, context)
            write(pair, 2)
            with pair.receive_pool() as pool:
                await wait_until_async(lambda: pool.words[UPDATE_PID] == os.getpid())
                deliver(pair, pool)
                await wait_until_async(lambda: waits >= 3)
                foreign.execute("ROLLBACK")
                await wait_until_async(lambda: pool.applied_seqno == pair.last_seqno())
                context.stop_requested.set()
    foreign.close()
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry["event"] for entry in warnings] == ["waiting for a region's lock"]
    assert "locked" in warnings[0]["why"]
    assert all(entry["event"] != "large transaction begins again" for entry in logs)


@pytest.mark.trio
async def test_a_stop_waits_for_a_regions_lock_as_far_as_the_time_allows(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left what it had received where somebody had the lock at the moment of the stop: `receiver stop` failed."""
    waits = 0
    real = Applier.work

    def work(applier: Applier, seconds: float, stop: Callable[[], bool] = lambda: False) -> Done:
        nonlocal waits
        done = real(applier, seconds, stop)
        waits += done.waiting is Waiting.LOCK
        return done

    monkeypatch.setattr(Applier, "work", work)
    foreign = apsw.Connection(str(pair.secondary.region("main").path))
    foreign.execute("BEGIN IMMEDIATE")
    context = context_of(pair)
    with pair.receive_pool() as pool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, context)
            write(pair, 2)
            await wait_until_async(lambda: pool.words[UPDATE_PID] == os.getpid())
            deliver(pair, pool)
            await wait_until_async(lambda: waits > 0)
            context.stop_requested.set()
            met = waits
            await wait_until_async(lambda: waits > met + 1 or pool.words[UPDATE_PID] == 0)
            foreign.execute("ROLLBACK")
        assert pool.applied_seqno == pair.last_seqno()
    assert context.facts["last_word"] == f"applied {pair.last_seqno()}, 0 received and not applied"
    foreign.close()


def configure(pair: Pair, text: str) -> None:
    (pair.secondary.path / "replicate.toml").write_text(text)
    pair.secondary.reload()


@pytest.mark.trio
async def test_it_prunes_the_journal(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("update_process.process.PRUNE_PERIOD_S", 0.05)
    configure(pair, "[journal]\nsegment_bytes = 1048576\nrollback_bytes = 0\n")
    context = context_of(pair)
    connection = pair.connect()
    for number in range(6):
        connection.execute("INSERT INTO entry VALUES (?, 1.0, zeroblob(700000))", (str(number),))
        connection.commit()
    connection.close()
    with capture_logs() as logs, pair.receive_pool(16 * 1024 * 1024) as pool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, context)
            pair.deliver(pool)
            await wait_until_async(lambda: pool.applied_seqno == pair.last_seqno())
            await wait_until_async(lambda: len(make_chain(pair.secondary).first_seqnos()) == 2)
            context.stop_requested.set()
    pruned = [entry for entry in logs if entry["event"] == "journal pruned"]
    assert sum(entry["segments"] for entry in pruned) >= 3
    assert pruned[-1]["last_removed_segment"] < make_chain(pair.secondary).oldest_seqno()
    with pair.session() as session:  # what is left is enough to begin with
        assert session.position.last_seqno == pair.last_seqno()


@pytest.mark.trio
async def test_statistics(pair: Pair) -> None:
    configure(pair, "[update]\nstatistics_period_s = 0.1\n")
    write(pair, 10)
    context = context_of(pair)
    with capture_logs() as logs, pair.receive_pool() as pool, door_of(pair.secondary) as door:

        def events() -> list[MutableMapping[str, Any]]:
            return [entry for entry in logs if entry["event"] == "statistics" and entry["receiver_backlog"] is not None]

        start = pool.last_received_seqno
        async with trio.open_nursery() as nursery:
            with Barrier(door, timeout_s=600) as barrier:
                barrier.raise_to(start + 4)
                pair.deliver(pool)
                nursery.start_soon(serve, context)
                await wait_until_async(lambda: any(entry["receiver_backlog"] == 6 for entry in events()[1:]))
                assert context.facts["applied_per_s"] is None  # it has work, and is held, which is no rate
            await wait_until_async(lambda: pool.applied_seqno == start + 10)
            await wait_until_async(lambda: sum(entry["transactions"] for entry in events()) == 10)
            await wait_until_async(lambda: events()[-1]["receiver_backlog"] == 0)
            assert context.facts["applied_per_s"] is None  # it had nothing to do, which is no rate
            context.stop_requested.set()
    held, level = events()[1], events()[-1]
    assert held["lag_at_least_s"] > 0
    assert max(entry["backlog_at_least_max"] or 0 for entry in events()) >= 6
    assert all(entry["backlog_max"] is None for entry in events())
    assert (level["current_seqno"], level["receiver_backlog"]) == (start + 10, 0)
    assert level["lag_s"] is None  # without a Receiver Server nobody knows what the source has written since
    assert level["cut_s"] > 0
    assert min(entry["starting_seqno"] for entry in events()) <= start + 4
    assert level["transactions_total"] == 10
    for name in ("transactions_per_s", "bytes_per_s"):
        assert name in level
    assert "filter" not in level


@pytest.mark.trio
async def test_a_replaced_pool_is_noticed(pair: Pair) -> None:
    context = context_of(pair)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, context)
        for first in (1, 100):
            write(pair, 5, first)
            with pair.receive_pool() as pool:
                await wait_until_async(lambda pool=pool: pool.words[UPDATE_PID] != 0)  # type: ignore[misc]
                deliver(pair, pool)
                await wait_until_async(lambda pool=pool: pool.applied_seqno == pair.last_seqno())  # type: ignore[misc]
        context.stop_requested.set()


@pytest.mark.trio
async def test_a_conflict_ends_it(pair: Pair) -> None:
    write(pair, 1)
    with pair.session() as session:
        session.begin()
        rows = session.rows["main"]
        rows._connection.execute("INSERT INTO account VALUES (1, 'other', 0, 0)")
        rows._connection.execute("COMMIT")
        session.rollback()
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pytest.raises(BaseExceptionGroup) as caught:
            await serve(context_of(pair))
        assert caught.group_contains(ConflictError)
        assert pool.words[UPDATE_PID] == 0
    assert len(list(pair.secondary.conflict_directory.iterdir())) == 1


@pytest.mark.trio
async def test_a_role_that_was_had_for_a_moment_is_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice changed within one look the role is the same again; what the session knew of the journal is not."""
    opened: list[int] = []

    def open_one(*given: Any, **more: Any) -> ApplySession:
        session = open_apply_session(*given, **more)
        opened.append(session.position.last_seqno)
        return session

    def there_and_back() -> int:
        become_primary(pair.secondary)
        return become_secondary(pair.secondary)

    monkeypatch.setattr(process, "open_apply_session", open_one)
    context = context_of(pair)
    with pair.receive_pool():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, context)
            await wait_until_async(lambda: opened and context.state == "serving")
            monkeypatch.setattr(process, "NAP_S", 0.05)
            last = await trio.to_thread.run_sync(there_and_back)
            with pair.receive_pool():  # as the Receiver Server makes it again
                await wait_until_async(lambda: len(opened) == 2, what="it begins again")
                context.stop_requested.set()
    assert opened == [last - 1, last]  # the history record of the moment


@pytest.mark.trio
async def test_a_secondary_that_was_not_seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    with pytest.raises(BaseExceptionGroup) as caught:
        await serve(context_of(Pair.create(tmp_path)))
    assert caught.group_contains(NotFoundError)


def test_finishing_what_was_received_without_a_daemon(pair: Pair) -> None:
    assert finish_received(pair.secondary, timeout_s=60) == pair.last_seqno()
    write(pair, 3)
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        assert finish_received(pair.secondary, timeout_s=60) == pair.last_seqno()


def test_finishing_leaves_nothing_whole_after_a_hole(pair: Pair) -> None:
    write(pair, 3)
    with pair.receive_pool() as pool:
        applied = pool.last_received_seqno
        pool.words[LAST_RECEIVED_SEQNO] += 1  # the first one is not here
        received = pair.deliver(pool)
        with pytest.raises(TryAgainError, match="--force") as caught:
            finish_received(pair.secondary, timeout_s=60)
        assert caught.value.facts == {"applied": applied, "received": received}
        assert str(applied) in str(caught.value)
        assert str(received) in str(caught.value)


def test_finishing_leaves_parts_of_what_is_not_whole(pair: Pair) -> None:
    write(pair, 3)
    connection = pair.connect()
    connection.executemany("INSERT INTO entry VALUES (?, 1.0, zeroblob(1000))", ((str(n),) for n in range(6000)))
    connection.commit()
    connection.close()
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        assert pool.received_parts, "it should not fit"
        assert finish_received(pair.secondary, timeout_s=60) == pool.last_received_seqno == pair.last_seqno() - 1
        assert pair.rows("entry") == []
