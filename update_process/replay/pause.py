"""Where a replay stands still: a compare or a digest may hold the instance at a number (replicate/door/barrier.py).

Guarantees: while a barrier stands nothing is committed beyond its number, whether it was set before a piece was read,
while it was collapsed, or an instant before its commit, and exactly its number is reached where that lies within a
piece; a barrier that has fallen or expired holds nobody.
Leaves to others: pieces, and how they are taken back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from replicate.door.barrier import BarrierWatch
from replicate.door.door import Door

NAP_S: Final = 0.02
"""A barrier stands for a moment, and rings no bell."""


class HeldError(Exception):
    """A barrier stands before the end of what was to be committed, and must be reached first. Nothing was committed."""


class Gate:
    """One replay's look at the barrier. Used by one thread; `close` it."""

    def __init__(self, door: Door, waiting: Callable[[], None]) -> None:
        """`waiting` is called each time that a barrier is found where we stand; what it raises ends the wait."""
        self._watch = BarrierWatch(door)
        self._waiting = waiting

    def bound(self, done_seqno: int, last_seqno: int) -> int:
        """How far one that stands at `done_seqno` may go on, `last_seqno` at most; waits while that is nowhere."""
        while (barrier := self._watch.seqno()) and barrier < last_seqno:
            if barrier > done_seqno:
                return barrier
            self._wait()
        return last_seqno

    def pass_to(self, done_seqno: int, last_seqno: int) -> None:
        """Return when everything from `done_seqno` to `last_seqno` may be committed together; waits while nothing of it
        may. HeldError when only a part may."""
        if self.bound(done_seqno, last_seqno) < last_seqno:
            raise HeldError

    def require(self, last_seqno: int) -> None:
        """Under the commit lock, where nobody can set another one: HeldError when a barrier stands before
        `last_seqno`."""
        barrier = self._watch.seqno()
        if barrier and barrier < last_seqno:
            raise HeldError

    def close(self) -> None:
        """Give the descriptor up."""
        self._watch.close()

    def _wait(self) -> None:
        self._waiting()
        time.sleep(NAP_S)
