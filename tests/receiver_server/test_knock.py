"""The Update Process is woken when something has arrived, before that is verified, and holds nothing in vain."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import apsw
import pytest
import trio

from replicate.door.secondary import ApplySession
from replicate.pool.control import SLEEPERS_OFFSET
from replicate.pool.doorbell import Doorbells
from replicate.pool.receive_pool import UPDATE_SLOT, ReceivePool
from replicate.system.locks import FileLock
from tests.harness.pair import Pair
from tests.harness.servers import point, servers
from tests.harness.waiting import wait_until, wait_until_async
from update_process.process import serve as serve_update
from update_process.work_result import Waiting


def lock_of(pair: Pair) -> FileLock:
    return FileLock(pair.secondary.locks_directory / f"region-{pair.secondary.region('main').region_id}.lock")


def is_free(pair: Pair) -> bool:
    """Whether anybody may write the secondary's region: neither our lock nor SQLite's is held."""
    lock = lock_of(pair)
    try:
        if not lock.try_acquire():
            return False
        connection = apsw.Connection(str(pair.secondary.region("main").path))
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return False
        finally:
            connection.close()
        return True
    finally:
        lock.close()


@pytest.mark.trio
async def test_it_begins_while_what_has_arrived_is_verified(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("update_process.process.NAP_S", 3600.0)
    monkeypatch.setattr("update_process.process.EARLY_S", 3600.0)
    monkeypatch.setattr("replicate.pool.doorbell.CAP_S", 3600.0)
    early: list[bool] = []
    begin, offer = ApplySession.begin_early, ReceivePool.offer

    def begin_early(session: ApplySession) -> bool:
        early.append(begin(session))
        return early[-1]

    def offered_when_begun(pool: ReceivePool, *record: Any) -> bool:
        wait_until(lambda: bool(early))  # blocks the receiver, and nobody else: the other one was rung before
        return offer(pool, *record)

    monkeypatch.setattr(ApplySession, "begin_early", begin_early)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        update = running.start("update", pair.secondary, serve_update)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        first = await trio.to_thread.run_sync(lambda: pair.write(1))
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == first)
        with closing(ReceivePool.attach(pair.secondary.content.uuid)) as pool:
            await wait_until_async(lambda: pool.memory.view[SLEEPERS_OFFSET + UPDATE_SLOT])
        early.clear()
        monkeypatch.setattr(ReceivePool, "offer", offered_when_begun)
        last = await trio.to_thread.run_sync(lambda: pair.write(1))
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)
    assert early[0]
    assert is_free(pair)


@pytest.mark.trio
async def test_it_gives_back_what_it_began_for_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    begin, give_back = ApplySession.begin_early, ApplySession.give_back

    def begin_early(session: ApplySession) -> bool:
        is_begun = begin(session)
        if is_begun:  # rung twice, it may find that our own look is in its way
            held.append(not is_free(pair))
        return is_begun

    monkeypatch.setattr(ApplySession, "begin_early", begin_early)
    given: list[int] = []
    monkeypatch.setattr(ApplySession, "give_back", lambda session: (give_back(session), given.append(len(held)))[0])
    bells = Doorbells(pair.secondary.run_directory)
    async with servers() as running:
        with pair.receive_pool() as pool:
            running.start("update", pair.secondary, serve_update)

            def has_begun() -> bool:
                bells.ring(pool, UPDATE_SLOT)
                return bool(held)

            await wait_until_async(has_begun)
            await wait_until_async(lambda: 1 in given or len(held) > 1)
            await wait_until_async(lambda: is_free(pair))
    bells.close()
    assert all(held)


def test_begun_early_is_begun_once(pair: Pair) -> None:
    last = pair.write(3)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        assert applier.begin_early()
        assert applier.begin_early()  # rung twice
        assert not is_free(pair)
        assert applier.work(60.0).waiting is Waiting.NOTHING
        assert is_free(pair)
        assert applier.begin_early()
        pair.deliver(pool)
        assert applier.work(60.0).transactions == 3
        assert is_free(pair)
        assert applier.applied_seqno == last
        assert applier.begin_early()
        applier.close()
        assert is_free(pair)


def test_what_somebody_else_holds_is_not_begun(pair: Pair) -> None:
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        applier.session._lock_timeout_s = 0.05
        foreign = lock_of(pair)
        assert foreign.try_acquire()
        assert not applier.begin_early()
        foreign.close()
        assert applier.begin_early()
        assert applier.work(60.0).waiting is Waiting.NOTHING
        assert is_free(pair)
