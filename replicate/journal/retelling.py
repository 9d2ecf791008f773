"""The changes of a transaction in other words while they are made: in memory as long as a frame holds them, in a spool
from there on.

Guarantees: memory holds one frame at most, however large the transaction becomes; what comes of it carries the number,
the label and the origin of the transaction that it is told for: RESTATED, RESTATED_LARGE with its spool, or NULL where
nothing is left. After an error only `abort` is left.
Leaves to others: what the words are (a filter, an operator's decision), and the commit of what comes of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from replicate.journal.record import Head, pack_changes, pack_null, pack_restated, pack_restated_large
from replicate.journal.spool import Spool
from replicate.limits import FRAME_BYTES_MAX, FRAME_CHANGES_MAX

FRAMED_BYTES_MAX: Final = FRAME_BYTES_MAX - 8192
"""Of changes in one frame, so that its head and a reason have room."""
REASON_BYTES_MAX: Final = 4096


class Retelling:
    """One transaction. For one thread; close it by `abort` where its spool was not adopted."""

    def __init__(self, directory: str | os.PathLike[str], origin: int) -> None:
        """`directory`: where a spool would go, a journal's as a rule. `origin`: key of the transaction's origin."""
        self._directory = directory
        self._origin = origin
        self._data = bytearray()
        self._elements = 0
        self.spool: Spool | None = None
        """Holds the changes, once they are too many for a frame."""

    def add(self, changes: Sequence[object]) -> None:
        """More flat changes, whole ones. DiskFullError or JournalIOError."""
        packed = pack_changes(changes)
        self._elements += len(changes)
        if self.spool is None:
            self._data += packed
            if len(self._data) <= FRAMED_BYTES_MAX and self._elements <= 4 * FRAME_CHANGES_MAX:
                return
            packed = bytes(self._data)
            self._data.clear()
            self.spool = Spool.create(self._directory, self._origin)
        self.spool.write(packed)

    def frame(self, head: Head, reason: str, partitions: tuple[int, ...]) -> bytes:
        """The frame in the place of the transaction with that head, which commits `spool` where there is one.
        `partitions`: those that the transaction carried; a frame that holds its changes names none. `reason`: at most
        REASON_BYTES_MAX are kept. Raises as `Spool.finish`."""
        reason = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
        if self.spool is not None:
            return pack_restated_large(head, reason, *self.spool.commit_payload(partitions))
        if not self._elements:
            return pack_null(head, reason, partitions)
        return pack_restated(head, reason, bytes(self._data), self._elements)

    def abort(self) -> None:
        """Remove the spool, unless it was adopted or there is none."""
        if self.spool is not None:
            self.spool.abort()
