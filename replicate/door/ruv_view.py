"""What a supplier's journal has, as the decision by two vectors wants it (model/ruv.py), and where in it to begin.

Guarantees: the vectors are of one look under the commit lock; the start is the first transaction that the consumer
lacks, found by the vector at the beginning of each segment and the heads of one segment's frames.
Leaves to others: the decision, and who asks: a Source Server for a stream, `replicate ruv` for a word on it. Blocks on
the disk.
"""

from __future__ import annotations

from contextlib import closing

from msgspec import Struct

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.journal.chain import Chain
from replicate.journal.frame import FRAME_PREFIX_BYTES, OF_ORIGIN
from replicate.journal.reader import ChainReader, LargeTransaction, SparseIndex
from replicate.journal.record import read_head
from replicate.limits import BATCH_BYTES_MAX
from replicate.model.ruv import NOTHING, Supplied, covers, lacks
from replicate.model.transaction import Catalogue
from replicate.model.vector import Chains, Position


class ViewedVectors(Struct, frozen=True):
    """`end`: the journal's end; `catalogue`: what is in force there. `oldest_seqno`: its first transaction."""

    supplied: Supplied
    end: Position
    catalogue: Catalogue
    oldest_seqno: int


def vectors_of(door: Door) -> ViewedVectors:
    """Raises what reading our own journal raises."""
    with door.locked():
        end = door.position()
        catalogue = door.catalogue()
    chain = make_chain(door.instance)
    oldest_seqno = chain.oldest_seqno()
    begin = _begins_with(chain, oldest_seqno)
    return ViewedVectors(Supplied(end.chains, begin), end, catalogue, oldest_seqno)


def start_for(
    chain: Chain, known: Chains, last_seqno: int, index: SparseIndex | None = None, *, after_seqno: int = 0
) -> int:
    """The first transaction up to `last_seqno` that one with that knowledge lacks; `last_seqno` + 1 when there is none.
    `after_seqno`: up to there all is known.

    The journal's oldest segment must begin with what is known. Raises what reading raises."""
    numbers = [number for number in chain.first_seqnos() if number <= last_seqno]
    first = next(
        (number for number in reversed(numbers[1:]) if covers(known, _begins_with(chain, number))),
        numbers[0] if numbers else last_seqno + 1,
    )
    reader = ChainReader(chain, max(first, after_seqno + 1), index)
    try:
        while reader.next_seqno <= last_seqno:
            found = reader.read(BATCH_BYTES_MAX, last_seqno)
            if found is None:
                break
            if isinstance(found, LargeTransaction):
                head = read_head(found.commit_frame)
                if lacks(known, head.origin, head.origin_seqno):
                    return found.seqno
                continue
            seqno = _first_lacking(found.data, known)
            if seqno is not None:
                return seqno
    finally:
        reader.close()
    return last_seqno + 1


def last_csn(chain: Chain, end: Position, origin: int) -> int | None:
    """The csn of the last transaction of that origin in the journal, which ends so; None where the journal begins after
    it, or never had one. Raises what reading raises."""
    last, hash_there = end.chains.get(origin, (NOTHING, 0))
    seqno = start_for(chain, {**end.chains, origin: (last - 1, hash_there)}, end.last_seqno)
    if last == NOTHING or seqno > end.last_seqno:
        return None
    with closing(ChainReader(chain, seqno)) as reader:
        found = reader.read(1, seqno)
    if found is None:
        return None
    return read_head(found.commit_frame if isinstance(found, LargeTransaction) else found.data).csn


def _first_lacking(data: bytes, known: Chains) -> int | None:
    """Of whole frames, whose checks have verified. A segment may hold a million: each is looked at once, by four
    numbers."""
    unpack, get, offset, end = OF_ORIGIN.unpack_from, known.get, 0, len(data)
    while offset < end:
        length, seqno, origin, origin_seqno = unpack(data, offset)
        place = get(origin)
        if place is None or place[0] < origin_seqno:
            return int(seqno)
        offset += FRAME_PREFIX_BYTES + length
    return None


def _begins_with(chain: Chain, first_seqno: int) -> Chains:
    """The vector just before a segment's first transaction."""
    with chain.open(first_seqno) as segment:
        return segment.read_catalogue()[0].chains
