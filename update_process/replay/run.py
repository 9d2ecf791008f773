"""A replay: the backlog between this secondary's position and a number, piece by piece, through the commit door.

Schema changes, history records and large transactions are applied alone, in their place, as the Update Process does it.
What is between them is a *piece*, collapsed to its net change. A piece is cut, too, where it would no longer fit.

Guarantees: each piece is committed whole, with the synchronization vector and with its frames in our own journal, or
not at all: whatever dies leaves the secondary at the end of a piece, and the same command goes on. Every frame is
verified (check, number, origin number, chain hash) before anything of its piece is applied. Our journal holds every
frame as it was, so this instance can become primary or feed others.
Leaves to others: how the net change is found (`Engine`), and what an operator is told.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from replicate.door.secondary import ApplySession
from replicate.errors import DamagedError, GapError, NotSupportedError, OutcomeUnknownError, ReplicateError
from replicate.journal.prepared_segment import AsideSegment
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import FrameBatch, Head, changes_of, decode_batch, read_head
from replicate.journal.spool import PartsCheck, Spool, spool_path
from replicate.limits import KIB, MIB
from replicate.model.region_record import read_added
from replicate.model.transaction import Op, TableDefinition
from replicate.model.vector import Position
from replicate.system.failpoint import hit
from update_process import plan as plans
from update_process.conflict_file import stopped
from update_process.large_transaction import LargeApply
from update_process.plan import Window
from update_process.region_arrival import is_added_again, take_added
from update_process.replay.apply import Applied, NetApply, NetSource, Progress, Told
from update_process.replay.backlog import Journals
from update_process.replay.net import NetChange
from update_process.replay.pause import Gate, HeldError
from update_process.routes import Routes
from update_process.window.columns import PAYLOAD, Points

PIECE_KEYS_MAX: Final = 1_000_000
"""Rows that one piece touches at most (the net change is in memory: about 1 KiB each for rows of 100 bytes)."""
WINDOW_BYTES: Final = 64 * KIB
"""Of frames that are verified, decoded and collapsed together; all that is made of them should fit the processor's
nearest cache: 256 KiB cost a quarter more, 1 MiB a half (measured)."""
PIECE_BYTES_MAX: Final = 1024 * MIB
"""Bytes of journal in one piece, which becomes one segment of our journal, at most."""


class Net(NetSource, Protocol):
    """The net change of one piece in the making."""

    key_count: int

    def take(self, window: Window, start: int, stop: int) -> None:
        """Take further transactions of the piece, frames `start` to `stop` (exclusive) of a verified window; not after
        anything else was asked of it."""


Engine = Callable[[Callable[[int], TableDefinition], int], Net]
"""Makes the Net of a piece from how to look up definitions, and the piece's first seqno."""


def local_engine(definition_of: Callable[[int], TableDefinition], first_seqno: int) -> Net:
    """The engine that folds in this process."""
    del first_seqno
    return NetChange(definition_of)


class Source(Struct, frozen=True):
    """Where a replay has read (or would read) a range from."""

    first_seqno: int
    last_seqno: int
    where: str


class Summary(Struct):
    """What a replay has done. `alone`: transactions that were applied one by one; `large`: those of them that are large
    ones. `seqno`: where it stands now. `changes`: of rows in what was collapsed; `keys`: rows that they touched, once
    for each piece. `alone_changes`: of rows in what was applied one by one. Rows that were `deleted`, `updated` and
    `inserted` are those of both."""

    first_seqno: int
    seqno: int
    transactions: int = 0
    pieces: int = 0
    alone: int = 0
    changes: int = 0
    keys: int = 0
    deleted: int = 0
    updated: int = 0
    inserted: int = 0
    dry_run: bool = False
    seconds: float = 0.0
    sources: tuple[Source, ...] = ()
    large: int = 0
    alone_changes: int = 0

    def add(self, applied: Applied) -> None:
        """Count what one piece has written."""
        self.deleted += applied.deleted
        self.updated += applied.updated
        self.inserted += applied.inserted

    def add_alone(self, rows: Counter[int]) -> None:
        """Count a transaction that was applied (or read) alone: its changes of rows by their operation."""
        self.alone += 1
        self.transactions += 1
        self.alone_changes += rows.total()
        if not self.dry_run:
            self.deleted += rows[Op.DELETE]
            self.updated += rows[Op.UPDATE]
            self.inserted += rows[Op.INSERT]


