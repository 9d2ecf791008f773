"""Waiting until an instance has applied (or committed) a transaction.

Guarantees: returns as soon as the number is there, whether the Update Process applied it or an application committed
it, and whatever is rolled back or seeded meanwhile; says how far the instance is when the time is over. Takes no lock
and wakes nobody: it reads one shared word.
Refuses to know: why the instance is behind (status says that).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from replicate.door.door import Door
from replicate.door.snapshot import door_of
from replicate.errors import TryAgainError, UsageError
from replicate.instance.instance import Instance
from replicate.pool import control as word

PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.05
"""A transaction is usually there within milliseconds; later we look twenty times a second."""


def poll_until(reached: Callable[[], bool], timeout_s: float, *, pause_s_max: float = PAUSE_S_MAX) -> bool:
    """Look again and again, at growing intervals, until `reached` or for `timeout_s` seconds; the last answer."""
    deadline = time.monotonic() + timeout_s
    pause_s = PAUSE_S_MIN
    while not reached():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s_max, pause_s * 1.5)
    return True


def wait_for_seqno(instance: Instance, seqno: int, *, timeout_s: float) -> int:
    """Wait until the last transaction in the instance's databases is `seqno` or later; returns its number.

    Raises UsageError (a negative number), TryAgainError when `timeout_s` seconds were not enough, and what opening the
    door raises.
    """
    if seqno < 0:
        raise UsageError(f"{seqno} is no sequence number", do="Give --seqno N, with N at least 0")
    deadline_s = time.monotonic() + timeout_s
    while True:
        with _door_in_time(instance, deadline_s) as door:
            words = door.words
            is_known = partial(_is_reached_or_retired, words, seqno)
            poll_until(is_known, max(0.0, deadline_s - time.monotonic()))
            last, is_retired = int(words[word.LAST_SEQNO]), words[word.POOL_STATE] == word.STATE_CLOSED
        if last >= seqno and not is_retired:
            return last
        if time.monotonic() >= deadline_s:
            raise TryAgainError(
                f"transaction {seqno} was not applied within {timeout_s:g} s; the last one is {last}",
                where=str(instance.path),
                do="replicate -i INSTANCE status names the bottleneck",
                wanted=seqno,
                last=last,
            )
        instance.reload()  # a rollback, a seed or a change of role has retired the pool: the numbers are others since


def _is_reached_or_retired(words: memoryview, seqno: int) -> bool:
    return bool(words[word.LAST_SEQNO] >= seqno or words[word.POOL_STATE] == word.STATE_CLOSED)


@contextmanager
def _door_in_time(instance: Instance, deadline_s: float) -> Iterator[Door]:
    """The door, waited for until then while a rollback is under way."""
    with ExitStack() as stack:
        while True:
            try:
                door = stack.enter_context(door_of(instance))
                break
            except TryAgainError:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(PAUSE_S_MAX)
        yield door
