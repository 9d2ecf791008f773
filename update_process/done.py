"""What one call of `Applier.work` has done, and why it has returned.

Guarantees: nothing but words and counts. Refuses to know: how it was done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Waiting(Enum):
    """Why `work` returned."""

    MORE = "more to do"
    NOTHING = "level: all that was received is applied"
    PART = "waiting for a further part"
    BARRIER = "held by a barrier"
    LOCK = "waiting for a region's lock"
    RESTART = "waiting for the Receiver Server to begin anew"


@dataclass(slots=True)
class Done:
    """What one call of `work` has done. `skipped`: transactions that had been applied before.

    `text`: why it waits. `abandoned`: why an open large transaction was taken back, which begins anew.
    """

    waiting: Waiting = Waiting.MORE
    transactions: int = 0
    bytes: int = 0
    batches: int = 0
    parts: int = 0
    skipped: int = 0
    text: str = ""
    abandoned: str = ""
