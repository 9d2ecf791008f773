"""Interrupts of the main thread, as ^C makes them, sent by another thread of a test.

Guarantees: `send` returns when the interrupt has been raised, so that the next one is another one, and none comes late.
Leaves to others: what is interrupted.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import main_thread

from tests.harness.waiting import wait_until


@dataclass
class Interrupts:
    """`raised`: how many the main thread has met. `over`: it has left the block, and is left alone."""

    raised: int = 0
    over: bool = False

    def send(self) -> None:
        """Interrupt the main thread; AssertionError when it takes no notice. Nothing when it has left the block."""
        if self.over:
            return
        wanted, number = self.raised + 1, main_thread().ident
        assert number is not None
        signal.pthread_kill(number, signal.SIGINT)
        wait_until(lambda: self.raised == wanted, what="the main thread is interrupted")


@contextmanager
def interrupting() -> Iterator[Interrupts]:
    """Count the interrupts of the main thread, which enters this."""
    made = Interrupts()

    def handle(_number: int, _frame: object) -> None:
        made.raised += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield made
    finally:
        made.over = True
        signal.signal(signal.SIGINT, before)
