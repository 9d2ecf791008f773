"""Rows of partitions that were removed from a secondary's subscription are deleted, beside what goes on.

Guarantees: each transaction deletes ROWS_MAX rows at most, between two batches of the Update Process, which passes over
these partitions from before the first one; only what is neither held nor wanted is deleted. When it returns no loss
of power brings them back. Killed anywhere, the same command deletes the rest.
Leaves to others: the subscription (subscriptions.py), and how rows are deleted (region/sqlite/partition_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from typing import Final

from replicate.door.recovery.stale_wal import refuse_stale
from replicate.errors import InternalError
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import region_locked
from replicate.region.kind import KIND
from replicate.system.failpoint import hit
from replicate.transfer.seed.install import seed_lock
from replicate.transfer.seed.some_regions import update_aside

ROWS_MAX: Final = 10_000
LOCK_TIMEOUT_S: Final = 30.0


def drop_rows(
    secondary: Instance,
    numbers: Collection[int],
    remove: Callable[[], None],
    *,
    told: Callable[[int], None] | None = None,
) -> int:
    """Delete the rows of these partitions, after `remove`, which takes them out of the subscription; how many there
    were. `told`: how many so far. Raises what `remove` and opening a region raise, BusyError, and what the Update
    Process's standing aside raises; JournalIOError when a region cannot be synced."""
    gone = frozenset(numbers)
    with seed_lock(secondary):
        with update_aside(secondary):  # it knows what is held when it begins
            remove()
        secondary.reload()
        choice = secondary.content.choice
        if any(choice.wants(one) or choice.holds(one) for one in gone):
            raise InternalError(f"partitions {sorted(gone)} are not all removed", where=str(secondary.path))
        secondary.change_subscription(lambda now: now.dropped(gone))  # what is left of them is not as it was
        dropped = 0
        for entry in secondary.regions:
            while count := _drop_some(secondary, entry, gone):
                dropped += count
                if told is not None:
                    told(dropped)
                hit("partition.dropped")
            _sync(entry)
    return dropped


def _sync(entry: RegionEntry) -> None:
    """Or the rows would be there again when power goes."""
    KIND.sync(entry.path)


def _drop_some(secondary: Instance, entry: RegionEntry, gone: frozenset[int]) -> int:
    with (
        region_locked(secondary, entry, LOCK_TIMEOUT_S),
        closing(KIND.applied(entry.path, region=entry.uuid)) as region,
    ):
        refuse_stale(secondary, entry, region)
        region.begin(changed_do=f"Seed it again: {secondary.way_out}")
        try:
            count = region.drop_some(gone.__contains__, ROWS_MAX)
            with KIND.naming(str(entry.path)):
                region.commit()
        finally:
            region.rollback()
    return count
