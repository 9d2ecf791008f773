"""One transaction over several regions of an instance: what a commit session does beyond its own region.

The design. A region of the same instance is attached to the session's own SQLite connection. A transaction that writes
takes the locks of all its regions, in the order of their numbers, before BEGIN IMMEDIATE (which takes SQLite's write
lock of each): so two connections that attach in opposite order can not wait for one another, and what a killed writer
left in any of the regions is redone before the first statement reads anything. At commit every region that has changes
gets the same number and the same record in its ring; the frame goes into the journal once, with a bit for each of
them; then one COMMIT. SQLite makes that atomic for each file only, in WAL mode: the regions come one after the other.
Whatever happens between two of them, the journal has the transaction, and:

* killed there: the intent in the control block names all regions; each that lacks the number is rolled forward before
  the next transaction in it, or by recovery. A power loss may leave any of them behind: the journal, or the record in
  another region's ring, has it.
* COMMIT fails there (a full disk): if no region has the number, it is voided as for one region; if all have it, it is
  committed; else the others are rolled forward at once, and it is committed. If that fails too, OutcomeUnknownError:
  the next transaction in that region finishes it, or says why not.

A secondary's connection attaches read-only. Nothing of all this is passed by a session with one region.

Guarantees: after `attach`, what commit/session.py guarantees holds for every region of the session, with one number
for all; nobody waits for a lock while it holds one of a higher number. Refuses to know: SQL's ATTACH statement
(dbapi/attach.py), how changes are captured, what is in a frame.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

import apsw

from replicate.database.bookkeeping import (
    OWN_STATEMENT,
    region_seqno,
    schema_version,
    slot_writer,
    store_schema_version,
)
from replicate.database.names import quote, quote_text
from replicate.database.sqlite import FileFacts, check_same_file, open_region, translate
from replicate.door.door import Door
from replicate.door.redo import redo_region
from replicate.errors import (
    NotSupportedError,
    OutcomeUnknownError,
    RegionReplacedError,
    ReplicateError,
    SchemaChangedError,
    SnapshotStaleError,
)
from replicate.instance.file import RegionEntry
from replicate.limits import LOOK_S
from replicate.locks import FileLock
from replicate.pool import control as word
from replicate.pool.wake_word import WakeWord


class HalfCommittedError(OutcomeUnknownError):
    """COMMIT has reached some regions of a transaction and not others; the journal has it."""

    seqno = 0


@dataclass(slots=True)
class Part:
    """One region of a session. `schema`: the name under which the connection has it. `version`: its schema version as
    the open transaction found it."""

    entry: RegionEntry
    schema: str
    file: FileFacts
    lock: FileLock
    write_slot: Callable[[int, bytes | None], None]
    version: int = 0

    @property
    def bit(self) -> int:
        """Its place in masks of regions."""
        return 1 << self.entry.region_id

    @property
    def where(self) -> str:
        """The path of its file."""
        return str(self.entry.path)


class RegionLocks:
    """The locks of several regions as one. Taken by rising number; all of them, or none."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = sorted(parts, key=lambda part: part.entry.region_id)

    @property
    def held(self) -> bool:
        """Whether any of them is held."""
        return any(part.lock.held for part in self._parts)

    def acquire(self, timeout_s: float, *, what: str = "") -> None:
        """Take all, waiting at most `timeout_s` seconds in all; BusyError after that, and none is held."""
        deadline = time.monotonic() + timeout_s
        try:
            for part in self._parts:
                if not part.lock.try_acquire():
                    left_s = max(deadline - time.monotonic(), 0)
                    part.lock.acquire(left_s, what=f"region {part.entry.name}")
        except BaseException:
            self.release()
            raise

    def try_acquire(self) -> bool:
        """Take all if they are free now."""
        for part in self._parts:
            if not part.lock.try_acquire():
                self.release()
                return False
        return True

    def release(self) -> None:
        """Give them up; harmless when they are not held."""
        for part in self._parts:
            part.lock.release()

    def close(self) -> None:
        """Give them up and close them. May be called twice."""
        for part in self._parts:
            part.lock.close()


