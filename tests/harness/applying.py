"""Applying a primary's journal to a secondary's regions without an Update Process, a batch at a time.

Guarantees: what is handed over is what the journal has; every change goes to its region's applier.
Leaves to others: how an Update Process cuts its batches.
"""

from __future__ import annotations

from replicate.door.recovery.opening import make_chain
from replicate.door.secondary import ApplySession
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch, changes_of, decode_batch, read_head, read_part, unpacker
from replicate.journal.spool import Spool, spool_path
from replicate.journal.walk import walk
from replicate.model.transaction import Kind
from replicate.model.vector import Position
from replicate.pool import control as word
from tests.harness.instances import door_of


def batches(primary: Instance, next_seqno: int, max_bytes: int = 1 << 20) -> list[FrameBatch | LargeTransaction]:
    """What the primary's journal has from `next_seqno` on."""
    with door_of(primary) as door:
        last = int(door.words[word.LAST_SEQNO])
    reader = ChainReader(make_chain(primary), next_seqno)
    found = []
    while (piece := reader.read(max_bytes, last)) is not None:
        found.append(piece)
    reader.close()
    return found


def following(before: Position, data: bytes, partition: int = 1) -> tuple[Position, int]:
    """The position and csn after some frames; every transaction of ours carries the default partition."""
    csn = 0
    for offset, head in walk(data):
        carried = (partition,) if read_head(data, offset).kind in (Kind.TRANSACTION, Kind.LARGE) else ()
        before = before.advanced(head.seqno, head.origin, head.origin_seqno, head.chain, carried)
        csn = head.csn
    return before, csn


def apply_rows(session: ApplySession, data: bytes) -> None:
    """Route every change to its region's applier."""
    for body in decode_batch(data)[2::3]:
        changes = changes_of(body)
        for at in range(0, len(changes), 4):
            for applier in session.rows.values():
                known = applier.definitions.get(changes[at + 1])
                if known is not None and known.region == applier.region:
                    applier.apply(*changes[at : at + 4])


def apply_batch(session: ApplySession, batch: FrameBatch) -> None:
    """Apply and commit one batch."""
    session.begin()
    apply_rows(session, batch.data)
    position, csn = following(session.position, batch.data)
    *_, (_, last) = walk(batch.data)
    session.commit(batch, position, csn, last=last)


def apply_large(session: ApplySession, large: LargeTransaction) -> None:
    """Apply and commit one large transaction, spooled as it would come."""
    session.begin()
    spool = Spool.receiving(spool_path(session.door.instance.journal_directory, 77))
    stream = unpacker()
    flat: list[object] = []
    for part in large.parts():
        spool.write_frame(part)
        stream.feed(read_part(part)[2])
        flat.extend(stream)
    for at in range(0, len(flat), 4):
        for applier in session.rows.values():
            known = applier.definitions.get(flat[at + 1])  # type: ignore[call-overload]
            if known is not None and known.region == applier.region:
                applier.apply(*flat[at : at + 4])  # type: ignore[arg-type]
    spool.finish_received(large.part_count, large.payload_bytes, large.last_part_chain)
    position, csn = following(session.position, large.commit_frame)
    session.commit_large(spool, large.commit_frame, position, csn)
