"""Of frames that another supplier has sent those that are next here, as they stand in our own journal.

Guarantees: every frame's check is verified; of each origin only what is not known goes on. Another transaction under
its last known number is refused, and so is one that was left out as known and is not. What goes on has our numbers, its
ORIGIN part untouched; a frame that bears its number already, as where one supplier writes and the others follow, is
taken as it lies.
Refuses to know: whether an origin goes on without a gap, and its chain hash (plan.open_window verifies both). Pure.
"""

from __future__ import annotations

import struct
from collections.abc import MutableMapping
from typing import Final

from crc32c import crc32c

from replicate.errors import DivergedError, GapError
from replicate.journal.frame import FRAME_HEAD_BYTES, FRAME_PREFIX_BYTES
from replicate.journal.record import frame_damaged, pack_elements
from replicate.model.transaction import Kind
from replicate.model.vector import Position
from replicate.wire.vectors import KNOWN_THERE

_HEAD: Final = struct.Struct(">xIxI3xBxQ9xxQxIxQ9x")
"""Of a frame's head LENGTH, CHECK, KIND, SEQNO, CHAIN, ORIGIN and ORIGIN_SEQNO."""
_NULL: Final = int(Kind.NULL)
_STANDS_FOR: Final = pack_elements(KNOWN_THERE, [])[0]
"""The payload of a NULL record that stands for what its sender takes to be known here."""
_CHECK_AT: Final = 6
_SEQNO_AT: Final = 5
"""Where in a body SEQNO begins."""
_put_seqno: Final = struct.Struct(">Q").pack_into
_put_check: Final = struct.Struct(">I").pack_into
assert _HEAD.size == FRAME_HEAD_BYTES


class Lacking:
    """Frames for one batch, in windows. `known`: where each origin stands behind them; `next_seqno`: of ours."""

    def __init__(self, known: MutableMapping[int, tuple[int, int]], next_seqno: int, window_bytes: int) -> None:
        """`window_bytes`: so many are decoded together."""
        self.known = known
        self.next_seqno = next_seqno
        self.windows: list[bytes] = []
        self.counts: list[int] = []
        """Transactions of each window."""
        self.places: list[int] = []
        """Of each of them, its place among all frames looked at."""
        self.looked = 0
        self.skipped = 0
        self.size_bytes = 0
        self._window_bytes = window_bytes
        self._pieces: list[memoryview] = []
        self._piece_bytes = self._piece_count = 0

    @property
    def count(self) -> int:
        """Transactions taken so far."""
        return len(self.places)

    def take(self, data: bytes, most: int, room_bytes: int) -> bool:
        """Take of whole frames those that are lacking, until `most` transactions or `room_bytes` are taken; False when
        something is left. FrameDamaged, DivergedError."""
        known, unpack, end, offset = self.known, _HEAD.unpack_from, len(data), 0
        frames = bytearray(data)  # renumbered where they lie: a copy of each body costs more than all else here
        view, places, run = memoryview(frames), self.places, -1
        while offset < end:
            try:
                length, check, kind, seqno, chain, origin, origin_seqno = unpack(frames, offset)
            except struct.error:
                raise frame_damaged("a frame's head is cut short", offset) from None
            begin = offset + FRAME_PREFIX_BYTES
            behind = begin + length
            last = known.get(origin)
            if last is not None and last[0] >= origin_seqno:
                if last[0] == origin_seqno and last[1] != chain:
                    raise _other(origin, origin_seqno)
                if run >= 0:
                    self._keep(view[run:offset])
                    run = -1
                self.skipped += 1
                self.looked += 1
                offset = behind
                continue
            if places and (len(places) >= most or self.size_bytes + behind - offset > room_bytes):
                if run >= 0:
                    self._keep(view[run:offset])
                return False
            if behind > end or crc32c(view[begin:behind]) != check:
                raise frame_damaged("a frame's check does not match its content", offset)
            if kind == _NULL and data[begin:behind].endswith(_STANDS_FOR):
                raise _not_known(origin, origin_seqno)
            known[origin] = (origin_seqno, chain)
            places.append(self.looked)
            self.looked += 1
            self.size_bytes += behind - offset
            self._piece_count += 1
            if seqno != self.next_seqno:
                _put_seqno(frames, begin + _SEQNO_AT, self.next_seqno)
                _put_check(frames, offset + _CHECK_AT, crc32c(view[begin:behind]))
            self.next_seqno += 1
            if run < 0:
                run = offset
            offset = behind
            if self._piece_bytes + offset - run >= self._window_bytes:
                self._keep(view[run:offset])
                run = -1
                self.end_window()
        if run >= 0:
            self._keep(view[run:end])
        return True

    def end_window(self) -> None:
        """What was taken since the last one is a window."""
        if self._piece_count:
            self.windows.append(b"".join(self._pieces))
            self.counts.append(self._piece_count)
            self._pieces = []
            self._piece_bytes = self._piece_count = 0

    def _keep(self, piece: memoryview) -> None:
        self._pieces.append(piece)
        self._piece_bytes += len(piece)


class InStep:
    """The same of whole records whose frames are all next, and bear our numbers, as the first frame of each tells; that
    the others are so is for plan.open_window to prove."""

    def __init__(self, before: Position, most: int, room_bytes: int) -> None:
        """`before`: where our journal ends. `most`: transactions, `room_bytes`: of their frames."""
        self._chains = before.chains
        self._next_seqno = before.last_seqno + 1
        self._origin = self._next_origin_seqno = 0
        self._most = most
        self._room_bytes = room_bytes
        self.windows: list[bytes] = []
        self.counts: list[int] = []
        self.count = 0
        self.skipped = 0

    @property
    def looked(self) -> int:
        """All that were looked at are taken."""
        return self.count

    @property
    def places(self) -> range:
        """Likewise."""
        return range(self.count)

    def take(self, data: bytes, first_seqno: int, count: int) -> bool:
        """Take a record; False when it is not so, or there is no room for it."""
        if first_seqno != self._next_seqno or self.count + count > self._most or len(data) > self._room_bytes:
            return False
        if _STANDS_FOR in data:
            return False  # or it looks so: each frame is looked at
        _, _, _, seqno, _, origin, origin_seqno = _HEAD.unpack_from(data)
        if not self.count:
            self._origin, self._next_origin_seqno = origin, self._chains.get(origin, (0, 0))[0] + 1
        if (seqno, origin, origin_seqno) != (self._next_seqno, self._origin, self._next_origin_seqno):
            return False
        self._next_seqno += count
        self._next_origin_seqno += count
        self._room_bytes -= len(data)
        self.windows.append(data)
        self.counts.append(count)
        self.count += count
        return True


def _not_known(origin: int, origin_seqno: int) -> GapError:
    return GapError(
        f"number {origin_seqno} of origin {origin:08x} was left out as known here, and is not",
        do="Nothing of it was taken; the stream begins again by what is known here",
        origin=origin,
        origin_seqno=origin_seqno,
    )


def _other(origin: int, origin_seqno: int) -> DivergedError:
    return DivergedError(
        f"number {origin_seqno} of origin {origin:08x} is one transaction here and another one at the source",
        do="Do not go on: one of them was restored from a backup, or is used twice. Compare both sites",
        origin=origin,
        origin_seqno=origin_seqno,
    )
