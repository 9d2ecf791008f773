"""A region whose file is older than the `-wal` beside it: refused before anything is written (fault 48).

Guarantees: RegionReplacedError only where the journal holds a transaction of this region that was committed before the
WAL was begun and is not in the database beneath it; what cannot be told (the journal there is pruned or damaged, a
checkpoint has been at work) is let pass. After a refusal the connection takes nothing of the WAL over when
it is closed.
Leaves to others: the files (region/sqlite/forensics/older_than_wal.py). The usual look costs a few system calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

from replicate.errors import RegionReplacedError, ReplicateError
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import OWN_CHANGES, changes_of, decode_batch, read_head, read_part, unpacker
from replicate.limits import BATCH_BYTES_MAX, RING_RECORD_BYTES_MAX
from replicate.model.transaction import TELLS_ONLY, Op, TableDefinition
from replicate.region.kind import KIND
from replicate.region.protocol import Gap, ReadRegion

LOOK_BACK: Final = 4096
"""So many numbers before the WAL's first one are looked for in the journal. Only where a region is one of several, and
nothing was written in it for so long, an old copy may pass."""


def refuse_stale(instance: Instance, entry: RegionEntry, opened: ReadRegion) -> None:
    """Call it with the region as it was just opened, before anything is done with it.

    Raises RegionReplacedError. It must be closed then, and closing it leaves all files as they are.
    """
    is_primary = instance.role == "primary"
    found = opened.find_gap(
        primary=is_primary,
        # A secondary holds every transaction, and its batches follow one another.
        missed=lambda gap: _missed(instance, entry, gap) if is_primary else gap.first - 1,
    )
    if found is None:
        return
    gap, missed = found
    raise RegionReplacedError(
        f"the file of region {entry.name} is an old copy, beside the -wal of a newer one: it holds transactions up to "
        f"{gap.held}, the -wal was written upon {missed}",
        where=str(entry.path),
        do="Nothing was written. Stop every process of this instance, and put the right file, with its own -wal, back; "
        f"or begin again: {instance.way_out}",
        held=gap.held,
        missed=missed,
    )


def refuse_stale_file(instance: Instance, entry: RegionEntry) -> None:
    """The same with a connection of its own, where there is a WAL. Raises what opening a region raises, too."""
    if not KIND.may_be_older(entry.path):
        return
    with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
        refuse_stale(instance, entry, opened)


def _missed(instance: Instance, entry: RegionEntry, gap: Gap) -> int:
    """The last transaction of this region in the gap, as the journal tells; 0: there is none, or it cannot tell."""
    content = instance.content
    chain = Chain(instance.journal_directory, network=content.network, instance=content.uuid)
    try:
        reader = ChainReader(chain, max(gap.held + 1, gap.first - LOOK_BACK, chain.oldest_seqno()))
        try:
            return _search(reader, entry.name, gap, is_alone=len(instance.regions) == 1)
        finally:
            reader.close()
    except ReplicateError:
        return 0


def _search(reader: ChainReader, region: str, gap: Gap, *, is_alone: bool) -> int:
    tables = {ident: one.region for ident, one in reader.catalogue_at(reader.next_seqno).definitions.items()}
    missed = 0
    while (found := reader.read(BATCH_BYTES_MAX, gap.first)) is not None:
        if isinstance(found, LargeTransaction):
            if found.seqno < gap.first:
                missed = found.seqno if is_alone or _begins_in(region, tables, found) else missed
            elif gap.record:
                return 0
            continue
        offset = 0
        for body in decode_batch(found.data)[2::3]:
            head = read_head(found.data, offset)
            frame = found.data[offset : offset + head.frame_bytes]
            offset += head.frame_bytes
            if head.seqno == gap.first:
                # Numbers that were taken back are given again: it must be the transaction that the WAL has.
                if head.kind not in OWN_CHANGES or not frame.startswith(gap.record):
                    return 0
                if not gap.record and head.frame_bytes <= RING_RECORD_BYTES_MAX:
                    return 0  # its slot would hold it: a row of the application looks like a slot
            elif _touches(region, tables, changes_of(body)):
                missed = head.seqno
    return missed


def _begins_in(region: str, tables: dict[int, str], large: LargeTransaction) -> bool:
    """Whether the first part of a large transaction touches the region: the rest may be gigabytes."""
    stream = unpacker()
    for part in large.parts():
        stream.feed(read_part(part)[2])
        flat = list(stream)
        return _touches(region, dict(tables), flat[: len(flat) // 4 * 4])
    return False


def _touches(region: str, tables: dict[int, str], flat: Sequence[Any]) -> bool:
    touched = False
    for place in range(0, len(flat), 4):
        op, ident, argument, values = flat[place : place + 4]
        if op == Op.SCHEMA:
            touched |= argument == region
        elif op not in TELLS_ONLY and op != Op.REGION:
            if op == Op.DEFINE:
                tables[ident] = TableDefinition.unpack(values).region
            touched |= tables.get(ident) == region
    return touched
