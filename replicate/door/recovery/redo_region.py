"""Redo through an open door: what a killed writer left unfinished in one region, before the next transaction there.

Guarantees: afterwards the region holds everything that was appended for it, and the control block says so; after a
failure it holds what it held, or more of the same, and the next one redoes the rest. Leaves to others: how a region is
rolled forward (door/recovery/roll_forward.py), who asks. The caller holds the region's lock.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial

from replicate.door.door import Door
from replicate.door.recovery.roll_forward import InForce, note_region, roll_forward
from replicate.door.recovery.stale_wal import refuse_stale
from replicate.instance.file import RegionEntry
from replicate.pool import control as word
from replicate.region.kind import KIND


def newest_of(door: Door, timeout_s: float | None) -> InForce:
    """What is in force at the end of the journal. BusyError."""
    with door.locked(timeout_s):
        return InForce(door.words[word.SEGMENT_FIRST_SEQNO], door.catalogue())


def redo_region(door: Door, entry: RegionEntry, timeout_s: float | None = None) -> int:
    """Bring the region up to what was appended for it; returns its seqno. Marks it done in the control block.
    `timeout_s`: how long each lock is waited for (None: as long as the door waits); BusyError after that.

    Raises ConflictError, RegionDamagedError, JournalMissingError, JournalDamagedError, JournalIOError and what SQLite
    says.
    """
    words = door.words
    newest = partial(newest_of, door, timeout_s)
    target = int(words[word.REGION_APPENDED + entry.region_id])
    # The killed writer may not have come to its sync, and a secondary's region (or a slot without a frame, too large)
    # holds no record that could complete the journal.
    door.sync_to_end(timeout_s)
    with closing(KIND.mended(entry.path, region=entry.uuid)) as opened:
        refuse_stale(door.instance, entry, opened)
        own_origin = words[word.OWN_ORIGIN]
        have = roll_forward(door.instance, door.chain, entry, opened, target, own_origin, newest)
        note_region(words, entry, opened, have)
    return have
