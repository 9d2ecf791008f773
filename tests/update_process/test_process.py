"""The Update Process as a daemon under trio: attaches, sleeps, applies, drains, stops, dies by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import trio
from structlog.testing import capture_logs

from replicate.compare import compare
from replicate.config import load
from replicate.daemon import DaemonContext
from replicate.errors import ConflictError, NotFoundError, TryAgainError
from replicate.pool.doorbell import Doorbells
from replicate.pool.receive_pool import LAST_RECEIVED_SEQNO, UPDATE_PID, ReceivePool
from tests.harness.pair import Pair
from tests.harness.waiting import wait_until_async
from update_process.applier import Applier, Done, Waiting
from update_process.process import finish_received, serve


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    return made


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
    assert compare(pair.primary, pair.secondary, timeout_s=5).equal


@pytest.mark.trio
async def test_a_foreign_lock_is_logged_once_in_ten_seconds(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert all(entry["event"] != "large transaction begins anew" for entry in logs)


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
        assert caught.group_contains(ConflictError, depth=2)
        assert pool.words[UPDATE_PID] == 0
    assert len(list(pair.secondary.conflict_directory.iterdir())) == 1


@pytest.mark.trio
async def test_a_secondary_that_was_not_seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    with pytest.raises(NotFoundError):
        await serve(context_of(Pair.create(tmp_path)))


def test_finishing_what_was_received_without_a_daemon(pair: Pair) -> None:
    assert finish_received(pair.secondary, timeout_s=5) == pair.last_seqno()
    write(pair, 3)
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        assert finish_received(pair.secondary, timeout_s=5) == pair.last_seqno()


def test_finishing_leaves_nothing_whole_behind_a_hole(pair: Pair) -> None:
    write(pair, 3)
    with pair.receive_pool() as pool:
        applied = pool.last_received_seqno
        pool.words[LAST_RECEIVED_SEQNO] += 1  # the first one is not here
        received = pair.deliver(pool)
        with pytest.raises(TryAgainError, match="--force") as caught:
            finish_received(pair.secondary, timeout_s=5)
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
        assert finish_received(pair.secondary, timeout_s=5) == pool.last_received_seqno == pair.last_seqno() - 1
        assert pair.rows("entry") == []
