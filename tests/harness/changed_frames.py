"""Frames of the product with a number, a body or a border changed, and what no part of the product makes.

Guarantees: what is sealed passes its check. Leaves to others: whether it should be taken.
"""

from __future__ import annotations

from crc32c import crc32c

from replicate.journal.frame import FRAME_PREFIX_BYTES, PREFIX
from replicate.journal.record import Buffer, FrameBatch, frame_damaged, pack_elements
from replicate.journal.walk import measure


def sealed(frame: bytes) -> bytes:
    """With the LENGTH and CHECK that its body has by now."""
    body = frame[FRAME_PREFIX_BYTES:]
    return PREFIX.pack(0xCE, len(body), 0xCE, crc32c(body)) + body


def null_payload(reason: str, partitions: tuple[int, ...] = ()) -> tuple[bytes, int]:
    """Payload of a NULL record."""
    return pack_elements(reason, list(partitions))


def batch_of(data: Buffer, *, verify: bool = False) -> FrameBatch:
    """A batch from its bytes, which must be whole frames without a gap, at least one; FrameDamaged otherwise."""
    found = measure(data, verify=verify)
    if not found.frames or found.end != len(data):
        raise frame_damaged("a batch does not end with a whole frame", found.end)
    return FrameBatch(found.first_seqno, found.last_seqno, found.frames, bytes(data))
