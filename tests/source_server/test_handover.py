"""A role that is handed over: with all daemons of both sites in one process, and failures where they can be made."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from receiver_server import handover as taking
from replicate.daemon.control import DaemonFailedError
from replicate.daemon.orders import SWITCH_OVER, give, order_with
from replicate.door.recovery.opening import close_door, open_door
from replicate.errors import DiskFullError
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.wire.features import Protocol
from source_server import handover as giving
from tests.harness.pair import Pair
from tests.harness.servers import Daemon, Servers, point, servers
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio


@dataclass
class Six:
    """Both sites, each with its three daemons."""

    pair: Pair
    running: Servers
    source: Daemon
    receiver: Daemon

    async def switch(self, instance: Instance, daemon: str, *, timeout_s: float = 30, dry_run: bool = False) -> Any:
        order = order_with(SWITCH_OVER, {"timeout_s": timeout_s, "dry_run": dry_run})
        return await trio.to_thread.run_sync(give, instance, daemon, order)

    def roles(self) -> tuple[str, str]:
        for one in (self.pair.primary, self.pair.secondary):
            one.reload()
        return self.pair.primary.role, self.pair.secondary.role


@pytest.fixture
async def six(pair: Pair) -> AsyncIterator[Six]:
    primary, secondary = pair.primary, pair.secondary
    async with servers() as running:
        receiver = await running.receiver(secondary)
        standby = await running.receiver(primary)
        primary.register_peer(secondary.name, "127.0.0.1", 1, replace_address=True)
        point(primary, secondary.name, receiver)
        secondary.register_peer(primary.name, "127.0.0.1", 1)
        point(secondary, primary.name, standby)
        secondary.set_mode(primary.name, passive=True)
        for instance in (primary, secondary):
            running.start("update", instance, serve_update)
        running.source(secondary, primary.name)
        source = running.source(primary, secondary.name)
        await wait_until_async(lambda: source.facts.get("state") == "sending", what="the stream")
        yield Six(pair, running, source, receiver)


def writes(instance: Instance) -> bool:
    """Whether its door is open."""
    door = open_door(instance)
    try:
        return not door.words[word.CLOSING] and door.words[word.ROLE] == word.ROLE_PRIMARY
    finally:
        close_door(door)


async def test_there_and_back_by_either_side(six: Six) -> None:
    primary, secondary = six.pair.primary, six.pair.secondary
    last = six.pair.write(3)
    tried = await six.switch(primary, f"source-{secondary.name}", dry_run=True)
    assert (tried["is_done"], tried["problems"]) == (False, [])
    assert (await six.switch(secondary, "receiver", dry_run=True))["problems"] == []
    assert six.roles() == ("primary", "secondary")
    done = await six.switch(primary, f"source-{secondary.name}")
    assert (done["primary"], done["seqno"], done["finished"]) == (secondary.name, last, False)
    assert list(done["vector"].values()) == [last - 1]  # a history record has no number of its origin
    assert done["waited_s"] > 0
    assert six.roles() == ("secondary", "primary")
    assert primary.content.successor is not None
    await wait_until_async(lambda: not primary_of(six).content.successor.is_pending, what="it has said so")
    again = await six.switch(primary, f"source-{secondary.name}")
    assert again["finished"]
    back = await six.switch(primary, "receiver")  # the one that is secondary now wishes it
    assert (back["primary"], back["problems"]) == (primary.name, [])
    assert six.roles() == ("primary", "secondary")
    assert (await six.switch(primary, "receiver"))["finished"]


def primary_of(six: Six) -> Any:
    six.pair.primary.reload()
    return six.pair.primary


async def test_what_bars_it_is_named_and_nothing_is_changed(six: Six) -> None:
    primary, secondary = six.pair.primary, six.pair.secondary
    secondary.unregister_peer(primary.name)
    for daemon in six.running.daemons:
        if daemon.context.name == "update":
            await daemon.stop()
    await wait_until_async(lambda: six.receiver.facts["update_process"] == "not running", what="it is seen")
    found = await six.switch(primary, f"source-{secondary.name}")
    assert not found["is_done"]
    assert [text for text in found["problems"] if "update of" in text and "does not run" in text]
    assert [text for text in found["problems"] if f"the Update Process of {secondary.name} is not running" in text]
    assert six.roles() == ("primary", "secondary")
    assert writes(primary)
    wished = await six.switch(secondary, "receiver")
    assert len(wished["problems"]) == len(found["problems"])


async def test_a_peer_that_lags_is_named(six: Six, monkeypatch: pytest.MonkeyPatch) -> None:
    primary, secondary = six.pair.primary, six.pair.secondary
    monkeypatch.setattr(giving, "LAG_S_MAX", -1.0)
    found = await six.switch(primary, f"source-{secondary.name}")
    (problem,) = found["problems"]
    assert re.fullmatch(f"{secondary.name} lags [0-9]+ s: wait until it is less than -1 s", problem)
    assert (six.roles(), writes(primary)) == (("primary", "secondary"), True)


async def test_a_second_one_at_once_is_refused_and_the_first_ends(six: Six, monkeypatch: pytest.MonkeyPatch) -> None:
    primary, secondary = six.pair.primary, six.pair.secondary
    begun, go_on = trio.Event(), trio.Event()
    catch_up = giving.RoleGiver._catch_up

    async def slow(giver: giving.RoleGiver, deadline_s: float) -> None:
        begun.set()
        await go_on.wait()
        await catch_up(giver, deadline_s)

    monkeypatch.setattr(giving.RoleGiver, "_catch_up", slow)
    done: list[Any] = []

    async def first() -> None:
        done.append(await six.switch(primary, f"source-{secondary.name}"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await begun.wait()
        with pytest.raises(DaemonFailedError, match="a switchover is under way already"):
            await six.switch(primary, f"source-{secondary.name}")
        with pytest.raises(DaemonFailedError, match="a switchover is under way already"):
            await six.switch(secondary, "receiver")
        assert six.roles() == ("primary", "secondary")
        go_on.set()
    assert done[0]["primary"] == secondary.name
    assert six.roles() == ("secondary", "primary")


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secondary speaks the version before roles."""
    monkeypatch.setattr("receiver_server.link.PROTOCOL", Protocol(1, 1))


