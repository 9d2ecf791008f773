"""Answering a receiver's restart message: what the source has, what is decided, and what the stream must begin with.

Guarantees: an `Agreed` start is one whose common past was proved by `resync.decide`, or between suppliers decided by
both vectors (model/ruv.py); every refusal is one of their named errors. What is agreed on stands in the journal and is
durable, or is the place right after its end.
Leaves to others: connections. Blocks on the disk: call it in a thread.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.door.restart_view import view_for
from replicate.door.ruv_view import ViewedVectors, last_csn, start_for, vectors_of
from replicate.journal.catalogue import catalogue_before
from replicate.journal.reader import SparseIndex
from replicate.journal.record import catalogue_payload, pack_frame
from replicate.model import ruv
from replicate.model.moment import wall_ns
from replicate.model.transaction import Catalogue, Kind
from replicate.model.vector import Origin
from replicate.roles.restored_supplier import turn_back
from replicate.wire.introduction import refusal
from replicate.wire.message import Introduction, RefuseCode, Restart
from replicate.wire.resync import StartAt, decide
from replicate.wire.vector_refusals import refused
from source_server.unseen_transactions import Unseen


class Agreed(Struct, frozen=True):
    """Where the stream begins, the CATALOGUE frame that holds there, and what is known of the way there."""

    from_seqno: int
    from_part: int
    catalogue: bytes
    index: SparseIndex
    known: Catalogue
    """The catalogue of `catalogue`."""
    unseen: Unseen | None = None
    """Of a start by vector: what goes."""


def agree(door: Door, restart: Restart) -> Agreed:
    """The start that answers `restart`. Raises the refusal, or what reading our own journal raises."""
    viewed = view_for(door, restart)
    decision = decide(restart, viewed.source)
    if not isinstance(decision, StartAt):
        raise decision.error()
    return Agreed(
        decision.seqno, decision.part, _catalogue_frame(viewed.here, decision.seqno), viewed.index, viewed.here
    )


def agree_by_vector(door: Door, restart: Restart, peer: Introduction) -> Agreed:
    """The same for another supplier, which asks for all that its vector does not cover. One that knows more of what we
    write than we do shows that we were turned back: then we take no writes (roles/restored_supplier.py). One that we
    know so is refused: it sees by the numbers whether it is so, before it takes anything of us."""
    viewed = vectors_of(door)
    own = door.instance.content.origin.key
    if own in restart.chains and ruv.lacks(viewed.supplied.end, own, restart.chains[own][0]):
        turn_back(door.instance, origin=own)
        raise refusal(
            RefuseCode.TURNED_BACK,
            f"{door.instance.name} was turned back: it has less of its own than {peer.name} has of it",
        )
    names = {one.origin.key: one.name for one in viewed.catalogue.histories}
    origin = Origin(peer.instance, peer.incarnation).key
    if (last := _lost_there(door, viewed, restart, origin, peer.wall_ns)) is not None:
        raise refusal(
            RefuseCode.TURNED_BACK,
            f"{peer.name} was turned back: it has less of its own than {door.instance.name} has of it",
            origin=origin,
            held_from=last,
        )
    decision = ruv.decide(restart.chains, viewed.supplied)
    if not isinstance(decision, ruv.Send | ruv.NothingToSend):
        raise refused(decision, names)
    index: SparseIndex = {}
    chain, last_seqno = make_chain(door.instance), viewed.end.last_seqno
    seqno, here = last_seqno + 1, viewed.catalogue.at(viewed.end.vector, viewed.end.chains)
    if isinstance(decision, ruv.Send):
        seqno = start_for(chain, restart.chains, last_seqno, index)
        here = catalogue_before(chain, seqno)
    frame = _catalogue_frame(replace(here, histories=viewed.catalogue.histories), seqno)
    return Agreed(seqno, 0, frame, index, here, Unseen(restart.chains, here.chains, origin, names))


def _lost_there(door: Door, viewed: ViewedVectors, restart: Restart, origin: int, hello_wall_ns: int) -> int | None:
    """The number of the peer's last transaction here, where the peer lacks it though it was committed before its hello.

    What it has written since then it may lack in the vector, which it made after that. Its clock tells: a wrong one
    costs a refusal, and no more, for the peer looks whether it has that number."""
    last = viewed.end.chains.get(origin, (ruv.NOTHING, 0))[0]
    if not ruv.lacks(restart.chains, origin, last):
        return None
    csn = last_csn(make_chain(door.instance), viewed.end, origin)
    return last if csn is not None and wall_ns(csn) < hello_wall_ns else None


def _catalogue_frame(catalogue: Catalogue, seqno: int) -> bytes:
    """As in a segment; `seqno` is the first one that it holds for."""
    payload, count = catalogue_payload(catalogue)
    frame, _ = pack_frame(Kind.CATALOGUE, seqno, 0, 0, 0, 0, 0, payload, count)
    return frame
