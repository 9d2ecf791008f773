"""Which transactions of a journal change which partitions: how many, and the last one of each; and what the regions of
a secondary with some partitions say of it, which a load brings to where no transaction of its journal does.

Guarantees: exact, by the frames themselves: what a transaction over several partitions says of its sections, what a
large one or one with nothing to apply names, else the tables that are changed. What is of no partition, such as a
comment for everybody, counts for none.
Leaves to others: what that means for two sites (scr.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field

from replicate.instance.file import RegionEntry
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import decode_batch, read_head, sections_in
from replicate.limits import BATCH_BYTES_MAX, PARTITION_STREAM
from replicate.region.kind import KIND


@dataclass(frozen=True, slots=True)
class LastInPartition:
    """Of the transactions that change a partition: how many there are, and of the last one the number, its origin and
    its number there. `first_csn`: of the first one, where they were counted."""

    count: int
    seqno: int
    origin: int
    origin_seqno: int
    first_csn: int = field(default=0, compare=False)


def last_within(chain: Chain, first_seqno: int, last_seqno: int) -> dict[int, LastInPartition]:
    """By partition, of the transactions `first_seqno` to `last_seqno`. Raises what reading the journal raises."""
    found: dict[int, LastInPartition] = {}
    if first_seqno > last_seqno:
        return found
    with closing(ChainReader(chain, first_seqno)) as reader:
        partitions = {one.table_id: one.partition for one in reader.catalogue_at(first_seqno).definitions.values()}

        def note(sections: Iterable[int], seqno: int, origin: int, origin_seqno: int, csn: int) -> None:
            for number in sections:
                if number != PARTITION_STREAM:
                    known = found.get(number)
                    count, first_csn = (1 + known.count, known.first_csn) if known else (1, csn)
                    found[number] = LastInPartition(count, seqno, origin, origin_seqno, first_csn)

        while (batch := reader.read(BATCH_BYTES_MAX, last_seqno)) is not None:
            if isinstance(batch, LargeTransaction):
                head = read_head(batch.commit_frame)
                note(batch.partitions, head.seqno, head.origin, head.origin_seqno, head.csn)
                continue
            for body in decode_batch(batch.data)[2::3]:
                note(sections_in(body, partitions), body[1], body[4], body[5], body[6])
    return found


def stored_in(regions: Iterable[RegionEntry], *, newest: bool = False) -> dict[int, LastInPartition]:
    """By partition, what the checkpoint records in these regions say, of all of them the lowest; the `newest` on a
    primary, where a commit moves those of the regions that it changes. `count` is 0. Raises what opening a region
    raises."""
    choose = max if newest else min
    found: dict[int, LastInPartition] = {}
    for entry in regions:
        here: dict[int, LastInPartition] = {}
        with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
            for row in sorted(opened.checkpoint(), key=lambda row: row.seqno):
                here[row.partition] = LastInPartition(0, row.seqno, row.origin, row.origin_seqno)
        for number, last in here.items():
            found[number] = choose(found.get(number, last), last, key=lambda one: one.seqno)
    return found


def last_of_each(chain: Chain, last_seqno: int, wanted: Collection[int]) -> dict[int, LastInPartition]:
    """The last transaction of each of these partitions, as far as the journal holds one; `count` is that of the segment
    which it is in. The newest segments are read first, and no more of them than are needed."""
    found: dict[int, LastInPartition] = {}
    end = last_seqno
    for first in sorted(chain.first_seqnos(), reverse=True):
        if first > last_seqno:
            continue
        for number, last in last_within(chain, first, end).items():
            found.setdefault(number, last)
        end = first - 1
        if found.keys() >= set(wanted):
            break
    return found
