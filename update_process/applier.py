"""Applying what was received: from the receive pool through the commit door, a batch or a part at a time.

Guarantees: transactions are applied in order and exactly once, whole batches together with the synchronization
checkpoint records in one local commit; what did not continue exactly what was applied before is refused by name and
nothing of it is applied; at a conflict everything before it is committed, nothing of it is, and both images are in the
conflict file. Memory is bounded by one batch, AHEAD_MAX windows and one part, whatever the size of a transaction.
Nothing is waited for to fill a batch: it ends with what has arrived, at a limit of the settings, after BATCH_S, and
around schema changes.
Refuses to know: who fills the receive pool, when to sleep, and how an operator is told (process.py).

Deviation from design §11: there is no savepoint around each transaction of a batch, to keep what came before one that
fails. A savepoint costs every transaction two statements in each region, about as much as applying its row. A batch is
applied as a whole instead; when it fails it is rolled back, applied again one transaction at a time to find the one
that does, and once more up to there to commit what came before it (`_apply_singly`). What ends up in the region, the
journal and the conflict file is the same. A batch of several windows is first taken anew, window by window (`_rewind`).

Updates and deletes here and there in a table are put off to the end of their batch, packed where that is possible
(packed.py), and made in the order of their rows (replicate/database/row_order.py says why that comes to the same): each
page is read, changed and written once a batch, not once a row. Where they do not fit, the windows are taken anew and
applied as they came, so that the conflict that is told is the first one.

Used by one thread at a time. A full batch is committed in a thread of its own (`_commit_reading_on`); the caller's
waits for it, and only reads from the receive pool meanwhile: the session is the other one's then; windows, borders, the
points that were verified, and all freeing are the caller's. It never applies rows beside it: SQLite gives up the
interpreter's lock with every statement, and each time it would have to wait to have it back.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from replicate.apply_session import ApplySession
from replicate.barrier import BarrierWatch
from replicate.errors import BusyError, DamagedError, NotSupportedError, ReplicateError
from replicate.failpoint import hit
from replicate.journal.record import FRAME_PREFIX_BYTES, decode_batch, read_part
from replicate.journal.spool import Spool, spool_path
from replicate.pool import control as word
from replicate.pool.receive_pool import ReceivedRecord, ReceivePool, RecordKind
from replicate.settings import UpdateConfig
from replicate.transaction import Catalogue
from replicate.vector import Position
from update_process import batch as plans
from update_process.batch import Piece, PieceKind, Window
from update_process.beside import run_beside
from update_process.conflict import stopped
from update_process.done import Done as Done
from update_process.done import Waiting as Waiting
from update_process.frame_room import FrameRoom
from update_process.large import LargeApply
from update_process.open_batch import LOOSE_BYTES, OpenBatch
from update_process.plain import PAYLOAD, Points
from update_process.routes import Routes
from update_process.single import take_single

PEEK_RECORDS_MAX: Final = 256
"""Received records looked at for one decision; a window seldom takes more."""
WINDOW_BYTES: Final = 256 * 1024
"""Frames that are decoded together; decoded they take several times as much, which should fit the processor's cache:
1 MiB costs a sixth more than this (measured)."""
AHEAD_MAX: Final = 8
"""Windows read while a batch is being committed; beside one that takes much memory itself, half as many."""
BATCH_S: Final = 0.4
"""After this time a batch is committed although more has arrived (OpenBatch.is_full): readers see something new, others
get the lock. At 0.1 s twice as much is written, and the CPU time is half as much again (measured)."""
POOL_SHARE: Final = 4
"""A batch takes at most the receive pool's size divided by this: what is in a batch is not freed yet."""

_KINDS: Final = {RecordKind[kind.name]: kind for kind in PieceKind}


