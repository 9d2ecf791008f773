"""Applying what was received: from the receive pool through the commit door, a batch or a part at a time.

Guarantees: transactions are applied in order and exactly once, whole batches together with the synchronization
checkpoint records in one local commit; what did not continue exactly what was applied before is refused by name and
nothing of it is applied; at a conflict everything before it is committed, nothing of it is, and both images are in the
conflict file. Memory is bounded by one batch and one part, whatever the size of a transaction.
Refuses to know: who fills the receive pool, when to sleep, and how an operator is told (process.py).

Deviation from design §11: there is no savepoint around each transaction of a batch, to keep what came before one that
fails. Most batches do not fail, and a savepoint costs every transaction two statements in each region (and makes SQLite
keep a statement journal), about as much as applying its row. A batch is applied as a whole instead; when it fails it is
rolled back, applied again one transaction at a time to find the one that does, and once more up to there to commit what
came before it (`_apply_singly`). That is three times the work, once, just before the Update Process stops. What ends
up in the region, the journal and the conflict file is the same.

Used by one thread at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, Final

from replicate.apply_session import ApplySession
from replicate.barrier import BarrierWatch
from replicate.database.rows import Conflict
from replicate.errors import (
    BusyError,
    ConflictError,
    DamagedError,
    HardResyncNeededError,
    NotFoundError,
    NotSupportedError,
    ReplicateError,
    RollbackNeededError,
)
from replicate.journal.record import FRAME_PREFIX_BYTES, FrameBatch, decode_batch, read_head, read_part
from replicate.journal.spool import Spool, spool_path
from replicate.pool import control as word
from replicate.pool.receive_pool import ReceivedRecord, ReceivePool, RecordKind
from replicate.settings import UpdateConfig
from replicate.transaction import Catalogue, History, Kind, Op, TableDefinition
from replicate.vector import Position
from update_process import batch as plans
from update_process.batch import PAYLOAD, Piece, PieceKind, Window
from update_process.conflict import write_conflict
from update_process.large import LargeApply

PEEK_RECORDS_MAX: Final = 256
"""Received records looked at for one decision; a batch seldom takes more."""

_KINDS: Final = {
    RecordKind.FRAMES: PieceKind.FRAMES,
    RecordKind.PARTS: PieceKind.PARTS,
    RecordKind.LARGE: PieceKind.LARGE,
    RecordKind.CATALOGUE: PieceKind.CATALOGUE,
}


class Waiting(Enum):
    """Why `work` returned."""

    MORE = "more to do"
    NOTHING = "nothing received"
    PART = "waiting for a further part"
    BARRIER = "held by a barrier"
    LOCK = "waiting for a region's lock"
    RESTART = "waiting for the Receiver Server to begin anew"


@dataclass(slots=True)
class Done:
    """What one call of `work` has done. `skipped`: transactions that had been applied before.

    `text`: why it waits. `abandoned`: why an open large transaction was taken back, which begins anew.
    """

    waiting: Waiting = Waiting.MORE
    transactions: int = 0
    bytes: int = 0
    batches: int = 0
    parts: int = 0
    skipped: int = 0
    text: str = ""
    abandoned: str = ""


class Applier:
    """One apply session, one receive pool, and what stands between them."""

    def __init__(
        self, session: ApplySession, pool: ReceivePool, settings: UpdateConfig, *, conflict_directory: Path
    ) -> None:
        self.session = session
        self.pool = pool
        self._settings = settings
        self._conflict_directory = conflict_directory
        self._words = session.door.words
        self._barrier = BarrierWatch(session.door)
        self._tables: dict[int, TableDefinition] = {}
        for rows in session.rows.values():
            self._tables.update(rows.definitions)
        self._window: Window | None = None
        self._points: plans.Points = dict(session.position.chains)
        self._borders: list[tuple[int, int]] = []
        """Of each record in the window: its last seqno, and the address up to which it may be freed then."""
        self._large: LargeApply | None = None
        self._fresh = True
        self._restart_asked = pool.restart_requested()
        """A predecessor may have asked, and died before it was answered."""
        self.publish()

    @property
    def applied_seqno(self) -> int:
        """The last transaction that every region has."""
        return self.session.position.last_seqno

    @property
    def next_seqno(self) -> int:
        """The first transaction that is not yet applied."""
        return self.session.position.last_seqno + 1

    def publish(self) -> None:
        """Tell the Receiver Server how far we are."""
        self.pool.note_applied(self.applied_seqno, min(self.applied_seqno, self._words[word.LAST_DURABLE_SEQNO]))

    def close(self) -> None:
        """Take back what is not committed. The session and the pool stay the caller's."""
        self._barrier.close()
        self._abandon()

    def work(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> Done:
        """Apply what is there, for about `seconds` at most; never waits for more to arrive.

        Raises ConflictError (what came before it is committed), GapError, DivergedError, other DamagedErrors, and the
        machine's errors. After any of them nothing is open, and the position is what is committed.
        """
        done = Done()
        deadline = time.monotonic() + seconds
        try:
            while True:
                done.waiting = self._step(done)
                if done.waiting is not Waiting.MORE or time.monotonic() >= deadline or stop():
                    return done
        except BaseException:
            self._abandon()
            raise
        finally:
            self.publish()

    # One step.

    def _step(self, done: Done) -> Waiting:
        if self._restart_asked:
            if not self.pool.restart_done(self._restart_asked):
                return Waiting.RESTART
            self._restart_asked = 0
        if self._window is not None and not self._window.exhausted:
            return self._apply_batch(self._window, done)
        records = self._peek()
        # The barrier is read after the records have been looked at, never before: so whoever sets one knows that what
        # arrives from then on is not passed.
        barrier_seqno = self._barrier.seqno()
        pieces = [self._piece(record, first=not place) for place, record in enumerate(records)]
        large = None if self._large is None else self._large.where
        try:
            step = plans.plan(pieces, next_seqno=self.next_seqno, large=large, room_bytes=self._settings.batch_bytes)
        except ReplicateError as error:
            if self._fresh:
                return self._ask_restart(str(error), done)
            raise
        return self._take(step, records, barrier_seqno, done)

    def _take(self, step: plans.Step, records: list[ReceivedRecord], barrier_seqno: int, done: Done) -> Waiting:
        match step:
            case plans.Idle():
                return Waiting.NOTHING if self._large is None else Waiting.PART
            case plans.Skip(pieces, transactions):
                done.skipped += transactions
                self.pool.free(records[pieces - 1].next_address)
            case plans.Restart(why):
                return self._ask_restart(why, done)
            case plans.Abandon(why):
                done.abandoned = why
                self._abandon()
            case plans.TakeCatalogue():
                self._take_catalogue(records[0])
            case plans.Fill(pieces, skip):
                done.skipped += skip
                self._fill(records[:pieces], skip)
            case plans.TakeParts(seqno, skip):
                if barrier_seqno and seqno > barrier_seqno and self._large is None:
                    return Waiting.BARRIER
                return self._take_parts(records[0], seqno, skip, done)
            case plans.CommitLarge(seqno):
                if barrier_seqno and seqno > barrier_seqno:
                    return Waiting.BARRIER
                self._commit_large(records[0], done)
        return Waiting.MORE

    def _peek(self) -> list[ReceivedRecord]:
        records = []
        taken_bytes = 0
        for record in self.pool.peek():
            records.append(record)
            taken_bytes += len(record.data)
            if taken_bytes >= self._settings.batch_bytes or len(records) >= PEEK_RECORDS_MAX:
                break
        return records

    def _piece(self, record: ReceivedRecord, *, first: bool) -> Piece:
        kind = _KINDS[record.kind]
        first_part = 0
        if kind is PieceKind.PARTS and first and record.first_seqno == self.next_seqno:
            first_part = read_part(record.data)[1]
        return Piece(kind, record.first_seqno, record.last_seqno, record.count, len(record.data), first_part)

    def _ask_restart(self, why: str, done: Done) -> Waiting:
        self._abandon()
        self.publish()
        done.text = why
        self._restart_asked = self.pool.request_restart()
        return Waiting.RESTART

    def _abandon(self) -> None:
        """Forget what is not committed; it is still in the receive pool, or will be sent again."""
        if self._large is not None:
            self._large.abort()
            self._large = None
        self.session.rollback()
        self._window = None
        self._borders.clear()
        self._points = dict(self.session.position.chains)

    def _take_catalogue(self, record: ReceivedRecord) -> None:
        body = decode_batch(record.data)[2]
        for table_id, definition in Catalogue.unpack(body[PAYLOAD:]).definitions.items():
            rows = self.session.rows.get(definition.region)
            if rows is not None and table_id not in self._tables:
                rows.define(table_id, definition)
                self._tables[table_id] = definition
        self.pool.free(record.next_address)

    # Whole transactions.

    def _fill(self, records: list[ReceivedRecord], skip: int) -> None:
        data = records[0].data if len(records) == 1 else b"".join(record.data for record in records)
        decoded = decode_batch(data)
        first_seqno = records[0].first_seqno + skip
        if skip:
            start = sum(decoded[0 : 3 * skip : 3]) + skip * FRAME_PREFIX_BYTES
            data, decoded = data[start:], decoded[3 * skip :]
        self._window = plans.open_window(bytes(data), decoded, first_seqno, self._points)
        self._borders = [(record.last_seqno, record.next_address) for record in records]

    def _apply_batch(self, window: Window, done: Done) -> Waiting:
        cut = window.cut(
            transactions_max=self._settings.batch_transactions,
            bytes_max=self._settings.batch_bytes,
            barrier_seqno=self._barrier.seqno(),
        )
        if cut.start == cut.stop:
            return Waiting.BARRIER
        bodies = window.bodies[cut.start : cut.stop]
        if not self._begin(done):
            return Waiting.LOCK
        try:
            self._apply_bodies(bodies)
        except (DamagedError, NotSupportedError):
            self.session.rollback()
            return self._apply_singly(window, cut.start, cut.stop, done)
        self._commit(window, cut.start, cut.stop, done)
        return Waiting.MORE

    def _begin(self, done: Done) -> bool:
        """Whether the regions are ours now; if not, somebody else's lock is told in `done`, and nothing is held."""
        try:
            self.session.begin()
        except BusyError as error:
            done.text = str(error)
            return False
        return True

    def _apply_singly(self, window: Window, start: int, stop: int, done: Done) -> Waiting:
        """A batch has failed: find the transaction, commit what came before it, and stop there.

        When somebody takes the lock in between, the whole batch is tried again later: nothing was committed.
        """
        if not self._begin(done):
            return Waiting.LOCK
        for place in range(start, stop):
            try:
                self._apply_bodies([window.bodies[place]])
            except (DamagedError, NotSupportedError) as error:
                self.session.rollback()
                if place > start:
                    if not self._begin(done):
                        return Waiting.LOCK
                    self._apply_bodies(window.bodies[start:place])
                    self._commit(window, start, place, done)
                raise self._stopped(error, window.bodies[place][1]) from error
        self._commit(window, start, stop, done)
        return Waiting.MORE

    def _commit(self, window: Window, start: int, stop: int, done: Done) -> None:
        bodies = window.bodies[start:stop]
        position = plans.advance(self.session.position, bodies, self._partition_of)
        data = window.frames(start, stop)
        self.session.commit(
            FrameBatch(window.first_seqno + start, window.first_seqno + stop - 1, stop - start, data),
            position,
            bodies[-1][6],
            defines=start in window.alone,
            last=read_head(data, window.offset(stop - 1) - window.offset(start)),
        )
        window.done = stop
        self._fresh = False
        done.transactions += stop - start
        done.bytes += len(data)
        done.batches += 1
        self._free(position.last_seqno)

    def _free(self, last_seqno: int) -> None:
        count = 0
        while count < len(self._borders) and self._borders[count][0] <= last_seqno:
            count += 1
        if count:
            self.pool.free(self._borders[count - 1][1])
            del self._borders[:count]

    def _partition_of(self, table_id: int) -> int | None:
        definition = self._tables.get(table_id)
        return None if definition is None else definition.partition

    # Rows.

    def _apply_bodies(self, bodies: Sequence[Any]) -> None:
        for rows in self.session.rows.values():
            rows.seqno = bodies[-1][1]
        if len(bodies) == 1 and bodies[0][0] == Kind.HISTORY:
            self._check_history(History.unpack(bodies[0][PAYLOAD:], bodies[0][1]))
            return
        self.apply_changes(
            list(chain.from_iterable([body[PAYLOAD:] for body in bodies if body[0] == Kind.TRANSACTION]))
        )

    def apply_changes(self, changes: list[Any]) -> None:
        """Apply flat changes in their order, each in its region. Raises what RowApplier.apply_all raises."""
        regions = self.session.rows
        special = not _SPECIAL.isdisjoint(changes[0::4])
        if len(regions) == 1 and not special:
            next(iter(regions.values())).apply_all(changes)
            return
        # The order within a region is what counts; a schema change only concerns its own region.
        runs: dict[str, list[Any]] = {}
        for place in range(0, len(changes), 4):
            op, table_id, argument, values = changes[place : place + 4]
            region = self._region_of(op, table_id, argument, values)
            if region is not None:
                runs.setdefault(region, []).extend((op, table_id, argument, values))
        for region, run in runs.items():
            regions[region].apply_all(run)
        if special:
            for rows in regions.values():
                self._tables.update(rows.definitions)

    def _region_of(self, op: Any, table_id: Any, argument: Any, values: Any) -> str | None:
        if op == Op.COMMENT:
            return None
        if op == Op.REGION:
            if values[0] == "added":
                raise self._added(self._known(argument))
            return None
        if op == Op.SCHEMA:
            return self._known(argument)
        if op == Op.DEFINE:
            definition = TableDefinition.unpack(values)
            self._tables[definition.table_id] = definition
            return self._known(definition.region)
        known = self._tables.get(table_id)
        if known is None:
            raise DamagedError(f"a change of table id {table_id!r}, which was not defined before it")
        return self._known(known.region)

    def _added(self, region: str) -> HardResyncNeededError:
        """A region that we have was released there and added again: what was written in between is in no journal."""
        return HardResyncNeededError(
            f"region {region} was added anew on the primary; its rows from before that did not pass here",
            where=str(self.session.door.instance.path),
            do="Seed this secondary anew: replicate seed --restart",
        )

    def _known(self, region: object) -> str:
        if isinstance(region, str) and region in self.session.rows:
            return region
        raise NotFoundError(
            f"the primary replicates region {region!r}, which this secondary does not have",
            where=str(self.session.door.instance.path),
            do="Seed this secondary anew: replicate seed --restart",
        )

    def _check_history(self, history: History) -> None:
        before = history.previous_origin
        ours, theirs = self.session.position.vector.last(before), history.base.last(before)
        if before and ours > theirs:
            raise RollbackNeededError(
                f"incarnation {history.incarnation} of {history.name} began at {theirs} of the origin before it, "
                f"but {ours} of that one are applied here",
                do="Roll this secondary back, or seed it anew: replicate seed --restart",
                seqno=history.seqno,
            )

    def _stopped(self, error: ReplicateError, seqno: int) -> ReplicateError:
        """The error to stop with: a conflict's images go to its file, never into the log."""
        conflict = error.conflict if isinstance(error, ConflictError) else None
        if not isinstance(conflict, Conflict):
            error.facts.setdefault("seqno", seqno)
            return error
        path = write_conflict(self._conflict_directory, conflict)
        return ConflictError(
            f"{conflict.table}: {conflict.reason} at transaction {seqno}",
            where=str(path),
            do="Both images are in that file; compare the sites, mend the row or seed anew, then start update again",
            region=conflict.region,
            table=conflict.table,
            key=error.facts.get("key", ""),
            seqno=seqno,
            reason=conflict.reason,
        )

    # Large transactions.

    def _take_parts(self, record: ReceivedRecord, seqno: int, skip: int, done: Done) -> Waiting:
        if self._large is None:
            if not self._begin(done):
                return Waiting.LOCK
            for rows in self.session.rows.values():
                rows.seqno = seqno
            directory = self.session.door.instance.journal_directory
            spool = Spool.receiving(spool_path(directory, int.from_bytes(os.urandom(8), "big")))
            self._large = LargeApply(seqno, spool, self.apply_changes)
        try:
            count = self._large.take(record.data, skip)
        except (DamagedError, NotSupportedError) as error:
            self._abandon()
            raise self._stopped(error, seqno) from error
        done.parts += count
        done.bytes += len(record.data)
        self.pool.free(record.next_address)
        return Waiting.MORE

    def _commit_large(self, record: ReceivedRecord, done: Done) -> None:
        large = self._large
        assert large is not None
        frame = bytes(record.data)
        body = decode_batch(frame)[2]
        position: Position = large.finish(frame, body, self.session.position)
        self.session.commit_large(large.spool, frame, position, body[6], defines=large.defines)
        self._large = None
        self._fresh = False
        self._points = dict(position.chains)
        done.transactions += 1
        done.batches += 1
        self.pool.free(record.next_address)


_SPECIAL: Final = frozenset((int(Op.DEFINE), int(Op.SCHEMA), int(Op.REGION)))
