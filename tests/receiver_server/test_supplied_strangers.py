"""A supplier of another network, with the names that ours have: it is refused both ways, and our own stream goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from replicate.model.ruv import covers
from tests.harness.servers import point, servers
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
