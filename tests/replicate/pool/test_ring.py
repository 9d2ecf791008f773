"""The byte picture of a record: nothing that was not written whole at that address is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.pool.ring import (
    HEAD_BYTES,
    RecordKind,
    aligned,
    pack_head,
    pack_padding,
    parse,
    room_at,
    whole_bytes,
)

ADDRESS = 5 * 4096 + 80
DATA = b"some frames, not a multiple of eight"


def record() -> bytes:
    return pack_head(RecordKind.FRAMES, ADDRESS, 11, 13, 3, DATA) + DATA


def test_a_record_comes_back() -> None:
    head = parse(b"????????" + record(), 8, ADDRESS)
    assert head is not None
    assert (head.kind, head.first_seqno, head.last_seqno, head.count) == (RecordKind.FRAMES, 11, 13, 3)
    assert head.length == HEAD_BYTES + len(DATA) == whole_bytes(record())
    assert head.address == ADDRESS


def test_every_changed_bit_is_refused() -> None:
    good = record()
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert parse(bytes(bad), 0, ADDRESS) is None, bit


def test_every_cut_is_refused() -> None:
    good = record()
    for end in range(len(good)):
        assert parse(good[:end], 0, ADDRESS) is None


def test_another_address_is_refused() -> None:
    assert parse(record(), 0, ADDRESS + 8) is None


def test_half_a_copy_over_an_older_record_is_refused() -> None:
    old = pack_head(RecordKind.FRAMES, ADDRESS - 4096, 1, 3, 3, DATA[::-1]) + DATA[::-1]
    new = record()
    for border in range(1, len(new)):
        if new[:border] + old[border:] != new:
            assert parse(new[:border] + old[border:], 0, ADDRESS) is None
            assert parse(old[:border] + new[border:], 0, ADDRESS) is None


def test_padding_needs_only_its_head() -> None:
    padding = pack_padding(ADDRESS, 4000)
    head = parse(padding, 0, ADDRESS)
    assert head is not None
    assert (head.kind, head.length, head.last_seqno) == (RecordKind.PADDING, 4000, 0)
    assert whole_bytes(padding) == HEAD_BYTES == len(padding)


@pytest.mark.parametrize(("length", "expected"), [(40, 40), (41, 48), (47, 48), (48, 48)])
def test_aligned(length: int, expected: int) -> None:
    assert aligned(length) == expected


def test_room() -> None:
    assert room_at(4096 * 3, 4096) == 4096
    assert room_at(4096 * 3 + 8, 4096) == 4088


@given(st.binary(max_size=200), st.integers(0, 100))
def test_random_bytes_are_refused_quietly(data: bytes, position: int) -> None:
    assert parse(data, position, ADDRESS) is None
