"""What has been taken into the local transactions that are open, until they are committed.

Guarantees: `position` is the one after all that was taken; frames stay in the receive pool as they came, and are given
to our own journal from there, verified once more.
Leaves to others: how rows are applied, and when the batch ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from replicate.journal.record import Head, read_head
from replicate.journal.walk import PiecedBatch
from replicate.model.vector import Position
from replicate.region.sqlite.apply.order import PlaceOf, RowRun
from replicate.settings.load import Config
from replicate.settings.table import UpdateConfig
from update_process.batch.by_partition import PartitionCounts
from update_process.batch.deferred import DeferredChanges
from update_process.batch.pool_frames import PoolFrames
from update_process.plan import Window
from update_process.window.columns import Changes, Plain, joined

LOOSE_BYTES: Final = 6 * 1024 * 1024
"""Most frames of a batch whose changes are not packed: where they wait as they were decoded, they take half as much
again; where they do not wait, more in a batch saves nothing."""
SPANS_MAX: Final = 100_000
"""Most stretches of the pool that its frames lie in, a dozen bytes for each: a slow stream has a record for each
transaction."""
POOL_SHARE: Final = 0.48
"""Of the receive pool up to `xoff_percent`, where the source is told to pause (earlier, if it has less than 36 MiB),
that a batch takes at most, but for its last transaction: it is not freed before it is committed, and the next one is
read meanwhile, all of it."""
SEGMENT_SHARE: Final = 15 / 16
"""Of a journal segment, likewise: a batch is in one segment, and the rest of one that it does not fit is not used.
A transaction that is longer by itself makes a longer segment."""
LONG_BYTES: Final = 1024 * 1024
"""While a batch of so much is committed, what arrives is read, also when there was nothing more before."""
LONGER_S: Final = 0.6
"""How much longer a batch may take while at least as many transactions as it has wait after it: then nobody sees
anything recent here in any case."""


def most_bytes(settings: UpdateConfig, config: Config, pool_bytes: int) -> int:
    """What a batch takes at most: of an instance with this `config`, out of a receive pool of so many bytes."""
    return min(
        settings.batch_bytes,
        int(pool_bytes * config.receiver.xoff_percent / 100 * POOL_SHARE),
        int(config.journal.segment_bytes * SEGMENT_SHARE),
    )


@dataclass(slots=True)
class OpenBatch:
    """`first_seqno`: its first transaction. `deadline_s` (monotonic): when it should be committed. `place_of`: which
    changes may be moved. `memory`: where the frames lie. `room_bytes`: how many bytes of frames it takes.
    `loose_bytes`: of those whose changes are not packed. `counts`: of what is taken, by partition, if they are kept."""

    first_seqno: int
    position: Position
    deadline_s: float
    place_of: PlaceOf
    memory: memoryview
    room_bytes: int
    csn: int = 0
    transactions: int = 0
    size_bytes: int = 0
    defines: bool = False
    changes_put_off: int = 0
    loose_bytes: int = 0
    counts: PartitionCounts | None = None
    _last_at: int = 0
    _packed: DeferredChanges | None = None
    _decoded: list[Changes] = field(default_factory=list)
    _spans: PoolFrames = field(init=False)

    def __post_init__(self) -> None:
        self._spans = PoolFrames(self.memory)

    def extend(self, window: Window, start: int, stop: int, partition_of: Callable[[int], int | None]) -> None:
        """Take the transactions `start` to `stop` (exclusive) of the window. Raises as `Window.position_at`."""
        position = window.position_at(self.position, start, stop, partition_of)
        self._take(window, start, stop, position, partition_of)

    def _take(
        self, window: Window, start: int, stop: int, position: Position, partition_of: Callable[[int], int | None]
    ) -> None:
        self.position = position
        if self.counts is not None and stop > start:
            self.counts.add_window(window, start, stop, partition_of)
        data = memoryview(window.data)
        for begin, end, shift in window.lying(start, stop):
            first = window.offset(begin)
            self._spans.take(first + shift, data[first : window.offset(end)])
            self._last_at = window.offset(end - 1) + shift
        size_bytes = window.offset(stop) - window.offset(start)
        self.csn = window.bodies[stop - 1][6]
        self.transactions += stop - start
        self.size_bytes += size_bytes
        self.loose_bytes += size_bytes
        self.defines = self.defines or start in window.alone
        window.done = stop

    @property
    def is_long(self) -> bool:
        """Whether it takes long enough to commit for something to be done meanwhile."""
        return self.size_bytes >= LONG_BYTES

    def is_full(self, transactions_max: int, change_s: float, last_seqno: Callable[[], int]) -> bool:
        """Whether it is to be committed now. `change_s`: what each change took that was put off last; `last_seqno`: of
        all transactions that are known to wait."""
        if self.has_no_room(transactions_max):
            return True
        return self.takes_long(self.deadline_s - time.monotonic(), change_s, last_seqno)

    def takes_long(self, room_s: float, change_s: float, last_seqno: Callable[[], int]) -> bool:
        """Whether making its changes takes all of `room_s`, and as much longer as it may be with what waits after.

        In a longer batch more changes share a page, so each takes less. To foretell that by pages brought less than a
        tenth, and went (bench_catch_up).
        """
        late_s = self.changes_put_off * change_s - room_s
        return late_s >= LONGER_S or (late_s >= 0 and last_seqno() - self.position.last_seqno < self.transactions)

    def has_no_room(self, transactions_max: int) -> bool:
        """Whether it takes no more, however early it is."""
        return (
            self.transactions >= transactions_max
            or self.size_bytes >= self.room_bytes
            or self.loose_bytes >= LOOSE_BYTES
            or self._spans.count >= SPANS_MAX
        )

    def put_off(
        self,
        window: Window,
        plain: Plain,
        start: int,
        stop: int,
        partition_of: Callable[[int], int | None],
        *,
        is_packed: bool = False,
    ) -> bool:
        """Take the transactions `start` to `stop` (exclusive), and keep their changes, which are to be made together:
        packed, if they can be. `is_packed`: only so, and False where they cannot be. Raises as `extend`. Nothing is
        taken then."""
        position = window.position_at(self.position, start, stop, partition_of)
        changes = plain.changes(start, stop)
        if self._pack(window, plain, changes, start, stop):
            self.loose_bytes -= window.offset(stop) - window.offset(start)
        elif is_packed:
            return False
        else:
            self._decoded.append(changes)
            self.changes_put_off += len(changes.ops)
        self._take(window, start, stop, position, partition_of)
        return True

    def _pack(self, window: Window, plain: Plain, changes: Changes, start: int, stop: int) -> bool:
        if self._decoded or plain.ends is not None:
            return False
        begins: list[int] = []
        ends: list[int] = []
        for begin, end, shift in window.lying(start, stop):
            after = list(map(shift.__add__, window.ends[begin:end]))
            begins += [window.offset(begin) + shift, *after[:-1]]
            ends += after
        if self._packed is None:
            self._packed = DeferredChanges(self.place_of, len(self.memory))
        if not self._packed.take(changes, begins, ends):
            return False
        self.changes_put_off += len(begins)
        return True

    def take_put_off(self) -> tuple[Iterable[RowRun], Changes | None]:
        """All changes that were put off, none are kept: first to be made are the runs, in their order, then the others,
        which come as they were written. Runs may raise JournalDamagedError."""
        packed, decoded = self._packed, self._decoded
        self._packed, self._decoded, self.changes_put_off = None, [], 0
        runs = () if packed is None else packed.runs(self.memory)
        return runs, joined(decoded) if decoded else None

    def frames(self) -> tuple[PiecedBatch, Head]:
        """All frames, as they lie in the receive pool, and the head of the last one. DamagedError when others have
        changed them there."""
        pieces = self._spans.verified()
        last = read_head(self.memory, self._last_at)
        return PiecedBatch(self.first_seqno, self.position.last_seqno, self.transactions, pieces), last
