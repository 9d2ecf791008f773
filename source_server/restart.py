"""Answering a receiver's restart message: looks up what resync.decide asks for, and what the stream must begin with.

Guarantees: an `Agreed` start is one whose common past was proved by `resync.decide`; every refusal is one of its named
errors. What is agreed on stands in the journal and is durable, or is the place right after its end.
Refuses to know: connections. Blocks on the disk: call it in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.journal.reader import ChainReader, LargeTransaction, SparseIndex
from replicate.journal.record import catalogue_payload, pack_frame
from replicate.model.transaction import Catalogue, Kind
from replicate.model.vector import Position
from replicate.wire.message import Restart
from replicate.wire.resync import LargeHead, SourceView, StartAt, decide, is_reachable


@dataclass(frozen=True, slots=True)
class Agreed:
    """Where the stream begins, the CATALOGUE frame that holds there, and what is known of the way there."""

    from_seqno: int
    from_part: int
    catalogue: bytes
    index: SparseIndex


def agree(door: Door, restart: Restart) -> Agreed:
    """The start that answers `restart`. Raises the refusal, or what reading our own journal raises."""
    with door.locked():
        end = door.position()
        catalogue = door.catalogue()
    chain = make_chain(door.instance)
    oldest = chain.oldest_seqno()
    before: Position | None = None
    large: LargeHead | None = None
    here = catalogue
    index: SparseIndex = {}
    if is_reachable(restart, end.last_seqno, oldest):
        reader = ChainReader(chain, index=index)
        try:
            if restart.next_seqno == end.last_seqno + 1:  # level: as at our end, and no segment need be walked
                here = catalogue.at(end.vector, end.chains)
            else:
                here = reader.catalogue_at(restart.next_seqno)
            before = Position(restart.next_seqno - 1, here.vector, here.chains)
            if restart.next_part:
                large = _large_at(reader, restart.next_seqno, end.last_seqno)
        finally:
            reader.close()
    decision = decide(restart, SourceView(end, oldest, catalogue.histories, before, large))
    if not isinstance(decision, StartAt):
        raise decision.error()
    return Agreed(decision.seqno, decision.part, _catalogue_frame(here, decision.seqno), index)


def _large_at(reader: ChainReader, seqno: int, last_seqno: int) -> LargeHead | None:
    if seqno > last_seqno:
        return None
    reader.seek(seqno)
    found = reader.read(1, seqno)
    return LargeHead(found.token, found.part_count) if isinstance(found, LargeTransaction) else None


def _catalogue_frame(catalogue: Catalogue, seqno: int) -> bytes:
    """As in a segment; `seqno` is the first one that it holds for."""
    payload, count = catalogue_payload(catalogue)
    frame, _ = pack_frame(Kind.CATALOGUE, seqno, 0, 0, 0, 0, 0, payload, count)
    return frame
