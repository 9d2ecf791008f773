"""A supplier of another network with the names that ours have, and one that calls twice: they are refused, and the
stream that is there goes on."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import trio

from replicate.daemon.own_introduction import introduction
from replicate.model.ruv import covers
from replicate.roles.retiring import retire
from replicate.wire.event import Closed, Event
from source_server.link import SourceLink
from tests.harness.link_pair import link_settings
from tests.harness.servers import Daemon, point, prove_to, servers
from tests.harness.suppliers import Suppliers
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    (tmp_path / "ours").mkdir()
    return Suppliers.create(tmp_path / "ours")


@pytest.fixture
def theirs(ours: Suppliers, tmp_path: Path) -> Suppliers:
    """Suppliers a and b of another network."""
    shm = os.environ["REPLICATE_SHM_DIR"]
    (tmp_path / "theirs").mkdir()
    made = Suppliers.create(tmp_path / "theirs")
    os.environ["REPLICATE_SHM_DIR"] = shm  # their pools are made again
    made.write("a", 3)
    return made


async def test_it_brings_nothing_and_the_source_of_its_name_goes_on(ours: Suppliers, theirs: Suppliers) -> None:
    site = ours.by["b"]
    assert theirs.by["a"].name == ours.by["a"].name
    async with servers() as running:
        receiver = await running.receiver(site)
        running.start("update", site, serve_update)
        for one in (ours.by["a"], theirs.by["a"]):
            point(one, "b", receiver)
        own = running.source(ours.by["a"], "b")
        await wait_until_async(lambda: own.facts.get("state") == "sending")
        stranger = running.source(theirs.by["a"], "b")
        await wait_until_async(lambda: "WRONG_NETWORK" in str(stranger.facts.get("last_error")))
        await trio.to_thread.run_sync(lambda: ours.write("a", 5))
        await wait_until_async(lambda: covers(ours.vector("b"), ours.vector("a")))
        assert len(own.log.events("connection made")) == 1
        assert [line["reason"] for line in receiver.log.events("connection refused")] == ["WRONG_NETWORK"]
        assert (receiver.facts["is_connected"], receiver.facts["source"]) == (True, "a")
    assert len(ours.rows("b")["ta"]) == 5
    strange = {one.content.origin.key for one in theirs.by.values()}
    assert not strange & set(ours.vector("b"))


async def test_it_gets_nothing(ours: Suppliers, theirs: Suppliers) -> None:
    """Its Receiver Server stands where our supplier is told that its peer listens."""
    ours.write("a", 5)
    before = theirs.vector("b")
    async with servers() as running:
        receiver = await running.receiver(theirs.by["b"])
        running.start("update", theirs.by["b"], serve_update)
        point(ours.by["a"], "b", receiver)
        source = running.source(ours.by["a"], "b")
        await wait_until_async(lambda: "WRONG_NETWORK" in str(source.facts.get("last_error")))
        assert not receiver.facts["is_connected"]
    assert theirs.vector("b") == before
    assert not theirs.rows("b")["ta"]


async def called(receiver: Daemon, ours: Suppliers) -> Closed:
    """A Source Server of a calls once more, as a copy of its machine does; how that ends."""
    events: list[Event] = []
    async with await trio.open_tcp_stream("127.0.0.1", int(receiver.facts["listen"].rpartition(":")[2])) as stream:
        await prove_to(stream, ours.by["a"])
        link = SourceLink(link_settings(expected_peer="b"), introduction(ours.by["a"], 15.0), trio.current_time(), 0)
        await stream.send_all(b"".join(link.bytes_to_send()))
        while data := await stream.receive_some(65536):
            events += link.receive(data, trio.current_time())
    (closed,) = [one for one in events if isinstance(one, Closed)]
    return closed


async def test_the_same_instance_twice_is_refused_by_name_and_the_first_goes_on(ours: Suppliers) -> None:
    """A supplier has several sources; one and the same only once."""
    site = ours.by["b"]
    async with servers() as running:
        receiver = await running.receiver(site)
        running.start("update", site, serve_update)
        point(ours.by["a"], "b", receiver)
        source = running.source(ours.by["a"], "b")
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        closed = await called(receiver, ours)
        assert "b takes the stream of a already; a is a second source" in str(closed.error)
        await trio.to_thread.run_sync(lambda: ours.write("a", 5))
        await wait_until_async(lambda: covers(ours.vector("b"), ours.vector("a")))
        assert len(source.log.events("connection made")) == 1
        assert [line["first"] for line in receiver.log.events("second source refused")] == ["a"]
    assert len(ours.rows("b")["ta"]) == 5


async def test_one_that_is_gone_for_good_is_waited_for_by_no_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls again and again, and what it may have yet was counted as unknown, for all."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    three = Suppliers.create(tmp_path, 3)
    site = three.by["a"]
    async with servers() as running:
        receiver = await running.receiver(site)
        running.start("update", site, serve_update)
        for name in ("b", "c"):
            point(three.by[name], "a", receiver)
            source = running.source(three.by[name], "a")
        await wait_until_async(lambda: receiver.facts.get("source") == "b, c", what="both have streamed")
        await trio.to_thread.run_sync(partial(retire, site, "c", timeout_s=0))
        await source.stop()
        again = running.source(three.by["c"], "a")
        await wait_until_async(lambda: "RETIRED" in str(again.facts.get("last_error")), what="it is told")
        await wait_until_async(lambda: receiver.facts["source"] == "b", timeout_s=20, what="b alone counts")
        assert receiver.facts["is_connected"]
