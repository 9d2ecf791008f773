"""Daemons that follow the role: who looks, and when it is seen."""

from __future__ import annotations

import pytest
import trio

from replicate.daemon.role_watch import RoleWatch, other_role
from tests.harness.pair import Pair

pytestmark = pytest.mark.trio


async def test_another_role_is_seen_and_another_peer_is_none(pair: Pair) -> None:
    watch, seen = RoleWatch(pair.primary), []
    pair.primary.register_peer("north", "127.0.0.1", 1)
    assert not watch.is_other()

    async def wait() -> None:
        await other_role(pair.primary, trio.Event())
        seen.append(pair.primary.role)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        pair.primary.change_role("secondary")
    assert seen == ["secondary"]
    assert watch.is_other()


async def test_a_stop_ends_the_wait_and_a_file_that_is_away_is_no_other_role(pair: Pair) -> None:
    stop, watch = trio.Event(), RoleWatch(pair.primary)
    (pair.primary.path / "instance.json").rename(pair.primary.path / "aside.json")
    assert not watch.is_other()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other_role, pair.primary, stop)
        await trio.testing.wait_all_tasks_blocked()
        stop.set()
