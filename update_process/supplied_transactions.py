"""What other suppliers have committed, applied on a supplier: between its own applications' transactions.

Each source has a receive pool of its own, a lane, which counts as the source does; batches are taken of them in turn.
Here each transaction gets the next number of our own journal, once the regions' locks are held. What our vector covers
(it came another way, or is our own) is passed over.

Guarantees: of each origin exactly the next transaction is taken, proven by its chain hash, with the same number from
nobody else; nothing is applied that its origin did not write by right (model/writers.py); rows, checkpoint records and
journal move in one commit. The regions' locks are held while a batch is applied, never while one arrives: a large
transaction is spooled first.
Leaves to others: who fills the receive pool, when to sleep (process.py), how rows are applied (routes.py)."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from replicate.door.barrier import BarrierWatch
from replicate.door.ledger import Moved
from replicate.door.secondary import ApplySession
from replicate.errors import (
    BusyError,
    ClockAheadError,
    ConflictError,
    DamagedError,
    GapError,
    NotSupportedError,
    NotWriterError,
    ReplicateError,
    TurnedBackError,
)
from replicate.journal.record import (
    Head,
    changes_of,
    check_frame,
    decode_batch,
    large_commit_of,
    read_head,
    read_part,
    renumbered,
)
from replicate.journal.spool import Spool, spool_path
from replicate.model.ruv import lacks
from replicate.model.transaction import OF_WRITERS, Catalogue, History, Kind, Op
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.pool.receive_pool import ReceivedRecord, ReceivePool, RecordKind
from replicate.settings.table import UpdateConfig
from update_process import plan as plans
from update_process.aside_for_schema import StandingAside
from update_process.batch.open_batch import most_bytes
from update_process.batch.supplied_batch import FrameRoom, SuppliedBatch
from update_process.conflict_file import stopped
from update_process.gone_suppliers import Parting
from update_process.merging import Merging
from update_process.merging_large import ArrivingLarge, LargeTurn, partitions_of
from update_process.origin_check import OriginCheck
from update_process.plan import Window
from update_process.routes import Routes
from update_process.supplier_upkeep import Tending
from update_process.window.columns import PAYLOAD
from update_process.window.columns import joined as joined_changes
from update_process.window.lacking import InOrder, Lacking
from update_process.window.renumbering import Renumbering
from update_process.work_result import Done, Waiting

BATCH_BYTES: Final = 4 * 1024 * 1024
"""Most frames of a batch: applications wait that long for the region."""
WINDOW_BYTES: Final = 256 * 1024
RECORDS_MAX: Final = 256
FINISHED_MAX: Final = 64


class Arrivals(Protocol):
    """Where received transactions are: the receive pool, which has these, or packets (packet_feed.py)."""

    capacity: int

    @property
    def lanes(self) -> Sequence[Arrivals]: ...
    @property
    def written_address(self) -> int: ...
    @property
    def read_address(self) -> int: ...
    def peek(self, address: int | None = None, /) -> Iterable[ReceivedRecord]: ...
    def free(self, upto_address: int, /) -> None: ...
    def note_applied(self, applied_seqno: int, durable_seqno: int, /) -> None: ...
    def restart_requested(self) -> int: ...
    def request_restart(self) -> int: ...
    def restart_done(self, number: int, /) -> bool: ...


class Lane(Struct):
    """What is known of the lane `pool`."""

    pool: Arrivals
    careful_until: int = 0
    """Before this address each transaction is a batch of its own: a batch of several has failed."""
    each_until: int = 0
    """Before this address what is received is looked at frame by frame: whole records were not what they seemed."""
    is_fresh: bool = True
    """Nothing of it was applied since the start."""
    had_gap: bool = False
    """The streams were asked to begin again since it does not continue what is applied."""


class SupplierApplier:
    """As `Applier`, of a supplier, which may have several sources."""

    def __init__(
        self,
        session: ApplySession,
        pool: Arrivals,
        settings: UpdateConfig,
        *,
        conflict_directory: Path,
        streams: bool = True,
    ) -> None:
        """`streams`: what arrives may be asked to begin again."""
        self._streams = streams
        self.session = session
        self.pool = pool
        self._settings = settings
        self._conflict_directory = conflict_directory
        self._words = session.door.words
        self._barrier = BarrierWatch(session.door)
        self._routes = Routes(session)
        self._merging = Merging(session, self._routes)
        self._tending = Tending(session, self._merging, settings.tell_seen_s, self._is_heard)
        self._parting = Parting(session)
        self._standing = StandingAside(session, self._parting)
        self._batch_bytes = min(BATCH_BYTES, most_bytes(settings, session.door.instance.config, pool.capacity))
        self._larges: dict[tuple[int, int], ArrivingLarge] = {}
        """Large transactions that arrive, by origin and token: each source may send one."""
        self._finished: deque[tuple[int, int]] = deque(maxlen=FINISHED_MAX)
        """Those that were committed lately: parts of them may still come from another source."""
        self._origins = OriginCheck(session, settings.clock_ahead_max_s)
        self._renumbering = Renumbering()
        self._room = FrameRoom()
        self._restart_asked = pool.restart_requested()
        self._lanes = deque(Lane(one) for one in pool.lanes)
        """That in turn last: it is looked at again after all others."""
        self._was_refused = not streams
        """Whether the streams were asked to begin again since what came first is not to be taken; packets cannot be."""

    @property
    def applied_seqno(self) -> int:
        """The last transaction of our own journal."""
        return self.session.position.last_seqno

    @property
    def next_seqno(self) -> int:
        """The number that the next transaction gets here, if no application commits before."""
        return self.applied_seqno + 1

    @property
    def arrived(self) -> tuple[int, ...]:
        """Up to where there is something to apply: of each lane its address."""
        return tuple(lane.written_address for lane in self.pool.lanes)

    def has_reached(self, arrived: tuple[int, ...]) -> bool:
        """Whether all up to there is applied, and freed: the Receiver Server knows by that."""
        return all(lane.read_address >= upto for lane, upto in zip(self.pool.lanes, arrived, strict=False))

    def awaited(self) -> dict[str, float]:
        """Suppliers that have not told that they have what several write, and since when (seconds since 1970)."""
        return self._tending.awaited()

    def fenced_since_us(self) -> int | None:
        """Since when a supplier has the others stand aside to change the schema (microseconds since 1970)."""
        writers = self._parting.writers
        return next((writers.fences.since_us(one) for one in writers.fences.open(writers.retired)), None)

    def told(self) -> dict[str, dict[str, int]]:
        """See Tending."""
        return self._tending.told()

    def left(self, arrived: tuple[int, ...]) -> int:
        """Transactions up to there that are not applied."""
        return sum(
            record.count
            for lane, upto in zip(self.pool.lanes, arrived, strict=False)
            for record in lane.peek(None)
            if record.kind not in (RecordKind.PARTS, RecordKind.CATALOGUE) and record.address < upto
        )

    def publish(self) -> None:
        """Tell the Receiver Server how far we are."""
        self.pool.note_applied(self.applied_seqno, self._words[word.LAST_DURABLE_SEQNO])

    def close(self) -> None:
        """Take back what is not committed. The session and the pool stay the caller's."""
        self._barrier.close()
        self._tending.close()
        self._abandon()

    def tell(self) -> None:
        """Say what is to be said without waiting for the time to come: what was applied, and that nothing comes from
        those that are gone for good. No stream runs, and the receive pool is empty. Raises what a commit raises."""
        if self._parting.look():
            self._parting.asked()
            self._parting.dropped()
            self._parting.work()
        self._standing.work()
        self._tending.tend(at_once=True)

    @property
    def has_to_part(self) -> bool:
        """Whether somebody is gone for good, and it was not said here that nothing comes from it any more."""
        return self._parting.look() and self._parting.wants_restart

    def _is_heard(self) -> bool:
        """Whether somebody sends to this site: packets do."""
        return not isinstance(self.pool, ReceivePool) or self.pool.is_connected

    def begin_early(self) -> bool:
        """Never: the regions are the applications', too."""
        return False

    def work(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> Done:
        """As `Applier.work`. Raises ConflictError, NotWriterError, ClockAheadError, TurnedBackError, GapError, other
        DamagedErrors, and the machine's errors. After any of them nothing is open, what came before is committed."""
        done = Done()
        deadline_s = time.monotonic() + seconds
        try:
            if self._streams:
                if self._parting.look():
                    self._part(done)
                self._standing.work()
            while True:
                done.waiting = self._step(done)
                if (is_idle := done.waiting is Waiting.NOTHING) or self._tending.is_full:
                    self._tending.tend(is_idle=is_idle)
                if done.waiting is not Waiting.MORE or time.monotonic() >= deadline_s or stop():
                    return done
        except BaseException:
            self._abandon()
            raise
        finally:
            self.publish()

    def _abandon(self) -> None:
        self.session.rollback()
        for large in self._larges.values():
            large.abort()
        self._larges.clear()

    def _step(self, done: Done) -> Waiting:
        if self._restart_asked:
            if not self.pool.restart_done(self._restart_asked):
                return Waiting.RESTART
            self._restart_asked = 0
            self._parting.dropped()
            self._parting.work()
        for _ in range(len(self._lanes)):
            self._lanes.rotate(-1)
            if records := self._looked(self._lane.pool):
                break
        else:
            return Waiting.PART if self._larges else Waiting.NOTHING
        first = records[0]
        try:
            match first.kind:
                case RecordKind.CATALOGUE:
                    self._take_catalogue(first)
                    return Waiting.MORE
                case RecordKind.PARTS:
                    return self._take_parts(first, done)
                case RecordKind.LARGE:
                    return self._commit_large(first, done)
            return self._take_frames([one for one in records if one.kind is RecordKind.FRAMES], done)
        except GapError as error:
            self._origins.refuse_own({error.facts.get("origin")})
            if not self._lane.is_fresh or self._lane.had_gap:
                raise
            self._lane.had_gap = True
            return self._ask_restart(str(error), done)
        except (ClockAheadError, NotWriterError) as error:
            if not self._lane.is_fresh or self._was_refused:
                raise
            # The site that sent it may have been made again since: it stops at what comes now.
            self._was_refused = True
            return self._ask_restart(str(error), done)

    @property
    def _lane(self) -> Lane:
        """The one in turn."""
        return self._lanes[-1]

    def _looked(self, pool: Arrivals) -> list[ReceivedRecord]:
        """What is in a lane, as much of it as a batch takes."""
        records: list[ReceivedRecord] = []
        size_bytes = 0
        for record in pool.peek(None):
            records.append(record)
            size_bytes += len(record.data)
            if size_bytes >= self._batch_bytes or len(records) >= RECORDS_MAX or record.kind is not RecordKind.FRAMES:
                break
        return records

    def _ask_restart(self, why: str, done: Done) -> Waiting:
        self._abandon()
        self.publish()
        done.text = why
        self._parting.asked()
        self._restart_asked = self.pool.request_restart()
        return Waiting.RESTART

    def _part(self, done: Done) -> None:
        """Somebody is gone for good."""
        if self._parting.wants_restart and not self._restart_asked:
            self._ask_restart("a supplier is gone for good: what came from it before comes by way of others", done)
        self._parting.work()

    def _begin(self, done: Done) -> Waiting | None:
        """None: the regions are ours, and the tables known; else what is waited for, and nothing is held."""
        try:
            self.session.begin()
        except BusyError as error:
            done.text = str(error)
            return Waiting.LOCK
        barrier_seqno = self._barrier.seqno()
        if barrier_seqno and self.session.position.last_seqno >= barrier_seqno:
            self.session.rollback()
            return Waiting.BARRIER
        self._merging.begin()
        return None

    def _take_catalogue(self, record: ReceivedRecord) -> None:
        catalogue = Catalogue.unpack(decode_batch(record.data)[2][PAYLOAD:])
        self._routes.take_definitions(catalogue)
        self._origins.met(catalogue.histories)
        self._lane.pool.free(record.next_address)

    # Whole transactions.

    def _take_frames(self, records: list[ReceivedRecord], done: Done) -> Waiting:
        waiting = self._begin(done)
        if waiting is not None:
            return waiting
        lacking = self._in_order(records) or self._lacking(records)
        if not lacking.count:
            self.session.rollback()
            self._free(records, lacking.looked)
            done.skipped += lacking.skipped
            return Waiting.MORE
        try:
            count = self._apply(lacking, done)
        except TurnedBackError:
            raise
        except (ClockAheadError, DamagedError, NotSupportedError, NotWriterError) as error:
            self.session.rollback()
            if isinstance(lacking, InOrder):  # look at each frame
                self._lane.each_until = records[-1].next_address
                return Waiting.MORE
            if lacking.count > 1:  # take them one by one: what comes before the one that fails is well
                self._lane.careful_until = records[-1].next_address
                return Waiting.MORE
            raise self._stopped(error, read_head(lacking.windows[0])) from error
        self._lane.is_fresh = False
        done.transactions += count
        done.batches += 1
        if count == lacking.count:
            done.skipped += lacking.skipped
            self._free(records, lacking.looked)
        else:
            self._free(records, lacking.places[count])
        return Waiting.MORE

    def _lacking(self, records: list[ReceivedRecord]) -> Lacking:
        before = self.session.position
        lacking = Lacking(dict(before.chains), before.last_seqno + 1, WINDOW_BYTES)
        for record in records:
            most = 1 if record.address < self._lane.careful_until else self._settings.batch_transactions
            if not lacking.take(record.data, most, self._batch_bytes):
                break
        lacking.end_window()
        return lacking

    def _in_order(self, records: list[ReceivedRecord]) -> InOrder | None:
        """Whole records of one origin, if all that is in them is next: to look at each frame takes three times as long
        as to give all of them our numbers. None where that is not so, or so of little while more waits."""
        before = self.session.position
        if records[0].address < max(self._lane.each_until, self._lane.careful_until):
            return None
        taken = InOrder(before, self._settings.batch_transactions, self._batch_bytes, WINDOW_BYTES)
        is_all = all(taken.take(record.data, record.first_seqno, record.count) for record in records)
        taken.end_window()
        return taken if is_all or taken.size_bytes >= WINDOW_BYTES else None

    def _apply(self, lacking: Lacking | InOrder, done: Done) -> int:
        """Apply and commit as many of them as go together, one at least; how many."""
        batch = SuppliedBatch(self.session.position, is_alone=lacking.count == 1, room=self._room)
        merging, resolver = self._merging, None
        for data, number in zip(lacking.windows, lacking.counts, strict=True):
            decoded = decode_batch(data, tuples=True, count=number)
            window = plans.open_window(data, decoded, batch.next_seqno + lacking.ahead, batch.points, [(len(data), 0)])
            if lacking.ahead:
                window = self._renumbering.window(window, decoded, batch.next_seqno)
            stop = number if not window.alone else max(window.alone[0], int(not batch.count))
            if not stop:
                break
            batch.defines = stop == 1 and window.alone[:1] == [0]
            is_met = merging.is_active and not batch.defines
            if not batch.admits(merging.merges(window, batch.position) if is_met else None):
                break
            if batch.merges:
                stop, after = self._merge(batch, window, stop)
                if merging.oversized is not None or merging.removes_much:
                    return self._commit_oversized(batch, window, batch.count + stop, done)
            else:
                after = self._follow(batch, window, stop)
            bodies = window.bodies[:stop]
            batch.took(bodies, after)
            if merging.is_active:
                self._tending.applied(bodies)
            resolver = merging.resolver(after) if batch.merges else None
            if stop < number or batch.defines or resolver is not None:
                break
            del decoded, window, bodies  # the next ones lie in their memory, which the processor's cache holds
        self._commit(batch, resolver, done)
        return batch.count

    def _merge(self, batch: SuppliedBatch, window: Window, stop: int) -> tuple[int, Position]:
        """Apply a window's first `stop` transactions where somebody has written beside them; fewer where one of them
        has rows give way. How many, and the position after them."""
        after = window.position_at(batch.position, 0, stop, self._routes.partition_of)
        self._origins.refuse_others(batch.position, after, self._merging.removed_by(window, stop))
        if not batch.count and batch.is_alone:  # it may be taken back
            self._merging.mark(batch.before)
        elif not batch.count:
            self._merging.absorb(batch.before)
        frames = self._merging.take(window, stop)
        batch.add_frames(frames, window.ends[: self._merging.taken])
        if self._merging.taken < stop:
            stop = self._merging.taken
            after = window.position_at(batch.position, 0, stop, self._routes.partition_of)
        return stop, after

    def _follow(self, batch: SuppliedBatch, window: Window, stop: int) -> Position:
        """Apply a window's first `stop` transactions as they are; the position after them."""
        after = window.position_at(batch.position, 0, stop, self._routes.partition_of)
        self._make(batch, window, stop)
        if self._merging.is_active:
            self._merging.follow(window, stop)
            self._origins.refuse_others(batch.position, after, self._merging.removed_by(window, stop))
        batch.add_frames([window.data if stop == len(window.bodies) else window.frames(0, stop)], window.ends[:stop])
        return after

    def _commit(self, batch: SuppliedBatch, resolver: tuple[bytes, Position] | None, done: Done) -> None:
        """Commit what was taken, with our own transaction that has all suppliers remove what was removed here."""
        self._make_scattered(batch, batch.position.last_seqno)
        if not self._merging.is_active:
            self._origins.refuse_others(batch.before, batch.position)
        places = batch.places
        self._origins.refuse_own(places)
        self._origins.refuse_ahead(batch.csn, places)
        if resolver is not None:
            batch.took_own(*resolver)
            places = batch.places
        before, position = batch.before, batch.position
        if batch.merges:
            self._merging.finish(position.last_seqno, position)
        elif self._merging.is_active and self._merging.lags(before.last_seqno):
            self._merging.look(before)
        frames, last = batch.for_journal()
        moved = Moved(places, batch.csn)
        self.session.commit(frames, position, batch.csn, last=last, defines=batch.defines, moved=moved)
        if self._merging.is_active:
            self._merging.committed(done)
        done.bytes += batch.size_bytes
        if batch.defines:
            self._merging.forget_tables()

    def _commit_oversized(self, batch: SuppliedBatch, window: Window, count: int, done: Done) -> int:
        """Commit the last of `count` transactions that were taken, which came to more than a frame holds, or to which
        more gives way than one does: it comes alone, so NotSupportedError where it is not the only one. How many were
        committed: where rows give way, that is committed first, and it comes again."""
        try:
            removed = list(self._merging.removed)
            if count > 1 or (removed and not batch.is_alone):
                raise NotSupportedError("a transaction that was merged comes alone")
            if removed:
                self._merging.take_back()
                self._merging.give_way(batch.position, removed, done)
                return 0
            body = window.bodies[0]
            self._origins.refuse_own((body[4],))
            self._origins.refuse_ahead(body[6], (body[4],))
            position = window.position_at(batch.position, 0, 1, self._routes.partition_of)
            self._merging.finish(position.last_seqno, position)
            self._merging.commit_oversized(read_head(window.frames(0, 1)), position)
            self._merging.committed(done)
            return 1
        finally:
            self._merging.give_up_oversized()

    def _make(self, batch: SuppliedBatch, window: Window, stop: int) -> None:
        """Make the changes of a window's first `stop` transactions; those here and there in a table wait for the others
        of the batch, and are made in the order of their rows."""
        plain, last_seqno = window.plain, window.first_seqno + stop - 1
        if plain is not None and not batch.is_alone and (batch.scattered or plain.is_scattered):
            batch.scattered.append(plain.changes(0, stop))
            return
        self._make_scattered(batch, window.first_seqno - 1)
        if plain is not None:
            self._routes.apply_plain(plain.changes(0, stop), last_seqno)
            return
        bodies = window.bodies[:stop]
        if len(bodies) == 1 and bodies[0][0] == Kind.HISTORY:
            history = History.unpack(bodies[0][PAYLOAD:], bodies[0][1])
            self._origins.refuse_newer_self(history)
            self._origins.met((history,))
        elif len(bodies) == 1 and _names_writer(changes_of(bodies[0])):
            self.session.names_writer()
        self._routes.apply_bodies(bodies)

    def _make_scattered(self, batch: SuppliedBatch, last_seqno: int) -> None:
        if batch.scattered:
            self._routes.apply_plain(joined_changes(batch.scattered), last_seqno, is_sorted=True)
            batch.scattered.clear()

    def _stopped(self, error: ReplicateError, head: Head) -> ReplicateError:
        """The error to stop with; a conflict's images are in its file."""
        seqno = self.session.position.last_seqno + 1
        told = stopped(error, seqno, self._conflict_directory, of=(head.origin, head.origin_seqno))
        if not isinstance(told, ConflictError):
            told.facts.setdefault("source_seqno", head.seqno)
            return told
        return ConflictError(
            told.what,
            where=told.where,
            do=f"Somebody wrote here beside the suppliers. Look at both images: replicate -i INSTANCE conflict show "
            f"{seqno}. Make the row here as it was expected, and run: replicate -i INSTANCE update start",
            **told.facts,
        )

    def _free(self, records: list[ReceivedRecord], taken: int) -> None:
        """The first `taken` transactions of these records are done with."""
        for record in records:
            taken -= record.count
            if taken < 0:
                break  # the rest of it is taken again, and what is known by then is passed over
            self._lane.pool.free(record.next_address)

    # Large transactions.

    def _take_parts(self, record: ReceivedRecord, done: Done) -> Waiting:
        """Two sources may send the same one, and a stream that was cut begins again with its first part: a part that is
        here is passed over."""
        head, number, _ = read_part(record.data)
        name = head.origin, head.csn
        large = self._larges.get(name)
        expected = 0 if large is None else large.spool.part_count
        if name in self._finished:
            self._lane.pool.free(record.next_address)
            return Waiting.MORE
        if number > expected:
            return self._ask_restart(
                f"part {expected} of transaction {record.first_seqno} should come next, but part {number} came", done
            )
        if large is None:
            directory = self.session.door.instance.journal_directory
            spool = Spool.receiving(spool_path(directory, int.from_bytes(os.urandom(8), "big")))
            large = self._larges[name] = ArrivingLarge(record.first_seqno, spool)
        done.parts += large.take(record.data, min(expected - number, record.count))
        done.bytes += len(record.data)
        self._lane.pool.free(record.next_address)
        return Waiting.MORE

    def _commit_large(self, record: ReceivedRecord, done: Done) -> Waiting:
        head = check_frame(record.data)
        body = decode_batch(record.data)[2]
        token = (large_commit_of(body) or (0,))[0]
        large = self._larges.get((head.origin, token))
        waiting = self._begin(done)
        if waiting is not None:
            return waiting
        before = self.session.position
        if not lacks(before.chains, head.origin, head.origin_seqno):
            self.session.rollback()
            self._forget(head.origin, token)
            done.skipped += 1
            self._free([record], 1)
            return Waiting.MORE
        self._origins.refuse_own((head.origin,))
        self._origins.refuse_ahead(head.csn, (head.origin,))
        if large is None:
            return self._ask_restart(f"transaction {record.first_seqno} ended, but its parts are not here", done)
        frame = renumbered(record.data, before.last_seqno + 1, self._words[word.LAST_DURABLE_SEQNO])
        large.seqno = before.last_seqno + 1
        turn = LargeTurn(self.session, self._routes, self._merging, large, frame)
        try:
            if removed := turn.make(before):
                self._merging.give_way(before, removed, done)
                return Waiting.MORE
            position = large.finish(frame, decode_batch(frame)[2], before)
            is_remover = large.removes and large.removes_only
            removers = {(head.origin, one) for one in partitions_of(frame)} if is_remover else frozenset()
            self._origins.refuse_others(before, position, removers)
            turn.commit(position, done)
        except (ConflictError, NotSupportedError, NotWriterError) as error:
            self._abandon()
            raise self._stopped(error, head) from error
        finally:
            turn.abort()
        if self._merging.is_active:
            self._tending.applied([body])
        del self._larges[head.origin, token]
        self._finished.append((head.origin, token))
        self._lane.is_fresh = False
        if large.defines:
            self._merging.forget_tables()
        done.transactions += 1
        done.batches += 1
        self._free([record], 1)
        return Waiting.MORE

    def _forget(self, origin: int, token: int) -> None:
        """Of a large transaction that came another way meanwhile."""
        large = self._larges.pop((origin, token), None)
        self._finished.append((origin, token))
        if large is not None:
            large.abort()


def _names_writer(changes: Sequence[Any]) -> bool:
    found = zip(changes[0::4], changes[3::4], strict=True)
    return any(op == Op.REGION and values[0] in OF_WRITERS for op, values in found)
