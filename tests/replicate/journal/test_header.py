"""The header of a segment: it comes back as it was written, and nothing that differs anywhere passes for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.errors import (
    FormatUnknownError,
    InternalError,
    JournalDamagedError,
    ReplicateError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.journal.header import SegmentHeader
from replicate.limits import SEGMENT_HEADER_BYTES
from tests.harness.journals import INSTANCE, NETWORK

HEADER = SegmentHeader(NETWORK, INSTANCE, 1, 1, 123)


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 1), st.integers(SEGMENT_HEADER_BYTES, 2**62)
)
def test_header_round_trip(number: int, small: int, flags: int, offset: int) -> None:
    header = SegmentHeader(
        NETWORK, INSTANCE, small, number, number, number, number, offset, small, number, number, flags, offset, offset
    )
    assert SegmentHeader.unpack(header.pack()) == header
    assert len(header.pack()) == SEGMENT_HEADER_BYTES


@pytest.mark.parametrize(
    "wrong", [{"catalogue_offset": 2**63}, {"commit_offset": 2**64 - 1}, {"previous_end_offset": 2**63}]
)
def test_a_header_that_verifies_but_names_an_impossible_offset_is_damaged(wrong: dict[str, int]) -> None:
    with pytest.raises(JournalDamagedError, match="offsets that no file has"):
        SegmentHeader.unpack(replace(HEADER, **wrong).pack())
    with pytest.raises(JournalDamagedError, match="offsets that no file has"):
        SegmentHeader.unpack(replace(HEADER, catalogue_offset=SEGMENT_HEADER_BYTES - 1).pack())


def test_every_flipped_byte_of_a_header_is_noticed() -> None:
    packed = HEADER.pack()
    for position in range(len(packed)):
        bad = bytearray(packed)
        bad[position] ^= 0x10
        with pytest.raises((JournalDamagedError, FormatUnknownError)):
            SegmentHeader.unpack(bytes(bad))


@given(st.binary(max_size=200))
def test_random_headers_raise_named_errors_only(data: bytes) -> None:
    for candidate in (data, data.ljust(SEGMENT_HEADER_BYTES, b"\0"), b"DSREPJNL" + data.ljust(4088, b"\0")):
        with pytest.raises(ReplicateError):
            SegmentHeader.unpack(candidate)


def test_a_later_format_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicate.journal.header.FORMAT_VERSION", 9)
    packed = HEADER.pack()
    monkeypatch.undo()
    with pytest.raises(FormatUnknownError, match="version 9, this release knows up to 1"):
        SegmentHeader.unpack(packed)
    with pytest.raises(FormatUnknownError, match="flags 0x80"):
        SegmentHeader.unpack(replace(HEADER, flags=0x80).pack())


def test_a_number_that_fits_no_header_is_our_bug() -> None:
    with pytest.raises(InternalError):
        replace(HEADER, first_seqno=2**64).pack()


def test_links() -> None:
    following = replace(
        HEADER, first_seqno=5, previous_first_seqno=1, previous_last_seqno=4, previous_check=HEADER.check
    )
    assert following.link_fault(HEADER) is None
    assert "not 2" in str(following.link_fault(replace(HEADER, first_seqno=2)))
    assert "not the one" in str(following.link_fault(replace(HEADER, created_wall_ns=5)))
    assert "begins with 6" in str(replace(following, first_seqno=6).link_fault(HEADER))


def test_a_segment_from_elsewhere_is_named() -> None:
    HEADER.validate(network=NETWORK, instance=INSTANCE)
    HEADER.validate(network=None, instance=None)
    with pytest.raises(WrongNetworkError, match=NETWORK.hex()):
        HEADER.validate(network=bytes(16), instance=INSTANCE)
    with pytest.raises(WrongInstanceError, match=INSTANCE.hex()):
        HEADER.validate(network=NETWORK, instance=bytes(16))
