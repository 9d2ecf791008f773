"""Committing on a primary: one connection's way through the commit door.

Guarantees: a transaction is in the journal before it is committed in its region; when `commit` returns, both have it,
and under the policy `durable` the journal's disk has it too; when it raises, neither has it, except for
OutcomeUnknownError, which says so. What a killed writer left between append and COMMIT in this region is finished
before the next transaction reads anything. One that begins LOOK_S after its file was replaced is refused. Refuses to
know: how changes were captured (database/capture.py), PEP 249 (dbapi/__init__.py), what is in a frame.

One session serves one connection and is used by one thread at a time. Its region lock is its own descriptor.
"""

from __future__ import annotations

import contextlib
import os
from os import getpid, stat
from time import monotonic
from typing import Final

import apsw

from replicate.barrier import stand_at_barrier
from replicate.commit.attached import AttachedRegions, HalfCommittedError, Part, RegionLocks, schema_changed
from replicate.commit.outcome import DISK_ERRORS, errno_of, outcome_of
from replicate.database.bookkeeping import (
    OWN_STATEMENT,
    check_region_identity,
    region_seqno,
    slot_writer,
)
from replicate.database.capture import CapturedChanges
from replicate.database.sqlite import check_same_file, open_region, region_facts, translate
from replicate.door.door import Door
from replicate.door.opening import open_door
from replicate.door.redo import redo_region
from replicate.door.voiding import Allotted
from replicate.errors import (
    ForkedError,
    JournalIOError,
    NotFoundError,
    NotPrimaryError,
    OutcomeUnknownError,
    PoolReplacedError,
    ReplicateError,
    SnapshotStaleError,
)
from replicate.failpoint import hit
from replicate.journal.record import read_head
from replicate.limits import LOOK_S, OPENING_S, RING_RECORD_BYTES_MAX, RING_SLOTS
from replicate.locks import FileLock
from replicate.pool import control as word
from replicate.pruning import prune_journal
from replicate.recovery.stale_wal import refuse_stale

FLUSH_ELEMENTS: Final = 400
"""From so many captured elements (a hundred rows) on, dirty pages are written before the commit lock is taken, so
that a full disk shows up while we may still fail; below it the pages fit the cache and a failing COMMIT is voided
instead."""

_DEFERRED_FKS: Final = apsw.SQLITE_DBSTATUS_DEFERRED_FKS

PATIENCE_S_MIN: Final = 1.0
"""What is waited for behind the region's lock (the commit lock, above all) is held for so little time that a writer
without patience need not be told of it; who has more waits as long as it would for the region."""

PRUNE_FROM: Final = 0.5
"""Part of journal.cap_bytes from which on a writer prunes the journal itself, when it has begun a segment."""


