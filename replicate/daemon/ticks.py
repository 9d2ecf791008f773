"""When a daemon looks at what changes without a ring: tasks with one period, or a multiple of it, wake together.

Each wake-up of an idle daemon costs it a third of a millisecond, however little is looked at; a task that sleeps for a
period of its own begin wakes alone.

Guarantees: the next tick comes within one period, and after now.
Leaves to others: what is looked at, and what else wakes a task.
"""

from __future__ import annotations

import trio


def next_tick(period_s: float) -> float:
    """The next moment of trio's clock that is a multiple of the period."""
    now_s = trio.current_time()
    tick_s = (now_s // period_s + 1) * period_s
    return tick_s if tick_s > now_s else tick_s + period_s  # 0.5 // 0.1 is 4


async def sleep_to_tick(period_s: float) -> None:
    """Sleep until then."""
    await trio.sleep_until(next_tick(period_s))
