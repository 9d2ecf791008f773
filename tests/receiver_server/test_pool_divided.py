"""A supplier's receive pool is divided when a second source comes: what that must not do to the sources."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import trio

from receiver_server.source_state import SourceState
from replicate.instance.instance import Instance
from replicate.limits import MIB
from replicate.model.ruv import covers
from replicate.model.vector import Position
from replicate.pool.receive_pool import ReceivePool
from replicate.roles.retiring import retire
from replicate.wire.message import Introduction
from tests.harness.servers import Daemon, Servers, point, servers
from tests.harness.suppliers import Suppliers
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio
TWO_LANES: Final = 8 * MIB


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path, 3)


def lanes(site: Instance) -> int:
    with closing(ReceivePool.attach(site.content.uuid)) as pool:
        return len(pool.lanes)


async def receiving(running: Servers, three: Suppliers) -> Daemon:
    """b's Receiver Server, which a and c know. Its pool has room for two lanes."""
    receiver = await running.receiver(three.by["b"], receiver__pool_bytes=TWO_LANES)
    for name in ("a", "c"):
        point(three.by[name], "b", receiver)
    return receiver


async def streams(running: Servers, three: Suppliers, name: str) -> Daemon:
    source = running.source(three.by[name], "b")
    await wait_until_async(lambda: source.facts.get("state") == "sending", what=f"{name} streams")
    return source


async def test_without_room_for_another_pool_all_sources_share_the_one_that_is_there(
    three: Suppliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Update Process keeps it until it has seen the new one: both have to fit."""
    site = three.by["b"]
    async with servers() as running:
        receiver = await receiving(running, three)
        running.start("update", site, serve_update)
        await streams(running, three, "a")
        made = len(receiver.log.events("receive pool made again"))
        _leave_free(monkeypatch, 8 * MIB)
        await streams(running, three, "c")
        assert lanes(site) == 1
        await trio.to_thread.run_sync(lambda: (three.write("a", 5), three.write("c", 5)))
        for name in ("a", "c"):
            await wait_until_async(lambda name=name: covers(three.vector("b"), three.vector(name)), what="all is here")
        assert len(receiver.log.events("no room to divide the receive pool")) == 1
        assert len(receiver.log.events("receive pool made again")) == made


def _leave_free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """So much is free where the pools are."""
    kept: Callable[[Any], Any] = os.statvfs
    pools = os.environ["REPLICATE_SHM_DIR"]

    def told(path: Any) -> Any:
        return SimpleNamespace(f_bavail=free_bytes, f_frsize=1) if str(path) == pools else kept(path)

    monkeypatch.setattr(os, "statvfs", told)


async def test_a_source_does_not_wait_until_anothers_lane_has_room(three: Suppliers) -> None:
    """Nothing is applied meanwhile: the other one's lane stays full."""
    site = three.by["b"]
    async with servers() as running:
        receiver = await receiving(running, three)
        await streams(running, three, "a")
        other = await streams(running, three, "c")
        assert lanes(site) == 2
        await trio.to_thread.run_sync(lambda: three.write("a", 30, size=200_000))
        await wait_until_async(lambda: receiver.log.events("XOFF sent"), what="its lane is full")
        await other.stop()
        await streams(running, three, "c")
        running.start("update", site, serve_update)
        await wait_until_async(lambda: covers(three.vector("b"), three.vector("a")), what="all is here")


async def test_one_that_is_gone_for_good_while_the_pool_was_made_again_is_refused(
    three: Suppliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of the new pool is not the one that was looked at, though it bears the same number."""
    site, kept, found = three.by["a"], SourceState.find_vector, list[Position]()

    async def slow(self: SourceState, peer: Introduction) -> Position:
        position = await kept(self, peer)
        if not found:
            found.append(position)
            await trio.to_thread.run_sync(partial(retire, site, "b", timeout_s=0))
            self.pool.request_restart()
            await self.begin_anew()
            await self.replace_pool()
        return position

    monkeypatch.setattr(SourceState, "find_vector", slow)
    async with servers() as running:
        receiver = await running.receiver(site)
        point(three.by["b"], "a", receiver)
        source = running.source(three.by["b"], "a")
        await wait_until_async(lambda: "RETIRED" in str(source.facts.get("last_error")), what="it is told")
        assert not receiver.log.events("restart sent")


async def test_one_that_is_gone_for_good_gets_no_lane(three: Suppliers) -> None:
    """It calls again and again: the streams of the others are not ended for it."""
    site = three.by["b"]
    await trio.to_thread.run_sync(partial(retire, site, "c", timeout_s=0))
    async with servers() as running:
        await receiving(running, three)
        running.start("update", site, serve_update)
        await streams(running, three, "a")
        gone = running.source(three.by["c"], "b")
        await wait_until_async(lambda: "RETIRED" in str(gone.facts.get("last_error")), what="it is told")
        assert lanes(site) == 1
