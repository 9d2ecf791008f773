"""What has been taken into the local transactions that are open, until they are committed.

Guarantees: `position` is the one behind all that was taken; frames are kept as they came, for our own journal.
Refuses to know: how rows are applied, and when the batch ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, cast

from replicate.database.row_order import PlaceOf, Run
from replicate.journal.record import FrameBatch, Head, read_head
from replicate.vector import Position
from update_process.batch import Window
from update_process.frame_room import FrameRoom
from update_process.packed import Packed
from update_process.plain import Changes, Plain, joined

LOOSE_BYTES: Final = 6 * 1024 * 1024
"""Most frames of a batch whose changes are not packed: where they wait as they were decoded, they take half as much
again beside the frames; where they do not wait, more in a batch saves nothing."""
LONGER_S: Final = 0.6
"""How much longer a batch may take while at least as much as it has room for waits behind it: then nobody sees anything
recent here in any case."""


@dataclass(slots=True)
class OpenBatch:
    """`first_seqno`: its first transaction. `deadline_s` (monotonic): when it should be committed. `place_of`: which
    changes may be moved. `frame_room`: cleared for it; a frame that fits no more makes it larger. `loose_bytes`: of the
    frames whose changes are not packed."""

    first_seqno: int
    position: Position
    deadline_s: float
    place_of: PlaceOf
    frame_room: FrameRoom
    csn: int = 0
    transactions: int = 0
    size_bytes: int = 0
    defines: bool = False
    changes_put_off: int = 0
    loose_bytes: int = 0
    _last_bytes: int = 0
    _packed: Packed | None = None
    _decoded: list[Changes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.frame_room.clear()

    def extend(self, window: Window, start: int, stop: int, partition_of: Callable[[int], int | None]) -> None:
        """Take the transactions `start` to `stop` (exclusive) of the window. Raises as `Window.position_at`."""
        data = window.frames(start, stop)
        self.position = window.position_at(self.position, start, stop, partition_of)
        self.frame_room.write(data)
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
            or self.size_bytes >= self.frame_room.room_bytes
            or self.loose_bytes >= LOOSE_BYTES
        ):
            return True
        late_s = time.monotonic() + self.changes_put_off * change_s - self.deadline_s
        return late_s >= LONGER_S or (late_s >= 0 and unread_bytes() < self.frame_room.room_bytes)

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
                return
        self._decoded.append(changes)

    def take_put_off(self) -> tuple[Iterable[Run], Changes | None]:
        """All changes that were put off, none are kept: first to be made are the runs, in their order, then the others,
        which come as they were written. Runs may raise JournalDamagedError."""
        packed, decoded = self._packed, self._decoded
        self._packed, self._decoded, self.changes_put_off = None, [], 0
        runs = () if packed is None else packed.runs(self.frame_room.view())
        return runs, joined(decoded) if decoded else None

    def frames(self) -> tuple[FrameBatch, Head]:
        """All frames, and the head of the last one. They lie in `frame_room`, until it is cleared."""
        # Without a copy: who commits it only writes it, and that is done when the next one begins.
        data = cast(bytes, self.frame_room.view())
        batch = FrameBatch(self.first_seqno, self.position.last_seqno, self.transactions, data)
        return batch, read_head(data, len(data) - self._last_bytes)
