"""Frames that come one behind the other and do not lie so: a batch as it stands in the receive pool, record by record.

Guarantees: what is written is all of them in their order, without a gap. Nothing is copied but stretches that are
short, and these into the same memory again and again.
Refuses to know: frames, files, whose memory it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

SHORT_BYTES: Final = 2 * 1024 * 1024
"""Shorter stretches are put together while they are no longer than this. After each call of the kernel a thread waits
for the interpreter until whoever decodes the next batch meanwhile has had its half a millisecond: 60 MiB in 240 pieces
of a message each took 0.16 s, in 30 of them 0.02 (measured)."""


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


@dataclass(frozen=True, slots=True)
class PiecedBatch:
    """Complete frames as those of a `FrameBatch`: `count` of them, first_seqno to last_seqno."""

    first_seqno: int
    last_seqno: int
    count: int
    data: Pieces
