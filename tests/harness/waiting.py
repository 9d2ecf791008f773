"""Waiting for a condition with a deadline, instead of sleeping and hoping.

Guarantees: returns as soon as the predicate holds; fails with what was waited for when the deadline has passed. The
deadline is PATIENCE_S unless told: it costs nothing when all is well, and a loaded machine needs it.
Leaves to others: what is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

PATIENCE_S: Final = 120.0


def wait_until(predicate: Callable[[], object], *, timeout_s: float = PATIENCE_S, what: str = "") -> None:
    """Poll `predicate` each few milliseconds until it is true; AssertionError after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or predicate}")
        time.sleep(0.005)


async def wait_until_async(predicate: Callable[[], object], *, timeout_s: float = PATIENCE_S, what: str = "") -> None:
    """The same under trio (and under its autojump clock)."""
    deadline = trio.current_time() + timeout_s
    while not predicate():
        if trio.current_time() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or predicate}")
        await trio.sleep(0.005)
