"""Where the parts of a large transaction stand in their file: header room first, then PART frames of one size.

Guarantees: part `number` is found without reading the ones before it: every part but the last carries PART_BYTES.
Leaves to others: who writes the file (spool.py) and who reads it (reader.py, catalogue.py, verify.py).
"""

from __future__ import annotations

from replicate.errors import FrameDamaged, GapError
from replicate.journal.record import PART_OVERHEAD_BYTES, read_part
from replicate.journal.segment import read_exactly
from replicate.limits import PART_BYTES, SEGMENT_HEADER_BYTES


def part_offset(number: int) -> int:
    """Where in its file part `number` begins."""
    return SEGMENT_HEADER_BYTES + number * (PART_BYTES + PART_OVERHEAD_BYTES)


def slice_bytes(payload_bytes: int, number: int) -> int:
    """Bytes of the change stream in part `number` of a stream of `payload_bytes`: PART_BYTES but for the last."""
    return min(PART_BYTES, payload_bytes - number * PART_BYTES)


def part_count_of(payload_bytes: int) -> int:
    """How many parts a stream of that length has."""
    return -(-payload_bytes // PART_BYTES)


def read_part_frame(fd: int, path: str, number: int, bytes_in_slice: int) -> bytes:
    """The PART frame `number` from its place, verified.

    FrameDamaged, or GapError when another number stands there; JournalDamagedError when the file ends before.
    """
    offset = part_offset(number)
    frame = read_exactly(fd, bytes_in_slice + PART_OVERHEAD_BYTES, offset, path)
    try:
        head, found, data = read_part(frame)
    except FrameDamaged as error:
        where = f"{path}, offset {offset}"
        raise FrameDamaged(f"part {number}: {error.what}", where=where, offset=offset, part=number) from error
    if found != number or len(data) != bytes_in_slice or head.frame_bytes != len(frame):
        raise GapError(f"part {found} stands where part {number} should", where=path, part=number)
    return frame
