"""The Update Process as a daemon under trio: attaches, sleeps, applies, drains, stops, dies by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from replicate.compare import compare
from replicate.config import load
from replicate.daemon import DaemonContext
from replicate.errors import ConflictError, NotFoundError
from replicate.pool.doorbell import Doorbells
from replicate.pool.receive_pool import UPDATE_PID, ReceivePool
from tests.harness.pair import Pair
from tests.harness.waiting import wait_until_async
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
