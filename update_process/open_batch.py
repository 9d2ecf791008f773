"""What has been taken into the local transactions that are open, until they are committed.

Guarantees: `position` is the one behind all that was taken; frames are kept as they came, for our own journal.
Refuses to know: how rows are applied, and when the batch ends.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from replicate.database.row_order import PlaceOf, Run
from replicate.journal.record import FrameBatch, Head, read_head
from replicate.vector import Position
from update_process.batch import Window
from update_process.packed import Packed
from update_process.plain import Changes, Plain, joined

LOOSE_BYTES: Final = 6 * 1024 * 1024
"""Most frames of a batch whose changes are not packed: where they wait as they were decoded, they take half as much
again beside the frames; where they do not wait, more in a batch saves nothing."""
LONGER_S: Final = 0.6
"""How much longer a batch may take while at least as much as it has room for waits behind it: then nobody sees anything
recent here in any case."""
FIRST_BYTES: Final = 2 * 1024 * 1024
"""Packed batches with less are taken to stay small."""


@dataclass(slots=True)
class OpenBatch:
    """`first_seqno`: its first transaction. `deadline_s` (monotonic): when it should be committed. `place_of`: which
    changes may be moved. `room_bytes`: of frames that it takes; a single one may be larger. `loose_bytes`: of those
    whose changes are not packed."""

    first_seqno: int
    position: Position
    deadline_s: float
    place_of: PlaceOf
    room_bytes: int
    csn: int = 0
    transactions: int = 0
    size_bytes: int = 0
    defines: bool = False
    changes_put_off: int = 0
    loose_bytes: int = 0
    _frames: io.BytesIO = field(default_factory=io.BytesIO)
    _has_room: bool = False
    _last_bytes: int = 0
    _packed: Packed | None = None
    _decoded: list[Changes] = field(default_factory=list)

    def extend(self, window: Window, start: int, stop: int, partition_of: Callable[[int], int | None]) -> None:
        """Take the transactions `start` to `stop` (exclusive) of the window. Raises as `Window.position_at`."""
        data = window.frames(start, stop)
        self.position = window.position_at(self.position, start, stop, partition_of)
        self._frames.write(data)
        self.csn = window.bodies[stop - 1][6]
        self._last_bytes = window.offset(stop) - window.offset(stop - 1)
        self.transactions += stop - start
        self.size_bytes += len(data)
        self.loose_bytes += len(data)
        self.defines = self.defines or start in window.alone
        window.done = stop

    def is_full(self, transactions_max: int, change_s: float, unread_bytes: Callable[[], int]) -> bool:
        """Whether it is to be committed now. `change_s`: what making a change that is put off takes; `unread_bytes`:
        of frames that have arrived behind it."""
        if (
            self.transactions >= transactions_max
            or self.size_bytes >= self.room_bytes
            or self.loose_bytes >= LOOSE_BYTES
        ):
            return True
        late_s = time.monotonic() + self.changes_put_off * change_s - self.deadline_s
        return late_s >= LONGER_S or (late_s >= 0 and unread_bytes() < self.room_bytes)

    def put_off(self, window: Window, plain: Plain, start: int, stop: int) -> None:
        """Keep the changes of the frames that were just taken; they are to be made together."""
        changes = plain.changes(start, stop)
        self.changes_put_off += len(changes.ops)
        if not self._decoded and plain.ends is None:
            begin = self.size_bytes - (window.offset(stop) - window.offset(start))
            shift = begin - window.offset(start)
            if self._packed is None:
                self._packed = Packed(self.place_of)
            if self._packed.take(changes, [begin, *map(shift.__add__, window.ends[start:stop])]):
                self.loose_bytes -= self.size_bytes - begin
                self._make_room()
                return
        self._decoded.append(changes)

    def _make_room(self) -> None:
        """Let many frames grow at once to what they may become: in many steps, each a little larger than the last one,
        as much again is resident as there are frames."""
        if not self._has_room and FIRST_BYTES <= self.size_bytes < self.room_bytes:
            self._has_room = True
            self._frames.seek(self.room_bytes - 1)
            self._frames.write(b"\0")
            self._frames.seek(self.size_bytes)

    @contextmanager
    def take_put_off(self) -> Iterator[tuple[Iterable[Run], Changes | None]]:
        """All changes that were put off, none are kept: first to be made are the runs, in their order, then the others,
        which come as they were written. Runs may raise JournalDamagedError."""
        packed, decoded = self._packed, self._decoded
        self._packed, self._decoded, self.changes_put_off = None, [], 0
        with self._frames.getbuffer() as view:
            yield () if packed is None else packed.runs(view), joined(decoded) if decoded else None

    def frames(self) -> tuple[FrameBatch, Head]:
        """All frames, and the head of the last one. None is taken after this."""
        self._frames.truncate(self.size_bytes)
        data = self._frames.getvalue()  # without a copy: a batch is kept once
        batch = FrameBatch(self.first_seqno, self.position.last_seqno, self.transactions, data)
        return batch, read_head(data, len(data) - self._last_bytes)