class _Anew(Exception):
    """The open batch was taken back, and is taken anew from the receive pool, window by window."""


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
        self._routes = Routes(session)
        self._window: Window | None = None
        self._points: Points = dict(session.position.chains)
        self._batch: OpenBatch | None = None
        segment_bytes = session.door.instance.config.journal.segment_bytes
        self._batch_bytes = min(settings.batch_bytes, pool.capacity // POOL_SHARE, segment_bytes // 2)
        self._frame_room = FrameRoom(self._batch_bytes)
        self._careful_seqno = 0
        """Up to here every window is a batch of its own: a batch of several has failed."""
        self._change_s = 0.0
        """What a change that was put off has taken lately."""
        self._ahead: deque[Window] = deque()
        """Windows behind that one, read while a batch was being committed."""
        self._borders: list[tuple[int, int]] = []
        """Of each record taken and not freed: its last seqno, and the address up to which it may be freed then."""
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

    def begin_early(self) -> bool:
        """Begin for what is about to arrive; the next `work` uses that or gives it back. False: not possible now."""
        return self._large is None and self.session.begin_early()

    def work(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> Done:
        """Apply what is there, for about `seconds`, until a batch is at its end; never waits for more to arrive.

        Raises ConflictError (what came before it is committed), GapError, DivergedError, other DamagedErrors, and the
        machine's errors. After any of them nothing is open, and the position is what is committed.
        """
        done = Done()
        deadline = time.monotonic() + seconds
        try:
            while True:
                try:
                    done.waiting = self._step(done)
                    is_over = self._batch is None and time.monotonic() >= deadline
                    if done.waiting is not Waiting.MORE or is_over or stop():
                        self._commit(done)
                        return done
                except _Anew:
                    done.waiting = Waiting.MORE
        except BaseException:
            self._abandon()
            raise
        finally:
            self.session.give_back()
            self.publish()

    # One step.

    def _step(self, done: Done) -> Waiting:
        if self._restart_asked:
            if not self.pool.restart_done(self._restart_asked):
                return Waiting.RESTART
            self._restart_asked = 0
        if self._ahead and (self._window is None or self._window.exhausted):
            self._window = self._ahead.popleft()
        if self._window is not None and not self._window.exhausted:
            return self._apply_some(self._window, done)
        records = self._peek()
        # The barrier is read after the records have been looked at, never before: so whoever sets one knows that what
        # arrives from then on is not passed.
        barrier_seqno = self._barrier.seqno()
        if len(records) == 1 and not (barrier_seqno or self._borders or self._batch or self._large):
            ours = (self.session, self.pool, self._routes, self._points, self._careful_seqno + 1, self._begin, done)
            if (waiting := take_single(records[0], *ours)) is not None:
                self._fresh = self._fresh and waiting is Waiting.LOCK
                return waiting
        pieces = [self._piece(record, first=not place) for place, record in enumerate(records)]
        large = None if self._large is None else self._large.where
        try:
            step = plans.plan(pieces, next_seqno=self._next_taken(), large=large, room_bytes=WINDOW_BYTES)
        except ReplicateError as error:
            if self._commit(done):
                return Waiting.MORE  # it will be said again
            if self._fresh:
                return self._ask_restart(str(error), done)
            raise
        if not isinstance(step, plans.Fill) and self._commit(done):
            return Waiting.MORE
        return self._take(step, records, barrier_seqno, done)

    def _next_taken(self) -> int:
        """The first transaction that is not even in the open batch."""
        position = self.session.position if self._batch is None else self._batch.position
        return position.last_seqno + 1

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
                try:
                    self._window = self._open_window(records[:pieces], skip)
                except ReplicateError:
                    self._commit(done)  # what came before it is well
                    raise
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
        for record in self.pool.peek(self._borders[-1][1] if self._borders else None):
            records.append(record)
            taken_bytes += len(record.data)
            if taken_bytes >= WINDOW_BYTES or len(records) >= PEEK_RECORDS_MAX:
                break
        return records

    def _piece(self, record: ReceivedRecord, *, first: bool) -> Piece:
        kind = _KINDS[record.kind]
        first_part = 0
        if kind is PieceKind.PARTS and first and record.first_seqno == self._next_taken():
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
        self._window = self._batch = None
        self._ahead.clear()
        self._borders.clear()
        self._points = dict(self.session.position.chains)

    def _take_catalogue(self, record: ReceivedRecord) -> None:
        body = decode_batch(record.data)[2]
        self._routes.take_definitions(Catalogue.unpack(body[PAYLOAD:]))
        self.pool.free(record.next_address)

    # Whole transactions.

    def _open_window(self, records: list[ReceivedRecord], skip: int) -> Window:
        data = records[0].data if len(records) == 1 else b"".join(record.data for record in records)
        decoded = decode_batch(data, tuples=True)
        first_seqno = records[0].first_seqno + skip
        if skip:
            start = sum(decoded[0 : 3 * skip : 3]) + skip * FRAME_PREFIX_BYTES
            data, decoded = data[start:], decoded[3 * skip :]
        window = plans.open_window(bytes(data), decoded, first_seqno, self._points)
        self._borders += [(record.last_seqno, record.next_address) for record in records]
        return window

    def _read_ahead(self, window: Window, done: Done) -> bool:
        """Have the window behind `window` and those ahead verified; False when there is none to be had now."""
        records = self._peek()
        pieces = [self._piece(record, first=False) for record in records]
        next_seqno = (self._ahead[-1] if self._ahead else window).last_seqno + 1
        try:
            step = plans.plan(pieces, next_seqno=next_seqno, large=None, room_bytes=WINDOW_BYTES)
            if not isinstance(step, plans.Fill):
                return False
            self._ahead.append(self._open_window(records[: step.pieces], step.skip))
            done.skipped += step.skip
        except ReplicateError:
            return False  # it is said again when its turn comes
        return True

    def _apply_some(self, window: Window, done: Done) -> Waiting:
        """Apply what the batch still takes of the window; commit the batch when it is full."""
        batch, limit = self._batch, self._settings.batch_transactions
        cut = window.cut(
            transactions_max=limit - (batch.transactions if batch is not None else 0),
            bytes_max=self._batch_bytes - (batch.size_bytes if batch is not None else 0),
            barrier_seqno=self._barrier.seqno(),
        )
        is_alone = cut.start in window.alone
        if cut.start == cut.stop or is_alone:
            if self._commit(done):
                return Waiting.MORE
            if cut.start == cut.stop:
                return Waiting.BARRIER
        if batch is None:
            batch = self._open_batch(done)
            if batch is None:
                return Waiting.LOCK
        is_careful = is_alone or window.first_seqno <= self._careful_seqno
        plain = None if is_careful else window.plain
        if plain is not None and (batch.changes_put_off or plain.is_scattered):
            try:
                batch.extend(window, cut.start, cut.stop, self._routes.partition_of)
            except DamagedError:
                self._rewind(window.last_seqno)
            batch.put_off(window, plain, cut.start, cut.stop)
        else:
            self._make_put_off(batch)
            try:
                self._apply(window, cut.start, cut.stop)
            except (DamagedError, NotSupportedError):
                if batch.transactions:
                    self._rewind(window.last_seqno)
                self.session.rollback()
                self._batch = None
                return self._apply_singly(window, cut.start, cut.stop, done)
            batch.extend(window, cut.start, cut.stop, self._routes.partition_of)
        if is_careful:
            self._commit(done)
        elif batch.is_full(limit, self._change_s, self._unread_bytes):
            self._commit_reading_on(window, done)
        return Waiting.MORE

    def _rewind(self, last_seqno: int) -> NoReturn:
        """A batch of several windows has failed: take all of them anew from the pool, each as a batch of its own."""
        self._abandon()
        self._careful_seqno = last_seqno
        raise _Anew

    # Changes put off to the end of their batch, so that they are made in the order of their rows.

    def _unread_bytes(self) -> int:
        """What has arrived and not even been looked at."""
        return self.pool.written_address - self._borders[-1][1] if self._borders else self.pool.used_bytes

    def _make_put_off(self, batch: OpenBatch) -> None:
        """Make what was put off. When it does not fit, the windows are taken anew, and applied as they came."""
        count = batch.changes_put_off
        if not count:
            return
        begun_s = time.monotonic()
        try:
            runs, others = batch.take_put_off()
            self._routes.apply_runs(runs, batch.position.last_seqno)
            if others is not None:
                self._routes.apply_plain(others, batch.position.last_seqno, is_sorted=True)
        except (DamagedError, NotSupportedError):
            self._rewind(batch.position.last_seqno)
        self._change_s = (time.monotonic() - begun_s) / count

    def _open_batch(self, done: Done) -> OpenBatch | None:
        """Begin; None as `_begin`."""
        if not self._begin(done):
            return None
        deadline_s, room = time.monotonic() + BATCH_S, self._frame_room
        self._batch = OpenBatch(self.next_seqno, self.session.position, deadline_s, self._routes.place_of, room)
        return self._batch

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
        batch = self._open_batch(done)
        if batch is None:
            return Waiting.LOCK
        for place in range(start, stop):
            try:
                self._apply(window, place, place + 1)
            except (DamagedError, NotSupportedError) as error:
                self.session.rollback()
                self._batch = None
                if place > start:
                    batch = self._open_batch(done)
                    if batch is None:
                        return Waiting.LOCK
                    self._apply(window, start, place)
                    batch.extend(window, start, place, self._routes.partition_of)
                    self._commit(done)
                raise stopped(error, window.bodies[place][1], self._conflict_directory) from error
        batch.extend(window, start, stop, self._routes.partition_of)
        self._commit(done)
        return Waiting.MORE

    def _commit(self, done: Done) -> bool:
        """Commit the open batch; False when there is none. Raises _Anew."""
        batch, self._batch = self._batch, None
        if batch is None:
            return False
        self._make_put_off(batch)
        self._commit_batch(batch)
        self._committed(batch, done)
        return True

    def _commit_reading_on(self, window: Window, done: Done) -> None:
        """Commit the open batch in another thread, which mostly waits for the kernel; meanwhile read what is next.

        When this returns or raises the other thread is done, an interrupt included: what is rolled back afterwards is
        never in its hands.
        """
        batch, self._batch = self._batch, None
        assert batch is not None
        self._make_put_off(batch)
        ahead_max = AHEAD_MAX if batch.size_bytes <= LOOSE_BYTES else AHEAD_MAX // 2
        run_beside(
            partial(self._commit_batch, batch),
            lambda: len(self._ahead) < ahead_max and self._read_ahead(window, done),
            name="commit",
        )
        self._committed(batch, done)

    def _commit_batch(self, batch: OpenBatch) -> None:
        frames, last = batch.frames()
        self.session.commit(frames, batch.position, batch.csn, defines=batch.defines, last=last)

    def _committed(self, batch: OpenBatch, done: Done) -> None:
        self._fresh = False
        done.transactions += batch.transactions
        done.bytes += batch.size_bytes
        done.batches += 1
        self._free(batch.position.last_seqno)

    def _free(self, last_seqno: int) -> None:
        count = sum(border_seqno <= last_seqno for border_seqno, _ in self._borders)
        if count:
            hit("update.before_free")
            self.pool.free(self._borders[count - 1][1])
            del self._borders[:count]

    # Rows.

    def _apply(self, window: Window, start: int, stop: int) -> None:
        if window.plain is not None:
            self._routes.apply_plain(window.plain.changes(start, stop), window.first_seqno + stop - 1)
        else:
            self._routes.apply_bodies(window.bodies[start:stop])

    # Large transactions.

    def _take_parts(self, record: ReceivedRecord, seqno: int, skip: int, done: Done) -> Waiting:
        if self._large is None:
            if not self._begin(done):
                return Waiting.LOCK
            for rows in self.session.rows.values():
                rows.seqno = seqno
            directory = self.session.door.instance.journal_directory
            spool = Spool.receiving(spool_path(directory, int.from_bytes(os.urandom(8), "big")))
            self._large = LargeApply(seqno, spool, self._routes.apply_changes)
        try:
            count = self._large.take(record.data, skip)
        except (DamagedError, NotSupportedError) as error:
            self._abandon()
            raise stopped(error, seqno, self._conflict_directory) from error
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
