"""Applying what was received: from the receive pool through the commit door, a batch or a part at a time.

Guarantees: transactions are applied in order and exactly once, whole batches together with the synchronization
checkpoint records in one local commit; what did not continue exactly what was applied before is refused by name and
nothing of it is applied; at a conflict everything before it is committed, nothing of it is, and both images are in the
conflict file. Memory is bounded by what waits of two batches, AHEAD_MAX windows and one part, whatever the size of a
transaction; frames wait in the receive pool.
Nothing is waited for to fill a batch: it ends with what has arrived, at a limit of the settings, after BATCH_S, and
around schema changes.
Leaves to others: who fills the receive pool, when to sleep, and how an operator is told (process.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from replicate.door.barrier import BarrierWatch
from replicate.door.secondary import ApplySession
from replicate.errors import BusyError, ConflictError, DamagedError, NotSupportedError, ReplicateError
from replicate.journal.record import Head, changes_of, decode_batch, large_commit_of, read_head
from replicate.journal.retelling import Retelling
from replicate.journal.spool import PartsCheck, Spool, spool_path
from replicate.model.transaction import Catalogue, unpack_partitions
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.pool.receive_pool import ReceivedRecord, ReceivePool
from replicate.settings.table import UpdateConfig
from update_process import plan as plans
from update_process.batch.by_partition import PartitionCounts
from update_process.batch.open_batch import OpenBatch, most_bytes
from update_process.conflict_decision import OVERWRITE, Decision, name_of, name_of_large
from update_process.conflict_file import stopped
from update_process.large_transaction import LargeApply
from update_process.own_thread import run_beside
from update_process.plan import Window
from update_process.routes import Routes
from update_process.settle_conflict import Settling, refuse_definitions
from update_process.window.columns import PAYLOAD
from update_process.window.intake import Intake
from update_process.window.single_transaction import take_single
from update_process.work_result import Done, Waiting

WINDOW_BYTES: Final = 256 * 1024
"""Frames that are decoded together; decoded they take several times as much, which should fit the processor's cache:
1 MiB costs a sixth more than this (measured)."""
AHEAD_MAX: Final = 8
"""Windows read while a batch is being committed; after a batch that waits itself, half as many."""
BATCH_S: Final = 0.4
"""After this time a batch is committed although more has arrived (OpenBatch.is_full): readers see something new, others
get the lock. At 0.1 s twice as much is written, and the CPU time is half as much again (measured)."""
UNKNOWN_CHANGE_S: Final = 50e-6
"""What a change is taken to cost before any was made: several times what it does on a disk that is not slow."""


class _TakenBack(Exception):
    """The open batch was taken back, and is taken again from the receive pool, window by window."""


class Applier:
    """One apply session, one receive pool, and what stands between them."""

    def __init__(
        self,
        session: ApplySession,
        pool: ReceivePool,
        settings: UpdateConfig,
        *,
        conflict_directory: Path,
        counted: PartitionCounts | None = None,
    ) -> None:
        """`counted`: where is counted what is applied of each partition."""
        self.session = session
        self.pool = pool
        self._settings = settings
        self._conflict_directory = conflict_directory
        self._words = session.door.words
        self._barrier = BarrierWatch(session.door)
        self._routes = Routes(session, counted)
        self._intake = Intake(pool, dict(session.position.chains))
        self._batch: OpenBatch | None = None
        self._next: OpenBatch | None = None
        """What was put off while the last one was being committed, and is a batch as soon as the regions are ours."""
        self._is_beside = False
        """A batch is being committed: the session is not ours."""
        self._refused: Window | None = None
        """What cannot wait packed while it is."""
        self._batch_bytes = most_bytes(settings, session.door.instance.config, pool.capacity)
        self._careful_seqno = 0
        """Up to here every window is a batch of its own: a batch of several has failed."""
        self._change_s = UNKNOWN_CHANGE_S
        """What each change took of those that had been put off last."""
        self._large: LargeApply | None = None
        self._settling = Settling(session, conflict_directory)
        self._decision: Decision | None = None
        """By which the large one is settled."""
        self._retelling: Retelling | None = None
        """What was made of it, when it is overwritten."""
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

    @property
    def arrived(self) -> tuple[int]:
        """Up to where there is something to apply: the last transaction."""
        return (self.pool.last_received_seqno,)

    def has_reached(self, arrived: tuple[int, ...]) -> bool:
        """Whether all up to there is applied."""
        return self.applied_seqno >= arrived[0]

    def left(self, arrived: tuple[int, ...]) -> int:
        """Transactions up to there that are not applied."""
        return max(0, arrived[0] - self.applied_seqno)

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
                except _TakenBack:
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
        if self._next is not None:
            return self._begin_next(self._next, done)
        window = self._intake.current()
        if window is not None:
            return self._apply_some(window, done)
        records = self._intake.peek(WINDOW_BYTES)
        # The barrier is read after the records have been looked at, never before: so the process that sets one knows
        # that what arrives from then on is not passed.
        barrier_seqno = self._barrier.seqno()
        if len(records) == 1 and self._intake.is_idle and not (barrier_seqno or self._batch or self._large):
            ours = (self.session, self.pool, self._routes, self._intake.points)
            waiting = take_single(records[0], *ours, self._careful_seqno + 1, self._begin, done)
            if waiting is not None:
                self._fresh = self._fresh and waiting is Waiting.LOCK
                return waiting
        pieces = self._intake.pieces(records, self._next_taken())
        large = None if self._large is None else self._large.where
        try:
            step = plans.plan(pieces, next_seqno=self._next_taken(), large=large, room_bytes=WINDOW_BYTES)
        except ReplicateError as error:
            if self._commit(done):
                return Waiting.MORE  # it will be said again
            if self._fresh:
                return self._ask_restart(str(error), done)
            raise
        if isinstance(step, plans.Idle) and self._batch is not None and self._batch.is_long:
            self._commit_reading_on(done)
            return Waiting.MORE
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
            case plans.Skip(pieces):
                done.skipped += self._intake.pass_over(records[:pieces])
            case plans.StartAgain(why):
                return self._ask_restart(why, done)
            case plans.Abandon(why):
                done.abandoned = why
                self._abandon()
            case plans.TakeCatalogue():
                self._take_catalogue(records[0])
            case plans.Fill(pieces, skip):
                try:
                    done.skipped += self._intake.take(records[:pieces], skip)
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
        if self._retelling is not None:
            self._retelling.abort()
            self._retelling = None
        self.session.rollback()
        self._batch = self._next = None
        self._intake.forget(dict(self.session.position.chains))

    def _take_catalogue(self, record: ReceivedRecord) -> None:
        body = decode_batch(record.data)[2]
        self._routes.take_definitions(Catalogue.unpack(body[PAYLOAD:]))
        self.pool.free(record.next_address)

    # Whole transactions.

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
            if is_alone:
                from update_process.region_arrival import take_added  # here: few transactions come alone

                added = take_added(self.session, self._routes, window.bodies[cut.start])
                if added is not None:
                    done.arrived += ((added.name, added.making is not None),)
            batch = self._open_batch(done)
            if batch is None:
                return Waiting.LOCK
            if batch.first_seqno != window.first_seqno + cut.start:
                self._abandon()  # what failed after its append was finished first
                return Waiting.MORE
        is_careful = is_alone or window.first_seqno <= self._careful_seqno
        plain = None if is_careful else window.plain
        if plain is not None and (batch.changes_put_off or plain.is_scattered):
            try:
                batch.put_off(window, plain, cut.start, cut.stop, self._routes.partition_of)
            except DamagedError:
                self._rewind(window.last_seqno)
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
        elif batch.is_full(limit, self._change_s, self._intake.last_known_seqno):
            self._commit_reading_on(done)
        return Waiting.MORE

    def _rewind(self, last_seqno: int) -> NoReturn:
        """A batch of several windows has failed: take all of them again from the pool, each as a batch of its own."""
        self._abandon()
        self._careful_seqno = last_seqno
        raise _TakenBack

    # Changes put off to the end of their batch, so that they are made in the order of their rows.

    def _make_put_off(self, batch: OpenBatch) -> None:
        """Make what was put off. When it does not fit, the windows are taken again, and applied as they came.

        Updates and deletes here and there in a table are put off to the end of their batch, packed where that is
        possible (batch/deferred.py), and made in the order of their rows (region/sqlite/apply/order.py says why that
        comes to the same): each page is read, changed and written once a batch, not once a row. Where they do not fit,
        the windows are taken again and applied as they came, so that the conflict that is told is the first one."""
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
        self._batch = self._made_batch(self.session.position)
        return self._batch

    def _made_batch(self, position: Position) -> OpenBatch:
        """An empty one after `position`."""
        deadline_s, memory = time.monotonic() + BATCH_S, self.pool.memory_of_data
        made = OpenBatch(position.last_seqno + 1, position, deadline_s, self._place_of, memory, self._batch_bytes)
        made.counts = None if self._routes.counted is None else PartitionCounts()
        return made

    def _place_of(self, op: Any, table_id: Any, argument: Any) -> int | None:
        """See order.PlaceOf."""
        known = self._routes.known_place_of if self._is_beside else self._routes.place_of
        return known(op, table_id, argument)

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

        Deviation from design §11: there is no savepoint around each transaction of a batch, to keep what came before
        one that fails. A savepoint costs every transaction two statements in each region, about as much as applying its
        row. A batch is applied as a whole instead; when it fails it is rolled back, applied again one transaction at a
        time to find the one that does, and once more up to there to commit what came before it (`_apply_singly`). What
        ends up in the region, the journal and the conflict file is the same. A batch of several windows is first taken
        again, window by window (`_rewind`).
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
                return self._settle(window, place, error, done)
        batch.extend(window, start, stop, self._routes.partition_of)
        self._commit(done)
        return Waiting.MORE

    def _settle(self, window: Window, place: int, error: ReplicateError, done: Done) -> Waiting:
        """What stands at `place` has failed, and what came before it is committed: have another record take its number
        if that was decided, else stop there."""
        body = window.bodies[place]
        told = stopped(error, body[1], self._conflict_directory, name_of(body[4], body[3]))
        decision = self._settling.decided(error, body)
        if decision is None:
            raise told from error
        if not self._begin(done):
            return Waiting.LOCK
        head, changes = read_head(window.frames(place, place + 1)), changes_of(body)
        carried = {self._routes.partition_of(table_id) for table_id in changes[1::4]}
        retelling = self._settling.retelling(head.origin) if decision.how == OVERWRITE else None
        try:
            if retelling is not None:
                retelling.add(self._routes.overwrite(changes, head.seqno))
            self._settling.commit(head, [one for one in carried if one is not None], decision, retelling)
        except (ConflictError, NotSupportedError) as still:
            self.session.rollback()
            raise stopped(still, head.seqno, self._conflict_directory, name_of(body[4], body[3])) from still
        finally:
            if retelling is not None:
                retelling.abort()
        window.done = place + 1
        self._settled(head, decision, done)
        self._intake.free(head.seqno)
        return Waiting.MORE

    def _settled(self, head: Head, decision: Decision, done: Done) -> None:
        self._fresh = False
        settled = ((head.seqno, decision.by),)
        if decision.how == OVERWRITE:
            done.overwritten += settled
        else:
            done.left_out += settled
        done.transactions += 1
        done.batches += 1
        self.publish()

    def _commit(self, done: Done) -> bool:
        """Commit the open batch; False when there is none. Raises _TakenBack."""
        batch, self._batch = self._batch, None
        if batch is None:
            return False
        self._make_put_off(batch)
        self._commit_batch(batch)
        self._committed(batch, done)
        return True

    def _commit_reading_on(self, done: Done) -> None:
        """Commit the open batch in another thread, which mostly waits for the kernel; meanwhile read what is next.

        When this returns or raises the other thread is done, an interrupt included: what is rolled back afterwards is
        never in its hands.

        Used by one thread at a time. A batch that is full, or long, is committed in a thread of its own
        (`_commit_reading_on`); the caller's waits for it, and only reads from the receive pool meanwhile, and packs
        what can wait packed for the batch after it: the session is the other one's then; the intake, the next batch,
        and all freeing are the caller's. It never applies rows beside it: SQLite gives up the interpreter's lock with
        every statement, and each time it would have to wait to have it back.
        """
        batch, self._batch = self._batch, None
        assert batch is not None
        self._make_put_off(batch)
        self._is_beside, self._refused = True, None
        try:
            after = self._made_batch(batch.position)
            run_beside(partial(self._commit_batch, batch), partial(self._read_on, after, done), name="commit")
        finally:
            self._is_beside = False
        self._committed(batch, done)

    def _read_on(self, after: OpenBatch, done: Done) -> bool:
        """Put off one window more in the batch that comes next, or have it ready; False when there is no more to do
        for now."""
        limit, window = self._settings.batch_transactions, self._intake.current()
        if after.has_no_room(limit) or after.takes_long(BATCH_S, self._change_s, self._intake.last_known_seqno):
            return False
        if window is not None and window is not self._refused:
            if self._take_ahead(window, after, limit):
                self._next = after
                return True
            self._refused = window
        if len(self._intake.ahead) >= (AHEAD_MAX if self._next is None else AHEAD_MAX // 2):
            return False
        skipped = self._intake.read_ahead(WINDOW_BYTES)
        done.skipped += skipped or 0
        return skipped is not None

    def _take_ahead(self, window: Window, after: OpenBatch, limit: int) -> bool:
        """Whether what there is room for of the window waits packed now."""
        plain = window.plain
        if plain is None or not plain.is_scattered or window.first_seqno <= self._careful_seqno:
            return False
        cut = window.cut(transactions_max=limit - after.transactions, bytes_max=self._batch_bytes - after.size_bytes)
        try:
            return after.put_off(window, plain, cut.start, cut.stop, self._routes.partition_of, is_packed=True)
        except DamagedError:
            return False  # it is said again when its turn comes

    def _begin_next(self, batch: OpenBatch, done: Done) -> Waiting:
        """Go on with what was put off while the last batch was being committed."""
        barrier_seqno = self._barrier.seqno()
        is_held = bool(barrier_seqno) and batch.position.last_seqno > barrier_seqno
        if not is_held and not self._begin(done):
            return Waiting.LOCK
        if is_held or batch.first_seqno != self.next_seqno:
            self._abandon()  # it is taken again, as far as it may be
            return Waiting.MORE
        batch.deadline_s = time.monotonic() + BATCH_S
        self._batch, self._next = batch, None
        if batch.is_full(self._settings.batch_transactions, self._change_s, self._intake.last_known_seqno):
            self._commit_reading_on(done)
        return Waiting.MORE

    def _commit_batch(self, batch: OpenBatch) -> None:
        frames, last = batch.frames()
        self.session.commit(frames, batch.position, batch.csn, defines=batch.defines, last=last)

    def _committed(self, batch: OpenBatch, done: Done) -> None:
        self._fresh = False
        done.transactions += batch.transactions
        done.bytes += batch.size_bytes
        done.batches += 1
        if batch.counts is not None and self._routes.counted is not None:
            self._routes.counted.join(batch.counts)
        self.publish()  # not only when `work` ends, which may be two long batches later
        self._intake.free(batch.position.last_seqno)

    # Rows.

    def _apply(self, window: Window, start: int, stop: int) -> None:
        if window.plain is not None:
            self._routes.apply_plain(window.plain.changes(start, stop), window.first_seqno + stop - 1)
        else:
            self._routes.apply_bodies(window.bodies[start:stop])

    # Large transactions.

    def _take_parts(self, record: ReceivedRecord, seqno: int, skip: int, done: Done) -> Waiting:
        part = read_head(record.data)
        if self._large is None:
            if not self._begin(done):
                return Waiting.LOCK
            self._decision = self._settling.decided_large(seqno, part)
            for rows in self.session.rows.values():
                rows.seqno = seqno
            decision = self._decision
            if decision is not None and decision.how == OVERWRITE:
                self._retelling = self._settling.retelling(part.origin)
            self._large = self._large_taken(seqno) if decision is None else self._large_settled(seqno)
        try:
            count = self._large.take(record.data, skip)
        except (DamagedError, NotSupportedError) as error:
            self._abandon()
            told = stopped(error, seqno, self._conflict_directory, name_of_large(part.origin, part.csn))
            if self._decision is None and self._settling.decide_large(error, seqno, part):
                return self._ask_restart(f"transaction {seqno} is settled by a decision", done)
            raise told from error
        done.parts += count
        done.bytes += len(record.data)
        self.pool.free(record.next_address)
        return Waiting.MORE

    def _large_taken(self, seqno: int) -> LargeApply:
        directory = self.session.door.instance.journal_directory
        spool = Spool.receiving(spool_path(directory, int.from_bytes(os.urandom(8), "big")))
        return LargeApply(seqno, spool, self._routes.apply_changes, are_counted=self._routes.counted is not None)

    def _large_settled(self, seqno: int) -> LargeApply:
        """It is only checked, and its changes are made over what is here if that was decided."""
        return LargeApply(seqno, PartsCheck(), partial(self._retell, seqno=seqno))

    def _retell(self, changes: list[Any], seqno: int) -> None:
        refuse_definitions(changes, seqno)
        if self._retelling is not None:
            self._retelling.add(self._routes.overwrite(changes, seqno))

    def _commit_large(self, record: ReceivedRecord, done: Done) -> None:
        large = self._large
        assert large is not None
        frame = bytes(record.data)
        body = decode_batch(frame)[2]
        position: Position = large.finish(frame, body, self.session.position)
        if self._decision is None:
            try:
                self._routes.check_awaited()
            except ConflictError as error:
                self._abandon()
                named = name_of_large(body[4], large.spool.token)
                raise stopped(error, large.seqno, self._conflict_directory, named) from error
            self.session.commit_large(large.spool, frame, position, body[6], defines=large.defines)
            done.transactions += 1
            done.batches += 1
            if large.rows is not None and self._routes.counted is not None:
                self._routes.counted.add_large(large.rows, large_commit_of(body)[2], self._routes.partition_of)
        else:
            head = read_head(frame)
            carried = unpack_partitions(large_commit_of(body)[4])
            self._settling.commit(head, carried, self._decision, self._retelling)
            self._settled(head, self._decision, done)
        self._large = self._retelling = None
        self._fresh = False
        self._intake.points = dict(position.chains)
        self.pool.free(record.next_address)