async def test_a_release_before_roles_replicates_and_is_named_by_either_side(old: None, six: Six) -> None:
    primary, secondary = six.pair.primary, six.pair.secondary
    found = await six.switch(primary, f"source-{secondary.name}")
    (problem,) = found["problems"]
    assert problem.startswith(f"{secondary.name} runs a release that cannot exchange roles: upgrade it")
    with pytest.raises(DaemonFailedError, match=f"{primary.name} runs a release that cannot exchange roles"):
        await six.switch(secondary, "receiver")
    assert six.roles() == ("primary", "secondary")
    last = await trio.to_thread.run_sync(six.pair.write, 3)
    await wait_until_async(lambda: six.receiver.facts.get("last_received_seqno") == last, what="it replicates on")


async def test_a_failure_before_the_role_is_given_leaves_it_here(six: Six, monkeypatch: pytest.MonkeyPatch) -> None:
    primary, secondary = six.pair.primary, six.pair.secondary

    def full(*_: object, **__: object) -> int:
        raise DiskFullError("no room", where="here")

    with monkeypatch.context() as failing:
        failing.setattr(giving, "become_secondary", full)
        with pytest.raises(DaemonFailedError, match=r"DISK_FULL: no room.*Roles and writers are as they were"):
            await six.switch(primary, f"source-{secondary.name}")
    assert six.roles() == ("primary", "secondary")
    assert writes(primary)
    six.pair.write(1)
    assert (await six.switch(primary, f"source-{secondary.name}"))["primary"] == secondary.name


async def test_one_that_cannot_take_the_role_is_told_again(six: Six, monkeypatch: pytest.MonkeyPatch) -> None:
    primary, secondary = six.pair.primary, six.pair.secondary

    def full(*_: object, **__: object) -> int:
        raise DiskFullError("no room", where="there")

    with monkeypatch.context() as failing:
        failing.setattr(taking, "become_primary", full)
        with pytest.raises(DaemonFailedError, match=r"has not said yet that it is primary.*no room.*promote --force"):
            await six.switch(primary, f"source-{secondary.name}", timeout_s=8)
        assert six.roles() == ("secondary", "secondary")
    done = await six.switch(primary, f"source-{secondary.name}")
    assert (done["finished"], done["waited_s"]) == (True, None)
    assert six.roles() == ("secondary", "primary")
