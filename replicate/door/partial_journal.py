"""A secondary that is to get something else than its source's whole journal has its own journal say so, before that.

    a partition, rows or columns are given up    admin/subscriptions.py
    a filter is on the way                       the Receiver Server, and the import of packets

Guarantees: every segment that holds a transaction which is not whole, or which a filter has told in its own words, has
the flag in its header (journal/header.py), wherever it is copied to. A kill leaves a journal that says less than it
has, never more.
Leaves to others: what makes a secondary primary takes the flag from what it writes itself (door/appended_segment.py).
"""

from __future__ import annotations

from typing import Final

from replicate.door.snapshot import door_of
from replicate.instance.instance import Instance

LOCK_TIMEOUT_S: Final = 30.0


def mark_partial(instance: Instance) -> None:
    """Have the journal say it of all that comes from here on. Nothing happens where it does already. NotFoundError and
    DamagedError where there is no journal to go on with, BusyError, and what an append raises."""
    with door_of(instance) as door, door.locked(LOCK_TIMEOUT_S):
        door.begin_partial()
