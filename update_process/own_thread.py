"""One call in a thread of its own, while the caller does something else.

Guarantees: when `run_beside` returns or raises, the call has ended, or was never begun and never will be; nothing runs
on beside the caller, whatever came in between: an error on either side, an interrupt (the first is raised when the call
has ended), or a system that gives no further thread (the call is then made in the caller's).
Leaves to others: what is called.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Final

AGAIN_S: Final = 0.002
"""Until one that had nothing to do is asked again."""


def run_beside(call: Callable[[], None], meanwhile: Callable[[], bool], *, name: str) -> None:
    """Run `call` in a thread called `name`, and `meanwhile` here, again and again until `call` ends. `meanwhile` says
    False when it has nothing to do for now.

    Raises what `meanwhile` raises, otherwise what `call` raises.
    """
    begun, ended = Lock(), Event()
    failures: list[BaseException] = []

    def work() -> None:
        if not begun.acquire(blocking=False):
            return  # the caller has gone
        try:
            call()
        except BaseException as error:
            failures.append(error)
        finally:
            ended.set()

    try:
        try:
            Thread(target=work, name=name).start()
        except RuntimeError:
            work()
        while not ended.is_set():
            if not meanwhile():
                ended.wait(AGAIN_S)
    finally:
        # A thread per call, and no queue: what was not begun can be forbidden, and is not made up for later.
        if not begun.acquire(blocking=False):
            _wait_out(ended)
    if failures:
        raise failures[0]


def _wait_out(ended: Event) -> None:
    """Wait, even when a further interrupt comes."""
    while True:
        try:
            ended.wait()
            return
        except KeyboardInterrupt:
            continue