class _Piece(Struct):
    aside: AsideSegment | None
    net: Net
    position: Position
    csn: int = 0
    bytes: int = 0


def silent(_progress: Progress) -> None:
    """A Told that tells nobody."""


@dataclass(slots=True)
class Replay:
    """One replay into the regions of `session`. For one thread; `run` it once.

    `dry_run`: everything is read, verified and collapsed, nothing is written.
    """

    session: ApplySession
    journals: Journals
    conflict_directory: Path
    engine: Engine = local_engine
    verify: bool = False
    dry_run: bool = False
    told: Told = silent
    goes_on_by: str = ""
    """In a rebuild: what goes on from where a failure has left it."""
    is_of_packets: bool = False
    """Their maker has left out the rows that never leave its instance, as a Source Server does; no journal has."""
    keys_max: int = PIECE_KEYS_MAX
    bytes_max: int = PIECE_BYTES_MAX
    _routes: Routes = field(init=False)
    _position: Position = field(init=False)
    _points: Points = field(init=False)
    _piece: _Piece | None = field(init=False, default=None)
    _summary: Summary = field(init=False)
    _last_seqno: int = field(init=False, default=0)
    _changes: int = field(init=False, default=0)
    """Of the summary's, those of what is committed."""
    _gate: Gate = field(init=False)

    def run(self, last_seqno: int) -> Summary:
        """Replay up to `last_seqno`, which the journals hold. While a compare or a digest holds the instance at a
        number, nothing is committed beyond that.

        Raises GapError, DivergedError, TryAgainError (a journal was taken back meanwhile), ConflictError (both images
        are in the conflict file), other DamagedErrors and the machine's errors: the secondary then stands at the end of
        a piece.
        """
        began_s = time.monotonic()
        self._routes = Routes(self.session)
        self._routes.is_replay = not self.is_of_packets
        self._position = self.session.position
        self._points = dict(self._position.chains)
        first = self._position.last_seqno + 1
        self._summary = Summary(first, first - 1, dry_run=self.dry_run)
        self._last_seqno = last_seqno
        self._gate = Gate(self.session.door, lambda: self._tell("held by a compare or digest", 0))
        try:
            while self._position.last_seqno < last_seqno:
                try:
                    self._read(last_seqno)
                except HeldError:
                    self._back()
        except BaseException as error:
            self._drop_piece()
            self.session.rollback()
            try:
                if isinstance(error, DamagedError):
                    self.journals.refuse_taken_back(error)
            except ReplicateError as taken_back:
                error = taken_back
            if isinstance(error, ReplicateError) and not isinstance(error, OutcomeUnknownError) and not self.dry_run:
                raise self._standing(error) from error
            raise error
        finally:
            self._gate.close()
        self._summary.seconds = round(time.monotonic() - began_s, 3)
        return self._summary

    def _standing(self, error: ReplicateError) -> ReplicateError:
        """The same error, which says where we stand."""
        before, now = self._summary.first_seqno - 1, self._position.last_seqno
        stands = f"this secondary stands at transaction {now}, "
        if self.goes_on_by:
            stands += f"rebuilt in part; {self.goes_on_by} goes on from there"
        else:
            stands += "as before" if now == before else f"it stood at {before}; the same command goes on from there"
        do = f"{error.do.rstrip('. ')}; {stands}" if error.do else stands[0].upper() + stands[1:]
        return type(error)(error.what, where=error.where, do=do, **error.facts)

    def _read(self, last_seqno: int) -> None:
        """Go on from the position up to `last_seqno`, or to a barrier before it. HeldError: again, after `_back`."""
        done_seqno = self._position.last_seqno
        bound = last_seqno if self.dry_run else self._gate.bound(done_seqno, last_seqno)
        for found in self.journals.read(done_seqno + 1, bound, max_bytes=WINDOW_BYTES):
            if isinstance(found, LargeTransaction):
                self._close_piece()
                self._large(found)
            else:
                self._take(found)
        self._close_piece()

    def _back(self) -> None:
        """Forget what is not committed; it is read again."""
        self._drop_piece()
        self.session.rollback()
        self._points = dict(self._position.chains)
        self._summary.changes = self._changes

    def _pass(self, last_seqno: int) -> None:
        self._gate.pass_to(self._position.last_seqno, last_seqno)

    # Ordinary transactions.

    def _take(self, found: FrameBatch) -> None:
        if found.first_seqno != self._next_seqno():
            raise GapError(f"transaction {self._next_seqno()} should come next, {found.first_seqno} came")
        decoded = decode_batch(found.data, tuples=True, count=found.count)
        window = plans.open_window(found.data, decoded, found.first_seqno, self._points)
        start = 0
        for alone in window.alone:
            self._fold(window, start, alone)
            self._close_piece()
            self._alone(window, alone)
            start = alone + 1
        self._fold(window, start, len(window.bodies))

    def _next_seqno(self) -> int:
        position = self._position if self._piece is None else self._piece.position
        return position.last_seqno + 1

    def _fold(self, window: Window, start: int, stop: int) -> None:
        if start == stop:
            return
        piece = self._piece
        if piece is None:
            net = self.engine(self._routes.known_table, self._position.last_seqno + 1)
            aside = None if self.dry_run else self.session.door.begin_aside()
            piece = self._piece = _Piece(aside, net, self._position)
        bodies = window.bodies[start:stop]
        try:
            piece.net.take(window, start, stop)
        except (DamagedError, NotSupportedError) as error:
            raise stopped(error, bodies[-1][1], self.conflict_directory) from error
        piece.position = window.position_at(piece.position, start, stop, self._routes.partition_of)
        piece.csn = bodies[-1][6]
        piece.bytes += window.offset(stop) - window.offset(start)
        if piece.aside is not None:
            piece.aside.write(*_batch(window, start, stop))
        hit("replay.read")
        elements = sum(map(len, bodies)) - PAYLOAD * len(bodies)
        if window.plain is None:
            elements = sum(map(len, map(changes_of, bodies)))
        self._summary.changes += elements // 4
        first = self._summary.first_seqno
        self._tell(
            "reading", piece.position.last_seqno - first + 1, self._last_seqno - first + 1, keys=piece.net.key_count
        )
        if piece.net.key_count >= self.keys_max or piece.bytes >= self.bytes_max:
            self._close_piece()

    def _close_piece(self) -> None:
        """Apply and commit what was collapsed so far."""
        piece = self._piece
        if piece is None:
            return
        summary = self._summary
        last_seqno = piece.position.last_seqno
        if piece.aside is not None:
            self._pass(last_seqno)
            self._tell("collapsing", 0)
            applied = self._apply(piece.net, piece.position.last_seqno)
            hit("replay.applied")
            self._pass(last_seqno)
            permit = partial(self._gate.require, last_seqno)
            self.session.commit_taken(piece.aside, piece.position, piece.csn, permit=permit)
            hit("replay.committed")
            summary.add(applied)
            summary.keys += applied.seen
        else:
            summary.keys += sum(columns.rows for columns in piece.net.columns())
        summary.transactions += piece.position.last_seqno - self._position.last_seqno
        summary.pieces += 1
        self._moved(piece.position)
        self._drop_piece()

    def _apply(self, found: Net, seqno: int) -> Applied:
        """Apply a net change in bulk. If something of it does not fit, it is taken back and done row by row, which says
        what."""
        self.session.begin()
        with suppress(DamagedError, NotSupportedError):
            return self._net_apply(seqno).apply(found)
        self.session.rollback()
        self.session.begin()
        try:
            return self._net_apply(seqno).apply_singly(found)
        except (DamagedError, NotSupportedError) as error:
            self.session.rollback()
            number: Any = error.facts.get("seqno", seqno)
            raise stopped(error, number, self.conflict_directory) from error

    def _net_apply(self, seqno: int) -> NetApply:
        return NetApply(self.session, self._routes.known_table, seqno=seqno, verify=self.verify, told=self._applied)

    def _tell(self, what: str, done: int, whole: int = 0, *, keys: int = 0, written: int = 0) -> None:
        so_far = self._summary
        position = self._position if self._piece is None else self._piece.position
        self.told(
            Progress(
                what,
                done,
                whole,
                position.last_seqno,
                so_far.changes,
                so_far.keys + keys,
                so_far.deleted + so_far.updated + so_far.inserted + written,
            )
        )

    def _applied(self, what: str, seen: int, written: int) -> None:
        assert self._piece is not None
        keys = self._piece.net.key_count
        self._tell(what, seen, keys, keys=keys, written=written)

    def _drop_piece(self) -> None:
        if self._piece is not None and self._piece.aside is not None:
            self._piece.aside.abort()
        self._piece = None

    def _moved(self, position: Position) -> None:
        self._position = position
        self._changes = self._summary.changes
        self._summary.seqno = position.last_seqno

    # What is applied as the Update Process does it.

    def _alone(self, window: Window, place: int) -> None:
        body = window.bodies[place]
        changes = changes_of(body)
        if self.dry_run:
            added = read_added(changes)
            if added is not None and (added.name not in self.session.rows or is_added_again(self.session, added)):
                self._routes.leave_out(added.name)
            self._learn(changes)
            position = plans.advance(self._position, [body], self._routes.partition_of)
        else:
            self._pass(body[1])
            take_added(self.session, self._routes, body)
            self.session.begin()
            try:
                self._routes.apply_bodies([body])
            except (DamagedError, NotSupportedError) as error:
                self.session.rollback()
                raise stopped(error, body[1], self.conflict_directory) from error
            position = plans.advance(self.session.position, [body], self._routes.partition_of)
            batch, last = _batch(window, place, place + 1)
            hit("replay.alone")
            self.session.commit(batch, position, body[6], defines=True, last=last)
        self._summary.add_alone(_rows_in(changes))
        self._moved(position)

    def _learn(self, changes: Sequence[Any]) -> None:
        """In a dry run: what these flat changes define."""
        for at in range(0, len(changes), 4):
            if changes[at] == Op.DEFINE:
                definition = TableDefinition.unpack(changes[at + 3])
                self._routes.tables[definition.table_id] = definition

    def _large(self, found: LargeTransaction) -> None:
        body = decode_batch(found.commit_frame)[2]
        rows: Counter[int] = Counter()

        def counted(apply: Callable[[list[Any]], None]) -> Callable[[list[Any]], None]:
            def take(changes: list[Any]) -> None:
                apply(changes)
                rows.update(_rows_in(changes))

            return take

        if self.dry_run:
            large = LargeApply(found.seqno, PartsCheck(), counted(self._learn))
            position = self._read_large(found, large, body, self._position)
        else:
            self._pass(found.seqno)
            self.session.begin()
            for applier in self.session.rows.values():
                applier.seqno = found.seqno
            directory = self.session.door.instance.journal_directory
            spool = Spool.receiving(spool_path(directory, int.from_bytes(os.urandom(8), "big")))
            large = LargeApply(found.seqno, spool, counted(self._routes.apply_changes))
            try:
                position = self._read_large(found, large, body, self.session.position)
                self._pass(found.seqno)
                self.session.commit_large(spool, found.commit_frame, position, body[6], defines=large.defines)
            except (DamagedError, NotSupportedError) as error:
                self.session.rollback()
                raise stopped(error, found.seqno, self.conflict_directory) from error
            finally:
                large.abort()  # does nothing once the spool is a segment
        self._points = dict(position.chains)
        self._summary.large += 1
        self._summary.add_alone(rows)
        self._moved(position)

    def _read_large(
        self, found: LargeTransaction, large: LargeApply, body: Sequence[Any], before: Position
    ) -> Position:
        """Take every part, and verify that they are those that were committed after `before`; the position then."""
        for number, part in enumerate(found.parts()):
            large.take(part)
            self._tell("reading parts" if self.dry_run else "applying parts", number + 1, found.part_count)
        hit("replay.large")
        return large.finish(found.commit_frame, body, before)


def _rows_in(changes: Sequence[Any]) -> Counter[int]:
    """How many rows these flat changes insert, update and delete."""
    ops = changes[0::4]
    return Counter({op: ops.count(op) for op in (int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE))})


def _batch(window: Window, start: int, stop: int) -> tuple[FrameBatch, Head]:
    """Frames of a window, and the head of their last one."""
    data = window.frames(start, stop)
    last = read_head(data, window.offset(stop - 1) - window.offset(start))
    return FrameBatch(window.first_seqno + start, window.first_seqno + stop - 1, stop - start, data), last
