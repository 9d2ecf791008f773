"""Frames that come one behind the other and do not lie so: a batch as it stands in the receive pool, record by record.

Guarantees: what is written is all of them in their order, without a gap. Nothing is copied but pieces that are short.
Refuses to know: frames, files, whose memory it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

SHORT_BYTES: Final = 64 * 1024
"""Shorter pieces are put together until they are as long: a call of the kernel for each frame of a slow stream cost
more than the copy."""


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

    def __iter__(self) -> Iterator[memoryview | bytes]:
        """All bytes in their order, in pieces that are not short, but for the last one. A piece is void when the next
        one is asked for, so that nothing of the memory is held longer."""
        short: list[bytes] = []
        size_bytes = 0
        for at, length in zip(self._places, self._lengths, strict=True):
            with self._memory[at : at + length] as view:
                if not short and length >= SHORT_BYTES:
                    yield view
                    continue
                short.append(bytes(view))
            size_bytes += length
            if size_bytes >= SHORT_BYTES:
                yield b"".join(short)
                short, size_bytes = [], 0
        if short:
            yield b"".join(short)


@dataclass(frozen=True, slots=True)
class PiecedBatch:
    """Complete frames as those of a `FrameBatch`: `count` of them, first_seqno to last_seqno."""

    first_seqno: int
    last_seqno: int
    count: int
    data: Pieces
