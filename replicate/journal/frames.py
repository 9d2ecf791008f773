"""Frames one behind the other: how many whole ones there are from here on, and where they end.

Guarantees: what `measure` counts is whole frames, each with its markers, a length in its range, a kind that may stand
there, the next number and, if `verify`, its CHECK; what is wrong behind good frames is not told before it is the first.
Refuses to know: what frames hold, and that each continues its origin (chain hashes: scan.py, the Update Process). Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from replicate.errors import FormatUnknownError, GapError
from replicate.journal.record import (
    BODY_BYTES_MAX,
    BODY_BYTES_MIN,
    CATALOGUE_BODY_BYTES_MAX,
    FRAME_HEAD_BYTES,
    FRAME_PREFIX_BYTES,
    KINDS,
    STREAM_KINDS,
    Buffer,
    FrameBatch,
    Head,
    frame_damaged,
    read_head,
)
from replicate.transaction import Kind
from replicate.vector import U64_MAX

_SHORT: Final = struct.Struct(">BIBIBHBBQ").unpack_from
_RUN: Final = struct.Struct(">BIBIB2xHQ").unpack_from
"""The same of a frame's head, KIND and the marker behind it as one number."""
_SEQNO_MARKER: Final = 0xCF
_RUN_WORDS: Final = frozenset(kind << 8 | _SEQNO_MARKER for kind in STREAM_KINDS)
COPIED_BYTES: Final = 1024
"""Of a body up to this size, to check a copy takes less time than to make a view of it (measured)."""


def walk(buffer: Buffer) -> Iterator[tuple[int, Head]]:
    """(offset, head) of each frame in a batch of verified frames; FrameDamaged when it does not end with a frame."""
    offset, end = 0, len(buffer)
    while offset < end:
        head = read_head(buffer, offset)
        following = offset + head.length + FRAME_PREFIX_BYTES
        if following > end:
            raise frame_damaged("a frame is cut short, or its length is wrong", offset)
        yield offset, head
        offset = following


class Measured(NamedTuple):
    """What `measure` found: `frames` whole frames, numbered without a gap, up to offset `end`; 0 for none."""

    first_seqno: int
    last_seqno: int
    frames: int
    end: int


def _run(
    buffer: Buffer, view: memoryview, offset: int, limit: int, expected: int, last_seqno: int, *, verify: bool
) -> tuple[int, int]:
    """How many transactions numbered from `expected` to `last_seqno` follow each other from `offset` on, whole before
    `limit`, and where they end. `view`: of the buffer.

    What nearly all frames are, in three quarters of the time of `measure`'s own loop, whose checks these are. It ends
    before whatever is not exactly that, and says nothing of it.
    """
    first, last_head = expected, limit - FRAME_HEAD_BYTES
    short = buffer if isinstance(buffer, bytes) else view
    while offset <= last_head and expected <= last_seqno:
        m0, length, m1, check, m2, word, seqno = _RUN(short, offset)
        body = offset + FRAME_PREFIX_BYTES
        following = body + length
        if (
            seqno != expected
            or following > limit
            or not m0 == m1 == 0xCE
            or m2 != 0xDC
            or word not in _RUN_WORDS
            or not BODY_BYTES_MIN <= length <= BODY_BYTES_MAX
            or (verify and crc32c((short if length <= COPIED_BYTES else view)[body:following]) != check)
        ):
            break
        expected += 1
        offset = following
    return expected - first, offset


