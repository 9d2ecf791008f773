"""Frames for tests of the pools: the content of each is a function of its seqno, so that a reader can prove it.

Guarantees: `frame(n)` is a valid journal frame whose size varies with n; `prove` fails unless a batch holds exactly the
transactions that it claims, in order, each with its own content.
Leaves to others: databases, and how the frames travel.
"""

from __future__ import annotations

import random

from replicate.journal.record import FrameBatch, check_frame, pack_frame, read_head
from replicate.model.transaction import Kind

ORIGIN = 7


def content(seqno: int, largest: int = 700) -> bytes:
    """Random bytes that only `seqno` decides."""
    return random.Random(seqno).randbytes(1 + seqno * 7919 % largest)


def frame(seqno: int, largest: int = 700) -> bytes:
    """A TRANSACTION frame; its payload is one binary element."""
    data = content(seqno, largest)
    payload = b"\xc6" + len(data).to_bytes(4, "big") + data
    return pack_frame(Kind.TRANSACTION, seqno, 0, 0, ORIGIN, seqno, seqno, payload, 1)[0]


def frames(first: int, last: int, largest: int = 700) -> bytes:
    """Frames first to last, one after the other."""
    return b"".join(frame(seqno, largest) for seqno in range(first, last + 1))


def prove(batch: FrameBatch, largest: int = 700) -> None:
    """AssertionError unless the batch is whole, gap-free and right."""
    offset, seqno = 0, batch.first_seqno
    while offset < len(batch.data):
        head = check_frame(batch.data, offset)
        end = offset + head.frame_bytes
        assert head.seqno == seqno
        assert batch.data[offset + 69 : end] == content(seqno, largest)
        offset, seqno = end, seqno + 1
    assert seqno == batch.last_seqno + 1
    assert batch.count == batch.last_seqno - batch.first_seqno + 1


def seqno_of(data: bytes) -> int:
    """The seqno of the frame that begins here."""
    return read_head(data, 0).seqno
