"""A replay: the backlog between this secondary's position and a number, piece by piece, through the commit door.

The range is cut into *pieces* at what can not be collapsed: schema changes, history records and large transactions are
applied as the Update Process applies them, alone, in their place; what is between them is collapsed to its net change.
A piece is cut, too, where it has touched so many rows, or holds so many bytes of journal, that it would no longer fit.

Guarantees: each piece is committed whole, with the synchronization vector and with its frames in our own journal, or
not at all, so whatever dies leaves the secondary at the end of a piece, and the same command goes on from there. Every
frame is verified (check, number, origin number, chain hash) before anything of its piece is applied. Our journal holds
every frame of the range as it was, so this instance can become primary, or feed a third site.
Refuses to know: how the net change is found (`Engine`), and how an operator is told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from replicate.apply_session import ApplySession
from replicate.door.takeover import begin_aside
from replicate.errors import DamagedError, GapError, NotSupportedError
from replicate.failpoint import hit
from replicate.journal.aside import AsideSegment
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import FrameBatch, Head, decode_batch, read_head
from replicate.journal.spool import Spool, spool_path
from replicate.limits import MIB
from replicate.transaction import Kind, Op, TableDefinition
from replicate.vector import Position
from update_process import batch as plans
from update_process.batch import PAYLOAD, Window
from update_process.conflict import stopped
from update_process.large import LargeApply
from update_process.replay.apply import Applied, NetApply, NetSource, Progress, Told
from update_process.replay.journals import Journals
from update_process.replay.net import NetChange
from update_process.routes import Routes

PIECE_KEYS_MAX: Final = 1_000_000
"""Rows that one piece touches at most (the net change is in memory: about 1 KiB each for rows of 100 bytes)."""
PIECE_BYTES_MAX: Final = 1024 * MIB
"""Bytes of journal in one piece, which becomes one segment of our journal, at most."""


class Net(NetSource, Protocol):
    """The net change of one piece in the making."""

    key_count: int

    def fold(self, bodies: Sequence[Sequence[Any]]) -> None:
        """Take further transactions of the piece; not after anything else was asked of it."""


Engine = Callable[[Callable[[int], TableDefinition], int], Net]
"""Makes the Net of a piece from how to look up definitions, and the piece's first seqno."""


