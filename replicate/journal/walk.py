"""Many frames: how many whole ones follow each other from here on, where they end, and what is proven of them.

Three ways, each as thorough as its caller needs. `measure`: by their heads and, if `verify`, their checks. `plain_run`:
with everything that proves a transaction of one origin, the chain hash, too. `skim_run`: by heads, with proof of where
they end. And `Pieces`: frames that come one after another and do not lie so, as in the receive pool.

Guarantees: what is counted is whole frames, each with its markers, a length in its range, a kind that may stand there
and the next number; what is wrong after good frames is not told before it is the first. `Pieces` are read in their
order, without a gap, and only short stretches are copied.
Leaves to others: what frames hold, what to do about a wrong one. Pure.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from replicate.errors import FormatUnknownError, FrameDamaged, GapError
from replicate.journal.frame import (
    FIXED_ELEMENTS,
    FRAME_HEAD_BYTES,
    FRAME_PREFIX_BYTES,
    HEAD,
    JOINED,
    ORIGIN_OFFSET,
    SHORT,
    SKIMMED,
)
from replicate.journal.record import (
    BODY_BYTES_MAX,
    BODY_BYTES_MIN,
    CATALOGUE_BODY_BYTES_MAX,
    DEFINE_MARK,
    KINDS,
    STREAM_KINDS,
    Buffer,
    Head,
    check_frame,
    frame_damaged,
    read_head,
)
from replicate.model.transaction import Kind
from replicate.model.vector import U64_MAX

_SHORT: Final = SHORT.unpack_from
_JOINED: Final = JOINED.unpack_from
_SEQNO_MARKER: Final = 0xCF
_RUN_WORDS: Final = frozenset(kind << 8 | _SEQNO_MARKER for kind in STREAM_KINDS)
COPIED_BYTES: Final = 1024
"""Of a body up to this size, to check a copy takes less time than to make a view of it (measured)."""
LOOK_BYTES: Final = 4096
"""How far definitions are looked for after the first frame of a run."""
DEFINITION: Final = re.compile(DEFINE_MARK + rb"[\x80-\xff].{3}(?:[\x00-\x7f]|\xcc.|\xcd.{2}|\xce.{4})\x9a", re.DOTALL)
"""A DEFINE change: its op, an id (five bytes, top bit set), a version, a list of ten. The mark alone is also a value
of 4 before a number above 65535, which may stand in every row: to decode each such frame took eight times as long as
all else of a walk through a segment (measured)."""
_TRANSACTION: Final = int(Kind.TRANSACTION)
SHORT_BYTES: Final = 2 * 1024 * 1024
"""Shorter stretches are put together while they are no longer than this. After each call of the kernel a thread waits
for the interpreter until the process that decodes the next batch meanwhile has had its half a millisecond: 60 MiB in
240 pieces of a message each took 0.16 s, in 30 of them 0.02 (measured)."""


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
        m0, length, m1, check, m2, word, seqno = _JOINED(short, offset)
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
    """Count whole frames from `offset` on by their heads; CHECK too if `verify`. The fast walk of every reader.

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


# Runs of transactions of one origin.


def may_define(data: bytes, begin: int, end: int) -> bool:
    """Whether what looks like a table definition stands there; where one is, it is found."""
    return data.find(DEFINE_MARK, begin, end) >= 0 and DEFINITION.search(data, begin, end) is not None


