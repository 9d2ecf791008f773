"""Frames that come one behind the other and do not lie so: a batch as it stands in the receive pool, record by record.

Guarantees: what is written is all of them in their order, without a gap. Nothing is copied but pieces that are short.
Refuses to know: frames, files, whose memory it is. Whoever owns that has `release` called before it goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

SHORT_BYTES: Final = 64 * 1024
"""Shorter pieces are put together until they are as long: a call of the kernel for each frame of a slow stream cost
more than the copy."""


class Pieces:
    """Several pieces of memory, read as one. `len` is the sum of theirs, in bytes."""

    __slots__ = ("_size_bytes", "_views")

    def __init__(self, views: Sequence[memoryview]) -> None:
        """`views`: of single bytes; they are ours from now on."""
        self._views = views
        self._size_bytes = sum(map(len, views))

    def __len__(self) -> int:
        return self._size_bytes

    def __iter__(self) -> Iterator[memoryview | bytes]:
        """All bytes in their order, in pieces that are not short, but for the last one."""
        short: list[memoryview] = []
        size_bytes = 0
        for view in self._views:
            if not short and len(view) >= SHORT_BYTES:
                yield view
                continue
            short.append(view)
            size_bytes += len(view)
            if size_bytes >= SHORT_BYTES:
                yield b"".join(short)
                short, size_bytes = [], 0
        if short:
            yield b"".join(short)

    def release(self) -> None:
        """Let go of the memory. May be called twice."""
        for view in self._views:
            view.release()
        self._views = ()


@dataclass(frozen=True, slots=True)
class PiecedBatch:
    """Complete frames as those of a `FrameBatch`: `count` of them, first_seqno to last_seqno."""

    first_seqno: int
    last_seqno: int
    count: int
    data: Pieces
