"""The commit door as the Update Process uses it: transactions of others, a batch at a time, under their numbers here.

Guarantees: a batch is in our own journal, on the disk, before any region commits it; rows and synchronization
checkpoint records are one SQLite transaction in each region; a region that missed the last batch (killed between two
regions' COMMITs) is rolled forward from our journal before the next one begins. So nothing is applied twice and
nothing is skipped, whatever dies. Leaves to others: where batches come from, how they are cut, what to do about a
conflict (update_process/).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from replicate.door.door import Door
from replicate.door.durability import SYNC_LOCK_TIMEOUT_S
from replicate.door.ledger import Moved
from replicate.door.merging_regions import MergedRegion, MergingRegions
from replicate.door.outcome import DISK_ERRORS, outcome_of
from replicate.door.recovery.opening import open_door
from replicate.door.recovery.redo_region import redo_region
from replicate.door.recovery.stale_wal import refuse_stale
from replicate.errors import (
    InternalError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionRefusedError,
    ReplicateError,
    TryAgainError,
)
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import region_lock
from replicate.journal.prepared_segment import AsideSegment
from replicate.journal.record import FrameBatch, Head, read_head
from replicate.journal.spool import Spool
from replicate.journal.walk import PiecedBatch
from replicate.limits import PARTITION_STREAM
from replicate.model.seen import told_by_all
from replicate.model.transaction import Catalogue
from replicate.model.vector import Position
from replicate.model.writers import Writers
from replicate.pool import control as word
from replicate.region.kind import KIND
from replicate.region.protocol import AppliedRegion, FileFacts, MergingRows, RowsOfRegion, ScrRow, partition_row
from replicate.system.failpoint import hit
from replicate.system.locks import FileLock


class _Open(Struct, frozen=True):
    """One region as the session holds it."""

    entry: RegionEntry
    region: AppliedRegion
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
        self._changed_do = f"Seed it again: {self._way_out}"
        self._lock_timeout_s = instance.config.update.lock_timeout_s if lock_timeout_s is None else lock_timeout_s
        if not instance.receives:
            raise PermissionRefusedError(
                f"instance {instance.name} is {instance.role}: received transactions are applied on a secondary only",
                where=str(instance.path),
                do="Run the Update Process on the secondary",
            )
        self._shares = instance.is_supplier
        """Applications commit here as well, between two batches."""
        if not instance.regions:
            raise NotFoundError(
                "this secondary has no region yet",
                where=str(instance.path),
                do=f"Run: replicate -i {instance.named} seed",
            )
        self.door = door
        self._open: list[_Open] = []
        self._is_begun_early = False
        self._catalogue_seen = 0
        self.rows: dict[str, RowsOfRegion] = {}
        try:
            for entry in instance.regions:
                with KIND.naming(str(entry.path)):
                    self._open_region(entry, door.catalogue_now())
            self.position = self._read_position()
        except BaseException:
            self.close()
            raise

    def _open_region(self, entry: RegionEntry, catalogue: Catalogue) -> None:
        content = self.door.instance.content
        lock = region_lock(self.door.instance, entry)
        try:
            lock.acquire(self._lock_timeout_s, what=f"region {entry.name}")
            redo_region(self.door, entry)
            file = KIND.facts(entry.path)
            region = KIND.applied(entry.path, region=entry.uuid)
        except BaseException:
            lock.close()
            raise
        self._open.append(_Open(entry, region, lock, file, str(entry.path)))
        if self.door.instance.is_feed:
            region.let_others_in()
        refuse_stale(self.door.instance, entry, region)
        lock.release()
        region.check_identity(network=content.network, instance=content.uuid)
        self.rows[entry.name] = rows = region.rows(catalogue.definitions, entry.name)
        rows.passes_over = lambda partition: self.door.instance.content.passes_over(partition)

    @property
    def waiting(self) -> frozenset[str]:
        """Regions of the primary that are not here: what is theirs is journalled, and not applied."""
        return frozenset(self.door.instance.waiting)

    def checkpoint(self) -> list[ScrRow]:
        """The checkpoint records that say `position`, as every region has them."""
        return self._open[0].region.checkpoint()

    def added_as(self, region: str) -> object:
        """The UUID on the primary of a region that was made here from the stream; None of any other."""
        one = next(one for one in self._open if one.entry.name == region)
        return one.region.added_as()

    def take_region(self, entry: RegionEntry) -> None:
        """Go on with one region more, which was made and registered between two batches, and stands where the others
        do. Raises what opening it raises."""
        self.give_back()
        with KIND.naming(str(entry.path)):
            self._open_region(entry, self.door.catalogue_now())
        self._open.sort(key=lambda one: one.entry.region_id)  # the order of locks

    def leave_region(self, name: str) -> None:
        """Go on without a region, which waits for its seed from now on, between two batches. Not the last one."""
        self.give_back()
        one = next(one for one in self._open if one.entry.name == name)
        self._open.remove(one)
        del self.rows[name]
        one.region.close()
        one.lock.close()

    def begin(self) -> None:
        """Lock every region and open a transaction in each. A batch whose commit failed after its append is finished
        first: look at `position`. Raises BusyError, RegionReplacedError, SchemaChangedError (another client changed the
        schema, or dropped guards) and what SQLite says; nothing is held then."""
        if self._is_begun_early:
            self._is_begun_early = False
            return
        try:
            for one in self._open:
                if not one.lock.try_acquire():
                    one.lock.acquire(self._lock_timeout_s, what=f"region {one.entry.name}")
                KIND.check_same_file(one.where, one.file, region=one.entry.name, way_out=self._way_out)
            if self._unfinished():
                self._finish()
            if self._shares:
                self._follow_writers()
            for one in self._open:
                one.region.begin(changed_do=self._changed_do)
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

    def commit(
        self,
        batch: FrameBatch | PiecedBatch,
        position: Position,
        csn: int,
        *,
        last: Head,
        defines: bool = False,
        moved: Moved | None = None,
    ) -> None:
        """Append the batch's frames to our journal as they are, sync it once, commit every region with its SCR.

        `position`: after the batch; `batch.first_seqno` must follow our last number. `csn`: of the batch's last
        frame. `defines`: the batch holds exactly one frame that carries definitions or a schema change, and it is the
        first. `last`: the head of the last frame. `moved`: on a supplier, as in `Ledger.advance`.
        A failure before the append leaves everything as it was before `begin`; a later one is OutcomeUnknownError, and
        the regions are rolled forward when the Update Process starts again.
        """
        door = self.door
        try:
            if batch.first_seqno != self.position.last_seqno + 1 or batch.last_seqno != position.last_seqno:
                raise InternalError(
                    f"batch {batch.first_seqno}–{batch.last_seqno} does not follow {self.position.last_seqno}"
                )
            if last.seqno != batch.last_seqno:
                raise InternalError(f"a batch that should end with {batch.last_seqno} ends with {last.seqno}")
            if self._shares:  # a COMMIT that fails would stop the applications, too
                for one in self._open:
                    one.region.flush()
            self._write_scr(position, csn, defines)
            try:  # as `Door.locked` and `_outcome` do it, but written out: a reader waits for what comes now
                door.enter()
                try:
                    door.append(batch.data, batch.first_seqno, self._bits(), defines=defines)
                    door.durability.sync_appended(door.segment())
                    self._commit_regions(batch.last_seqno)
                    hit("apply.after_commit")
                    self._note_schema(defines)
                    door.finish_batch(batch, last, defines=defines, moved=moved)
                    # What is acknowledged to the primary; after the last batch no flush may come that says it.
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

    def keep(self, *, defines: bool = False) -> None:
        """Commit what was changed since `begin` in the regions that is nobody else's business: it stands in no journal.
        `defines`: the schema is among it. A failure leaves everything as it was, and is an error of ours."""
        try:
            if self._shares and len(self._open) > 1:
                self.door.sync_to_end()  # stamps of what lay beyond a hole after a power loss, nobody would take back
            for applier in self.rows.values():
                applier.finish()
            for one in self._open:
                one.region.flush()
            for one in self._open:
                with KIND.naming(one.where):
                    one.region.commit()
            self._note_schema(defines)
        except BaseException:
            self.rollback()
            raise
        for one in self._open:
            one.lock.release()

    def take_rows(
        self,
        keeps: Callable[[int], bool],
        copies: Mapping[str, Path],
        checkpoint: Sequence[ScrRow],
        told: Callable[[str, int, int], None],
    ) -> int:
        """Replace the rows of the partitions that `keeps` knows, in all regions, by those of `copies`, which stand
        where the regions do, and their checkpoint records by those in `checkpoint`: on the disk when it returns. One
        transaction a region, in no journal; how many tables there are. A failure leaves each region as it was, or with
        all of that."""
        tables = 0
        with contextlib.ExitStack() as stack:
            for one in self._open:
                if one.entry.name in copies:
                    stack.enter_context(KIND.naming(one.where))
                    stack.enter_context(one.region.beside(copies[one.entry.name]))
            self.begin()
            try:
                for one in self._open:
                    tables += one.region.take_rows(keeps, checkpoint, told, copy=one.entry.name in copies)
            except BaseException:
                self.rollback()
                raise
            self.keep()
        for one in self._open:
            KIND.sync(one.entry.path)
        return tables

    def commit_large(self, spool: Spool, frame: bytes, position: Position, csn: int, *, defines: bool = False) -> None:
        """Commit a large transaction whose part frames were spooled; `frame` is its commit frame as it came."""
        door = self.door
        head = read_head(frame)
        try:
            if head.seqno != self.position.last_seqno + 1 or head.seqno != position.last_seqno:
                raise InternalError(f"large transaction {head.seqno} does not follow {self.position.last_seqno}")
            self._write_scr(position, csn, defines)
            for one in self._open:
                one.region.flush()
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
                one.region.flush()
            aside.finish()  # all of the syncing, before anybody waits for us
            with door.locked(), self._outcome(aside.first_seqno):
                permit()
                door.enter_taken(aside, self._bits())
                self._commit_regions(position.last_seqno)
                hit("apply.after_commit")
                door.finish_taken(aside)
        except BaseException:
            self.rollback()
            raise
        self._committed(position)

    def _check_unmoved(self) -> None:
        for one in self._open:
            if dict(one.region.position(0).chains) != dict(self.position.chains):
                raise TryAgainError(
                    f"region {one.entry.name} has moved on meanwhile; nothing was applied",
                    where=str(one.entry.path),
                    do="Run the same command again",
                )

    def rollback(self) -> None:
        """Take back everything since `begin` and give the regions up. Works after any failure."""
        self._is_begun_early = False
        for one in self._open:
            one.region.rollback()
            one.lock.release()

    def close(self) -> None:
        """Roll back and close. May be called twice."""
        self.rollback()
        for one in self._open:
            one.region.close()
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

    def _follow_writers(self) -> None:
        """The position, and the tables, with what applications have committed since. Their regions' locks are ours."""
        words, position = self.door.words, self.position
        last_seqno = words[word.LAST_SEQNO]
        if last_seqno != position.last_seqno:
            own, place = words[word.OWN_ORIGIN], (words[word.OWN_ORIGIN_SEQNO], words[word.OWN_CHAIN])
            vector = position.vector.raised(own, PARTITION_STREAM, place[0])
            self.position = Position(last_seqno, vector, {**position.chains, own: place})
        if words[word.CATALOGUE_GENERATION] != self._catalogue_seen:
            self._learn_tables()

    def _learn_tables(self) -> None:
        self._catalogue_seen = self.door.words[word.CATALOGUE_GENERATION]
        definitions = self.door.catalogue_now().definitions
        for name, applier in self.rows.items():
            applier.forget_plans()
            for table_id, definition in definitions.items():
                if definition.region == name:
                    applier.define(table_id, definition)

    def writers(self) -> Writers:
        """Which supplier writes what, as the open transaction has it."""
        return self._open[0].region.writers()

    def merging(self) -> MergingRows:
        """What merges rows that several suppliers write."""
        first, *others = [(one.region, one.entry.name, self.rows[one.entry.name]) for one in self._open]
        if not others:
            return first[0].merging(first[2])
        return MergingRegions(
            [MergedRegion(name, rows, region.merging(rows, region=name)) for region, name, rows in (first, *others)]
        )

    def seen(self) -> Mapping[int, Mapping[int, int]]:
        """Of each origin what it has told that it has seen, as the open transaction has it."""
        return told_by_all(one.region.seen() for one in self._open)

    def names_writer(self) -> None:
        """The open transaction names another writer of a partition: sessions of applications look again."""
        self.door.words[word.WRITERS_GENERATION] += 1

    def _read_position(self) -> Position:
        if self._shares:
            with self.door.locked():
                position = self.door.position()
        else:
            position = self._open[0].region.position(self.door.words[word.LAST_SEQNO])
        self.door.end.received_position = position
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
            partition_row(position, origin, partition, last)
            for (origin, partition), last in position.vector.beyond(before.vector).items()
            if partition != PARTITION_STREAM
        ]
        for applier in self.rows.values():
            applier.finish()
        slot = position.last_seqno if self._shares else 0
        for one in self._open:
            # A region is told by one thing only: by the ring where there is one.
            applied_from = 0 if slot else before.last_seqno + 1
            one.region.prepare(rows, applied_from=applied_from, defines=defines, slot=slot)

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
                one.region.commit()
            except one.region.Error as error:
                self.door.region_failed(one.region.errno_of(error))
                self.door.poison(one.region.errno_of(error))
                raise OutcomeUnknownError(
                    f"transaction {seqno} is in our journal, but COMMIT failed: {error}",
                    where=str(one.entry.path),
                    do="Mend the disk and start the Update Process again: it rolls the region forward",
                ) from error

    def _note_schema(self, defines: bool) -> None:
        if defines:
            for one in self._open:
                self.door.words[word.REGION_SCHEMA + one.entry.region_id] = one.region.schema_version()

    def _committed(self, position: Position) -> None:
        self.position = self.door.end.received_position = position
        for one in self._open:
            one.lock.release()


def open_apply_session(instance: Instance, *, lock_timeout_s: float | None = None) -> ApplySession:
    """The session of this process's Update Process, its door opened (and recovered) first. As `ApplySession`."""
    instance.reload()  # the one before us may have made a region
    door = open_door(instance)
    try:
        return ApplySession(door, lock_timeout_s=lock_timeout_s)
    except BaseException:
        door.close()
        raise
