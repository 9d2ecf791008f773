"""Reading back what stands at a journal's end: the frames of a killed writer, the head of an adopted segment.

Guarantees: only frames that verify and follow one another are given; what is after them is not looked at. A NULL
record that voids a frame has exactly its length.
Leaves to others: locks and control words (door/door.py), the verdict over damage (journal/tail.py).
"""

from __future__ import annotations

import os

from msgspec import Struct

from replicate.door.ledger import Moved
from replicate.errors import FrameDamaged, JournalMissingError
from replicate.journal.chain import Chain
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.record import CHANGES_BEGIN, DEFINE_MARK, FrameBatch, Head, check_frame, decode
from replicate.journal.segment import SegmentFile, read_exactly
from replicate.model.transaction import DefinitionChange, Kind


class Tail(Struct, frozen=True):
    """The whole frames found (None: none), the head of the last one, and the offsets of those that change the
    catalogue. `file_bytes`: how much of what should stand there the file has. `moved`: as in `Ledger.advance`."""

    batch: FrameBatch | None
    last: Head | None
    definitions: tuple[int, ...]
    file_bytes: int
    moved: Moved


def read_tail(segment: SegmentFile, offset: int, size: int, first_seqno: int) -> Tail:
    """The whole frames within `size` bytes from `offset`, the first of which should be `first_seqno`. The file may end
    before: a large append makes its own room."""
    size = max(0, min(size, os.fstat(segment.fd).st_size - offset))
    data = read_exactly(segment.fd, size, offset, segment.path)
    at, seqno = 0, first_seqno
    last: Head | None = None
    definitions: list[int] = []
    places: dict[int, tuple[int, int]] = {}
    csn = 0
    while at < len(data):
        try:
            head = check_frame(data, at)
        except FrameDamaged:
            break
        if head.seqno != seqno:
            break
        frame = data[at : at + head.frame_bytes]
        if changes_catalogue(head, frame):
            definitions.append(offset + at)
        last = head
        places[head.origin] = (head.origin_seqno, head.chain)
        csn = max(csn, head.csn)
        seqno += 1
        at += head.frame_bytes
    batch = FrameBatch(first_seqno, last.seqno, seqno - first_seqno, data[:at]) if last is not None else None
    return Tail(batch, last, tuple(definitions), size, Moved(places, csn))


def changes_catalogue(head: Head, frame: bytes) -> bool:
    """True for a HISTORY record and for a transaction that defines a table."""
    if head.kind == Kind.HISTORY:
        return True
    if head.kind not in CHANGES_BEGIN or DEFINE_MARK not in frame:
        return False
    return any(isinstance(change, DefinitionChange) for change in decode(frame).content)


def adopted_head(chain: Chain, seqno: int) -> Head | None:
    """The head of the commit frame of the large transaction `seqno`; None when no adopted segment of that number is
    there."""
    try:
        segment = chain.open(seqno)
    except JournalMissingError:
        return None
    try:
        if not segment.header.adopted:
            return None
        return check_frame(segment.read_frame(segment.header.commit_offset))
    finally:
        segment.close()


def void_payload(reason: str, frame_bytes: int) -> tuple[bytes, int]:
    """The payload (and its elements) of the NULL record that takes the place of a frame of `frame_bytes` bytes: a
    reason, padded or cut, and no partitions."""
    room = frame_bytes - FRAME_HEAD_BYTES - 2
    if room <= 31:
        marker = bytes([0xA0 + room])
    else:
        room -= 4
        marker = b"\xdb" + room.to_bytes(4, "big")
    text = f"void: {reason}".encode("ascii", "replace")
    return marker + text[:room].ljust(room) + b"\x90", 2
