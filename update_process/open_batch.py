"""What has been taken into the local transactions that are open, until they are committed.

Guarantees: `position` is the one behind all that was taken; frames are kept as they came, for our own journal.
Refuses to know: how rows are applied, and when the batch ends.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field

from replicate.journal.record import FrameBatch, Head, read_head
from replicate.vector import Position
from update_process.batch import Window
from update_process.plain import Changes, joined


@dataclass(slots=True)
class OpenBatch:
    """`first_seqno`: its first transaction. `deadline_s` (monotonic): when it is committed at the latest."""

    first_seqno: int
    position: Position
    deadline_s: float
    csn: int = 0
    transactions: int = 0
    size_bytes: int = 0
    defines: bool = False
    changes_put_off: int = 0
    _frames: io.BytesIO = field(default_factory=io.BytesIO)
    _last_bytes: int = 0
    _put_off: list[Changes] = field(default_factory=list)

    def extend(self, window: Window, start: int, stop: int, partition_of: Callable[[int], int | None]) -> None:
        """Take the transactions `start` to `stop` (exclusive) of the window. Raises as `Window.position_at`."""
        data = window.frames(start, stop)
        self.position = window.position_at(self.position, start, stop, partition_of)
        self._frames.write(data)
        self.csn = window.bodies[stop - 1][6]
        self._last_bytes = window.offset(stop) - window.offset(stop - 1)
        self.transactions += stop - start
        self.size_bytes += len(data)
        self.defines = self.defines or start in window.alone
        window.done = stop

    def put_off(self, changes: Changes) -> None:
        """Keep changes that are to be made together."""
        self._put_off.append(changes)
        self.changes_put_off += len(changes.ops)

    def take_put_off(self) -> Changes:
        """All changes that were put off, in their order; none are kept."""
        changes, self._put_off, self.changes_put_off = joined(self._put_off), [], 0
        return changes

    def frames(self) -> tuple[FrameBatch, Head]:
        """All frames, and the head of the last one."""
        data = self._frames.getvalue()  # without a copy: a batch is kept once
        batch = FrameBatch(self.first_seqno, self.position.last_seqno, self.transactions, data)
        return batch, read_head(data, len(data) - self._last_bytes)
