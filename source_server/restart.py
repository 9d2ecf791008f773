"""Answering a receiver's restart message: what the source has, what is decided, and what the stream must begin with.

Guarantees: an `Agreed` start is one whose common past was proved by `resync.decide`; every refusal is one of its named
errors. What is agreed on stands in the journal and is durable, or is the place right after its end.
Refuses to know: connections. Blocks on the disk: call it in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicate.door.door import Door
from replicate.door.restart_view import view_for
from replicate.journal.reader import SparseIndex
from replicate.journal.record import catalogue_payload, pack_frame
from replicate.model.transaction import Catalogue, Kind
from replicate.wire.message import Restart
from replicate.wire.resync import StartAt, decide


@dataclass(frozen=True, slots=True)
class Agreed:
    """Where the stream begins, the CATALOGUE frame that holds there, and what is known of the way there."""

    from_seqno: int
    from_part: int
    catalogue: bytes
    index: SparseIndex
    known: Catalogue
    """The catalogue of `catalogue`."""


def agree(door: Door, restart: Restart) -> Agreed:
    """The start that answers `restart`. Raises the refusal, or what reading our own journal raises."""
    viewed = view_for(door, restart)
    decision = decide(restart, viewed.source)
    if not isinstance(decision, StartAt):
        raise decision.error()
    return Agreed(
        decision.seqno, decision.part, _catalogue_frame(viewed.here, decision.seqno), viewed.index, viewed.here
    )


def _catalogue_frame(catalogue: Catalogue, seqno: int) -> bytes:
    """As in a segment; `seqno` is the first one that it holds for."""
    payload, count = catalogue_payload(catalogue)
    frame, _ = pack_frame(Kind.CATALOGUE, seqno, 0, 0, 0, 0, 0, payload, count)
    return frame