def measure(
    buffer: Buffer,
    offset: int = 0,
    *,
    next_seqno: int | None = None,
    last_seqno: int = U64_MAX,
    max_bytes: int | None = None,
    verify: bool = True,
) -> Measured:
    """Count whole frames from `offset` on by their heads; CHECK too if `verify`. The fast walk behind every reader.

    Stops quietly before a frame above `last_seqno`, one that goes beyond `max_bytes` from `offset` (never before the
    first), one that is not wholly in the buffer, zeros, and one that is wrong when good ones stand before it.
    `next_seqno`: the number that the first should have; then a CATALOGUE, PART or LARGE frame is wrong, too. When the
    very first is wrong: FrameDamaged, FormatUnknownError, or GapError for its number, whose `facts` name `seqno` and
    `expected`.
    """
    kinds = KINDS if next_seqno is None else STREAM_KINDS
    view = memoryview(buffer)
    end = len(view)
    limit = end if max_bytes is None else min(end, offset + max_bytes)
    begin = offset
    first = expected = next_seqno
    frames = 0
    if next_seqno is not None:
        frames, offset = _run(buffer, view, offset, limit, next_seqno, last_seqno, verify=verify)
        expected = next_seqno + frames
    while offset + FRAME_HEAD_BYTES <= end:
        m0, length, m1, check, m2, _, kind, m3, seqno = _SHORT(view, offset)
        body = offset + FRAME_PREFIX_BYTES
        following = body + length
        if (
            (seqno != expected and expected is not None)
            or seqno > last_seqno
            or following > (limit if frames else end)
            or not m0 == m1 == 0xCE
            or m2 != 0xDC
            or m3 != 0xCF
            or kind not in kinds
            or length < BODY_BYTES_MIN
            or (length > BODY_BYTES_MAX and not (kind == Kind.CATALOGUE and length <= CATALOGUE_BODY_BYTES_MAX))
            or (verify and crc32c(view[body:following]) != check)
        ):
            break
        if first is None:
            first = seqno
        expected = seqno + 1
        frames += 1
        offset = following
    if not frames:
        _refuse_wrong(view, begin, next_seqno, last_seqno, verify=verify)
        return Measured(0, 0, 0, begin)
    assert first is not None
    assert expected is not None
    return Measured(first, expected - 1, frames, offset)


def _refuse_wrong(view: memoryview, offset: int, expected: int | None, last_seqno: int, *, verify: bool) -> None:
    """Raise what is wrong with the frame at `offset`, which `measure` has not counted; nothing where it is cut short,
    zeros, or beyond `last_seqno`."""
    if offset + FRAME_HEAD_BYTES > len(view):
        return
    m0, length, m1, check, m2, _, kind, m3, seqno = _SHORT(view, offset)
    if m0 == 0:
        return
    body = offset + FRAME_PREFIX_BYTES
    if m0 != 0xCE or m1 != 0xCE or not BODY_BYTES_MIN <= length <= CATALOGUE_BODY_BYTES_MAX:
        raise frame_damaged("no frame begins here: a marker or length is wrong", offset)
    if body + length > len(view):
        return
    if verify and crc32c(view[body : body + length]) != check:
        raise frame_damaged("a frame's check does not match its content", offset)
    if m2 != 0xDC or m3 != 0xCF or kind > 0x7F or (length > BODY_BYTES_MAX and kind != Kind.CATALOGUE):
        raise frame_damaged("no frame begins here: a marker or length is wrong", offset)
    if kind not in KINDS:
        raise FormatUnknownError(f"a frame of kind {kind} is of a later release", where=f"offset {offset}")
    if expected is None:
        return
    if kind not in STREAM_KINDS:
        raise frame_damaged(f"a frame of kind {Kind(kind).name} stands in a transaction's place", offset)
    if seqno != expected:
        raise GapError(
            f"a frame has seqno {seqno}, {expected} should stand here",
            where=f"offset {offset}",
            offset=offset,
            seqno=seqno,
            expected=expected,
        )


def last_seqno_of(data: Buffer) -> int:
    """The seqno of the last frame in a batch of verified frames; FrameDamaged when it is empty or does not end well."""
    found = measure(data, verify=False)
    if not found.frames or found.end != len(data):
        raise frame_damaged("a batch does not end with a whole frame", found.end)
    return found.last_seqno


def batch_of(data: bytes | bytearray | memoryview, *, verify: bool = False) -> FrameBatch:
    """A batch from its bytes, which must be whole frames without a gap, at least one; FrameDamaged otherwise."""
    found = measure(data, verify=verify)
    if not found.frames or found.end != len(data):
        raise frame_damaged("a batch does not end with a whole frame", found.end)
    return FrameBatch(found.first_seqno, found.last_seqno, found.frames, bytes(data))


def split_batch(data: bytes, max_bytes: int) -> list[FrameBatch]:
    """Cut a batch of verified frames at frame borders into batches of at most `max_bytes`, but at least one frame each.

    FrameDamaged when `data` does not end with a whole frame, or the numbers have a gap.
    """
    batches = []
    offset, expected = 0, None
    while offset < len(data):
        found = measure(data, offset, next_seqno=expected, max_bytes=max_bytes, verify=False)
        if not found.frames:
            raise frame_damaged("a batch does not end with a whole frame", offset)
        batches.append(FrameBatch(found.first_seqno, found.last_seqno, found.frames, data[offset : found.end]))
        offset, expected = found.end, found.last_seqno + 1
    return batches