def local_engine(definition_of: Callable[[int], TableDefinition], first_seqno: int) -> Net:
    """The engine that folds in this process."""
    del first_seqno
    return NetChange(definition_of)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a replay has read (or would read) a range from."""

    first_seqno: int
    last_seqno: int
    where: str


@dataclass(slots=True)
class Summary:
    """What a replay has done. `alone`: transactions that were applied one by one. `seqno`: where it stands now.
    `changes`: of rows in what was collapsed; `keys`: rows that they touched, once for each piece."""

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

    def add(self, applied: Applied) -> None:
        """Count what one piece has written."""
        self.deleted += applied.deleted
        self.updated += applied.updated
        self.inserted += applied.inserted


@dataclass(slots=True)
class _Piece:
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
    keys_max: int = PIECE_KEYS_MAX
    bytes_max: int = PIECE_BYTES_MAX
    _routes: Routes = field(init=False)
    _position: Position = field(init=False)
    _points: plans.Points = field(init=False)
    _piece: _Piece | None = field(init=False, default=None)
    _summary: Summary = field(init=False)
    _last_seqno: int = field(init=False, default=0)

    def run(self, last_seqno: int) -> Summary:
        """Replay up to `last_seqno`, which the journals hold.

        Raises GapError, DivergedError, ConflictError (both images are in the conflict file), other DamagedErrors and
        the machine's errors: the secondary then stands at the end of a piece.
        """
        began_s = time.monotonic()
        self._routes = Routes(self.session)
        self._position = self.session.position
        self._points = dict(self._position.chains)
        first = self._position.last_seqno + 1
        self._summary = Summary(first, first - 1, dry_run=self.dry_run)
        self._last_seqno = last_seqno
        try:
            for found in self.journals.read(first, last_seqno):
                if isinstance(found, LargeTransaction):
                    self._close_piece()
                    self._large(found)
                else:
                    self._take(found)
            self._close_piece()
        except BaseException:
            self._drop_piece()
            self.session.rollback()
            raise
        self._summary.seconds = round(time.monotonic() - began_s, 3)
        return self._summary

    # Ordinary transactions.

    def _take(self, found: FrameBatch) -> None:
        if found.first_seqno != self._next_seqno():
            raise GapError(f"transaction {self._next_seqno()} should come next, {found.first_seqno} came")
        window = plans.open_window(found.data, decode_batch(found.data), found.first_seqno, self._points)
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
            aside = None if self.dry_run else begin_aside(self.session.door)
            piece = self._piece = _Piece(aside, net, self._position)
        bodies = window.bodies[start:stop]
        try:
            piece.net.fold(bodies)
        except (DamagedError, NotSupportedError) as error:
            raise stopped(error, bodies[-1][1], self.conflict_directory) from error
        piece.position = plans.advance(piece.position, bodies, self._routes.partition_of)
        piece.csn = bodies[-1][6]
        piece.bytes += window.offset(stop) - window.offset(start)
        if piece.aside is not None:
            piece.aside.write(*_batch(window, start, stop))
        hit("replay.read")
        self._summary.changes += (sum(map(len, bodies)) - PAYLOAD * len(bodies)) // 4
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
        if piece.aside is not None:
            self.session.begin()
            seqno = piece.position.last_seqno
            self._tell("collapsing", 0)
            apply = NetApply(
                self.session, self._routes.known_table, seqno=seqno, verify=self.verify, told=self._applied
            )
            try:
                applied = apply.apply(piece.net)
            except (DamagedError, NotSupportedError) as error:
                self.session.rollback()
                number: Any = error.facts.get("seqno", seqno)
                raise stopped(error, number, self.conflict_directory) from error
            hit("replay.applied")
            self.session.commit_taken(piece.aside, piece.position, piece.csn)
            hit("replay.committed")
            summary.add(applied)
            summary.keys += applied.seen
        else:
            summary.keys += sum(1 for _ in piece.net.rows())
        summary.transactions += piece.position.last_seqno - self._position.last_seqno
        summary.pieces += 1
        self._moved(piece.position)
        self._drop_piece()

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
        self._summary.seqno = position.last_seqno

    # What is applied as the Update Process does it.

    def _alone(self, window: Window, place: int) -> None:
        body = window.bodies[place]
        if self.dry_run:
            self._learn(body)
            position = plans.advance(self._position, [body], self._routes.partition_of)
        else:
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
        self._summary.alone += 1
        self._summary.transactions += 1
        self._moved(position)

    def _learn(self, body: Sequence[Any]) -> None:
        """In a dry run: what the transaction defines."""
        if body[0] != Kind.TRANSACTION:
            return
        for at in range(PAYLOAD, len(body), 4):
            if body[at] == Op.DEFINE:
                definition = TableDefinition.unpack(body[at + 3])
                self._routes.tables[definition.table_id] = definition

    def _large(self, found: LargeTransaction) -> None:
        body = decode_batch(found.commit_frame)[2]
        if self.dry_run:
            head = read_head(found.commit_frame)
            position = self._position.advanced(head.seqno, head.origin, head.origin_seqno, head.chain, found.partitions)
        else:
            self.session.begin()
            for rows in self.session.rows.values():
                rows.seqno = found.seqno
            directory = self.session.door.instance.journal_directory
            spool = Spool.receiving(spool_path(directory, int.from_bytes(os.urandom(8), "big")))
            large = LargeApply(found.seqno, spool, self._routes.apply_changes)
            try:
                for number, part in enumerate(found.parts()):
                    large.take(part)
                    self._tell("applying parts", number + 1, found.part_count)
                hit("replay.large")
                position = large.finish(found.commit_frame, body, self.session.position)
                self.session.commit_large(spool, found.commit_frame, position, body[6], defines=large.defines)
            except (DamagedError, NotSupportedError) as error:
                self.session.rollback()
                raise stopped(error, found.seqno, self.conflict_directory) from error
            finally:
                large.abort()  # does nothing once the spool is a segment
        self._points = dict(position.chains)
        self._summary.alone += 1
        self._summary.transactions += 1
        self._moved(position)


def _batch(window: Window, start: int, stop: int) -> tuple[FrameBatch, Head]:
    """Frames of a window, and the head of their last one."""
    data = window.frames(start, stop)
    last = read_head(data, window.offset(stop - 1) - window.offset(start))
    return FrameBatch(window.first_seqno + start, window.first_seqno + stop - 1, stop - start, data), last
