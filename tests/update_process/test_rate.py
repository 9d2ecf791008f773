"""How fast the Update Process applies, as it tells status: only while it has had work without a pause."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from replicate.daemon.daemon import DaemonContext
from replicate.daemon.statistics import BusyRate
from replicate.door.barrier import Barrier
from replicate.door.snapshot import door_of
from replicate.pool.receive_pool import UPDATE_PID
from replicate.settings.load import load
from tests.harness.pair import Pair
from tests.harness.waiting import wait_until_async
from update_process.process import serve

COUNT = 40


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """What was told of the rate, one after another. A stretch of any length is long enough, and a step a slice."""
    monkeypatch.setattr(BusyRate, "LEAST_S", 1e-9)
    monkeypatch.setattr("update_process.process.SLICE_S", 0.0)
    found: list[float | None] = []
    status = DaemonContext.status

    def noted(context: DaemonContext, text: str | None = None, **facts: Any) -> None:
        if "applied_per_s" in facts:
            found.append(facts["applied_per_s"])
        status(context, text, **facts)

    monkeypatch.setattr(DaemonContext, "status", noted)
    return found


def write(pair: Pair, count: int) -> None:
    with pair.connect() as connection:
        for _ in range(count):
            connection.execute("INSERT INTO account (owner, balance) VALUES ('o', 0)")
            connection.commit()
    connection.close()


@pytest.mark.trio
@pytest.mark.parametrize("held", [False, True])
async def test_it_is_told_while_there_is_work_and_neither_held_nor_level(
    pair: Pair, told: list[float | None], held: bool
) -> None:
    write(pair, COUNT)
    path = pair.secondary.path
    (path / "replicate.toml").write_text("[update]\nbatch_transactions = 5\n")  # several steps, however they arrive
    context = DaemonContext("update", path, config=load(path / "replicate.toml"))
    with pair.receive_pool() as pool, door_of(pair.secondary) as door, Barrier(door, timeout_s=600) as barrier:
        start = pool.last_received_seqno
        if held:
            barrier.raise_to(start)
        pair.deliver(pool)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, context)
            if held:
                await wait_until_async(lambda: context.facts.get("state") == "held by a barrier")
                assert set(told) == {None}
                barrier.lift()
            await wait_until_async(lambda: pool.applied_seqno == start + COUNT)
            await wait_until_async(lambda: context.facts["state"].startswith("level"))
            assert context.facts["applied_per_s"] is None
            assert any(one is not None and one > 0 for one in told)
            context.stop_requested.set()
        assert pool.words[UPDATE_PID] == 0
