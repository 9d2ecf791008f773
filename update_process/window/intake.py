"""What is taken from the receive pool and not yet freed there: records, and the windows that are made of them.

Guarantees: a window is given once it is verified against what came before it; records are freed in their order, when
all transactions of their window are committed. What was taken and not freed is there again after `forget`.
Leaves to others: batches, rows, when to look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from replicate.errors import JournalDamagedError, ReplicateError
from replicate.journal.frame import FRAME_PREFIX_BYTES
from replicate.journal.record import decode_batch, read_part
from replicate.pool.receive_pool import SOURCE_LAST_SEQNO, ReceivedRecord, ReceivePool, RecordKind
from replicate.system.failpoint import hit
from update_process import plan as plans
from update_process.plan import Piece, PieceKind, Window
from update_process.window.columns import Points

PEEK_RECORDS_MAX: Final = 256
"""Received records looked at for one decision; a window seldom takes more."""

_KINDS: Final = {RecordKind[kind.name]: kind for kind in PieceKind}


class Intake:
    """`points`: where each origin stands after all that was taken. `window`: the one in turn; `ahead`: verified ones
    after it."""

    def __init__(self, pool: ReceivePool, points: Points) -> None:
        self.pool = pool
        self.points = points
        self.window: Window | None = None
        self.ahead: deque[Window] = deque()
        self._last_seqno = 0
        self._counted_to = 0
        """What lies before this address has been taken once: of what is skipped there when it is taken again, some is
        counted already, and the rest was skipped by nobody: we have committed it."""
        self._in_vain = (0, 0)
        """After which border nothing was to be read ahead, and how far the pool was written then."""
        self._borders: list[tuple[int, int]] = []
        """Of each window taken and not freed: its last seqno, and the address up to which may be freed then."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is taken that is not freed."""
        return not self._borders

    def current(self) -> Window | None:
        """The window in turn, if anything is left of it; the next one of those ahead otherwise."""
        if self.ahead and (self.window is None or self.window.exhausted):
            self.window = self.ahead.popleft()
        return None if self.window is None or self.window.exhausted else self.window

    def last_known_seqno(self) -> int:
        """The last transaction that the source or the pool is known to have."""
        return max(self.pool.words[SOURCE_LAST_SEQNO], self.pool.last_received_seqno)

    def peek(self, room_bytes: int) -> list[ReceivedRecord]:
        """Records after those taken, until they fill `room_bytes`. Raises as the pool."""
        records = []
        taken_bytes = 0
        for record in self.pool.peek(self._borders[-1][1] if self._borders else None):
            records.append(record)
            taken_bytes += len(record.data)
            if taken_bytes >= room_bytes or len(records) >= PEEK_RECORDS_MAX:
                break
        return records

    @staticmethod
    def pieces(records: Sequence[ReceivedRecord], next_seqno: int | None) -> list[Piece]:
        """The same for a decision. `next_seqno`: what the first may be a part of; None: its parts are not looked at."""
        made = []
        for place, record in enumerate(records):
            kind = _KINDS[record.kind]
            first_part = 0
            if kind is PieceKind.PARTS and not place and record.first_seqno == next_seqno:
                first_part = read_part(record.data)[1]
            made.append(Piece(kind, record.first_seqno, record.last_seqno, record.count, len(record.data), first_part))
        return made

    def take(self, records: list[ReceivedRecord], skip: int) -> int:
        """Make them the window in turn, but for the first `skip` transactions; how many of these to count as skipped:
        those that are skipped for the first time. Raises as `batch.open_window`; nothing is taken then."""
        counted = self._counted(records[:1], skip)
        self.window = self._open_window(records, skip)
        return counted

    def pass_over(self, records: list[ReceivedRecord]) -> int:
        """Free these, the first there are, which were applied before; how many to count, as `take`."""
        counted = self._counted(records)
        self.pool.free(records[-1].next_address)
        return counted

    def _counted(self, records: list[ReceivedRecord], most: int | None = None) -> int:
        """How many transactions of these, and the first `most` of them at most, are met for the first time."""
        count = sum(
            record.count
            for record in records
            if record.address >= self._counted_to and record.kind is not RecordKind.PARTS
        )
        return count if most is None else min(count, most)

    def _open_window(self, records: list[ReceivedRecord], skip: int) -> Window:
        """Verify and take them, as `take`."""
        data = records[0].data if len(records) == 1 else b"".join(record.data for record in records)
        decoded = decode_batch(data, tuples=True, count=sum(record.count for record in records))
        first_seqno = records[0].first_seqno + skip
        lie = [(len(record.data), self.pool.place_of_data(record)) for record in records]
        if skip:
            start = sum(decoded[0 : 3 * skip : 3]) + skip * FRAME_PREFIX_BYTES
            data, decoded = data[start:], decoded[3 * skip :]
            size_bytes, place = lie[0]
            if start >= size_bytes:
                raise JournalDamagedError("received frames do not fill their record", bytes=size_bytes)
            lie[0] = size_bytes - start, place + start
        window = plans.open_window(data, decoded, first_seqno, self.points, lie)
        self._last_seqno = window.last_seqno
        self._borders.append((window.last_seqno, records[-1].next_address))
        self._counted_to = max(self._counted_to, records[-1].next_address)
        return window

    def read_ahead(self, room_bytes: int) -> int | None:
        """Put one window more after those there are; how many of its records' transactions to count as skipped. None:
        there is none to be had now; what is wrong is said again when its turn comes. Asked again before more has come
        it does not look."""
        looked = self._borders[-1][1] if self._borders else 0, self.pool.written_address
        if looked == self._in_vain:
            return None
        try:
            records = self.peek(room_bytes)
            step = plans.plan(
                self.pieces(records, None), next_seqno=self._last_seqno + 1, large=None, room_bytes=room_bytes
            )
            if not isinstance(step, plans.Fill):
                self._in_vain = looked
                return None
            counted = self._counted(records[:1], step.skip)
            self.ahead.append(self._open_window(records[: step.pieces], step.skip))
        except ReplicateError:
            self._in_vain = looked
            return None
        return counted

    def free(self, last_seqno: int) -> None:
        """Everything up to and with `last_seqno` is committed."""
        count = sum(border_seqno <= last_seqno for border_seqno, _ in self._borders)
        if count:
            hit("update.before_free")
            self.pool.free(self._borders[count - 1][1])
            del self._borders[:count]

    def forget(self, points: Points) -> None:
        """Nothing is taken any more; what was not freed comes again. `points`: where each origin stands in front."""
        self.window = None
        self.ahead.clear()
        self._borders.clear()
        self._in_vain = (0, 0)
        self.points = points
