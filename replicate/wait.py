"""Waiting until an instance has applied (or committed) a transaction.

Guarantees: returns as soon as the number is there, whether the Update Process applied it or an application committed
it; says how far the instance is when the time is over. Takes no lock and wakes nobody: it reads one shared word.
Refuses to know: why the instance is behind (status says that).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from replicate.errors import TryAgainError, UsageError
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.snapshot import door_of

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
    with door_of(instance) as door:
        words = door.words
        if not poll_until(lambda: bool(words[word.LAST_SEQNO] >= seqno), timeout_s):
            raise TryAgainError(
                f"transaction {seqno} was not applied within {timeout_s:g} s; the last one is {words[word.LAST_SEQNO]}",
                where=str(instance.path),
                do="replicate -i INSTANCE status names the bottleneck",
                wanted=seqno,
                last=words[word.LAST_SEQNO],
            )
        return int(words[word.LAST_SEQNO])