class RegionSession(AttachedRegions):
    """A region opened for one application connection. `connection` is the APSW connection that everything runs on."""

    def __init__(self, door: Door, region_name: str, *, adding: bool = False, opening_s: float = OPENING_S) -> None:
        """Open the region's file and check that it is the region, and not an older copy of it.

        `adding`: it is being added, and holds no transaction yet (else NotFoundError). `opening_s` as of `open_region`.
        Raises what `open_region` and `check_region_identity` raise.
        """
        self.door = door
        self.entry = door.instance.region(region_name)
        self.where = str(self.entry.path)
        self._region_id = self.entry.region_id
        self._region_name = f"region {self.entry.name}"
        self._bit = 1 << self._region_id
        self._pid = os.getpid()
        self.writable = door.instance.role == "primary"
        self.last_seqno = 0
        self._pool_is_gone = False
        self._patience_s = PATIENCE_S_MIN
        self._tried_seqno = 0
        """The number of the commit under way, once it is about to be appended."""
        self.parts: list[Part] = []
        self._way_out = door.instance.way_out
        lock = FileLock(door.instance.locks_directory / f"region-{self.entry.region_id}.lock")
        self._lock: FileLock | RegionLocks = lock
        try:
            self._listen(lock, self._region_id)
            self.file = region_facts(self.where)
            self.connection = open_region(
                self.entry.path, readonly=not self.writable, region=self.entry.uuid, opening_s=opening_s
            )
            self._opened_s, self._is_unproved = monotonic(), True
            try:
                self._check_file(adding=adding)
                self._run = self.connection.cursor().execute  # a kept cursor: no new one for each statement
                self._status = self.connection.status
                self._write_slot = slot_writer(self.connection)
            except BaseException:
                self.connection.close(True)
                raise
        except BaseException:
            lock.close()
            raise
        self._schema_word = word.REGION_SCHEMA + self.entry.region_id
        self._appended_word = word.REGION_APPENDED + self.entry.region_id
        self._done_word = word.REGION_DONE + self.entry.region_id
        self._inode, self._device, self._look_again_s = self.file.inode, self.file.device, 0.0
        self.schema = 0
        """SQLite's schema version as `begin` or `upgrade` found it."""

    @property
    def holds_region(self) -> bool:
        """True between `begin` and the end of the transaction."""
        return self._lock.held

    def begin(self, *, timeout_s: float) -> None:
        """Region lock, BEGIN IMMEDIATE, redo of unfinished work, check of the schema. Nothing is held after a
        failure.

        Raises NotPrimaryError, BusyError, SchemaChangedError, RegionReplacedError, RegionDamagedError,
        JournalDamagedError, ForkedError.
        """
        if self.parts:
            self._begin_several(timeout_s)
            return
        # All that every transaction passes is written out here; the methods beside it say what is wrong.
        if self._pid != getpid() or not self.writable:
            self._check_writer()
        words = self.door.words
        if self._pool_is_gone or words[word.POOL_STATE] == word.STATE_CLOSED:
            self._check_pool()
            words = self.door.words
        lock, run = self._lock, self._run
        self._patience_s = timeout_s if timeout_s > PATIENCE_S_MIN else PATIENCE_S_MIN
        try:
            if not lock.try_acquire():
                lock.acquire(timeout_s, what=self._region_name)
            try:
                now_s = monotonic()
                if now_s >= self._look_again_s:  # a look takes 2 µs, and others after it wait for their caches
                    found = stat(self.where)
                    if found.st_ino != self._inode or found.st_dev != self._device:
                        self._check_place()
                    self._look_again_s = now_s + LOOK_S
            except OSError:
                self._check_place()
            try:
                run("BEGIN IMMEDIATE")
            except apsw.Error as error:
                raise translate(error, where=self.where) from error
            # In this order: whoever mends marks the region before the intent goes.
            if (words[word.INTENT_SEQNO] and words[word.INTENT_REGIONS] & self._bit) or (
                words[self._appended_word] != words[self._done_word]
            ):
                self._execute("ROLLBACK")
                self._redo()
                self._execute("BEGIN IMMEDIATE")
            if run("PRAGMA main.schema_version").get != words[self._schema_word]:
                self._check_schema()
            self.schema = words[self._schema_word]
            if self._is_unproved:
                self._prove()
        except BaseException:
            self._abandon()
            raise

    def upgrade(self, *, timeout_s: float) -> None:
        """The first write of a transaction that began as a reader: takes the region lock.

        Raises SnapshotStaleError when another transaction has written since this one began to read, or unfinished
        work is there; the transaction then still stands as a reader and should be rolled back.
        """
        if self.parts:
            self._upgrade_several(timeout_s)
            return
        self._check_writer()
        self._patience_s = max(timeout_s, PATIENCE_S_MIN)
        try:
            self._lock.acquire(timeout_s, what=self._region_name)
            self._check_place()
            if self._unfinished():
                self._redo()  # now, or this transaction would meet it at every new try
                raise self._stale()
            try:
                # An UPDATE that hits no row takes SQLite's write lock, or says that our snapshot is too old.
                self._run("UPDATE main._replicate_state SET value = value WHERE 0", prepare_flags=OWN_STATEMENT)
            except apsw.BusyError as error:
                raise self._stale() from error
            except apsw.Error as error:
                raise translate(error, where=self.where) from error
            self._check_schema()
            self.schema = self.door.words[self._schema_word]
            if self._is_unproved:
                self._prove()
        except BaseException:
            self._lock.release()
            raise

    def commit(self, captured: CapturedChanges) -> int:
        """Commit what `begin` or `upgrade` opened; returns the transaction's seqno, the journal's last one if nothing
        was captured.

        A failure that leaves the transaction open (a deferred constraint, a busy reader) raises apsw's own error: the
        caller may mend and commit again, or roll back. Every ReplicateError has ended the transaction.
        """
        _, count, _, _, spool, schema_changed, touched = captured
        if not count and spool is None:
            self.connection.execute("COMMIT")
            self._lock.release()
            self.last_seqno = self.door.words[word.LAST_SEQNO]
            return self.last_seqno
        if self._status(_DEFERRED_FKS)[0] > 0:
            self.connection.execute("COMMIT")  # raises the constraint, and leaves the transaction open
        if touched is not None:
            self._touch(touched)
        if schema_changed:
            self._store_versions(touched)
        if count >= FLUSH_ELEMENTS or spool is not None or (touched is not None and len(touched) > 1):
            # Of several regions always: one that fails must not come behind another's COMMIT.
            self.connection.cache_flush()
        door = self.door
        self._tried_seqno = 0
        try:
            if spool is not None:
                spool.finish()  # the bulk of its syncing, before anybody waits for us
            door.enter(self._patience_s)
            if door.words[word.BARRIER_SEQNO]:
                stand_at_barrier(door, self._patience_s)
            try:
                seqno = self._commit_framed(captured) if spool is None else self._commit_spooled(captured)
                self.last_seqno = seqno
            finally:
                door.leave()
        except BaseException as error:
            self._pool_is_gone = isinstance(error, PoolReplacedError)
            finished = self._settle()
            if finished and 0 < self._tried_seqno <= self._held_seqno():
                self.last_seqno = self._tried_seqno  # committed all the same: who was interrupted looks there
            if not (finished and isinstance(error, HalfCommittedError)):
                raise
            seqno = error.seqno
        self._lock.release()
        door.durability.after_commit(seqno)
        if door.has_switched:
            self._prune()
        return seqno

    def rollback(self) -> None:
        """Roll back and give the region up. Works after any failure."""
        self._abandon()

    def close(self) -> None:
        """Roll back what is open and close everything. May be called twice."""
        if os.getpid() != self._pid:
            return
        try:
            self._abandon()
        finally:
            try:
                self.connection.close(True)
            finally:
                self._lock.close()

    # Under the commit lock.

    def _commit_framed(self, captured: CapturedChanges) -> int:
        door, words = self.door, self.door.words
        payload, count, _, defines, _, schema_changed, _ = captured
        allotted = door.allot(payload, count)
        seqno, frame = allotted[:2]
        whole = len(frame) <= RING_RECORD_BYTES_MAX
        if seqno - RING_SLOTS > words[word.LAST_DURABLE_SEQNO]:
            door.sync_to_end(self._patience_s)  # the slot that we overwrite must not hold the only durable copy
        self._write_slot(seqno, frame if whole else None)
        hit("commit.before_append")
        # No ring slot could complete the journal after a power loss, and no before-image undoes a schema change.
        synced = not whole or schema_changed
        self._tried_seqno = seqno
        try:
            door.append(frame, seqno, self._bit, defines=defines)
            if synced:
                door.durability.sync_appended(door.segment())
            elif door.durability.waits and seqno == self.last_seqno + 1:
                # Alone: the disk begins beside COMMIT. (Several writers would have the page that they share written
                # twice for each flush: half as many commits a second on a busy disk, measured.)
                door.segment().begin_writing(words[word.INTENT_OFFSET], len(frame))
        except JournalIOError as error:
            raise outcome_of(words, seqno, error) from error
        try:
            self._run("COMMIT")
        except apsw.Error as error:
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
            allotted = door.adopt(captured.spool, captured.partitions, self._bit, self._write_no_record)
        except JournalIOError as error:
            raise outcome_of(words, words[word.LAST_SEQNO] + 1, error) from error
        try:
            self._run("COMMIT")
        except apsw.Error as error:
            self._after_failed_commit(allotted, error)
        hit("commit.after_commit")
        if captured.schema_changed:
            self._note_versions()
        try:
            door.finish_adopted(read_head(allotted.frame))
        except DISK_ERRORS as error:
            raise outcome_of(words, allotted.seqno, error) from error
        return allotted.seqno

    def _write_no_record(self, seqno: int) -> None:
        self._write_slot(seqno, None)
        self._tried_seqno = seqno

    def _after_failed_commit(self, allotted: Allotted, error: apsw.Error) -> None:
        """COMMIT failed behind the append. Return when its regions have the transaction all the same; raise
        otherwise."""
        connection = self.connection
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            have = [region_seqno(connection, part.schema) >= allotted.seqno for part in self._touched_parts()]
        except apsw.Error as second:
            self.door.poison(errno_of(connection, error))
            raise OutcomeUnknownError(
                f"COMMIT of transaction {allotted.seqno} failed ({error}), and the region can not be read ({second})",
                where=self.where,
                do="Stop every process of this instance, mend the disk, start again: recovery decides",
            ) from error
        if all(have):
            return
        if any(have):
            raise self._half_committed(allotted.seqno, have, error) from error
        named = translate(error, where=self.where)
        self.door.void(allotted, reason=type(named).__name__)
        raise named from error

    # Helpers.

    def _check_file(self, *, adding: bool) -> None:
        content = self.door.instance.content
        refuse_stale(self.door.instance, self.entry, self.connection)
        # In this order: the word is raised after COMMIT.
        done = self.door.words[word.REGION_DONE + self.entry.region_id]
        check_region_identity(
            self.connection,
            region=self.entry.uuid,
            network=content.network,
            instance=content.uuid,
            where=self.where,
        )
        held = self._check_held(self.entry, "main", done)
        if self.writable and not held and not adding and not self._unfinished():
            raise NotFoundError(
                f"region {self.entry.name} was not added completely",
                where=self.where,
                do="Run the same 'replicate -i INSTANCE region add' again",
            )

    def _check_pool(self) -> None:
        """If the pool was made anew (recovery after a failed disk, or somebody removed the file), go through the new
        door."""
        if not self._pool_is_gone and self.door.words[word.POOL_STATE] != word.STATE_CLOSED:
            return
        door = open_door(self.door.instance, self._patience_s)
        self.door.close()
        self.door = door
        for part in self.parts or [self._own_part()]:
            self._listen(part.lock, part.entry.region_id)
        self._pool_is_gone = False

    def _prune(self) -> None:
        """A segment was begun. The daemons prune as they run; where none does, the writer does it from half of the cap
        on. It can not fail the commit, which is over; status and `replicate journal prune` say what is wrong.
        """
        door = self.door
        door.has_switched = False
        with contextlib.suppress(ReplicateError):
            if door.chain.size_bytes() > door.instance.config.journal.cap_bytes * PRUNE_FROM:
                prune_journal(door)

    def _own_part(self) -> Part:
        if self.parts:
            return self.parts[0]
        assert isinstance(self._lock, FileLock)
        return Part(self.entry, "main", self.file, self._lock, slot_writer(self.connection))

    def _check_place(self) -> None:
        check_same_file(self.where, self.file, region=self.entry.name, way_out=self._way_out)

    def _check_writer(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                "this connection was opened before a fork", where=self.where, do="Connect again in the child process"
            )
        if not self.writable:
            raise NotPrimaryError(
                f"instance {self.door.instance.name} is secondary: its regions are read-only",
                where=self.where,
                do="Write on the primary",
            )

    def _unfinished(self) -> bool:
        if self.parts:
            return self._unfinished_several()
        # In this order: whoever mends marks the region before the intent goes.
        words, region = self.door.words, self._region_id
        if words[word.INTENT_SEQNO] and words[word.INTENT_REGIONS] & self._bit:
            return True
        return bool(words[word.REGION_APPENDED + region] != words[word.REGION_DONE + region])

    def _redo(self) -> None:
        """We hold the region lock, so whoever left this work unfinished is dead."""
        if self.parts:
            self._redo_several()
            return
        with self.door.locked(self._patience_s):
            pass  # mends the journal's end
        redo_region(self.door, self.entry, self._patience_s)

    def _check_schema(self) -> None:
        expected = self.door.words[self._schema_word]
        found = self._run("PRAGMA main.schema_version").get
        if found != expected:
            raise schema_changed(self.entry, found, expected)

    def _stale(self) -> SnapshotStaleError:
        return SnapshotStaleError(
            "another transaction has written since this one began to read",
            where=self.where,
            do="Roll back, then try again",
        )

    def _execute(self, sql: str) -> None:
        try:
            self._run(sql)
        except apsw.Error as error:
            raise translate(error, where=self.where) from error

    def _settle(self) -> bool:
        """After a failed commit: roll back; what is in the journal all the same (an interrupt came between append and
        COMMIT) is finished before the caller hears of the failure, if that can be done now. Whether nothing is
        unfinished."""
        if os.getpid() != self._pid:
            return False
        self.door.give_up()
        try:
            self._roll_back()
            if self._lock.held and self._unfinished():
                self._redo()
            return True
        except ReplicateError:
            return False  # the next transaction in this region tries again, and says what is wrong
        finally:
            self._lock.release()

    def _held_seqno(self) -> int:
        """The last number that all regions of the commit under way hold; 0 when that can not be read."""
        try:
            return min(region_seqno(self.connection, part.schema) for part in self._touched_parts())
        except apsw.Error:
            return 0

    def _roll_back(self) -> None:
        with contextlib.suppress(apsw.Error):  # SQLite has rolled back by itself, or the connection is closed
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def _abandon(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child must not touch its parent's transaction
        try:
            self._roll_back()
        finally:
            self._lock.release()
