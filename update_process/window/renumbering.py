"""Frames that follow each other in another supplier's journal, under the numbers that they get in ours.

CHECK is a CRC, which is linear: what another number changes in it depends on the bits of the number that change and on
how many bytes come after them, and on nothing else. So a check is moved and not made again, and proves of its frame
what it did before, no more and no less. Numbers that differ by the same throughout change in few ways, which are
remembered.

Guarantees: only SEQNO and CHECK change; what a check does not prove before it does not prove after.
Leaves to others: whether frames are what should come next (plan.open_window). Pure.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import xor
from typing import Any, Final

from crc32c import crc32c
from msgspec.structs import replace

from replicate.errors import JournalDamagedError
from replicate.journal.frame import CHECK, CHECK_OFFSET, FRAME_PREFIX_BYTES, SEQNO, SEQNO_OFFSET
from replicate.journal.record import BODY_BYTES_MIN
from update_process.plan import Window

KEPT_MAX: Final = 16_384
"""Ways in which a check changes: some 2 MiB. More than one window has are seldom of use."""
_BETWEEN: Final = slice(CHECK_OFFSET + CHECK.size, SEQNO_OFFSET)
"""COUNT and KIND with their markers, of the first frame."""
_BEFORE: Final = SEQNO_OFFSET + SEQNO.size - FRAME_PREFIX_BYTES
"""Of a body, up to the end of SEQNO."""
_put: Final = struct.Struct(f"{CHECK.format}{_BETWEEN.stop - _BETWEEN.start}s{SEQNO.format[-1]}").pack_into


class _Ways(dict[tuple[int, int], int]):
    """(bits of SEQNO that change, bytes of the body) -> bits of CHECK that change."""

    def __missing__(self, key: tuple[int, int]) -> int:
        bits, length = key
        changed = bits.to_bytes(SEQNO.size) + bytes(length - _BEFORE)
        if len(self) >= KEPT_MAX:
            self.clear()
        way = self[key] = crc32c(changed) ^ crc32c(bytes(len(changed)))
        return way


class Renumbering:
    """It remembers ways, and so one is kept for all that comes."""

    def __init__(self) -> None:
        self._ways = _Ways()
        self._made = bytearray()

    def window(self, window: Window, decoded: Sequence[Any], first_seqno: int) -> Window:
        """The same one numbered from `first_seqno` on, of which nothing was applied yet; `decoded` as it was made from.

        Its bodies are, too, where it is not plain. Else they bear the numbers that they came with, at which nobody
        looks: of a plain window all follows from where they stand. Then, too, its data is void when the next window is
        made. JournalDamagedError for a frame without a head."""
        plain, bodies = window.plain, window.bodies
        data: bytes | bytearray = self._frames(window, decoded[0::3], decoded[1::3], first_seqno)
        if plain is None:
            data = bytes(data)
            bodies = [(body[0], seqno, *body[2:]) for seqno, body in enumerate(bodies, first_seqno)]
        if plain is not None:
            plain = replace(plain, first_seqno=first_seqno)
        return replace(window, first_seqno=first_seqno, data=data, bodies=bodies, plain=plain)

    def _frames(self, window: Window, lengths: Sequence[int], checks: Sequence[int], first_seqno: int) -> bytearray:
        """Where a head is not what it should be, its check does not match any more."""
        if min(lengths) < BODY_BYTES_MIN:
            raise JournalDamagedError("a received frame is too short", first_seqno=window.first_seqno)
        data, count = window.data, len(lengths)
        before, seqnos = (range(first, first + count) for first in (window.first_seqno, first_seqno))
        ways = map(self._ways.__getitem__, zip(map(xor, before, seqnos), lengths, strict=True))
        begins: Sequence[int] = [0, *window.ends[:-1]]
        between: Iterable[bytes | bytearray] = repeat(data[_BETWEEN])
        if window.plain is None or window.plain.ends is not None:  # else each is as long an array, and of one kind
            between = [data[begin + _BETWEEN.start : begin + _BETWEEN.stop] for begin in begins]
        made = self._made
        made[:] = data
        # In C, in whole columns: two thirds of the time of a loop (measured).
        places, moved = map(CHECK_OFFSET.__add__, begins), map(xor, checks, ways)
        deque(map(_put, repeat(made), places, moved, between, seqnos), maxlen=0)
        return made
