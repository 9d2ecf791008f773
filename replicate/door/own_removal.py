"""Our own transaction that has all suppliers remove rows which gave way for their unique values.

It stands in our journal as what it comes to here, with what the others get after it (RESOLVED): a row may be gone here
already, or be yet to come. Where a frame cannot hold a row it is a large one, in parts.

Guarantees: it is stamped after all that was applied, and says what was seen here. Rows, stamps and journal move in one
commit.
Leaves to others: which rows (region/sqlite/apply/merge.py), and when it is right to remove them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from replicate.door.ledger import Moved
from replicate.door.secondary import ApplySession
from replicate.journal.merged_large import piece_told
from replicate.journal.record import (
    kind_of,
    mixed,
    pack_changes,
    pack_elements,
    pack_frame,
    pack_resolved,
    pack_restated_large,
    read_head,
    resolved_change,
)
from replicate.journal.retelling import FRAMED_BYTES_MAX
from replicate.journal.spool import Spool, large_payload_of, split
from replicate.journal.walk import PiecedBatch, Pieces
from replicate.limits import FRAME_CHANGES_MAX, PARTITION_STREAM
from replicate.model.merged_row import NEVER, Stamp
from replicate.model.moment import CSN_COUNTER_BITS
from replicate.model.seen import values_of
from replicate.model.transaction import Kind, Op
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.region.protocol import MergingRows
from replicate.wire.vector_refusals import MERGED_HERE

REMOVES: Final = [int(Op.RESOLVED), PARTITION_STREAM, 0, ()]
"""The change that says of a transaction: it removes rows for their unique values, and nothing else."""
FRAMED_REMOVAL_BYTES: Final = FRAMED_BYTES_MAX // 4
"""Of deletes in one frame, which holds them three times: as they are done here, as all others are to do them, and as
they are kept."""
_ELEMENTS_MAX: Final = 4 * (FRAME_CHANGES_MAX // 4)


class OwnRemoval:
    """One per session: each transaction begins by `next_stamp`."""

    def __init__(self, session: ApplySession, rows: MergingRows, partition_of: Callable[[int], int]) -> None:
        self._session = session
        self._rows = rows
        self._words = session.door.words
        self._partition_of = partition_of
        self.stamp = NEVER
        """The transaction's."""
        self.told_seqno = 0
        """Where it stands."""

    def next_stamp(self, csn: int = 0) -> Stamp:
        """Of the transaction that comes next, after one of that csn, too."""
        words = self._words
        now = (time.time_ns() // 1000) << CSN_COUNTER_BITS
        csn = max(words[word.LAST_CSN] + 1, csn + 1, now)
        self.stamp = Stamp(csn, words[word.OWN_ORIGIN], words[word.OWN_ORIGIN_SEQNO] + 1)
        return self.stamp

    def framed(
        self, position: Position, removed: Sequence[Any], done: Sequence[Any], losses: Sequence[bytes]
    ) -> tuple[bytes, Position]:
        """Its frame at `position`, and the position after it. `removed`: deletes, flat, which all are to make; `done`:
        what that comes to here."""
        seen, tables = self._seen_now(position), self._partitions(removed)
        payload, count = mixed(*pack_elements(*seen, *REMOVES, *removed), tables)
        written, after = self._own(position, kind_of(payload), payload, count, set(tables.values()))
        return pack_resolved(written, MERGED_HERE, [*seen, *done], losses), after

    def commit(self, position: Position, removed: Sequence[Any], finish: Callable[[Position], None]) -> None:
        """Remove rows, and commit that: those of the first of these deletes, flat, that a frame can hold, or the first
        one as a large transaction. `finish`: is told the position after it before COMMIT. After `next_stamp`. Raises
        what changing a row, spooling and a commit raise."""
        count = size_bytes = 0
        while count < min(len(removed), _ELEMENTS_MAX):
            size_bytes += len(pack_changes(removed[count : count + 4]))
            if size_bytes > FRAMED_REMOVAL_BYTES:
                break
            count += 4
        if count:
            self._commit_framed(position, removed[:count], finish)
        else:
            self._commit_spooled(position, removed[:4], finish)

    def committed(self) -> None:
        """It was, so that others hear by it what was seen here; nothing where there is none."""
        if self.told_seqno:  # ours is after what it tells, in the same batch
            self._words[word.TOLD_SEQNO] = self.told_seqno
            self._words[word.FOREIGN_SEQNO] = self.told_seqno - 1

    def _commit_framed(self, position: Position, removed: Sequence[Any], finish: Callable[[Position], None]) -> None:
        frame, after = self.framed(position, *self._gone(position, removed))
        head = read_head(frame)
        finish(after)
        batch = PiecedBatch(head.seqno, head.seqno, 1, Pieces(memoryview(frame), [0], [len(frame)]))
        moved = Moved({head.origin: after.chains[head.origin]}, head.csn)
        self._session.commit(batch, after, head.csn, last=head, moved=moved)

    def _commit_spooled(self, position: Position, removed: Sequence[Any], finish: Callable[[Position], None]) -> None:
        told, done, losses = self._gone(position, removed)
        seen, origin = self._seen_now(position), self.stamp.origin
        partitions = tuple(sorted(set(self._partitions(told).values())))
        parts = split(pack_changes([*seen, *REMOVES, *told]))
        payload, count = large_payload_of(origin, parts, partitions)
        written, after = self._own(position, Kind.LARGE, payload, count, partitions)
        spool = Spool.create(self._session.door.instance.journal_directory, origin)
        try:
            for number, data in enumerate(parts[:-1]):
                spool.write(pack_changes(piece_told(number, data, ())))
            spool.write(pack_changes([*seen, *done, *piece_told(len(parts) - 1, parts[-1], losses)]))
            spool.write(pack_changes(resolved_change(written)))
            frame = pack_restated_large(read_head(written), MERGED_HERE, *spool.commit_payload(partitions))
            finish(after)
            self._session.commit_large(spool, frame, after, self.stamp.csn)
        finally:
            spool.abort()

    def _gone(self, position: Position, deletes: Sequence[Any]) -> tuple[list[Any], list[Any], list[bytes]]:
        """Rows are removed: as all are to do it, as it is done here, and what is lost by it."""
        for rows in self._session.rows.values():
            rows.seqno = position.last_seqno + 1
        told, done = self._rows.give_way(deletes, self.stamp)
        return told, done, self._rows.losses(position.last_seqno + 1)

    def _seen_now(self, position: Position) -> list[Any]:
        """The change that tells what we have seen, which is made."""
        own = self.stamp.origin
        told = {origin: last for origin, (last, _) in position.chains.items() if origin != own}
        seen = [int(Op.SEEN), PARTITION_STREAM, 0, values_of(own, told)]
        for rows in self._session.rows.values():
            rows.apply_all(seen)
        return seen

    def _partitions(self, removed: Sequence[Any]) -> dict[int, int]:
        return {table_id: self._partition_of(table_id) for table_id in removed[1::4]}

    def _own(
        self, position: Position, kind: Kind, payload: bytes, count: int, partitions: Collection[int]
    ) -> tuple[bytes, Position]:
        words, stamp, seqno = self._words, self.stamp, position.last_seqno + 1
        written, chain = pack_frame(
            kind,
            seqno,
            words[word.LAST_DURABLE_SEQNO],
            words[word.OWN_CHAIN],
            stamp.origin,
            stamp.origin_seqno,
            stamp.csn,
            payload,
            count,
        )
        self.told_seqno = seqno
        words[word.OWN_MERGED_SEQNO] = stamp.origin_seqno
        return written, position.advanced(seqno, stamp.origin, stamp.origin_seqno, chain, partitions)
