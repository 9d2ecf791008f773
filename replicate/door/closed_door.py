"""A closed door: nothing is committed while a command drains what was, and has it acknowledged by others.

Guarantees: from the moment that the door is closed no writer passes it, but for those that a barrier held by somebody
else lets pass until ours stands; what `drain` calls level was durable here, and was acknowledged, while the door was
closed all the time. It opens at the end of the block, when its process dies, and after `timeout_s` and a little more,
whichever comes first: a writer that stood at it goes on then, or was refused by name after its own patience.
Leaves to others: who acknowledges (daemon/source_progress.py asks a Source Server), and what comes after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from replicate.door.barrier import Barrier
from replicate.door.door import Door
from replicate.door.wait import poll_until
from replicate.errors import BusyError, TryAgainError
from replicate.pool import control as word

MORE_S: Final = 5.0
"""So much longer than it is asked for a door stays closed at most: what follows a drain that has just come to its end
is done after it."""
OTHERS_S: Final = 10.0
"""So long we wait for a barrier that a compare or digest holds: it does for moments."""


class Drained(Struct, frozen=True):
    """`seqno`: the last transaction of the journal, which is durable here. `acknowledged_seqno`: up to there they are
    durable at the other site too."""

    seqno: int
    acknowledged_seqno: int

    @property
    def lacking(self) -> int:
        """So many are not acknowledged."""
        return max(0, self.seqno - self.acknowledged_seqno)


class ClosedDoor:
    """What is known while it is closed. Made by `closed_door`."""

    def __init__(self, door: Door, barrier: Barrier, deadline_s: float) -> None:
        self.door = door
        self._words = door.words
        self._barrier = barrier
        self._deadline_s = deadline_s

    @property
    def seqno(self) -> int:
        """The last transaction of the journal. No application can add one; a command that adds a region may."""
        return int(self._words[word.LAST_SEQNO])

    @property
    def left_s(self) -> float:
        """Seconds until the time that was asked for is over."""
        return max(0.0, self._deadline_s - time.monotonic())

    def check(self) -> None:
        """TryAgainError when the door is not closed any more; PoolReplacedError when it is another one's."""
        self.door.pool.check_current()
        words = self._words
        if not (words[word.CLOSING] and words[word.BARRIER_SEQNO]) or (
            time.monotonic_ns() >= words[word.BARRIER_EXPIRES_NS]
        ):
            raise TryAgainError(
                "the door of the instance has opened again before all was done",
                where=str(self.door.instance.path),
                do="Try again, with a longer --timeout",
            )

    def turn_away(self) -> None:
        """From now on writers give up their transactions, and the locks of their regions with them; see
        `Barrier.turn_away`."""
        self._barrier.turn_away()

    def drain(self, acknowledged: Callable[[], int]) -> Drained:
        """Wait, at most as long as was asked for, until all is acknowledged; how far it came.

        `acknowledged` is called again and again for the last transaction that is durable at the other site; what it
        raises ends the wait. TryAgainError when the door did not stay closed.
        """
        self.door.sync_to_end()
        last = 0

        def is_level() -> bool:
            nonlocal last
            self.check()
            last = acknowledged()
            return last >= self.seqno

        poll_until(is_level, self.left_s)
        self.check()
        return Drained(self.seqno, last)


@contextmanager
def closed_door(door: Door, *, timeout_s: float) -> Iterator[ClosedDoor]:
    """Nothing is committed for the length of the block, `timeout_s` seconds and MORE_S at most.

    Raises BusyError when a compare or digest holds the instance, or the commit lock cannot be had, and what taking the
    door's lock raises.
    """
    deadline_s = time.monotonic() + timeout_s
    with Barrier(door, timeout_s=timeout_s + MORE_S, closing=True) as barrier:
        _close(barrier, min(timeout_s, OTHERS_S))
        yield ClosedDoor(door, barrier, deadline_s)


def _close(barrier: Barrier, patience_s: float) -> None:
    """Hold it, as soon as nobody else does."""
    failure: list[BusyError] = []

    def is_held() -> bool:
        try:
            barrier.hold()
        except BusyError as error:
            failure[:] = [error]
            return False
        return True

    if not poll_until(is_held, patience_s):
        raise failure[0]