class AttachedRegions:
    """The part of a commit session that looks after attached regions. `parts`: the session's own region first; empty
    while it is the only one."""

    door: Door
    entry: RegionEntry
    connection: apsw.Connection
    schema: int
    writable: bool
    parts: list[Part]
    _lock: FileLock | RegionLocks
    _bit: int
    _write_slot: Callable[[int, bytes | None], None]
    _way_out: str
    _patience_s: float
    _opened_s: float
    _is_unproved: bool

    def _own_part(self) -> Part:
        raise AssertionError("the session's own")

    def _check_writer(self) -> None:
        raise AssertionError("the session's own")

    def _check_pool(self) -> None:
        raise AssertionError("the session's own")

    def _abandon(self) -> None:
        raise AssertionError("the session's own")

    def _execute(self, sql: str) -> None:
        raise AssertionError("the session's own")

    def _stale(self) -> SnapshotStaleError:
        raise AssertionError("the session's own")

    def _listen(self, lock: FileLock, region_id: int) -> None:
        """Who writes under the policy `durable` waits for the disk before it writes again: so the next one that waits
        for the region is woken. Under the others it is not (locks.FileLock)."""
        durable = self.door.instance.config.journal.durability == "durable"
        lock.wake = WakeWord(self.door.pool.memory, word.REGION_WAKE + region_id, most=1) if durable else None

    def _check_held(self, entry: RegionEntry, schema: str, done: int, connection: apsw.Connection | None = None) -> int:
        """The last transaction that the region holds; RegionReplacedError if that is below `done`, which it held
        before. `connection`: another than ours, to be asked."""
        held = region_seqno(connection or self.connection, schema)
        if held < done:
            raise RegionReplacedError(
                f"region {entry.name} holds transactions up to {held}, it held {done} before: this is an old copy",
                where=str(entry.path),
                do=f"Put the right file back; or begin anew: {self._way_out}",
            )
        return held

    def _prove(self) -> None:
        """The first transaction that may write, once it is begun: its files are those that others write to.

        A file may have been put in another's place just before we opened it. Who had the other one open then committed
        there what it had begun, or began within LOOK_S: so what the regions hold is compared once more, with nobody
        else at work in them, and nobody remembers to have looked before we opened them when we are done.
        """
        left_s = self._opened_s + LOOK_S - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        for entry, schema in [(part.entry, part.schema) for part in self.parts] or [(self.entry, "main")]:
            try:
                self._check_held(entry, schema, self.door.words[word.REGION_DONE + entry.region_id])
            except apsw.Error as error:
                raise translate(error, where=str(entry.path)) from error
        self._is_unproved = False

    # Attaching.

    def attach(self, entry: RegionEntry, schema: str, file: FileFacts, run: Callable[[str], object]) -> None:
        """Attach a region that has been opened and checked (its file is `file`) under the name `schema`. Outside of a
        transaction. `run` runs the statement.

        Raises NotSupportedError (it is here already), apsw's own error (the name is taken, too many databases),
        RegionReplacedError. Nothing is attached then.
        """
        self.refuse_second(entry)
        connection = self.connection
        lock = FileLock(self.door.instance.locks_directory / f"region-{entry.region_id}.lock")
        try:
            # No links: SQLite would refuse those on the way.
            run(f"ATTACH {quote_text(os.path.realpath(entry.path))} AS {quote(schema)}")
            try:
                if self.writable:
                    connection.execute(f"PRAGMA {quote(schema)}.synchronous = NORMAL", can_cache=False)
                check_same_file(str(entry.path), file, region=entry.name, way_out=self._way_out)
                self._listen(lock, entry.region_id)
                part = Part(entry, schema, file, lock, slot_writer(connection, schema))
            except BaseException:
                connection.execute(f"DETACH {quote(schema)}", can_cache=False)
                raise
        except BaseException:
            lock.close()
            raise
        self._opened_s, self._is_unproved = time.monotonic(), True
        parts = [*(self.parts or [self._own_part()]), part]
        self._lock = RegionLocks(parts)
        self.parts = parts

    def refuse_second(self, entry: RegionEntry) -> None:
        """NotSupportedError if the session has the region already: SQLite would wait for itself."""
        here = {part.entry.region_id: part.schema for part in self.parts or [self._own_part()]}
        if entry.region_id in here:
            raise NotSupportedError(
                f"region {entry.name} is open on this connection already, as {here[entry.region_id]}",
                where=str(entry.path),
                do="Use that name",
            )

    def detached(self, schema: str) -> None:
        """A region has been detached, outside of a transaction."""
        own, *others = self.parts
        for part in others:
            if part.schema == schema:
                part.lock.close()
        left = [part for part in others if part.schema != schema]
        self.parts = [own, *left] if left else []
        self._lock = RegionLocks(self.parts) if left else own.lock
        self._touch({"main": False})

    def version_of(self, schema: str) -> int:
        """The schema version of an attached region as the open transaction found it."""
        return next(part.version for part in self.parts if part.schema == schema)

    # A transaction.

    def _begin_several(self, timeout_s: float) -> None:
        """As `begin`, for all regions."""
        self._check_writer()
        self._patience_s = max(timeout_s, self._patience_s)
        self._check_pool()
        try:
            self._lock.acquire(timeout_s)
            self._check_places()
            self._execute("BEGIN IMMEDIATE")  # takes SQLite's write lock of every database that can be written
            if self._unfinished_several():
                self._execute("ROLLBACK")
                self._redo_several()
                self._execute("BEGIN IMMEDIATE")
            self._check_schemas()
            if self._is_unproved:
                self._prove()
        except BaseException:
            self._abandon()
            raise

    def _upgrade_several(self, timeout_s: float) -> None:
        """As `upgrade`, for all regions. That a snapshot is too old is found out before SQLite is asked for its first
        write lock, which it would keep until the transaction, which should be rolled back, ends: others were told at
        once that the database is locked. Only writes that have no number (pruning's note, another program's) are found
        out too late for that."""
        self._check_writer()
        self._patience_s = max(timeout_s, self._patience_s)
        try:
            self._lock.acquire(timeout_s)
            self._check_places()
            if self._unfinished_several():
                self._redo_several()
                raise self._stale()
            for part in self.parts:
                self._check_snapshot(part)
            for part in self.parts:
                text = f"UPDATE {quote(part.schema)}._replicate_state SET value = value WHERE 0"
                try:
                    self.connection.execute(text, prepare_flags=OWN_STATEMENT)
                except apsw.BusyError as error:
                    raise self._stale() from error
                except apsw.Error as error:
                    raise translate(error, where=part.where) from error
            self._check_schemas()
            if self._is_unproved:
                self._prove()
        except BaseException:
            self._lock.release()
            raise

    def _check_snapshot(self, part: Part) -> None:
        """SnapshotStaleError if what the transaction reads of a region lacks a transaction there. We hold its lock.
        RegionReplacedError if the file lacks it too: see `_prove`, which no transaction would come to."""
        done = self.door.words[word.REGION_DONE + part.entry.region_id]
        try:
            if region_seqno(self.connection, part.schema) >= done:
                return
            if self._is_unproved:
                with closing(open_region(part.where, readonly=True, bare=True, region=part.entry.uuid)) as newest:
                    self._check_held(part.entry, "main", done, newest)
        except apsw.Error as error:
            raise translate(error, where=part.where) from error
        raise self._stale()

    def _check_places(self) -> None:
        for part in self.parts:
            check_same_file(part.where, part.file, region=part.entry.name, way_out=self._way_out)

    def _check_schemas(self) -> None:
        words = self.door.words
        for part in self.parts:
            expected = words[word.REGION_SCHEMA + part.entry.region_id]
            part.version = schema_version(self.connection, part.schema)
            if part.version != expected:
                raise schema_changed(part.entry, part.version, expected)
        self.schema = self.parts[0].version

    def _unfinished_several(self) -> bool:
        # In this order: whoever mends marks the regions before the intent goes.
        words = self.door.words
        if words[word.INTENT_SEQNO] and words[word.INTENT_REGIONS] & sum(part.bit for part in self.parts):
            return True
        return any(self._behind(part) for part in self.parts)

    def _behind(self, part: Part) -> bool:
        words, region_id = self.door.words, part.entry.region_id
        return bool(words[word.REGION_APPENDED + region_id] != words[word.REGION_DONE + region_id])

    def _redo_several(self) -> None:
        """We hold the locks of all, so whoever left this work unfinished is dead, or this is our own."""
        with self.door.locked(self._patience_s):
            pass  # mends the journal's end
        for part in self.parts:
            if self._behind(part):
                redo_region(self.door, part.entry, self._patience_s)

    # A commit.

    def _touch(self, touched: Mapping[str, bool]) -> None:
        """The commit that begins has changes in these regions: their slots are written, and their bits are set."""
        parts = [part for part in self.parts if part.schema in touched] or [self._own_part()]
        self._bit = sum(part.bit for part in parts)
        if len(parts) == 1:
            self._write_slot = parts[0].write_slot
            return
        writers = [part.write_slot for part in parts]

        def write_all(seqno: int, record: bytes | None) -> None:
            for write in writers:
                write(seqno, record)

        self._write_slot = write_all

    def _touched_parts(self) -> list[Part]:
        """The regions that the commit under way has changes in."""
        return [part for part in self.parts if part.bit & self._bit] or [self._own_part()]

    def _store_versions(self, touched: Mapping[str, bool] | None) -> None:
        for schema, moved in (touched or {"main": True}).items():
            if moved:
                store_schema_version(self.connection, schema)

    def _note_versions(self) -> None:
        words = self.door.words
        for part in self._touched_parts():
            words[word.REGION_SCHEMA + part.entry.region_id] = schema_version(self.connection, part.schema)

    def _half_committed(self, seqno: int, have: list[bool], error: apsw.Error) -> HalfCommittedError:
        parts = self._touched_parts()
        done = ", ".join(part.entry.name for part, has_it in zip(parts, have, strict=True) if has_it)
        left = [part for part, has_it in zip(parts, have, strict=True) if not has_it]
        raised = HalfCommittedError(
            f"transaction {seqno} is committed in region {done}, but COMMIT failed in region "
            f"{', '.join(part.entry.name for part in left)}: {error}",
            where=left[0].where,
            do="Mend the disk: the next transaction in that region finishes it",
        )
        raised.seqno = seqno
        return raised


def schema_changed(entry: RegionEntry, found: int, expected: int) -> ReplicateError:
    """Another client changed the schema of a region."""
    return SchemaChangedError(
        f"another client changed the schema of region {entry.name} (schema version {found}, ours {expected})",
        where=str(entry.path),
        do="Run: replicate -i INSTANCE region release NAME; then add the database again and seed the secondaries",
    )
