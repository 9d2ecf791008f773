"""Where parts stand: each at its place, found without those before it, and refused where it is not the one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicate.errors import FrameDamaged, GapError, JournalDamagedError
from replicate.journal.record import PART_OVERHEAD_BYTES, pack_part
from replicate.journal.spool_format import part_count_of, part_offset, read_part_frame, slice_bytes
from replicate.limits import PART_BYTES, SEGMENT_HEADER_BYTES

SIZES = (1, 100, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, 3 * PART_BYTES + 7)


@pytest.mark.parametrize("size", SIZES)
def test_slices_make_the_stream_and_their_parts_lie_one_after_the_other(size: int) -> None:
    count = part_count_of(size)
    slices = [slice_bytes(size, number) for number in range(count)]
    assert sum(slices) == size
    assert all(0 < one <= PART_BYTES for one in slices)
    ends = [part_offset(number) + one + PART_OVERHEAD_BYTES for number, one in enumerate(slices)]
    assert [part_offset(number) for number in range(count)] == [SEGMENT_HEADER_BYTES, *ends[:-1]]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Two parts, of which the second is shorter."""
    path = tmp_path / "one.spool"
    with path.open("wb") as file:
        for number, data in enumerate((b"a" * PART_BYTES, b"the end")):
            file.seek(part_offset(number))
            file.write(pack_part(1, 99, number, data, 0)[0])
    return path


def test_a_part_is_read_from_its_place(spool: Path) -> None:
    fd = os.open(spool, os.O_RDONLY)
    try:
        frame = read_part_frame(fd, str(spool), 1, len(b"the end"))
        assert frame == pack_part(1, 99, 1, b"the end", 0)[0]
        with pytest.raises(JournalDamagedError):
            read_part_frame(fd, str(spool), 2, 10)
    finally:
        os.close(fd)


def test_a_part_in_the_place_of_another_is_a_gap(spool: Path) -> None:
    with spool.open("r+b") as file:
        file.seek(part_offset(1))
        file.write(pack_part(1, 99, 3, b"the end", 0)[0])
    fd = os.open(spool, os.O_RDONLY)
    try:
        with pytest.raises(GapError, match="part 3 stands where part 1 should"):
            read_part_frame(fd, str(spool), 1, len(b"the end"))
    finally:
        os.close(fd)


def test_every_byte_of_a_part_is_proved(spool: Path) -> None:
    whole = spool.read_bytes()
    fd = os.open(spool, os.O_RDWR)
    try:
        for at in range(part_offset(1), len(whole)):
            os.pwrite(fd, bytes([whole[at] ^ 0x10]), at)
            with pytest.raises((FrameDamaged, GapError)):
                read_part_frame(fd, str(spool), 1, len(b"the end"))
            os.pwrite(fd, whole[at : at + 1], at)
        read_part_frame(fd, str(spool), 1, len(b"the end"))
    finally:
        os.close(fd)
