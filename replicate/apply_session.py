"""The commit door as the Update Process uses it: transactions that carry their number already, a batch at a time.

Guarantees: a batch is in our own journal, on the disk, before any region commits it; rows and synchronization
checkpoint records are one SQLite transaction in each region; a region that missed the last batch (killed between two
regions' COMMITs) is rolled forward from our journal before the next one begins. So nothing is applied twice and
nothing is skipped, whatever dies. Refuses to know: where batches come from, how they are cut, what to do about a
conflict (update_process/).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import apsw

from replicate.commit.outcome import DISK_ERRORS, errno_of, outcome_of
from replicate.database.bookkeeping import (
    APPLIED_FROM,
    ScrRow,
    check_region_identity,
    check_schema_version,
    read_scr,
    schema_version,
    scr_chains,
    scr_vector,
    store_schema_version,
    write_scr,
    write_state,
)
from replicate.database.rows import RowApplier
from replicate.database.sqlite import FileFacts, check_same_file, open_region, region_facts, translate
from replicate.door.door import Door
from replicate.door.durability import SYNC_LOCK_TIMEOUT_S
from replicate.door.opening import open_door
from replicate.door.redo import redo_region
from replicate.door.takeover import enter_taken, finish_taken
from replicate.errors import (
    InternalError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionRefusedError,
    ReplicateError,
    TryAgainError,
)
from replicate.failpoint import hit
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.journal.aside import AsideSegment
from replicate.journal.pieces import PiecedBatch
from replicate.journal.record import FrameBatch, Head, read_head
from replicate.journal.spool import Spool
from replicate.limits import PARTITION_STREAM
from replicate.locks import FileLock
from replicate.pool import control as word
from replicate.recovery.stale_wal import refuse_stale
from replicate.transaction import Catalogue
from replicate.vector import Position


@dataclass(frozen=True, slots=True)
class _Open:
    """One region as the session holds it."""

    entry: RegionEntry
    connection: apsw.Connection
    lock: FileLock
    file: FileFacts
    where: str


class ApplySession:
    """The only writer of a secondary's regions and journal. Used by one thread at a time.

    Between `begin` and `commit` or `rollback` every region's lock is held and a transaction is open in each.
    `position` is what all regions have: it moves with `commit` only.
    """

    def __init__(self, door: Door, *, lock_timeout_s: float | None = None) -> None:
        """Open all regions and roll each forward to the journal's end. Raises what opening, redo and the identity
        checks raise. `lock_timeout_s`: longest wait for a region's lock (None: the setting update.lock_timeout_s)."""
        instance = door.instance
        self._way_out = instance.way_out
        self._lock_timeout_s = instance.config.update.lock_timeout_s if lock_timeout_s is None else lock_timeout_s
        if instance.role != "secondary":
            raise PermissionRefusedError(
                f"instance {instance.name} is {instance.role}: received transactions are applied on a secondary only",
                where=str(instance.path),
                do="Run the Update Process on the secondary",
            )
        if not instance.regions:
            raise NotFoundError(
                "this secondary has no region yet",
                where=str(instance.path),
                do=f"Run: replicate -i {instance.named} seed",
            )
        self.door = door
        self._open: list[_Open] = []
        self._is_begun_early = False
        self.rows: dict[str, RowApplier] = {}
        try:
            for entry in instance.regions:
                try:
                    self._open_region(entry, door.catalogue_now())
                except apsw.Error as error:
                    raise translate(error, where=str(entry.path)) from error
            self.position = self._read_position()
        except BaseException:
            self.close()
            raise

    def _open_region(self, entry: RegionEntry, catalogue: Catalogue) -> None:
        content = self.door.instance.content
        lock = FileLock(self.door.instance.locks_directory / f"region-{entry.region_id}.lock")
        try:
            lock.acquire(self._lock_timeout_s, what=f"region {entry.name}")
            redo_region(self.door, entry)
            file = region_facts(entry.path)
            connection = open_region(entry.path, applier=True, region=entry.uuid)
        except BaseException:
            lock.close()
            raise
        self._open.append(_Open(entry, connection, lock, file, str(entry.path)))
        refuse_stale(self.door.instance, entry, connection)
        lock.release()
        check_region_identity(
            connection, region=entry.uuid, network=content.network, instance=content.uuid, where=str(entry.path)
        )
        self.rows[entry.name] = RowApplier(connection, catalogue.definitions, region=entry.name)

    def begin(self) -> None:
        """Lock every region and open a transaction in each. A batch whose commit failed behind its append is finished
        first: look at `position`. Raises BusyError, RegionReplacedError, SchemaChangedError (another client changed the
        schema, or dropped guards) and what SQLite says; nothing is held then."""
        if self._is_begun_early:
            self._is_begun_early = False
            return
        try:
            for one in self._open:
                if not one.lock.try_acquire():
                    one.lock.acquire(self._lock_timeout_s, what=f"region {one.entry.name}")
                check_same_file(one.where, one.file, region=one.entry.name, way_out=self._way_out)
            if self._unfinished():
                self._finish()
            for one in self._open:
                self._sql(one, "BEGIN IMMEDIATE")
                check_schema_version(one.connection, do=f"Seed it anew: {self._way_out}")
            for applier in self.rows.values():
                applier.begin()
        except BaseException:
            self.rollback()
            raise

    def begin_early(self) -> bool:
        """`begin` before there is anything to apply: the next `begin` finds it done, unless it was given back before.
        False when that is not possible now; nothing is held then, and `begin` says why."""
        if self._unfinished():
            return False
        try:
            self.begin()
        except ReplicateError:
            return False
        self._is_begun_early = True
        return True

    def give_back(self) -> None:
        """Hold nothing any more if we began early, and nothing has come of it."""
        if self._is_begun_early:
            self.rollback()

    def savepoint(self) -> None:
        """Mark this point in every region, to come back to with `rollback_to`."""
        for one in self._open:
            self._sql(one, "SAVEPOINT batch")

    def rollback_to(self) -> None:
        """Take back what was applied since `savepoint`; the mark stays."""
        for one in self._open:
            self._sql(one, "ROLLBACK TO batch")
        for applier in self.rows.values():
            applier.begin()

    def release(self) -> None:
        """Forget the mark."""
        for one in self._open:
            self._sql(one, "RELEASE batch")

    def commit(
        self,
        batch: FrameBatch | PiecedBatch,
        position: Position,
        csn: int,
        *,
        last: Head,
        defines: bool = False,
    ) -> None:
        """Append the batch's frames to our journal as they are, sync it once, commit every region with its SCR.

        `position`: after the batch; `batch.first_seqno` must follow our last number. `csn`: of the batch's last
        frame. `defines`: the batch holds exactly one frame that carries definitions or a schema change, and it is the
        first. `last`: the head of the last frame. A failure before the append leaves everything as it was before
        `begin`; a later one is OutcomeUnknownError, and the regions are rolled forward when the Update Process starts
        again.
        """
        door = self.door
        try:
            if batch.first_seqno != self.position.last_seqno + 1 or batch.last_seqno != position.last_seqno:
                raise InternalError(
                    f"batch {batch.first_seqno}–{batch.last_seqno} does not follow {self.position.last_seqno}"
                )
            if last.seqno != batch.last_seqno:
                raise InternalError(f"a batch that should end with {batch.last_seqno} ends with {last.seqno}")
            self._write_scr(position, csn, defines)
            try:  # as `Door.locked` and `_outcome` do it, but written out: a reader waits for what comes now
                door.enter()
                try:
                    door.append(batch.data, batch.first_seqno, self._bits(), defines=defines)
                    door.durability.sync_appended(door.segment())
                    self._commit_regions(batch.last_seqno)
                    hit("apply.after_commit")
                    self._note_schema(defines)
                    door.finish_batch(batch, last, defines=defines)
                    # What is acknowledged to the primary; behind the last batch no flush may come that says it.
                    door.durability.note_durable(batch.last_seqno, SYNC_LOCK_TIMEOUT_S)
                except DISK_ERRORS as error:
                    raised = outcome_of(door.words, batch.first_seqno, error)
                    if raised is error:
                        raise
                    raise raised from error
            finally:
                door.give_up()
        except BaseException:
            self.rollback()
            raise
        self._committed(position)

    def commit_large(self, spool: Spool, frame: bytes, position: Position, csn: int, *, defines: bool = False) -> None:
        """Commit a large transaction whose part frames were spooled; `frame` is its commit frame as it came."""
        door = self.door
        head = read_head(frame)
        try:
            if head.seqno != self.position.last_seqno + 1 or head.seqno != position.last_seqno:
                raise InternalError(f"large transaction {head.seqno} does not follow {self.position.last_seqno}")
            self._write_scr(position, csn, defines)
            for one in self._open:
                self._flush(one)
            with door.locked(), self._outcome(head.seqno):
                door.adopt_received(spool, head, frame, self._bits())
                self._commit_regions(position.last_seqno)
                hit("apply.after_commit")
                self._note_schema(defines)
                door.finish_adopted(head)
        except BaseException:
            self.rollback()
            raise
        self._committed(position)

    def commit_taken(
        self, aside: AsideSegment, position: Position, csn: int, *, permit: Callable[[], None] = lambda: None
    ) -> None:
        """Commit a whole range that stands in a segment written aside, and whose net change was applied since `begin`.

        The segment enters our journal, then every region commits its rows with its SCR. A compare-and-set: every
        region must still stand exactly where the range begins. `permit` is asked under the commit lock before anything
        is entered. TryAgainError, what that raises, and failures before the segment has its name: everything is as it
        was before `begin`. Later ones as in `commit`. The segment remains the caller's to abort.
        """
        door = self.door
        try:
            if aside.first_seqno != self.position.last_seqno + 1 or aside.last_seqno != position.last_seqno:
                raise InternalError(
                    f"range {aside.first_seqno}–{aside.last_seqno} does not follow {self.position.last_seqno}"
                )
            self._check_unmoved()
            self._write_scr(position, csn, defines=False)
            for one in self._open:
                self._flush(one)
            aside.finish()  # all of the syncing, before anybody waits for us
            with door.locked(), self._outcome(aside.first_seqno):
                permit()
                enter_taken(door, aside, self._bits())
                self._commit_regions(position.last_seqno)
                hit("apply.after_commit")
                finish_taken(door, aside)
        except BaseException:
            self.rollback()
            raise
        self._committed(position)

    def _check_unmoved(self) -> None:
        for one in self._open:
            if dict(read_position(one.connection, 0).chains) != dict(self.position.chains):
                raise TryAgainError(
                    f"region {one.entry.name} has moved on meanwhile; nothing was applied",
                    where=str(one.entry.path),
                    do="Run the same command again",
                )

    def rollback(self) -> None:
        """Take back everything since `begin` and give the regions up. Works after any failure."""
        self._is_begun_early = False
        for one in self._open:
            try:
                if one.connection.in_transaction:
                    one.connection.execute("ROLLBACK")
            except apsw.Error:
                pass  # SQLite has rolled back by itself
            one.lock.release()

    def close(self) -> None:
        """Roll back and close. May be called twice."""
        self.rollback()
        for one in self._open:
            one.connection.close(True)
            one.lock.close()
        self._open.clear()
        self.rows.clear()

    # Parts of a commit.

    def _unfinished(self) -> bool:
        words = self.door.words
        return bool(words[word.INTENT_SEQNO]) or any(
            words[word.REGION_APPENDED + one.entry.region_id] != words[word.REGION_DONE + one.entry.region_id]
            for one in self._open
        )

    def _finish(self) -> None:
        with self.door.locked():
            pass  # mends the journal's end
        for one in self._open:
            redo_region(self.door, one.entry)
        for applier in self.rows.values():
            applier.forget_plans()
            for table_id, definition in self.door.catalogue_now().definitions.items():
                applier.define(table_id, definition)
        self.position = self._read_position()

    def _read_position(self) -> Position:
        position = read_position(self._open[0].connection, self.door.words[word.LAST_SEQNO])
        self.door.received_position = position
        return position

    def _bits(self) -> int:
        return sum(1 << one.entry.region_id for one in self._open)

    def _write_scr(self, position: Position, csn: int, defines: bool) -> None:
        before = self.position
        rows = [
            ScrRow(origin, PARTITION_STREAM, last, chain, csn, position.last_seqno)
            for origin, (last, chain) in position.chains.items()
            if before.chains.get(origin) != (last, chain)
        ]
        rows += [
            ScrRow(origin, partition, last, position.chains[origin][1], csn, position.last_seqno)
            for (origin, partition), last in position.vector.beyond(before.vector).items()
            if partition != PARTITION_STREAM
        ]
        for one in self._open:
            try:
                if defines:
                    store_schema_version(one.connection)
                write_scr(one.connection, rows)
                write_state(one.connection, APPLIED_FROM, before.last_seqno + 1)
            except apsw.Error as error:
                raise translate(error, where=str(one.entry.path)) from error

    @contextlib.contextmanager
    def _outcome(self, seqno: int) -> Iterator[None]:
        """Errors within are called what they mean for the batch that begins with `seqno`."""
        try:
            yield
        except DISK_ERRORS as error:
            raised = outcome_of(self.door.words, seqno, error)
            if raised is error:
                raise
            raise raised from error

    def _commit_regions(self, seqno: int) -> None:
        for one in self._open:
            try:
                one.connection.execute("COMMIT")
            except apsw.Error as error:
                self.door.poison(errno_of(one.connection, error))
                raise OutcomeUnknownError(
                    f"transaction {seqno} is in our journal, but COMMIT failed: {error}",
                    where=str(one.entry.path),
                    do="Mend the disk and start the Update Process again: it rolls the region forward",
                ) from error

    def _note_schema(self, defines: bool) -> None:
        if defines:
            for one in self._open:
                self.door.words[word.REGION_SCHEMA + one.entry.region_id] = schema_version(one.connection)

    def pages_read(self) -> int:
        """Pages of the regions' files that were read so far, for whatever reason."""
        return sum(one.connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)[0] for one in self._open)

    def pages(self) -> int:
        """All pages of the regions' files."""
        return sum(int(one.connection.pragma("page_count")) for one in self._open)

    def _committed(self, position: Position) -> None:
        self.position = self.door.received_position = position
        for one in self._open:
            one.lock.release()

    @staticmethod
    def _flush(one: _Open) -> None:
        """Have what was changed in the WAL before the journal holds the range: a disk that is full is found now, while
        there is a way back."""
        try:
            one.connection.cache_flush()
        except apsw.BusyError:
            pass  # a page is in use: COMMIT will write it
        except apsw.Error as error:
            raise translate(error, where=str(one.entry.path)) from error

    @staticmethod
    def _sql(one: _Open, sql: str) -> None:
        try:
            one.connection.execute(sql)
        except apsw.Error as error:
            raise translate(error, where=str(one.entry.path)) from error


def read_position(connection: apsw.Connection, last_seqno: int) -> Position:
    """The position that a region's checkpoint records tell, at the journal's `last_seqno`."""
    rows = read_scr(connection)
    return Position(last_seqno, scr_vector(rows), scr_chains(rows))


def open_apply_session(instance: Instance, *, lock_timeout_s: float | None = None) -> ApplySession:
    """The session of this process's Update Process, its door opened (and recovered) first. As `ApplySession`."""
    door = open_door(instance)
    try:
        return ApplySession(door, lock_timeout_s=lock_timeout_s)
    except BaseException:
        door.close()
        raise
