"""The commit door: the one way into an instance's journal. Numbers, appends, syncs, and mends what a killed writer
left.

Guarantees, under the commit lock: numbers are allotted without a hole; a number becomes visible to readers
(LAST_SEQNO) only once its frame is whole and its outcome is known; whatever a killed holder left half done is
finished or zeroed before anything else happens; the first failed write or sync poisons the journal for every process
of the instance. Refuses to know: SQL, row images, sockets. Regions are bits here; what COMMIT means is commit.py's
and apply_session.py's business.

Order of locks, always: region locks (in region-id order), then SQLite's write lock, then the commit lock, then
nothing. The sync lock is taken alone, or under the commit lock; its holder never waits for another lock.

INTENT words. Before a frame is written its place and number stand in INTENT_OFFSET, INTENT_BYTES, INTENT_REGIONS and,
last, INTENT_SEQNO; after everything is done INTENT_SEQNO goes back to 0. So the next holder of the lock knows all
that a dead one may have touched: a whole frame there is *redone* (the words are recomputed from the frame, the pool
gets it, the regions are marked unfinished), anything else is zeroed. LAST_SEQNO still stands before it until COMMIT
has returned, which is also why a failed COMMIT can be voided in place: no reader has been allowed to see the frame.
The design had VOID as a record of its own; in place there is never a moment at which a reader could take the first of
the two for the truth.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from replicate.failpoint import hit
from replicate.errors import JournalIOError, OutcomeUnknownError, ReplicateError
from replicate.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.durable import DurableSidecar
from replicate.journal.record import HEAD_BYTES, Head, carries_definitions, pack_frame, pack_void, read_head, walk
from replicate.journal.segment import SegmentFile
from replicate.locks import FileLock
from replicate.pool import control as word
from replicate.pool.doorbell import Doorbells
from replicate.pool.journal_pool import JournalPool
from replicate.transaction import Catalogue, Kind

COMMIT_LOCK_TIMEOUT_S: Final = 30.0
"""A commit holds the lock for microseconds, a segment switch for milliseconds: only a stopped process holds it
longer."""
CSN_COUNTER_BITS: Final = 12
"""A csn is microseconds of wall time, shifted by this: 4096 changes a microsecond before it runs ahead of the
clock."""


@dataclass(frozen=True, slots=True)
class Allotted:
    """A frame with the number that it will have; nothing of it is written yet."""

    seqno: int
    frame: bytes
    origin_seqno: int
    chain: int
    csn: int


class Door:
    """One per process and instance (see `commit.open_door`). Threads share it; a forked child must not."""

    def __init__(self, instance: Instance, pool: JournalPool, chain: Chain) -> None:
        self.instance = instance
        self.pool = pool
        self.words = pool.words
        self.chain = chain
        self.pid = os.getpid()
        self._thread_lock = threading.Lock()
        self._commit_lock = FileLock(instance.locks_directory / "commit.lock")
        self._sync_thread_lock = threading.Lock()
        self._sync_lock = FileLock(instance.locks_directory / "sync.lock")
        self._sidecar = DurableSidecar(instance.journal_directory / "durable")
        self._segment: SegmentFile | None = None
        self._doorbells = Doorbells(instance.run_directory)
        self._catalogue: tuple[tuple[int, int], Catalogue] | None = None

    def close(self) -> None:
        """Close every descriptor; the pool stays for others. May be called twice."""
        for part in (self._commit_lock, self._sync_lock, self._sidecar, self._doorbells, self.pool):
            part.close()
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    # The lock.

    @contextlib.contextmanager
    def locked(self, timeout_s: float = COMMIT_LOCK_TIMEOUT_S) -> Iterator[None]:
        """Hold the commit lock. What a dead holder left is mended first.

        Raises BusyError after `timeout_s`, PoolReplacedError when the pool is no longer this instance's,
        OutcomeUnknownError or JournalIOError when the journal is poisoned; the lock is not held then.
        """
        with self._thread_lock:
            self._commit_lock.acquire(timeout_s, what="the commit lock")
            try:
                self.pool.check_current()
                self.check_alive()
                if self.words[word.INTENT_SEQNO]:
                    self._mend()
                yield
            finally:
                self._commit_lock.release()

    def check_alive(self) -> None:
        """JournalIOError when a write or sync of this journal has failed, in whichever process."""
        errno_ = self.words[word.FATAL]
        if errno_:
            raise JournalIOError(
                f"the journal failed earlier ({os.strerror(errno_)}) and takes nothing more",
                where=str(self.instance.journal_directory),
                do="Mend the disk, stop every process of this instance, then start again: recovery runs first",
            )

    def poison(self, error: BaseException) -> None:
        """No process of this instance appends any more until recovery has run."""
        number = error.errno if isinstance(error, OSError) else getattr(error.__cause__, "errno", None)
        self.words[word.FATAL] = number or 5

    # Appending. All of this is called with the commit lock held.

    def allot(self, payload: bytes, count: int, kind: Kind = Kind.TRANSACTION) -> Allotted:
        """The next number of our own origin, and the whole frame under it."""
        words = self.words
        seqno = words[word.LAST_SEQNO] + 1
        origin_seqno = words[word.OWN_ORIGIN_SEQNO] + 1
        csn = self.next_csn()
        frame, chain = pack_frame(
            kind,
            seqno,
            words[word.LAST_DURABLE_SEQNO],
            words[word.OWN_CHAIN],
            words[word.OWN_ORIGIN],
            origin_seqno,
            csn,
            payload,
            count,
        )
        return Allotted(seqno, frame, origin_seqno, chain, csn)

    def next_csn(self) -> int:
        """A hybrid logical clock: never behind the wall, never twice, never backwards (fault 70)."""
        return max(self.words[word.LAST_CSN] + 1, (time.time_ns() // 1000) << CSN_COUNTER_BITS)

    def append(self, data: bytes, first_seqno: int, regions: int, *, defines: bool = False) -> None:
        """Write frames at the journal's end, switching segments first when they do not fit. Not yet visible to
        readers.

        A failure before the first byte (the disk is full at a switch) leaves everything as it was; a later one
        poisons the journal.
        """
        words = self.words
        end = words[word.END_OFFSET]
        if (
            words[word.SEGMENT_SEALED]
            or end + len(data) > self.instance.config.journal.segment_bytes
            or (defines and words[word.DEFINITION_COUNT] >= word.DEFINITIONS_MAX)
        ) and not (first_seqno == words[word.SEGMENT_FIRST_SEQNO] and not words[word.SEGMENT_SEALED]):
            self._switch(first_seqno)
            end = words[word.END_OFFSET]
        segment = self.segment()
        if end + len(data) > words[word.ZEROED_OFFSET]:
            words[word.ZEROED_OFFSET] = segment.ensure_zeroed(end + len(data))
        words[word.INTENT_OFFSET] = end
        words[word.INTENT_BYTES] = len(data)
        words[word.INTENT_ADOPTS] = 0
        words[word.INTENT_REGIONS] = regions
        words[word.INTENT_SEQNO] = first_seqno
        hit("append.before_write")
        try:
            segment.append(end, data)
        except BaseException as error:
            self.poison(error)
            raise
        hit("append.after_write")

    def finish(self, data: bytes, first_seqno: int, last: Head, count: int, *, defines: bool = False) -> None:
        """Make appended frames visible: words, then the pool, then the doorbells. `last`: head of the last frame."""
        words = self.words
        if defines:
            self._note_definition(words[word.INTENT_OFFSET])
        self._advance(words[word.INTENT_OFFSET] + words[word.INTENT_BYTES], last, words[word.INTENT_REGIONS],
        done=True) hit("finish.before_publish") self.pool.publish(data, first_seqno, last.seqno, count)
        words[word.INTENT_SEQNO] = 0 self._doorbells.ring(self.pool)

    def finish_own(self, allotted: Allotted, *, defines: bool = False) -> None:
        """`finish` for one frame that `allot` made; the hot path of every commit."""
        words = self.words
        seqno = allotted.seqno
        if defines:
            self._note_definition(words[word.INTENT_OFFSET])
        words[word.END_OFFSET] = words[word.INTENT_OFFSET] + words[word.INTENT_BYTES]
        words[word.OWN_ORIGIN_SEQNO] = allotted.origin_seqno
        words[word.OWN_CHAIN] = allotted.chain
        words[word.LAST_CSN] = allotted.csn
        words[word.LAST_COMMIT_WALL_NS] = time.time_ns()
        self._mark_regions(words[word.INTENT_REGIONS], seqno, done=True)
        words[word.LAST_SEQNO] = seqno
        hit("finish.before_publish")
        self.pool.publish(allotted.frame, seqno, seqno, 1)
        words[word.INTENT_SEQNO] = 0
        if self.pool.sleeping():
            self._doorbells.ring(self.pool)

    def void(self, allotted: Allotted, reason: str) -> None:
        """Turn an appended frame that no region has into a NULL record, durably, in place. Poisons the journal when
        that fails."""
        words = self.words
        try:
            frame, chain = pack_void(allotted.frame, words[word.OWN_CHAIN], reason=reason)
            self.segment().append(words[word.INTENT_OFFSET], frame)
            self.segment().sync()
        except BaseException as error:
            self.poison(error)
            raise OutcomeUnknownError(
                f"transaction {allotted.seqno} failed, and could not be voided in the journal",
                where=str(self.instance.journal_directory),
                do="Stop every process of this instance, mend the disk, start again: recovery decides",
            ) from error
        words[word.INTENT_REGIONS] = 0
        self.finish_own(Allotted(allotted.seqno, frame, allotted.origin_seqno, chain, allotted.csn))

    # Large transactions: their segment is on the disk already; it enters the chain by its name.

    def adopt(self, spool: Spool, regions: int, before_append: Callable[[int], None]) -> Allotted:
        """Rename a spooled transaction into the chain under the next number; constant time. Not yet visible to
        readers.

        `before_append` gets the number while failing is still free. Everything of ours before it is synced first.
        """
        words = self.words
        self.sync_locked()
        payload, count = spool.commit_payload()
        allotted = self.allot(payload, count, Kind.LARGE)
        before_append(allotted.seqno)
        words[word.INTENT_ADOPTS] = 1
        words[word.INTENT_REGIONS] = regions
        words[word.INTENT_SEQNO] = allotted.seqno
        try:
            self.chain.adopt(spool, self._header(allotted.seqno), allotted.frame, self.catalogue())
        except ReplicateError:
            words[word.INTENT_SEQNO] = 0
            raise
        return allotted

    def finish_adopted(self, allotted: Allotted) -> None:
        """Make an adopted transaction visible. The next append begins a new segment."""
        words = self.words
        self._enter_adopted(allotted.seqno)
        words[word.OWN_ORIGIN_SEQNO] = allotted.origin_seqno
        words[word.OWN_CHAIN] = allotted.chain
        words[word.LAST_CSN] = allotted.csn
        words[word.LAST_COMMIT_WALL_NS] = time.time_ns()
        self._mark_regions(words[word.INTENT_REGIONS], allotted.seqno, done=True)
        words[word.LAST_SEQNO] = allotted.seqno
        words[word.LAST_DURABLE_SEQNO] = allotted.seqno
        self._sidecar.write(allotted.seqno)
        self.pool.publish_in_files(allotted.seqno, allotted.seqno)
        words[word.INTENT_SEQNO] = 0
        self._doorbells.ring(self.pool)

    def _enter_adopted(self, seqno: int) -> None:
        words = self.words
        words[word.SEGMENT_FIRST_SEQNO] = seqno
        words[word.SEGMENT_SEALED] = 1
        words[word.END_OFFSET] = words[word.ZEROED_OFFSET] = 0
        words[word.DEFINITION_COUNT] = 0
        words[word.CATALOGUE_GENERATION] += 1

    def _advance(self, end: int, last: Head, regions: int, *, done: bool) -> None:
        words = self.words
        words[word.END_OFFSET] = end
        if last.origin == words[word.OWN_ORIGIN]:
            words[word.OWN_ORIGIN_SEQNO] = last.origin_seqno
            words[word.OWN_CHAIN] = last.chain
        words[word.LAST_CSN] = max(words[word.LAST_CSN], last.csn)
        words[word.LAST_COMMIT_WALL_NS] = time.time_ns()
        self._mark_regions(regions, last.seqno, done=done)
        words[word.LAST_SEQNO] = last.seqno

    def _mark_regions(self, regions: int, seqno: int, *, done: bool) -> None:
        words = self.words
        region = 0
        while regions:
            if regions & 1:
                words[word.REGION_APPENDED + region] = seqno
                if done:
                    words[word.REGION_DONE + region] = seqno
            regions >>= 1
            region += 1

    def _note_definition(self, offset: int) -> None:
        words = self.words
        count = words[word.DEFINITION_COUNT]
        if not count or words[word.DEFINITION_OFFSET + count - 1] != offset:
            words[word.DEFINITION_OFFSET + count] = offset
            words[word.DEFINITION_COUNT] = count + 1
            words[word.CATALOGUE_GENERATION] += 1

    # Segments.

    def segment(self) -> SegmentFile:
        """The segment that is appended to, opened in this process."""
        first = self.words[word.SEGMENT_FIRST_SEQNO]
        if self._segment is None or self._segment.first_seqno != first:
            if self._segment is not None:
                self._segment.close()
                self._segment = None
            self._segment = self.chain.open_for_append(first)
        return self._segment

    def _header(self, first_seqno: int) -> SegmentHeader:
        raise AssertionError(first_seqno)

    def _switch(self, first_seqno: int) -> None:
        """Begin a new segment. Everything before it is synced first, so only the newest segment can have a torn
        tail."""
        words = self.words
        catalogue = self.catalogue()
        self.sync_locked()
        old = words[word.SEGMENT_FIRST_SEQNO]
        segment = self.chain.switch(self._header(first_seqno), catalogue)
        if self._segment is not None:
            self._segment.close()
        self._segment = segment
        words[word.SEGMENT_SEALED] = 0
        words[word.DEFINITION_COUNT] = 0
        words[word.END_OFFSET] = segment.end_offset
        words[word.ZEROED_OFFSET] = segment.zeroed_offset
        words[word.SEGMENT_FIRST_SEQNO] = first_seqno
        words[word.CATALOGUE_GENERATION] += 1

    def catalogue(self) -> Catalogue:
        """Definitions, history and vector in force at the journal's end. Call it with the commit lock held."""
        words = self.words
        generation = words[word.CATALOGUE_GENERATION]
        if self._catalogue is None or self._catalogue[0] != generation:
            offsets = [words[word.DEFINITION_OFFSET + i] for i in range(words[word.DEFINITION_COUNT])]
            first = words[word.SEGMENT_FIRST_SEQNO]
            self._catalogue = (generation, self.chain.catalogue(first, offsets))
        return self._catalogue[1]

    # Durability.

    def after_commit(self, seqno: int) -> None:
        """What the configured policy asks of a writer after its commit: wait for the disk, see that it is synced
        soon, or nothing."""
        policy = self.instance.config.journal.durability
        if policy == "durable":
            self.wait_durable(seqno)
        elif policy == "interval":
            self._syncer.wake()

    def wait_durable(self, seqno: int) -> int:
        """Return once `seqno` is on the disk; the group's one fdatasync is shared by all that wait. Returns the last
        durable seqno.

        OutcomeUnknownError when the sync fails: the transaction is committed, and we can not say that it would
        survive a power loss.
        """
        words = self.words
        if words[word.LAST_DURABLE_SEQNO] >= seqno:
            return words[word.LAST_DURABLE_SEQNO]
        with self._sync_thread_lock:
            if words[word.LAST_DURABLE_SEQNO] >= seqno:
                return words[word.LAST_DURABLE_SEQNO]
            self._sync_lock.acquire(SYNC_LOCK_TIMEOUT_S, what="the journal's sync")
            try:
                if words[word.LAST_DURABLE_SEQNO] < seqno:
                    self._sync_to_end()
            except ReplicateError as error:
                raise OutcomeUnknownError(
                    f"transaction {seqno} is committed, but syncing the journal failed",
                    where=str(self.instance.journal_directory),
                    do="Mend the disk, stop every process of this instance, start again",
                ) from error
            finally:
                self._sync_lock.release()
        return words[word.LAST_DURABLE_SEQNO]

    def sync(self) -> int:
        """Make everything visible durable; returns the last durable seqno."""
        return self.wait_durable(self.words[word.LAST_SEQNO])

    def sync_locked(self) -> None:
        """The same for a caller that holds the commit lock."""
        self.sync()
