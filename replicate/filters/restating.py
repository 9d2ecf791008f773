"""What a filter has made of one transaction, as frames: RESTATED, in parts when it is large, NULL when nothing is left.

Guarantees: what is small becomes one frame; what does not fit one goes on in parts while it comes, a part at most is in
memory. Each frame stands for the transaction of its origin, whose numbers and hash it bears.
Leaves to others: what the changes are (events.py), and where the frames go. Pure.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from replicate.journal.record import (
    FrameBatch,
    Head,
    large_payload,
    pack_null,
    pack_part,
    pack_restated,
    pack_restated_large,
)
from replicate.limits import FRAME_BYTES_MAX, FRAME_CHANGES_MAX, KIB, PART_BYTES

SMALL_BYTES_MAX: Final = FRAME_BYTES_MAX - 4 * KIB
"""Changes up to this size fit a frame, whatever the reason beside them."""
SMALL_CHANGES_MAX: Final = FRAME_CHANGES_MAX - 1
"""And this many: the reason is a change of its own."""


class StreamParts(Struct, frozen=True):
    """Part frames of the transaction `seqno`, from `first_part` on."""

    seqno: int
    token: int
    first_part: int
    count: int
    frames: bytes


class StreamLarge(Struct, frozen=True):
    """The frame that commits the large transaction `seqno`, after its parts."""

    seqno: int
    frame: bytes


StreamItem = FrameBatch | StreamParts | StreamLarge
"""What the stream is made of, before a filter and after it."""


class Restating:
    """One transaction in the making: `add` its changes, take the `parts` that are ready, and `finish`."""

    def __init__(self, seqno: int, origin: int, token: int) -> None:
        """`origin`: its key. `token`: of the parts, if it needs any; one that nobody else has."""
        self.seqno = seqno
        self.token = token
        self.count = 0
        """Changes so far."""
        self.told = 0
        """Events that the filter has said, those that change nothing among them."""
        self._origin = origin
        self._stream = bytearray()
        self._stream_bytes = 0
        self._is_large = False
        self._parts: list[bytes] = []
        self._part_count = 0
        self._taken = 0
        self._chain = 0

    def add(self, change: bytes) -> None:
        """One more change, packed."""
        self._stream += change
        self._stream_bytes += len(change)
        self.count += 1
        if self._stream_bytes > SMALL_BYTES_MAX or self.count > SMALL_CHANGES_MAX:
            self._is_large = True
            while len(self._stream) >= PART_BYTES:
                self._cut(PART_BYTES)

    @property
    def changes(self) -> bytes | bytearray:
        """All that was added, of one that is small; else what is in no part yet."""
        return self._stream

    @property
    def is_large(self) -> bool:
        """It does not fit one frame."""
        return self._is_large

    def parts(self) -> StreamParts | None:
        """Those that are ready and were not taken yet; None: there are none."""
        if not self._parts:
            return None
        made = StreamParts(self.seqno, self.token, self._taken, len(self._parts), b"".join(self._parts))
        self._taken += len(self._parts)
        self._parts = []
        return made

    def finish(self, head: Head, reason: str, partitions: tuple[int, ...]) -> bytes:
        """The last frame of it. Take the `parts` first: those of a large one are complete then. `head`: of the
        transaction that it stands for; `partitions`: those that this one carried."""
        if not self.count:
            return pack_null(head, reason, partitions)
        if not self._is_large:
            return pack_restated(head, reason, bytes(self._stream), 4 * self.count)
        payload, count = large_payload(self.token, self._part_count, self._stream_bytes, self._chain, partitions)
        return pack_restated_large(head, reason, payload, count)

    def close(self) -> None:
        """There are no more changes: what is left of a large one becomes its last part."""
        if self._is_large and self._stream:
            self._cut(len(self._stream))

    def _cut(self, size: int) -> None:
        frame, self._chain = pack_part(
            self._origin, self.token, self._part_count, bytes(self._stream[:size]), self._chain
        )
        del self._stream[:size]
        self._part_count += 1
        self._parts.append(frame)
