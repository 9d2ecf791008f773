"""What one call of `Applier.work` has done, and why it has returned.

Guarantees: nothing but words and counts. Leaves to others: how it was done.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Waiting(Enum):
    """Why `work` returned."""

    MORE = "more to do"
    NOTHING = "level: all that was received is applied"
    PART = "waiting for a further part"
    BARRIER = "held by a barrier"
    LOCK = "waiting for a region's lock"
    RESTART = "waiting for the Receiver Server to begin again"


class Done(Struct):
    """What one call of `work` has done. `skipped`: transactions that had been applied before. `merged`: those in which
    rows were merged (on a supplier), and `lost` values that were lost by it.

    `text`: why it waits. `abandoned`: why an open large transaction was taken back, which begins again. `arrived`: the
    regions that were added on the primary and have come, and whether each was made (else it waits for its seed).
    `left_out`: transactions that are NULL records here by an operator's decision, and whose that was; `overwritten`:
    the same of those whose changes were made over other rows.
    """

    waiting: Waiting = Waiting.MORE
    transactions: int = 0
    bytes: int = 0
    batches: int = 0
    parts: int = 0
    skipped: int = 0
    merged: int = 0
    lost: int = 0
    text: str = ""
    abandoned: str = ""
    arrived: tuple[tuple[str, bool], ...] = ()
    left_out: tuple[tuple[int, str], ...] = ()
    overwritten: tuple[tuple[int, str], ...] = ()
