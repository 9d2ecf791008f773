"""Numbers that other languages and file systems stumble over. Fault 50."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicate.journal.header import SegmentHeader
from replicate.journal.record import check_frame, decode, pack_frame
from replicate.journal.scan import scan
from replicate.journal.walk import measure
from replicate.limits import MIB
from replicate.model.transaction import Kind
from replicate.model.vector import SynchronizationVector
from replicate.wire.codec import decode as decode_message
from replicate.wire.codec import encode
from replicate.wire.frame import FRAME_HEAD_BYTES
from replicate.wire.message import MESSAGE_TYPES, Heartbeat
from tests.harness.journals import INSTANCE, NETWORK, ToyJournal, insert_payload

BIG = (2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1, 2**63 + 5, 2**64 - 2)


@pytest.mark.parametrize("number", BIG)
def test_numbers_beyond_2_to_the_53_and_63(number: int) -> None:
    """A frame, the fast walk over it, a header, a vector and its place, a message: all give the number back."""
    payload, count = insert_payload([min(number, 2**63 - 1), "x"])
    frame, chain = pack_frame(Kind.TRANSACTION, number, number - 1, number, 7, number, number, payload, count)
    head = check_frame(frame)
    assert (head.seqno, head.mark, head.origin_seqno) == (number, number - 1, number)
    assert (head.csn, head.chain) == (number, chain)
    assert measure(frame, next_seqno=number, last_seqno=number) == (number, number, 1, len(frame))
    assert decode(frame).seqno == number
    header = SegmentHeader(NETWORK, INSTANCE, 1, number, 1)
    assert SegmentHeader.unpack(header.pack()).first_seqno == number
    vector = SynchronizationVector().raised(7, 0, number)
    assert SynchronizationVector.unpack(vector.pack()).last(7, 0) == number
    beat = Heartbeat(number, number, number, number, number, number)
    assert decode_message(MESSAGE_TYPES[Heartbeat], b"".join(encode(beat))[FRAME_HEAD_BYTES:]) == beat


def test_a_segment_beyond_four_gigabytes(tmp_path: Path) -> None:
    """Offsets above 2^32, in a sparse file: appended, read, and found."""
    journal = ToyJournal(tmp_path / "journal")
    try:
        offset = 2**32 + 4096
        os.ftruncate(journal.segment.fd, offset + MIB)
        journal.segment.zeroed_offset = offset + MIB
        frame = journal.maker.transaction("x" * 100)
        assert journal.segment.append(offset, frame) == offset + len(frame)
        journal.segment.sync()
        with journal.chain.open(1) as segment:
            assert segment.read_frame(offset) == frame
            found = scan(segment.fd, offset, 1, path=segment.path)
        assert (found.end_offset, found.last_seqno, found.damaged) == (offset + len(frame), 1, None)
    finally:
        journal.close()
