"""daemon/ticks.py: tasks of one period, and of its multiples, wake together."""

from __future__ import annotations

import pytest
import trio

from replicate.daemon.ticks import next_tick, sleep_to_tick

pytestmark = pytest.mark.trio


async def test_tasks_that_began_apart_wake_together(autojump_clock: trio.testing.MockClock) -> None:
    woken: dict[float, list[float]] = {0.5: [], 0.25: []}

    async def look(begins_s: float, period_s: float) -> None:
        await trio.sleep(begins_s)
        for _ in range(4):
            await sleep_to_tick(period_s)
            woken[period_s].append(trio.current_time())

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, 0.03, 0.5)
        nursery.start_soon(look, 0.11, 0.25)
        nursery.start_soon(look, 0.2, 0.25)
    assert [moment - begun for moment in woken[0.5]] == [0.5, 1.0, 1.5, 2.0]
    assert [moment - begun for moment in woken[0.25]] == [0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0, 1.0]


async def test_the_next_tick_is_never_now(autojump_clock: trio.testing.MockClock) -> None:
    for period_s in (0.1, 0.25, 0.3, 1.0):
        for _ in range(50):
            before = trio.current_time()
            assert before < next_tick(period_s) <= before + period_s * 1.000001
            await sleep_to_tick(period_s)
            assert trio.current_time() > before
