"""What of a transaction's changes has left memory: it goes to a spool, which is made with the first bytes.

Guarantees: what was written, and not cut, comes again in its order. A spool that nobody has adopted is removed.
Leaves to others: when memory is full, and what the bytes say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replicate.journal.spool import Spool


class Overflow:
    """One connection's, of its open transaction. Raises what a spool raises."""

    __slots__ = ("_make_spool", "size_bytes", "spool")

    def __init__(self, make_spool: Callable[[], Spool]) -> None:
        self._make_spool = make_spool
        self.spool: Spool | None = None
        """None: all is in memory."""
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        """Take what was captured next."""
        if self.spool is None:
            self.spool = self._make_spool()
        self.spool.write(data)
        self.size_bytes += len(data)

    def cut(self, offset: int) -> None:
        """Forget what was written from `offset` on; the spool stays."""
        assert self.spool is not None
        self.spool.cut(offset)
        self.size_bytes = offset

    def stream(self) -> Iterator[bytes]:
        """All that has left memory."""
        if self.spool is not None:
            yield from self.spool.stream()

    def clear(self, adopted: bool = False) -> None:
        """Nothing has left memory. `adopted`: the spool has become a part of the journal and is not removed."""
        self.size_bytes = 0
        spool = self.spool
        if spool is not None:
            if not adopted:
                spool.abort()
            self.spool = None
