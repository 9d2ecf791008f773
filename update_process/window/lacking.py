"""Of frames that another supplier has sent those that are next here, as they stand in our own journal.

Guarantees: of each origin only what is not known goes on. Another transaction under its last known number is refused,
and so is one that was left out as known and is not. Where frames are looked at one by one (`Lacking`) each check is
verified, and what goes on has our numbers, its ORIGIN part untouched; a frame that bears its number already is taken as
it lies. What is taken in whole records (`InOrder`) is as it came.
Leaves to others: whether an origin goes on without a gap, and its chain hash (plan.open_window verifies both), and our
numbers for whole records (renumbering.py). Pure.
"""

from __future__ import annotations

import struct
from collections.abc import MutableMapping
from typing import Final

from crc32c import crc32c

from replicate.errors import DivergedError, GapError
from replicate.journal.frame import (
    CHECK,
    CHECK_OFFSET,
    FRAME_HEAD_BYTES,
    FRAME_PREFIX_BYTES,
    OF_ORIGIN,
    RENUMBERED,
    SEQNO,
    SEQNO_OFFSET,
    place_bytes,
)
from replicate.journal.record import frame_damaged, pack_elements
from replicate.model.transaction import Kind
from replicate.model.vector import Position
from replicate.wire.vector_refusals import KNOWN_THERE

NOTHING: Final = (-1, 0)
"""Where an origin stands of which nothing is known."""
_NULL: Final = int(Kind.NULL)
_STANDS_FOR: Final = pack_elements(KNOWN_THERE, [])[0]
"""The payload of a NULL record that stands for what its sender takes to be known here."""
_put_seqno: Final = SEQNO.pack_into
_put_check: Final = CHECK.pack_into


class Lacking:
    """Frames for one batch, in windows. `known`: where each origin stands after them; `next_seqno`: of ours."""

    ahead: Final = 0
    """As of `InOrder`: what it gives has our numbers."""

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
        frames = bytearray(data)  # renumbered where they lie: a copy of each body costs more than all else here
        offset = 0
        try:
            while offset < len(frames):
                length, _, _, _, chain, origin, origin_seqno = RENUMBERED.unpack_from(frames, offset)
                last_seqno, last_chain = self.known.get(origin, NOTHING)
                if last_seqno < origin_seqno:
                    begun, offset = offset, self._take_run(frames, offset, last_seqno, most, room_bytes)
                    if offset == begun:
                        return False
                    continue
                if last_seqno == origin_seqno and last_chain != chain:
                    raise _other(origin, origin_seqno)
                offset = self._pass_over(frames, offset + FRAME_PREFIX_BYTES + length, origin, last_seqno)
        except struct.error:
            raise frame_damaged("a frame's head is cut short", offset) from None
        return True

    def _pass_over(self, frames: bytearray, offset: int, own: int, last: int) -> int:
        """Pass over the frame that ends at `offset`, and those after it of its origin, `own`, that come before its
        number `last`; after them. As much comes back as comes: a loop for it, in half of the time."""
        end, unpack, passed = len(frames), OF_ORIGIN.unpack_from, 1
        while offset < end:
            length, _, origin, origin_seqno = unpack(frames, offset)
            if origin != own or origin_seqno >= last:
                break
            offset += FRAME_PREFIX_BYTES + length
            passed += 1
        self.skipped += passed
        self.looked += passed
        return offset

    def _take_run(self, frames: bytearray, offset: int, last: int, most: int, room_bytes: int) -> int:
        """Take the frames of one origin that follow each other from `offset` on, up to the room that there is; after
        the last one. `last`: the number of it that is known. A loop for most of what comes: everything else is done
        once for a run."""
        view, end, unpack = memoryview(frames), len(frames), RENUMBERED.unpack_from
        own = unpack(frames, offset)[5]
        first, number, size, chain, begun = self.next_seqno, self.next_seqno, self.size_bytes, 0, offset
        # The first one of all is taken, whatever its size.
        most_seqno = number + max(most - len(self.places), not self.places)
        window_end = begun + self._window_bytes - self._piece_bytes
        while offset < end:
            length, check, kind, seqno, next_chain, origin, origin_seqno = unpack(frames, offset)
            begin = offset + FRAME_PREFIX_BYTES
            after = begin + length
            if origin != own or origin_seqno <= last or number >= most_seqno:
                break
            if size + after - offset > room_bytes and (self.places or number > first):
                break
            body = view[begin:after]
            if after > end or crc32c(body) != check:
                raise frame_damaged("a frame's check does not match its content", offset)
            if kind == _NULL and bytes(body).endswith(_STANDS_FOR):
                raise _not_known(origin, origin_seqno)
            if seqno != number:
                _put_seqno(frames, offset + SEQNO_OFFSET, number)
                _put_check(frames, offset + CHECK_OFFSET, crc32c(body))
            number += 1
            size += after - offset
            last, chain, offset = origin_seqno, next_chain, after
            if offset >= window_end:
                self._keep(view[begun:offset], number - self.next_seqno)
                self.end_window()
                begun, window_end = offset, offset + self._window_bytes
        if offset > begun:
            self._keep(view[begun:offset], number - self.next_seqno)
        if number > first:
            self.known[own] = (last, chain)
        self.size_bytes = size
        return offset

    def end_window(self) -> None:
        """What was taken since the last one is a window."""
        if self._piece_count:
            self.windows.append(b"".join(self._pieces))
            self.counts.append(self._piece_count)
            self._pieces = []
            self._piece_bytes = self._piece_count = 0

    def _keep(self, piece: memoryview, count: int) -> None:
        self._pieces.append(piece)
        self._piece_bytes += len(piece)
        self._piece_count += count
        self.places += range(self.looked, self.looked + count)
        self.looked += count
        self.next_seqno += count


