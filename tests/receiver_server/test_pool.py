"""The Receiver Server where a region cannot be read for a while."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest
import trio

from receiver_server import pool
from receiver_server import process as module
from replicate.errors import BusyError
from replicate.pool.shared_memory import PoolKind, retire
from tests.harness.pair import Pair
from tests.harness.servers import Servers, servers
from tests.harness.waiting import wait_until_async

pytestmark = pytest.mark.trio


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return Pair.create(tmp_path)


def kept(path: Path) -> apsw.Connection:
    """A connection that keeps all others out until it is closed."""
    connection = apsw.Connection(str(path))
    connection.pragma("locking_mode", "exclusive")
    connection.execute("BEGIN IMMEDIATE")
    return connection


async def test_a_region_that_somebody_keeps_to_himself_is_waited_for(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that recovers its WAL does, or takes it over when he closes."""
    monkeypatch.setattr(pool, "BUSY_LOOK_S", 0.02)
    monkeypatch.setattr(module, "POOL_LOOK_S", 0.02)
    applied = pair.seed()

    async with servers() as running:
        with closing(kept(pair.secondary.region("main").path)):
            receiver = running.start("receiver", pair.secondary, module.serve)
            await wait_until_async(lambda: receiver.log.events("a region cannot be read yet"))
            assert receiver.context.state == "starting"
        await wait_until_async(lambda: receiver.context.state == "serving")
        with closing(kept(pair.secondary.region("main").path)):
            waited = len(receiver.log.events("a region cannot be read yet"))
            retire(PoolKind.RECEIVE, pair.secondary.content.uuid)
            await wait_until_async(lambda: len(receiver.log.events("a region cannot be read yet")) > waited)
            assert not receiver.log.events("receive pool made again")
        await wait_until_async(lambda: receiver.log.events("receive pool made again"))
        await wait_until_async(lambda: receiver.facts.get("last_applied_seqno") == applied)


async def test_a_region_that_is_never_given_up_ends_the_start(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "REGION_BUSY_S", 0.0)
    pair.seed()
    with closing(kept(pair.secondary.region("main").path)):
        async with trio.open_nursery() as nursery:
            running = Servers(nursery)
            receiver = running.start("receiver", pair.secondary, module.serve)
            assert isinstance(await receiver.failed(), BusyError)
