"""An instance at one sequence number: read transactions over all regions, and the position that they show.

Guarantees: every region is seen as it stood when exactly the transactions up to `seqno` were committed, in all regions
the same; writers are held up only for the moment in which the read transactions are opened (the commit lock is held, no
region lock: a long transaction of an application neither delays the snapshot nor is delayed by it).
Leaves to others: what the snapshot is for (transfer/seed/direct.py copies it, compare/compare.py reads it).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from msgspec import Struct

from replicate.door.absorb_stamps import held_absorbed
from replicate.door.door import Door
from replicate.door.recovery.opening import close_door, open_door
from replicate.door.recovery.redo_region import redo_region
from replicate.door.recovery.stale_wal import refuse_stale
from replicate.errors import BusyError
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import region_locked
from replicate.limits import PARTITION_NONE
from replicate.model.transaction import Catalogue
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.region.kind import KIND
from replicate.region.protocol import HeldRegions, scr_chains, scr_vector


@contextmanager
def door_of(instance: Instance) -> Iterator[Door]:
    """The instance's door for the length of a block. Raises what open_door raises."""
    door = open_door(instance)
    try:
        yield door
    finally:
        close_door(door)


class Snapshot(Struct, frozen=True):
    """`regions.connections` hold their read transactions until `take_snapshot` is left. `csn`: the last one there."""

    seqno: int
    position: Position
    csn: int
    catalogue: Catalogue
    regions: HeldRegions


@contextmanager
def take_snapshot(door: Door, *, timeout_s: float, only_at: int | None = None) -> Iterator[Snapshot | None]:
    """The present moment of the instance, held until the block is left; None when it is not at `only_at`.

    What a killed writer left unfinished is finished first. Raises BusyError when the locks cannot be had within
    `timeout_s` seconds, and what opening a region raises. Nothing stays open.
    """
    instance = door.instance
    regions = KIND.held({entry.name: (entry.path, entry.uuid) for entry in instance.regions})
    try:
        for entry in instance.regions:
            refuse_stale(instance, entry, regions.opened[entry.name])
        yield _begin(door, regions, timeout_s, only_at)
    finally:
        regions.close()


@contextmanager
def take_absorbed(door: Door, *, timeout_s: float) -> Iterator[Snapshot]:
    """A snapshot to begin another site with: the region's stamps are those of all of the journal (absorb_stamps.py)."""
    with ExitStack() as held:
        held.enter_context(held_absorbed(door, timeout_s=timeout_s))
        with take_snapshot(door, timeout_s=timeout_s) as snapshot:
            assert snapshot is not None
            held.close()
            yield snapshot


def _begin(door: Door, regions: HeldRegions, timeout_s: float, only_at: int | None) -> Snapshot | None:
    words = door.words
    deadline = time.monotonic() + timeout_s
    while True:
        with door.locked(max(0.0, deadline - time.monotonic())):
            if not _unfinished(door):
                seqno = words[word.LAST_SEQNO]
                if only_at is not None and seqno != only_at:
                    return None
                regions.begin()
                catalogue = door.catalogue()
                known = Position(seqno, catalogue.vector, catalogue.chains)
                if door.instance.is_supplier:  # other origins move within a segment, our own older ones among them
                    known = door.position()
                own = (words[word.OWN_ORIGIN], words[word.OWN_ORIGIN_SEQNO], words[word.OWN_CHAIN])
                csn, keeps_records = words[word.LAST_CSN], bool(words[word.KEEPS_RECORDS])
                break
        if time.monotonic() >= deadline:
            raise BusyError("the work of a killed writer could not be finished in time", where=str(door.instance.path))
        finish_regions(door, deadline - time.monotonic())
    position = _position(known, catalogue, regions, *own, keeps_records=keeps_records)
    return Snapshot(seqno, position, csn, catalogue, regions)


def _position(
    position: Position,
    catalogue: Catalogue,
    regions: HeldRegions,
    own: int,
    own_origin_seqno: int,
    own_chain: int,
    *,
    keeps_records: bool,
) -> Position:
    """What every origin has come to, from `position` on: of those applied the regions know it, of our own the control
    block does. Of its partitions the regions know it, too, once something of them was changed since partitions are in
    use; what they do not know is said to be as far as the stream."""
    seqno, recorded = position.last_seqno, set[int]()
    for region in regions.opened.values():
        rows = region.checkpoint()
        recorded.update(row.partition for row in rows if keeps_records)
        position = _higher(position, Position(seqno, scr_vector(rows), scr_chains(rows)))
    if own_origin_seqno or own_chain:
        used = {definition.partition for definition in catalogue.definitions.values()} - {PARTITION_NONE}
        partitions = used - recorded
        position = position.advanced(seqno, own, own_origin_seqno, own_chain, partitions if own_origin_seqno else ())
    return position


def _higher(one: Position, other: Position) -> Position:
    chains = dict(one.chains)
    for origin, (last, chain) in other.chains.items():
        if origin not in chains or last > chains[origin][0]:
            chains[origin] = (last, chain)
    return Position(one.last_seqno, one.vector.merged(other.vector), chains)


def _unfinished(door: Door) -> bool:
    words = door.words
    return any(
        words[word.REGION_APPENDED + entry.region_id] != words[word.REGION_DONE + entry.region_id]
        for entry in door.instance.regions
    )


def finish_regions(door: Door, timeout_s: float) -> None:
    """Roll every region forward to what the journal has of it. Raises BusyError, and what redo raises."""
    instance: Instance = door.instance
    for entry in instance.regions:
        words = door.words
        if words[word.REGION_APPENDED + entry.region_id] == words[word.REGION_DONE + entry.region_id]:
            continue
        with region_locked(instance, entry, timeout_s):
            redo_region(door, entry)