class InOrder:
    """The same of whole records whose frames are all next and of one origin, as the first one and the number of the
    last one tell; that the others are so is for plan.open_window to prove. They bear their source's numbers."""

    def __init__(self, before: Position, most: int, room_bytes: int, window_bytes: int) -> None:
        """`before`: where our journal ends. `most`: transactions, `room_bytes`: of their frames. `window_bytes`: so
        many are decoded together."""
        self._before = before
        self._next_seqno = 0
        self._origin = self._next_origin_seqno = 0
        self._most = most
        self._room_bytes = room_bytes
        self._window_bytes = window_bytes
        self._pieces: list[bytes] = []
        self._piece_bytes = self._piece_count = 0
        self.windows: list[bytes] = []
        self.counts: list[int] = []
        """Transactions of each window."""
        self.ahead = 0
        """By how much their numbers are above those that they get here."""
        self.count = 0
        self.skipped = 0
        self.size_bytes = 0

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
        if self.count + count > self._most or self.size_bytes + len(data) > self._room_bytes:
            return False
        if len(data) < FRAME_HEAD_BYTES:
            return False
        _, _, _, seqno, _, origin, origin_seqno = RENUMBERED.unpack_from(data)
        if not self.count:
            self._next_seqno, self.ahead = first_seqno, first_seqno - self._before.last_seqno - 1
            self._origin, self._next_origin_seqno = origin, self._before.chains.get(origin, (0, 0))[0] + 1
        if not first_seqno == seqno == self._next_seqno:
            return False
        if (origin, origin_seqno) != (self._origin, self._next_origin_seqno):
            return False
        if count > 1 and data.rfind(place_bytes(origin, origin_seqno + count - 1)) < 0:
            return False
        if data.rfind(_STANDS_FOR) >= 0:  # in two fifths of the time of `in`
            return False  # or it looks so: each frame is looked at
        self._next_seqno += count
        self._next_origin_seqno += count
        self._keep(data, count)
        return True

    def _keep(self, data: bytes, count: int) -> None:
        """Small records go together."""
        if self._piece_bytes + len(data) > self._window_bytes:
            self.end_window()
        self._pieces.append(data)
        self._piece_bytes += len(data)
        self._piece_count += count
        self.size_bytes += len(data)
        self.count += count

    def end_window(self) -> None:
        """What was taken since the last one is a window."""
        if self._pieces:
            self.windows.append(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))
            self.counts.append(self._piece_count)
            self._pieces = []
            self._piece_bytes = self._piece_count = 0


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
