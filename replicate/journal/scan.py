"""Scanning a segment from an offset on, frame by frame, to where it ends or stops making sense.

Guarantees: every frame before the result's `end_offset` has the right check, number, kind and chain hash; after a bad
one we look on through the whole rest of the file for a frame that verifies (a torn tail has none after it). What
looks bad is read once more before it is called so: a writer may have been at it.
Leaves to others: what to do about it (tail.py judges, recovery acts).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from replicate.errors import FrameDamaged, JournalIOError
from replicate.journal.frame import FRAME_HEAD_BYTES, FRAME_PREFIX_BYTES, PLAUSIBLE
from replicate.journal.record import RESTATED_KINDS, STREAM_KINDS, Head, check_frame, proven_after, restated_fault
from replicate.journal.tail import Damage, FrameAfter, ScanResult
from replicate.journal.walk import may_define, plain_run
from replicate.limits import FRAME_BYTES_MAX, MIB
from replicate.model.transaction import Kind

_WINDOW_BYTES: Final = 4 * MIB
_ZEROS: Final = bytes(_WINDOW_BYTES)


class _Window:
    """A piece of the file in memory that slides forward; always holds the next largest frame whole if the file does."""

    def __init__(self, fd: int, offset: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self.base = offset
        self.data = b""
        self._load(offset)

    def _load(self, offset: int) -> None:
        pieces = []
        wanted, at = _WINDOW_BYTES, offset
        while wanted:
            try:
                piece = os.pread(self._fd, wanted, at)
            except OSError as error:
                raise JournalIOError(
                    f"reading the journal failed: {error.strerror}", where=self._path, errno=error.errno
                ) from error
            if not piece:
                break
            pieces.append(piece)
            wanted -= len(piece)
            at += len(piece)
        self.base, self.data = offset, b"".join(pieces)

    def at(self, offset: int) -> int:
        """The index of file offset `offset` in `data`, which then holds FRAME_BYTES_MAX from there, or the rest."""
        index = offset - self.base
        if len(self.data) - index < FRAME_BYTES_MAX and len(self.data) == _WINDOW_BYTES:
            self._load(offset)
            return 0
        return index


def scan(
    fd: int,
    from_offset: int,
    expected_next_seqno: int,
    *,
    chains: Mapping[int, tuple[int, int]] | None = None,
    path: str = "",
    all_marks: bool = True,
) -> ScanResult:
    """Scan frames from `from_offset`, the first of which should have `expected_next_seqno`.

    `chains`: the complete origin -> (origin_seqno, chain) before it; an origin that is not in it begins with seed 0.
    None: unknown, each origin's first frame is taken on trust. `all_marks`: see `frame_after`.
    FormatUnknownError when a frame verifies but is of a later release; JournalIOError when the file cannot be read.
    Every other fault is in the result.
    """
    window = _Window(fd, from_offset, path)
    known = dict(chains or {})
    offset, expected = from_offset, expected_next_seqno
    mark = csn = count = 0
    definitions: list[int] = []
    damage: Damage | None = None
    restated: tuple[int, int, tuple[int, int] | None] | None = None
    again = -1  # where the file was read once more
    while True:
        index = window.at(offset)
        data = window.data
        if index >= len(data) or data[index] == 0:
            stray = _first_nonzero(window, index, fd, path)
            if stray is None:
                break
            if again != offset:
                again, window = offset, _Window(fd, offset, path)
                continue
            damage = Damage(offset, expected, f"bytes stand after the end, at offset {stray}")
            break
        run = plain_run(data, index, expected, known)
        if run.count:
            definitions += [offset - index + at for at in run.definitions]
            known[run.origin] = run.point
            mark, csn = max(mark, run.mark), max(csn, run.csn)
            expected += run.count
            count += run.count
            offset += run.end - index
            restated = None
            continue
        head, fault = _read(data, index, expected, known, trusting=chains is None)
        if head is None:
            if again != offset:
                again, window = offset, _Window(fd, offset, path)
                continue
            damage = Damage(offset, expected, fault)
            break
        end = index + head.frame_bytes
        if fault:
            damage = Damage(offset, expected, fault, whole_frame=True)
            break
        if head.kind == Kind.HISTORY or may_define(data, index + FRAME_HEAD_BYTES, end):
            definitions.append(offset)
        restated = (offset, head.origin, known.get(head.origin)) if head.kind == Kind.RESTATED else None
        known[head.origin] = (head.origin_seqno, head.chain)
        mark, csn = max(mark, head.mark), max(csn, head.csn)
        expected += 1
        count += 1
        offset += head.frame_bytes
    after = None
    if damage is not None:
        after = frame_after(fd, offset + 1, expected, path, all_marks=all_marks)
    return ScanResult(offset, expected - 1, count, known, mark, csn, tuple(definitions), damage, after, restated)


def _read(
    data: bytes, index: int, expected: int, known: Mapping[int, tuple[int, int]], *, trusting: bool
) -> tuple[Head | None, str]:
    """The frame at `index`, and why it does not belong there (as `_misplaced`). None: nothing there verifies."""
    try:
        head = check_frame(data, index)
    except FrameDamaged as error:
        return None, error.what
    end = index + head.frame_bytes
    return head, _misplaced(head, expected, known, data, index, end, trusting=trusting)


def _misplaced(
    head: Head,
    expected: int,
    known: Mapping[int, tuple[int, int]],
    data: bytes,
    index: int,
    end: int,
    *,
    trusting: bool,
) -> str:
    """Why a frame that verifies does not belong where it stands; "" when it does."""
    if head.kind not in STREAM_KINDS:
        return f"a frame of kind {Kind(head.kind).name} does not belong here"
    if head.seqno != expected:
        return f"a frame has seqno {head.seqno}, {expected} should stand here"
    frame = memoryview(data)[index:end]
    if head.kind in RESTATED_KINDS:
        return restated_fault(frame)
    if trusting and head.origin not in known:
        return ""
    _, previous = known.get(head.origin, (0, 0))
    if not proven_after(frame, head.kind, head.chain, previous):
        return f"the chain hash of seqno {head.seqno} does not follow from what stands before it"
    return ""


def _pieces(fd: int, offset: int, path: str) -> Iterator[tuple[int, bytes, bool]]:
    """(offset, bytes, is the last) through the rest of the file, each overlapping the next by the largest frame."""
    while True:
        window = _Window(fd, offset, path)
        last = len(window.data) < _WINDOW_BYTES
        yield offset, window.data, last
        if last:
            return
        offset += _WINDOW_BYTES - FRAME_BYTES_MAX


def _first_nonzero(window: _Window, index: int, fd: int, path: str) -> int | None:
    """Where something stands from `index` of the window on. The window itself is not read again: what a writer has
    appended since is not after the end that it shows."""
    end = window.base + len(window.data)
    for base, data, _ in chain([(window.base + index, window.data[index:], False)], _pieces(fd, end, path)):
        # A comparison goes through a fresh segment's zeros, which each start reads, ten times as fast as lstrip.
        if not _ZEROS.startswith(data):
            return base + len(data) - len(data.lstrip(b"\0"))
    return None


def frame_after(fd: int, offset: int, bad_seqno: int, path: str, *, all_marks: bool = True) -> FrameAfter | None:
    """The first frame from `offset` on that verifies and whose number could stand there. `all_marks`: its `mark` is the
    highest of all after it, too, for which the rest of the file is read; else its own alone. JournalIOError.

    Lower numbers do not count: an application may keep journal bytes in its own blobs, and a torn frame may hold one.
    """
    for base, data, last in _pieces(fd, offset, path):
        reach = len(data) if last else _WINDOW_BYTES - FRAME_BYTES_MAX
        for match in PLAUSIBLE.finditer(data, 0):
            if match.start() >= reach:
                break
            try:
                head = check_frame(data, match.start())
            except FrameDamaged:
                continue
            at = base + match.start()
            frames_between = (at - offset) // (FRAME_HEAD_BYTES - FRAME_PREFIX_BYTES) + 1
            if head.kind in STREAM_KINDS and bad_seqno <= head.seqno <= bad_seqno + frames_between:
                after = _mark_after(fd, at + head.frame_bytes, path) if all_marks else 0
                return FrameAfter(at, head.seqno, max(head.mark, after))
    return None


def _mark_after(fd: int, offset: int, path: str) -> int:
    """The highest MARK of all frames that verify from `offset` on, be there bad bytes between them or not."""
    mark = 0
    for _, data, _ in _pieces(fd, offset, path):
        end = 0
        for match in PLAUSIBLE.finditer(data, 0):
            if match.start() < end:
                continue  # within a frame that verified
            try:
                head = check_frame(data, match.start())
            except FrameDamaged:
                continue
            end = match.start() + head.frame_bytes
            if head.kind in STREAM_KINDS:
                mark = max(mark, head.mark)
    return mark
