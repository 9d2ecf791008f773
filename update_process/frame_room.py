"""Room for the frames of one batch after the other: one mapping that grows and is used again.

Guarantees: what was written since `clear` lies in `view`, one behind the other. Memory is that of the largest batch:
pieces of megabytes, made and given back with each batch, had the allocator keep as much again (measured).
Refuses to know: frames.
"""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap


class FrameRoom:
    """Used by one batch at a time. Its memory is not touched before it is needed."""

    __slots__ = ("_view", "room_bytes", "size_bytes")

    def __init__(self, room_bytes: int) -> None:
        """`room_bytes`: enough as a rule."""
        self.room_bytes = room_bytes
        self._view = _mapping(room_bytes)
        self.size_bytes = 0

    def clear(self) -> None:
        """Begin anew. Views that were given before are void."""
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        """Put `data` behind what is there."""
        end = self.size_bytes + len(data)
        if end > len(self._view):
            larger = _mapping(2 * end)
            larger[: self.size_bytes] = self.view()
            self._view = larger
        self._view[self.size_bytes : end] = data
        self.size_bytes = end

    def view(self) -> memoryview:
        """All that was written; read it before the next `write` or `clear`."""
        return self._view[: self.size_bytes]


def _mapping(size_bytes: int) -> memoryview:
    return memoryview(mmap(-1, max(PAGESIZE, size_bytes), flags=MAP_PRIVATE | MAP_ANONYMOUS))