class FrameRun(NamedTuple):
    """Frames that `plain_run` has passed. `point`: where their origin stands after them; `definitions`: indices."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a run
    end: int
    origin: int
    point: tuple[int, int]
    mark: int
    csn: int
    definitions: list[int]


def plain_run(
    data: bytes, index: int, expected: int, known: Mapping[int, tuple[int, int]], *, last_seqno: int = U64_MAX
) -> FrameRun:
    """As many transactions of one known origin as follow each other from `index` on, whole in `data`, up to
    `last_seqno`.

    What nearly all frames are, in a third of the time of the checks one by one (measured), which it makes all the
    same. It ends before whatever is not exactly that, and says nothing of it.
    """
    view, size = memoryview(data), len(data)
    unpack, match, first = HEAD.unpack_from, DEFINITION.match, expected
    own = -1
    chain = mark = csn = origin_seqno = 0
    definitions: list[int] = []
    begin = looked = index
    next_definition = -1  # up to `looked` there is none
    while index + FRAME_HEAD_BYTES <= size and expected <= last_seqno:
        (
            m0, length, m1, check, m2, elements, kind, m3, seqno, m4, frame_mark, m5, frame_chain, m6, origin, m7,
            frame_origin_seqno, m8, frame_csn,
        ) = unpack(data, index)  # fmt: skip
        end = index + FRAME_PREFIX_BYTES + length
        if origin != own:
            if own >= 0 or origin not in known:
                break
            own, (origin_seqno, chain) = origin, known[origin]
        if (
            not (m0 == m1 == m6 == 0xCE and m2 == 0xDC and m3 == m4 == m5 == m7 == m8 == 0xCF)
            or kind != _TRANSACTION
            or seqno != expected
            or elements < FIXED_ELEMENTS
            or not BODY_BYTES_MIN <= length <= BODY_BYTES_MAX
            or end > size
            or crc32c((piece := data if length <= COPIED_BYTES else view)[index + FRAME_PREFIX_BYTES : end]) != check
            or xxh3_64_intdigest(piece[index + ORIGIN_OFFSET : end], chain) != frame_chain
        ):
            break
        if end > looked:
            again, looked = max(begin, looked + 1 - len(DEFINE_MARK)), _look_up_to(begin, end)
            if next_definition < 0:
                next_definition = data.find(DEFINE_MARK, again, looked)
        while 0 <= next_definition < end:
            within = index + FRAME_HEAD_BYTES <= next_definition <= end - len(DEFINE_MARK)
            if within and (not definitions or definitions[-1] != index) and match(data, next_definition, end):
                definitions.append(index)
            next_definition = data.find(DEFINE_MARK, next_definition + 1, looked)
        origin_seqno, chain = frame_origin_seqno, frame_chain
        if frame_mark > mark:
            mark = frame_mark
        if frame_csn > csn:
            csn = frame_csn
        expected += 1
        index = end
    return FrameRun(expected - first, index, own, (origin_seqno, chain), mark, csn, definitions)


class Skimmed(NamedTuple):
    """Frames that `skim_run` has passed over. `point`: where their origin stands after them; `definitions`: where each
    frame that may hold one begins and ends."""

    count: int  # type: ignore[assignment]  # as in FrameRun
    end: int
    origin: int
    point: tuple[int, int]
    definitions: list[tuple[int, int]]


def skim_run(data: bytes, index: int, expected: int, known: Mapping[int, tuple[int, int]], last_seqno: int) -> Skimmed:
    """As `plain_run`, and in a fifth of its time (measured), for the process that only asks where the origin stands
    after the run: frames are passed over by their heads. What is told is verified: by its check the last frame, whose
    chain hash covers all before it, and every frame that may define something."""
    size = len(data)
    nothing = Skimmed(0, index, -1, (0, 0), [])
    if index + FRAME_HEAD_BYTES > size:
        return nothing
    unpack = SKIMMED.unpack_from
    own = unpack(data, index)[3]
    if own not in known:
        return nothing
    begin, first = index, expected
    run_begin = index
    definitions: list[tuple[int, int]] = []
    mark = index  # before it no definition begins that was not looked at
    try:
        for expected in range(first, last_seqno + 1):
            length, kind, seqno, origin = unpack(data, index)
            end = index + FRAME_PREFIX_BYTES + length
            if seqno != expected or origin != own or kind != _TRANSACTION:
                break
            if end > mark:
                if end > size:
                    break
                if may_define(data, index + FRAME_HEAD_BYTES, end):
                    definitions.append((index, end))
                looked = min(size, _look_up_to(run_begin, end))
                found = data.find(DEFINE_MARK, end, looked)
                mark = found if found >= 0 else looked
            begin, index = index, end
        else:
            expected = last_seqno + 1
    except struct.error:
        pass  # the next head is not wholly here
    count = expected - first
    if not count:
        return nothing
    try:
        head = check_frame(data, begin, index)
        for at, end in definitions:
            check_frame(data, at, end)
    except FrameDamaged:
        return nothing  # the slow way says what is wrong, and where
    if head.origin_seqno != known[own][0] + count:
        return nothing
    return Skimmed(count, index, own, (head.origin_seqno, head.chain), definitions)


def _look_up_to(begin: int, end: int) -> int:
    """Up to where definitions are looked for in a run that has come from `begin` to `end`: as far again as it is long.
    Where origins take turns, runs are short: one that looks through all of the data for each takes hours."""
    return 2 * end - begin + LOOK_BYTES


# Frames that do not lie one after the other.


class Pieces:
    """Several stretches of one memory, read as one. `len` is the sum of theirs, in bytes."""

    __slots__ = ("_lengths", "_memory", "_places", "_size_bytes")

    def __init__(self, memory: memoryview, places: Sequence[int], lengths: Sequence[int]) -> None:
        """`memory`: of single bytes. `places`, `lengths`: where each begins, and how long it is."""
        self._memory = memory
        self._places = places
        self._lengths = lengths
        self._size_bytes = sum(lengths)

    def __len__(self) -> int:
        return self._size_bytes

    def __iter__(self) -> Iterator[memoryview]:
        """All bytes in their order, in pieces of which two neighbours are longer than SHORT_BYTES. A piece is void when
        the next one is asked for, so that nothing of the memory is held longer."""
        room = memoryview(bytearray(min(self._size_bytes, SHORT_BYTES)))
        filled = 0
        for view in self.stretches():
            end = filled + len(view)
            if end > SHORT_BYTES and filled:
                yield room[:filled]
                filled, end = 0, len(view)
            if end > SHORT_BYTES:
                yield view
                continue
            room[filled:end] = view
            filled = end
        if filled:
            yield room[:filled]

    def stretches(self) -> Iterator[memoryview]:
        """The same as they lie, none copied. Each is void when the next one is asked for."""
        for at, length in zip(self._places, self._lengths, strict=True):
            with self._memory[at : at + length] as view:
                yield view


class PiecedBatch(Struct, frozen=True):
    """Complete frames as those of a `FrameBatch`: `count` of them, first_seqno to last_seqno."""

    first_seqno: int
    last_seqno: int
    count: int
    data: Pieces
