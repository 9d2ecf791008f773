"""One region of a connection on a primary: its lock, its file, and its words in the control block.

A session holds a list of them, mostly of one; regions that an application attaches come after it. SQLite commits them
one after the other (region/sqlite/writing.py). Whatever happens between two of them, the journal has the transaction,
and the intent in the control block names all its regions: each that lacks it is rolled forward before the next
transaction there.

Guarantees: locks are taken by rising number of the region, so that two connections that attach in opposite order never
wait for one another; a file that was replaced, and a schema that another client has changed, are named.
Leaves to others: when each is asked (door/primary.py), and SQL's ATTACH statement (dbapi/attachments.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import closing
from time import monotonic

from replicate.door.door import Door
from replicate.door.recovery.redo_region import redo_region
from replicate.door.recovery.way_out import way_out_of_changed_schema
from replicate.errors import (
    NotFoundError,
    RegionReplacedError,
    ReplicateError,
    SchemaChangedError,
    SnapshotStaleError,
)
from replicate.instance.file import RegionEntry
from replicate.pool import control as word
from replicate.pool.wake_word import WakeWord
from replicate.region.kind import KIND
from replicate.region.protocol import FileFacts, RegionWriter, WrittenRegion
from replicate.system.locks import FileLock


class RegionPart:
    """One region of a session. `bit`: its place in masks of regions. `where`: the path of its file."""

    __slots__ = (
        "_way_out",
        "appended_word",
        "bit",
        "done_word",
        "entry",
        "file",
        "lock",
        "move_record",
        "read_version",
        "region",
        "schema",
        "schema_word",
        "where",
        "write_slot",
        "writer",
    )

    def __init__(
        self,
        entry: RegionEntry,
        file: FileFacts,
        lock: FileLock,
        writer: RegionWriter,
        region: WrittenRegion,
        way_out: str,
    ) -> None:
        self.entry = entry
        self.file = file
        self.lock = lock
        self.writer = writer
        self.region = region
        self._way_out = way_out
        self.schema = region.schema
        self.read_version = region.read_version
        self.write_slot = region.write_slot
        self.move_record = region.move_record
        self.where = str(entry.path)
        self.bit = 1 << entry.region_id
        self.appended_word = word.REGION_APPENDED + entry.region_id
        self.done_word = word.REGION_DONE + entry.region_id
        self.schema_word = word.REGION_SCHEMA + entry.region_id

    def listen(self, door: Door) -> None:
        """A writer under the policy `durable` waits for the disk before it writes again: so the next one that waits
        for the region is woken. Under the others it is not (locks.FileLock)."""
        durable = door.instance.config.journal.durability == "durable"
        wake = word.REGION_WAKE + self.entry.region_id
        self.lock.wake = WakeWord(door.pool.memory, wake, most=1) if durable else None

    def is_behind(self, words: memoryview) -> bool:
        """Whether something was appended for it that it does not hold."""
        return bool(words[self.appended_word] != words[self.done_word])

    def check_place(self) -> None:
        """RegionReplacedError when another file stands where its own was."""
        KIND.check_same_file(self.where, self.file, region=self.entry.name, way_out=self._way_out)

    def check_schema(self, door: Door) -> None:
        """SchemaChangedError when another client has changed its schema; NotFoundError when it was released."""
        found, expected = self.read_version(), door.words[self.schema_word]
        if found != expected:
            raise self._released(door) or SchemaChangedError(
                f"another client changed the schema of region {self.entry.name}, or ran VACUUM "
                f"(schema version {found}, ours {expected})",
                where=self.where,
                do=way_out_of_changed_schema(door.instance, self.entry.name),
            )

    def check_held(self, held: int, done: int) -> None:
        """RegionReplacedError if `held`, the last transaction that it holds, is below `done`, which it held before."""
        if held < done:
            raise RegionReplacedError(
                f"region {self.entry.name} holds transactions up to {held}, it held {done} before: this is an old copy",
                where=self.where,
                do=f"Put the right file back; or begin again: {self._way_out}",
            )

    def prove(self, words: memoryview) -> None:
        """RegionReplacedError if it lacks what it held before. Lock held."""
        try:
            self.check_held(self.region.seqno(), words[self.done_word])
        except self.writer.Error as error:
            raise self.writer.named(error, self.where) from error

    # A transaction that began as a reader, and is to write. Lock held.

    def check_snapshot(self, door: Door, *, is_unproved: bool) -> None:
        """SnapshotStaleError if what the transaction reads of it lacks a transaction there. `is_unproved`:
        RegionReplacedError if the file lacks it too."""
        done = door.words[self.done_word]
        try:
            if self.region.seqno() >= done:
                return
            if is_unproved:
                with closing(KIND.reader(self.where, region=self.entry.uuid)) as newest:
                    self.check_held(newest.seqno(), done)
        except self.writer.Error as error:
            raise self._unread(error, door) from error
        raise self.stale()

    def take_write_lock(self, door: Door) -> None:
        """SQLite's write lock. SnapshotStaleError when the transaction reads an older state."""
        try:
            is_taken = self.region.take_write_lock()
        except self.writer.Error as error:
            raise self._unread(error, door) from error
        if not is_taken:
            raise self.stale()

    def stale(self) -> SnapshotStaleError:
        """What to raise when the transaction reads an older state."""
        return SnapshotStaleError(
            "another transaction has written since this one began to read",
            where=self.where,
            do="Roll back, then try again",
        )

    def _unread(self, error: Exception, door: Door) -> ReplicateError:
        """Our tables were not read: SQLite failed, or they are gone."""
        gone = self._released(door) if self.writer.is_missing(error) else None
        return gone or self.writer.named(error, self.where)

    def _released(self, door: Door) -> NotFoundError | None:
        """What to tell where the bookkeeping was taken out of the file since it was opened. We hold the region lock, so
        no release is under way."""
        if not self.region.is_released():
            return None
        return NotFoundError(
            f"region {self.entry.name} of {door.instance.name} was released: its file is plain SQLite now",
            where=self.where,
            do=f"Open it with sqlite3, or have it replicated again: replicate -i INSTANCE region add "
            f"{shlex.quote(self.where)}",
        )


def in_order_of_locks(parts: Iterable[RegionPart]) -> list[RegionPart]:
    """By rising number."""
    return sorted(parts, key=lambda part: part.entry.region_id)


def wait_for(parts: Sequence[RegionPart], timeout_s: float) -> None:
    """Take the locks of `parts`, the first of which somebody holds, in their order, waiting at most `timeout_s` seconds
    in all; BusyError after that, and those that were taken are held."""
    deadline_s = monotonic() + timeout_s
    for part in parts:
        if not part.lock.try_acquire():
            part.lock.acquire(timeout_s, what=f"region {part.entry.name}")
            timeout_s = max(deadline_s - monotonic(), 0.0)


def release(parts: Iterable[RegionPart]) -> None:
    """Give their locks up; harmless when they are not held."""
    for part in parts:
        part.lock.release()


def bits_of(parts: Iterable[RegionPart]) -> int:
    """Their mask."""
    bits = 0
    for part in parts:
        bits |= part.bit
    return bits


def redo(door: Door, parts: Iterable[RegionPart], timeout_s: float) -> None:
    """Finish what is unfinished in them: we hold their locks, so the process that left it is dead, or it is this one.
    `timeout_s`: how long each other lock is waited for."""
    with door.locked(timeout_s):
        pass  # mends the journal's end
    for part in parts:
        if part.is_behind(door.words):
            redo_region(door, part.entry, timeout_s)
