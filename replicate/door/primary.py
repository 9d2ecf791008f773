"""Committing on a primary: one connection's way through the commit door, with one region or several.

Guarantees: a transaction is in the journal before it is committed in its regions; when `commit` returns, both have it,
and under the policy `durable` the journal's disk has it too; when it raises, neither has it, except for
OutcomeUnknownError, which says so. What a killed writer left between append and COMMIT in these regions is finished
before the next transaction reads anything. One that begins LOOK_S after its file was replaced is refused. Several
regions get one number, one frame and one COMMIT, which reaches one file after the other: where it fails between two,
the rest is rolled forward at once.
Leaves to others: how changes were captured (region/sqlite/capture), PEP 249 (dbapi), frames.

A session serves one connection, in one thread at a time. Its region locks are its own descriptors.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Final

from replicate.door.barrier import TurnedAwayError, outlast_turning_away, stand_at_barrier, stand_before_beginning
from replicate.door.door import Door, gone_for_good
from replicate.door.ledger import Allotted
from replicate.door.outcome import DISK_ERRORS, outcome_of
from replicate.door.pruning import prune_journal
from replicate.door.recovery.opening import open_door
from replicate.door.recovery.stale_wal import refuse_stale
from replicate.door.region_part import RegionPart, bits_of, in_order_of_locks, redo, release, wait_for
from replicate.door.seen_told import with_seen
from replicate.door.writer_check import WriterCheck
from replicate.errors import (
    BusyError,
    ForkedError,
    JournalIOError,
    NotFoundError,
    NotPrimaryError,
    NotSupportedError,
    OutcomeUnknownError,
    PoolReplacedError,
    ReplicateError,
)
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import region_lock
from replicate.journal.record import kind_of, mixed, read_head
from replicate.journal.sections import changed_partitions
from replicate.limits import LOOK_S, OPENING_S, RING_RECORD_BYTES_MAX, RING_SLOTS
from replicate.pool.control import (
    BARRIER_SEQNO,
    CLOSING,
    FROZEN,
    INTENT_OFFSET,
    INTENT_REGIONS,
    INTENT_SEQNO,
    KEEPS_RECORDS,
    LAST_DURABLE_SEQNO,
    LAST_SEQNO,
    OWN_MERGED_SEQNO,
    OWN_ORIGIN,
    OWN_ORIGIN_SEQNO,
    POOL_STATE,
    STATE_CLOSED,
    TOLD_SEQNO,
)
from replicate.region.kind import KIND
from replicate.region.protocol import CapturedChanges, FileFacts
from replicate.system.failpoint import hit

FLUSH_ELEMENTS: Final = 400
"""From so many captured elements (a hundred rows) on, dirty pages are written before the commit lock is taken, so
that a full disk shows up while we may still fail; below it the pages fit the cache and a failing COMMIT is voided
instead."""

PATIENCE_S_MIN: Final = 1.0
"""A writer that holds its region's lock waits so long at least for the locks that come next, the commit lock above all:
they are held so shortly that a writer without patience need not be told. One that has more waits as long as it would
for the region."""

CHECK_CAPTURE: Final = os.environ.get("REPLICATE_CHECK_CAPTURE") == "1"
"""Whether each commit is checked against its regions (check.py): in tests, and in a hunt."""

PRUNE_FROM: Final = 0.5
"""Part of journal.cap_bytes from which on a writer prunes the journal itself, when it has begun a segment."""


def _standing(instance: Instance) -> str:
    return "takes no writes" if instance.role == "primary" else "is secondary"


class HalfCommittedError(OutcomeUnknownError):
    """COMMIT has reached some regions of a transaction and not others; the journal has it."""

    seqno = 0


class RegionSession:
    """One application connection's way to commit. `writer.connection` is what everything runs on."""

    def __init__(self, door: Door, region_name: str, *, adding: bool = False, opening_s: float = OPENING_S) -> None:
        """Open the region's file and check that it is the region, and not an older copy of it.

        `adding`: it is being added, and holds no transaction yet (else NotFoundError). `opening_s` as for `RegionKind`.
        Raises what opening it and `check_identity` raise.
        """
        self.door = door
        self.entry = entry = door.instance.region(region_name)
        self.where = str(entry.path)
        self._pid = os.getpid()
        self.writable = door.instance.takes_writes
        self.last_seqno = 0
        self._pool_is_gone = False
        self._writer_check = WriterCheck(door.instance) if door.instance.is_supplier else None
        self._patience_s = PATIENCE_S_MIN
        self._way_out = door.instance.way_out
        self._tried_seqno = 0
        """The number of the commit under way, once it is about to be appended."""
        lock = region_lock(door.instance, entry)
        try:
            self.file = KIND.facts(self.where)
            self.writer = KIND.writer(entry.path, region=entry.uuid, writable=self.writable, opening_s=opening_s)
            try:
                own = RegionPart(entry, self.file, lock, self.writer, self.writer.own, self._way_out)
                own.listen(door)
                self._use([own])
                self._opened_s, self._is_unproved = monotonic(), True
                self._check_file(own, adding=adding)
            except BaseException:
                self.writer.close()
                raise
        except BaseException:
            lock.close()
            raise
        self.connection = self.writer.connection
        self._schema_word = own.schema_word
        self.schema = 0
        """SQLite's schema version as `begin` or `upgrade` found it."""

    def _use(self, parts: list[RegionPart]) -> None:
        """Have these regions, the session's own first. `_touched`: those that the commit under way has changes in."""
        by_lock = in_order_of_locks(parts)
        self.parts = self._touched = parts
        self._by_lock, self._bits = by_lock, bits_of(parts)
        self._look_again_s = 0.0

    @property
    def holds_region(self) -> bool:
        """True between `begin` and the end of the transaction."""
        return any(part.lock.held for part in self.parts)

    # Attaching.

    def attach(self, entry: RegionEntry, schema: str, file: FileFacts, run: Callable[[str], object]) -> None:
        """Attach a region that has been opened and checked (its file is `file`) under the name `schema`. Outside of a
        transaction. `run` runs the statement.

        Raises NotSupportedError (it is here already), SQLite's own error (the name is taken, too many databases),
        RegionReplacedError. Nothing is attached then.
        """
        self.refuse_second(entry)
        lock = region_lock(self.door.instance, entry)
        try:
            region = self.writer.attach(entry.path, schema, run)
            try:
                part = RegionPart(entry, file, lock, self.writer, region, self._way_out)
                part.check_place()
                part.listen(self.door)
            except BaseException:
                self.writer.detach(schema)
                raise
        except BaseException:
            lock.close()
            raise
        self._use([*self.parts, part])
        self._opened_s, self._is_unproved = monotonic(), True

    def refuse_second(self, entry: RegionEntry) -> None:
        """NotSupportedError if the session has the region already: SQLite would wait for itself."""
        here = {part.entry.region_id: part.schema for part in self.parts}
        if entry.region_id in here:
            raise NotSupportedError(
                f"region {entry.name} is open on this connection already, as {here[entry.region_id]}",
                where=str(entry.path),
                do="Use that name",
            )

    def detached(self, schema: str) -> None:
        """A region has been detached, outside of a transaction."""
        for part in self.parts[1:]:
            if part.schema == schema:
                part.lock.close()
        self._use([part for part in self.parts if part.schema != schema])

    def version_of(self, schema: str) -> int:
        """The schema version of a region as the open transaction found it, and nobody else can have changed it."""
        return int(next(self.door.words[part.schema_word] for part in self.parts if part.schema == schema))

    # A transaction.

    def begin(self, *, timeout_s: float) -> None:
        """Region locks, BEGIN IMMEDIATE, redo of unfinished work, check of the schema. Nothing is held after a
        failure.

        Raises NotPrimaryError, BusyError, SchemaChangedError, NotFoundError (the region was released meanwhile),
        RegionReplacedError, RegionDamagedError, JournalDamagedError, ForkedError.
        """
        # All that every transaction passes is written out here; the methods beside it say what is wrong.
        if not self.writable:  # (a forked child has no lock any more, and is told so there)
            self._check_writer()
        words = self.door.words
        if self._pool_is_gone or words[POOL_STATE] == STATE_CLOSED:
            self._check_pool()
            words = self.door.words
        self._patience_s = timeout_s if timeout_s > PATIENCE_S_MIN else PATIENCE_S_MIN
        if words[FROZEN] or words[CLOSING]:
            stand_before_beginning(self.door, timeout_s)
        writer = self.writer
        try:
            for part in self._by_lock:
                if not part.lock.try_acquire():
                    until_s = monotonic() + timeout_s
                    wait_for(self._by_lock[self._by_lock.index(part) :], timeout_s)
                    if words[POOL_STATE] == STATE_CLOSED:  # its holder has retired it: a change of role
                        release(self.parts)
                        self.begin(timeout_s=max(0.0, until_s - monotonic()))
                        return
                    break
            now_s = monotonic()
            if now_s >= self._look_again_s:  # a look takes 2 µs, and others after it wait for their caches
                for part in self.parts:
                    part.check_place()
                self._look_again_s = now_s + LOOK_S
            try:
                writer.begin()
            except writer.Error as error:
                self._begin_after(error, now_s + timeout_s)
            # In this order: a process that mends marks the region before the intent goes.
            is_ready = not (self._is_unproved or (words[INTENT_SEQNO] and words[INTENT_REGIONS] & self._bits))
            for part in self.parts:
                if words[part.appended_word] != words[part.done_word] or part.read_version() != words[part.schema_word]:
                    is_ready = False
            if not is_ready:
                self._make_ready()
            self.schema = words[self._schema_word]
        except BaseException:
            self._abandon()
            raise

    def _begin_after(self, error: Exception, until_s: float) -> None:
        """Another client's transaction (a shell, DB Browser) is waited for as long as one of ours would be."""
        writer = self.writer
        while True:
            named = writer.named(error, self.where)
            if not isinstance(named, BusyError) or monotonic() >= until_s:
                raise named from error
            try:
                writer.begin()
                return
            except writer.Error as again:
                error = again

    def _make_ready(self) -> None:
        """What is unfinished is redone, which takes a new transaction; a schema that has changed is named."""
        writer = self.writer
        if self._unfinished():
            try:
                writer.rollback()
                redo(self.door, self.parts, self._patience_s)
                writer.begin()
            except writer.Error as error:
                raise writer.named(error, self.where) from error
        for part in self.parts:
            part.check_schema(self.door)
        self._prove()

    def upgrade(self, *, timeout_s: float) -> None:
        """The first write of a transaction that began as a reader: takes the region locks.

        Raises SnapshotStaleError when another transaction has written since this one began to read, or unfinished
        work is there; the transaction then still stands as a reader and should be rolled back.
        """
        self._check_writer()
        self._patience_s = max(timeout_s, PATIENCE_S_MIN)
        self._check_pool()
        door, parts = self.door, self.parts
        try:
            wait_for(self._by_lock, timeout_s)
            for part in parts:
                part.check_place()
            if self._unfinished():
                redo(door, parts, self._patience_s)  # now, or this transaction would meet it at every new try
                raise parts[0].stale()
            if len(parts) > 1:
                # Before SQLite is asked for its first write lock, which it would keep until the transaction, which
                # should be rolled back, ends: others were told at once that the database is locked. Writes that have
                # no number (pruning's note, another program's) are found out too late for that.
                for part in parts:
                    part.check_snapshot(door, is_unproved=self._is_unproved)
            for part in parts:
                part.take_write_lock(door)
            for part in parts:
                part.check_schema(door)
            self.schema = door.words[self._schema_word]
            self._prove()
        except BaseException:
            release(parts)
            raise

    def commit(self, captured: CapturedChanges, *, tells: bool = False) -> int:
        """Commit what `begin` or `upgrade` opened; returns the transaction's seqno, the journal's last one if nothing
        was captured. `tells`: it is there to tell what a supplier has seen.

        A failure that leaves the transaction open (a deferred constraint, a busy reader) raises SQLite's own error: the
        caller may mend and commit again, or roll back. Every ReplicateError has ended the transaction.
        """
        _, count, _, _, spool, schema_changed, touched, _ = captured
        if CHECK_CAPTURE:
            self._check(captured)
        door, writer = self.door, self.writer
        if not count and spool is None and not tells:
            writer.commit()
            release(self.parts)
            self.last_seqno = door.words[LAST_SEQNO]
            return self.last_seqno
        if writer.violations()[0] > 0:
            writer.commit()  # raises the constraint, and leaves the transaction open
        parts = self._touched = self.parts if touched is None else self._parts_of(touched)
        if schema_changed:
            for part in parts:
                if touched is None or touched.get(part.schema):
                    part.region.store_version()
        if count >= FLUSH_ELEMENTS or spool is not None or len(parts) > 1:
            writer.flush()  # of several regions always: one that fails must not come after another's COMMIT
        self._tried_seqno = 0
        try:
            merges = False
            if self._writer_check is not None:
                self._writer_check.refuse_others(captured, parts, door)
                if schema_changed:
                    captured = self._writer_check.with_fence(captured, self.parts, door)
                    count = captured.count
                    if captured.touched is None and len(parts) < len(self.parts):  # each is told that a fence ends
                        parts = self._touched = self.parts
                        writer.flush()
                if self._writer_check.was_shared:
                    merges = self._writer_check.merges(captured)
                    before, captured = count, with_seen(captured, parts[0].region, door)
                    tells, count = captured.count > before, captured.count
            if spool is not None:
                spool.finish()  # the bulk of its syncing, before anybody waits for us
            elif captured.tables is not None:  # its digests, too
                payload, count = mixed(captured.payload, count, captured.tables)
                captured = captured._replace(payload=payload, count=count)
            door.enter(self._patience_s)
            if door.words[BARRIER_SEQNO] or door.words[FROZEN]:
                stand_at_barrier(door, self._patience_s)
            if merges:  # before it: a process that is killed after the append must not hide it
                door.words[OWN_MERGED_SEQNO] = door.words[OWN_ORIGIN_SEQNO] + 1
            try:
                seqno = self._commit_framed(captured) if spool is None else self._commit_spooled(captured)
                self.last_seqno = seqno
                if tells:
                    door.words[TOLD_SEQNO] = seqno
            finally:
                door.leave()
        except BaseException as error:
            self._pool_is_gone = isinstance(error, PoolReplacedError)
            finished = self._settle()
            if finished and 0 < self._tried_seqno <= self._held_seqno():
                self.last_seqno = self._tried_seqno  # committed all the same: a caller that was interrupted looks there
            if isinstance(error, TurnedAwayError):
                raise self._after_turning_away() from None
            if self._pool_is_gone and not self._tried_seqno:
                self._check_role()
            if not (finished and isinstance(error, HalfCommittedError)):
                raise
            seqno = error.seqno
        for part in self.parts:
            part.lock.release()
        door.durability.after_commit(seqno)
        if door.has_switched:
            self._prune()
        return seqno

    def rollback(self) -> None:
        """Roll back and give the regions up. Works after any failure."""
        self._abandon()

    def close(self) -> None:
        """Roll back what is open and close everything. May be called twice."""
        if os.getpid() != self._pid:
            return
        try:
            self._abandon()
        finally:
            try:
                self.writer.close()
            finally:
                for part in self.parts:
                    part.lock.close()

    def _check(self, captured: CapturedChanges) -> None:
        """A commit's changes, checked against its regions (check.py)."""
        try:
            self.writer.check(captured, [(part.schema, part.entry.name) for part in self.parts])
        except BaseException:
            self._abandon()
            raise

    # Under the commit lock.

    def _commit_framed(self, captured: CapturedChanges) -> int:
        door, words = self.door, self.door.words
        payload, count, _, defines, _, schema_changed, _, tables = captured
        allotted = door.allot(payload, count) if tables is None else door.allot(payload, count, kind_of(payload))
        seqno, frame, _, _, _ = allotted
        whole = len(frame) <= RING_RECORD_BYTES_MAX
        if seqno - RING_SLOTS > words[LAST_DURABLE_SEQNO]:
            door.sync_to_end(self._patience_s)  # the slot that we overwrite must not hold the only durable copy
        bits, record = 0, frame if whole else None
        for part in self._touched:
            part.write_slot(seqno, record)
            bits |= part.bit
        if words[KEEPS_RECORDS]:
            self._move_records(captured, allotted)
        hit("commit.before_append")
        # No ring slot could complete the journal after a power loss, and no before-image undoes a schema change.
        synced = not whole or schema_changed
        self._tried_seqno = seqno
        try:
            door.append(frame, seqno, bits, defines=defines)
            if synced:
                door.durability.sync_appended(door.segment())
            elif door.durability.waits and seqno == self.last_seqno + 1:
                # Alone: the disk begins beside COMMIT. (Several writers would have the page that they share written
                # twice for each flush: half as many commits a second on a busy disk, measured.)
                door.segment().begin_writing(words[INTENT_OFFSET], len(frame))
        except JournalIOError as error:
            raise outcome_of(words, seqno, error) from error
        try:
            self.writer.commit()
        except self.writer.Error as error:
            self._after_failed_commit(allotted, error)
        hit("commit.after_commit")
        if schema_changed:
            self._note_versions()
        door.finish_own(allotted, defines=defines)
        if synced:
            try:
                door.durability.note_durable(seqno)
            except DISK_ERRORS as error:
                raise outcome_of(words, seqno, error) from error
        return seqno

    def _commit_spooled(self, captured: CapturedChanges) -> int:
        door, words = self.door, self.door.words
        assert captured.spool is not None
        try:
            bits = bits_of(self._touched)
            allotted = door.adopt(captured.spool, captured.partitions, bits, partial(self._note_spooled, captured))
        except JournalIOError as error:
            raise outcome_of(words, words[LAST_SEQNO] + 1, error) from error
        try:
            self.writer.commit()
        except self.writer.Error as error:
            self._after_failed_commit(allotted, error)
        hit("commit.after_commit")
        if captured.schema_changed:
            self._note_versions()
        try:
            door.finish_adopted(read_head(allotted.frame))
        except DISK_ERRORS as error:
            raise outcome_of(words, allotted.seqno, error) from error
        return allotted.seqno

    def _note_spooled(self, captured: CapturedChanges, allotted: Allotted) -> None:
        for part in self._touched:
            part.write_slot(allotted.seqno, None)
        if self.door.words[KEEPS_RECORDS]:
            self._move_records(captured, allotted)
        self._tried_seqno = allotted.seqno

    def _move_records(self, captured: CapturedChanges, allotted: Allotted) -> None:
        """Each region that the transaction changes has the records of the partitions that it changes. (A supplier's
        pool may still be that of the primary that it was.)"""
        if self._writer_check is not None:
            return
        seqno, _, origin_seqno, chain, csn = allotted
        origin = self.door.words[OWN_ORIGIN]
        for number in changed_partitions(captured.payload, captured.partitions, captured.tables):
            for part in self._touched:
                part.move_record(origin, number, origin_seqno, chain, csn, seqno)

    def _note_versions(self) -> None:
        for part in self._touched:
            self.door.words[part.schema_word] = part.read_version()

    def _after_failed_commit(self, allotted: Allotted, error: Exception) -> None:
        """COMMIT failed after the append. Return when its regions have the transaction all the same; raise
        otherwise."""
        writer = self.writer
        try:
            writer.rollback()
            have = [part.region.seqno() >= allotted.seqno for part in self._touched]
        except writer.Error as second:
            self.door.poison(writer.errno_of(error))
            raise OutcomeUnknownError(
                f"COMMIT of transaction {allotted.seqno} failed ({error}), and the region cannot be read ({second})",
                where=self.where,
                do="Stop every process of this instance, mend the disk, start again: recovery decides",
            ) from error
        if all(have):
            return
        if any(have):
            raise self._half_committed(allotted.seqno, have, error) from error
        named = writer.named(error, self.where)
        self.door.region_failed(writer.errno_of(error))
        self.door.void(allotted, reason=type(named).__name__)
        raise named from error

    def _half_committed(self, seqno: int, have: list[bool], error: Exception) -> HalfCommittedError:
        done = ", ".join(part.entry.name for part, has_it in zip(self._touched, have, strict=True) if has_it)
        left = [part for part, has_it in zip(self._touched, have, strict=True) if not has_it]
        raised = HalfCommittedError(
            f"transaction {seqno} is committed in region {done}, but COMMIT failed in region "
            f"{', '.join(part.entry.name for part in left)}: {error}",
            where=left[0].where,
            do="Mend the disk: the next transaction in that region finishes it",
        )
        raised.seqno = seqno
        return raised

    # Helpers.

    def _check_file(self, own: RegionPart, *, adding: bool) -> None:
        content = self.door.instance.content
        refuse_stale(self.door.instance, self.entry, self.writer)
        # In this order: the word is raised after COMMIT.
        done = self.door.words[own.done_word]
        self.writer.check_identity(network=content.network, instance=content.uuid)
        held = own.region.seqno()
        own.check_held(held, done)
        if self.writable and not held and not adding and not self._unfinished():
            raise NotFoundError(
                f"region {self.entry.name} was not added completely",
                where=self.where,
                do="Run the same 'replicate -i INSTANCE region add' again",
            )

    def _check_pool(self) -> None:
        """If the pool was made again (recovery after a failed disk, or somebody removed the file), go through the new
        door."""
        if not self._pool_is_gone and self.door.words[POOL_STATE] != STATE_CLOSED:
            return
        instance = self.door.instance
        instance.reload()
        if not instance.takes_writes:  # a new door may have to wait for others' transactions
            self.writable = False
            self._check_writer()
        door = open_door(self.door.instance, self._patience_s)
        self.door.close()
        self.door = door
        for part in self.parts:
            part.listen(door)
        self._pool_is_gone = False
        self._writer_check = WriterCheck(door.instance) if door.instance.is_supplier else None
        self.writable = door.instance.takes_writes
        self._check_writer()  # it may have become a secondary since

    def _after_turning_away(self) -> ReplicateError:
        """What our transaction, which is rolled back, was given up for: the role has gone, or nothing has changed.
        Raises NotPrimaryError, and what opening the door raises."""
        outlast_turning_away(self.door)
        self._check_pool()
        return BusyError(
            f"instance {self.door.instance.name} took no commit for a moment, and takes them again: this transaction "
            "was rolled back",
            where=self.where,
            do="Try again",
        )

    def _check_role(self) -> None:
        """NotPrimaryError when the pool has gone with the role; what else is wrong, the next transaction says."""
        try:
            self._check_pool()
        except NotPrimaryError:
            raise
        except ReplicateError:
            return

    def _prune(self) -> None:
        """A segment was begun. The daemons prune as they run; where none does, the writer does it from half of the cap
        on. It cannot fail the commit, which is over; status and `replicate journal prune` say what is wrong.
        """
        door = self.door
        door.has_switched = False
        with contextlib.suppress(ReplicateError):
            if door.chain.size_bytes() > door.instance.config.journal.cap_bytes * PRUNE_FROM:
                prune_journal(door)

    def _check_writer(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                "this connection was opened before a fork", where=self.where, do="Connect again in the child process"
            )
        if not self.writable:
            instance = self.door.instance
            successor = instance.content.successor
            if (by := instance.content.retired_by) is not None:
                raise gone_for_good(instance, self.where, by.name, by.seqno)
            if instance.content.is_restoring:
                what = "supplier" if instance.is_supplier else "instance"
                raise NotPrimaryError(
                    f"{what} {instance.name} takes no writes: it was restored from an older state, and waits until "
                    "the others have brought back what it had",
                    where=self.where,
                    do=f"replicate -i {instance.named} status names who is waited for",
                )
            raise NotPrimaryError(
                f"instance {instance.name} {_standing(instance)}: {successor or 'its regions are read-only'}",
                where=self.where,
                do=f"Write on {successor.name if successor else 'the primary'}",
                primary=successor.name if successor else "",
            )

    def _parts_of(self, names: Mapping[str, bool]) -> list[RegionPart]:
        return [part for part in self.parts if part.schema in names] or self.parts[:1]

    def _unfinished(self) -> bool:
        """Whether a killed writer, or our own failed commit, has left work in one of the regions."""
        # In this order: a process that mends marks the region before the intent goes.
        words = self.door.words
        if words[INTENT_SEQNO] and words[INTENT_REGIONS] & self._bits:
            return True
        return any(part.is_behind(words) for part in self.parts)

    def _prove(self) -> None:
        """The first transaction that may write, once it is begun: its files are those that others write to.

        A file may have been put in another's place just before we opened it. A process that had the other one open
        then committed there what it had begun, or began within LOOK_S: so what the regions hold is compared once more,
        with nobody else at work in them, and nobody remembers to have looked before we opened them when we are done.
        """
        if not self._is_unproved:
            return
        left_s = self._opened_s + LOOK_S - monotonic()
        if left_s > 0:
            time.sleep(left_s)
        for part in self.parts:
            part.prove(self.door.words)
        self._is_unproved = False

    def _settle(self) -> bool:
        """After a failed commit: roll back; what is in the journal all the same (an interrupt came between append and
        COMMIT) is finished before the caller hears of the failure, if that can be done now. Whether nothing is
        unfinished."""
        if os.getpid() != self._pid:
            return False
        self.door.give_up()
        try:
            self._roll_back()
            if self.holds_region and self._unfinished():
                redo(self.door, self.parts, self._patience_s)
            return True
        except ReplicateError:
            return False  # the next transaction in this region tries again, and says what is wrong
        finally:
            release(self.parts)

    def _held_seqno(self) -> int:
        """The last number that all regions of the commit under way hold; 0 when that cannot be read."""
        try:
            return min(part.region.seqno() for part in self._touched)
        except self.writer.Error:
            return 0

    def _roll_back(self) -> None:
        with contextlib.suppress(self.writer.Error):  # SQLite has rolled back by itself, or the connection is closed
            self.writer.rollback()

    def _abandon(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child must not touch its parent's transaction
        try:
            self._roll_back()
        finally:
            release(self.parts)
