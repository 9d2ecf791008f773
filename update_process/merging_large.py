"""A large transaction in partitions that several suppliers write, piece by piece.

What arrives is spooled first. Where somebody has written beside it, its pieces are merged one after the other; what
they come to, with what its writer wrote after each of them (journal/merged_large.py), becomes a spool of its own, which
is committed in its place. Rows are registers of their own (model/merged_row.py), so that this is what the whole comes
to. Where rows have to give way for their unique values, a transaction of ours (door/own_removal.py) removes them before
it: a row that is yet to come by it is gone before it comes.

Guarantees: memory holds one piece, its rows and their stamps. After an error nothing of the spool that was begun is
left. Leaves to others: locks, numbers (supplied_transactions.py), how rows are merged (merging.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from replicate.door.own_removal import FRAMED_REMOVAL_BYTES
from replicate.door.secondary import ApplySession
from replicate.journal.merged_large import PiecesTaken, piece_told
from replicate.journal.record import decode, pack_changes, pack_restated_large, read_head, resolved_change
from replicate.journal.spool import Spool
from replicate.model.transaction import LargeCommit, Op
from replicate.model.vector import Position
from replicate.wire.vector_refusals import MERGED_HERE
from update_process.large_transaction import LargeApply
from update_process.merging import ROW_OPS, Merging
from update_process.routes import Routes
from update_process.work_result import Done


class ArrivingLarge(LargeApply):
    """One that is spooled, and looked at, while it arrives."""

    def __init__(self, seqno: int, spool: Spool) -> None:
        self.tables: set[int] = set()
        """The ids of those whose rows it changes."""
        self.seen: Sequence[Any] = ()
        """The change that tells what its writer had seen, if there is one."""
        self.removes = False
        """Whether it removes rows for their unique values."""
        self.removes_only = True
        """Whether it does nothing else to rows."""
        super().__init__(seqno, spool, self._look)

    def _look(self, changes: Sequence[Any]) -> None:
        for place in range(0, len(changes), 4):
            op = changes[place]
            if op in ROW_OPS:
                self.tables.add(changes[place + 1])
                self.removes_only = self.removes_only and op == Op.DELETE
            elif op == Op.RESOLVED:
                self.removes = True
            elif op == Op.SEEN:
                self.seen = changes[place : place + 4]


class LargeTurn:
    """One whole large transaction, whose turn it is: first `make`, then `commit`; `abort` in any case."""

    def __init__(
        self, session: ApplySession, routes: Routes, merging: Merging, large: ArrivingLarge, frame: bytes
    ) -> None:
        """`frame`: its commit frame, with our number."""
        self._session = session
        self._routes = routes
        self._merging = merging
        self._large = large
        self._frame = frame
        self._head = read_head(frame)
        self._is_stamped = False
        self._spool: Spool | None = None
        """What it came to, where that is not what its writer wrote."""

    def make(self, position: Position) -> list[Any]:
        """Make its changes in the open transaction; our journal ends at `position`. Where rows had to give way for
        their unique values, it is taken back: their deletes, flat, are for `Merging.give_way`, and its turn comes
        again. Raises as `Merging.take`, and what spooling raises."""
        merging, large = self._merging, self._large
        merges = merging.is_active and merging.merges_large(
            large.tables, self._head.origin, large.seen, position, removes=large.removes
        )
        if merges:
            return self._merge(position)
        for rows in self._session.rows.values():
            rows.seqno = self._head.seqno
        for _, _, changes in _pieces(large.spool):
            self._routes.apply_changes(changes)
        return []

    def _merge(self, position: Position) -> list[Any]:
        merging, head, removed = self._merging, self._head, list[Any]()
        merging.mark(position)
        self._is_stamped = True
        told = merging.told_by(head.origin, self._large.seen)
        for number, data, changes in _pieces(self._large.spool):
            done = merging.take_piece(head, changes, told, removes=self._large.removes)
            removed += merging.removed
            if removed:
                if len(pack_changes(removed)) > FRAMED_REMOVAL_BYTES:
                    break  # the rest is found when its turn comes again
                continue
            if done is not None and self._spool is None:
                self._begin_spool(number)
            if self._spool is not None:
                self._add(changes if done is None else done, number, data, merging.losses(head.seqno))
        if removed:
            merging.take_back()
        return removed

    def _begin_spool(self, count: int) -> None:
        """With the first `count` pieces, which came to what they are."""
        self._spool = Spool.create(self._session.door.instance.journal_directory, self._head.origin)
        for number, data, changes in _pieces(self._large.spool):
            if number == count:
                break
            self._add(changes, number, data, ())

    def _add(self, done: Sequence[object], number: int, data: bytes, losses: Sequence[bytes]) -> None:
        assert self._spool is not None
        self._spool.write(pack_changes([*done, *piece_told(number, data, losses)]))

    def commit(self, position: Position, done: Done) -> None:
        """Commit it; `position` is after it. Raises what a commit raises."""
        session, merging, large, head = self._session, self._merging, self._large, self._head
        if self._is_stamped:
            merging.finish(position.last_seqno, position)
        if self._spool is None:
            session.commit_large(large.spool, self._frame, position, head.csn, defines=large.defines)
        else:
            self._spool.write(pack_changes(resolved_change(self._frame)))
            payload = self._spool.commit_payload(partitions_of(self._frame))
            told = pack_restated_large(head, MERGED_HERE, *payload)
            session.commit_large(self._spool, told, position, head.csn, defines=large.defines)
            large.abort()
            merging.note_merged()
        if self._is_stamped:
            merging.committed(done)

    def abort(self) -> None:
        """Remove what it came to, unless that was committed."""
        if self._spool is not None:
            self._spool.abort()


def partitions_of(commit_frame: bytes) -> tuple[int, ...]:
    """Those that a large transaction says that it changes."""
    commit = decode(commit_frame).content[0]
    assert isinstance(commit, LargeCommit)
    return commit.partitions


def _pieces(spool: Spool) -> Iterator[tuple[int, bytes, list[Any]]]:
    """Of each part of what arrived: its number, its bytes, and the changes that end in it."""
    taken = PiecesTaken()
    for number, data in enumerate(filter(None, spool.stream())):
        yield number, data, taken.take(data)
