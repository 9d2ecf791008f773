"""Is this run of journal frames what its message says? Looks at frame heads only: lengths, kinds, numbers.

Guarantees: the frames fill the buffer exactly, have the announced number, count up by one from the announced seqno
(part frames: belong to one transaction and count up their parts); else GapError naming both numbers, or
ProtocolViolationError. 0.2 µs a frame (measured), so that the receiver can afford it for every one.
Leaves to others: what the frames hold. Their own checks and chain hashes are the Update Process's to verify. Pure.
"""

from __future__ import annotations

import struct

from replicate.errors import GapError, ProtocolViolationError
from replicate.journal.frame import FRAME_PREFIX_BYTES, NUMBERED
from replicate.journal.record import BODY_BYTES_MIN, STREAM_KINDS, decode, read_part
from replicate.model.transaction import LargeCommit


def check_sequence(data: bytes, first_seqno: int, count: int, wanted_seqno: int) -> int:
    """The offset of the frame `wanted_seqno` (0 when the run begins at or above it, the end when it ends below it).

    GapError when a number is missing, repeated or out of order; ProtocolViolationError when the bytes are no such run.
    """
    head = NUMBERED.unpack_from
    offset = wanted_offset = 0
    end = len(data)
    seqno = first_seqno
    try:
        while offset < end:
            length, kind, found = head(data, offset)
            if found != seqno:
                raise GapError(
                    f"transaction {found} came inside a batch; next should be transaction {seqno}",
                    do="Nothing of it was taken; the stream starts again from the last good position",
                    next_expected_seqno=seqno,
                    found_seqno=found,
                )
            if kind not in STREAM_KINDS or length < BODY_BYTES_MIN or data[offset] != 0xCE:
                raise ProtocolViolationError(f"a frame of kind {kind} with {length} bytes in a batch, at byte {offset}")
            if seqno == wanted_seqno:
                wanted_offset = offset
            offset += length + FRAME_PREFIX_BYTES
            seqno += 1
    except struct.error:
        raise ProtocolViolationError(f"a batch ends inside the head of its frame {seqno}, at byte {offset}") from None
    if offset != end or seqno - first_seqno != count:
        raise ProtocolViolationError(
            f"a batch of {count} frames from transaction {first_seqno} holds {seqno - first_seqno} in {end} bytes, "
            f"the last one ending at {offset}"
        )
    return end if wanted_seqno >= seqno else wanted_offset


def check_parts(data: bytes, token: int, first_part: int, count: int, wanted_part: int) -> int:
    """The same for part frames of one large transaction: the offset of `wanted_part`. Checks each frame whole.

    GapError, ProtocolViolationError, or JournalDamagedError when a frame's own check fails.
    """
    offset = wanted_offset = 0
    end = len(data)
    part = first_part
    while offset < end:
        head, number, _ = read_part(data, offset, end)
        if number != part or head.csn != token:
            raise GapError(
                f"part {number} (token {head.csn:x}) came inside a message; next should be part {part} ({token:x})",
                do="Nothing of it was taken; the stream starts again from the last good position",
            )
        if part == wanted_part:
            wanted_offset = offset
        offset += head.frame_bytes
        part += 1
    if part - first_part != count:
        raise ProtocolViolationError(f"{count} parts from part {first_part} were announced, {part - first_part} came")
    return end if wanted_part >= part else wanted_offset


def check_large(data: bytes, seqno: int, token: int, parts: int) -> None:
    """The frame that commits a large transaction: alone, whole, and what its message says. Errors as `check_parts`."""
    transaction = decode(data)
    content = transaction.content[0] if transaction.content else None
    if not isinstance(content, LargeCommit) or (content.token, content.part_count) != (token, parts):
        raise ProtocolViolationError(f"the end of large transaction {seqno} is not what its message says: {content}")
    if transaction.seqno != seqno:
        raise GapError(f"large transaction {transaction.seqno} came; next should be transaction {seqno}")
