"""The commit door: the one way into an instance's journal. Numbers, appends, and mends what a killed writer left.

Guarantees, under the commit lock: numbers are allotted without a hole; a number becomes visible to readers
(LAST_SEQNO) only once its frame is whole and its outcome is known; whatever a killed holder left half done is
finished or zeroed before anything else happens; the first failed write or sync poisons the journal for every process
of the instance. Refuses to know: SQL, row images, sockets. Regions are bits here; what COMMIT means is
commit/session.py's and apply_session.py's.

Order of locks, always: region locks (in region-id order), then SQLite's write lock, then the commit lock. The sync
lock (door/durability.py) is taken alone or under the commit lock, and its holder waits for no other.

INTENT words. Before a frame is written, its place and number stand in INTENT_OFFSET, INTENT_BYTES, INTENT_REGIONS,
INTENT_KIND and, last, INTENT_SEQNO; when everything is done INTENT_SEQNO goes back to 0. So the next holder of the
lock knows all that a dead one may have touched: whole frames there are *redone* (the words are recomputed from the
frames, the pool gets them, the regions are marked unfinished), the rest is zeroed. LAST_SEQNO stands before them
until COMMIT has returned, which is also why a failed COMMIT can be voided in place: no reader has been allowed to see
the frame. The design had VOID as a record of its own; in place, there is never a moment at which a reader could take
the first of the two for the truth.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from typing import Final

from replicate.door.durability import Durability
from replicate.door.lock import CommitLock
from replicate.door.newest import NewestSegment
from replicate.door.takeover import TAKES, mend_taken
from replicate.door.voiding import ADOPTS, Allotted, void
from replicate.errnos import SPARED_ERRORS
from replicate.errors import InternalError, JournalIOError
from replicate.failpoint import hit
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.header import SegmentHeader
from replicate.journal.pieces import PiecedBatch, Pieces
from replicate.journal.record import FrameBatch, Head, pack_frame
from replicate.journal.segment import SegmentFile, create_segment, grow_bytes_of, sync_directory
from replicate.journal.spool import Spool, adopt
from replicate.limits import BATCH_BYTES_MAX
from replicate.pool import control as word
from replicate.pool.doorbell import Doorbells
from replicate.pool.journal_pool import JournalPool
from replicate.recovery.mending import adopted_head, read_tail
from replicate.transaction import Catalogue, Kind
from replicate.vector import Position

COMMIT_LOCK_TIMEOUT_S: Final = 30.0
"""A commit holds the lock for microseconds, a segment switch for milliseconds: only a stopped process holds it
longer."""
APPENDS: Final = 0
"""INTENT_KIND: frames are written at INTENT_OFFSET."""
SWITCHES: Final = 2
"""INTENT_KIND: the segment that begins with INTENT_SEQNO is being made; once it is there, the words turn to it."""
_HISTORY: Final = Kind.HISTORY
CSN_COUNTER_BITS: Final = 12
"""A csn is microseconds of wall time, shifted by this: 4096 changes a microsecond before it runs ahead of the
clock."""


class Door:
    """One per process and instance (`opening.open_door`). Threads share it; a forked child must not."""

    def __init__(
        self, instance: Instance, pool: JournalPool, chain: Chain, on_close: Callable[[Door], None] | None = None
    ) -> None:
        self._on_close = on_close
        self.instance = instance
        self.pool = pool
        self.words = pool.words
        self._memory = pool.memory
        self.chain = chain
        self.pid = os.getpid()
        self.users = 0
        """How many times this door was opened and not closed yet (door/opening.py)."""
        self.has_switched = False
        """A segment was begun through this door since somebody last cleared this: it is time to prune."""
        self.received_position: Position | None = None
        """On a secondary: what the Update Process of this process has applied; None on a primary."""
        self.lock_timeout_s = COMMIT_LOCK_TIMEOUT_S
        self._patience_s: float | None = None
        """How long whoever holds the commit lock now waits for the sync lock; None: as long as a flush may take."""
        self.directory = os.fspath(instance.journal_directory)
        """Of the segments."""
        self._segment_bytes = instance.config.journal.segment_bytes
        self._grow_bytes = grow_bytes_of(self._segment_bytes)
        self._doorbells = Doorbells(instance.run_directory)
        self._newest = NewestSegment(instance, self.words, chain)
        self._lock = CommitLock(instance.locks_directory / "commit.lock")
        try:
            self.durability = Durability(instance, self.words, self.open_segment, self.ring, pool.memory)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Give the door up; the last of its users in this process closes it."""
        if self._on_close is not None:
            self._on_close(self)
        else:
            self.dispose()

    def dispose(self) -> None:
        """Close every descriptor; the pool stays for others. Use `close`."""
        with contextlib.ExitStack() as rest:  # an interrupt in one of them leaves none of the others open
            for part in (self.pool, self._newest, self._doorbells, self._lock, self.durability):
                rest.callback(part.close)

    def ring(self) -> None:
        """Wake whoever sleeps until there is something new in the pool."""
        self._doorbells.ring(self.pool)

    # The lock.

    def enter(self, timeout_s: float | None = None) -> None:
        """Take the commit lock (None: within `lock_timeout_s` seconds). What a dead holder left is mended first.

        Raises BusyError, PoolReplacedError when the pool is no longer this instance's (within LOOK_S it may have lost
        its name, while no other is in use), JournalIOError when the journal is poisoned; the lock is not held then.
        `leave` gives it up.
        """
        try:
            self._lock.enter(self.lock_timeout_s if timeout_s is None else timeout_s)
            self._patience_s = timeout_s
            words = self.words
            memory = self._memory
            look_again_s = memory.look_again_s
            if not memory.was_current():
                self.pool.check_current()
            if (looked := memory.look_again_s) != look_again_s:
                memory.look_again_s = 0.0  # who is refused is refused each time
                self._newest.check_place()
                memory.look_again_s = looked
            if words[word.FATAL]:
                self.durability.check_alive()
            if words[word.INTENT_SEQNO]:
                self._mend()
        except BaseException:
            self._lock.give_up()
            raise

    def leave(self) -> None:
        """Give the commit lock up."""
        self._lock.leave()

    def give_up(self) -> None:
        """After an exception: free the lock if an interrupt has left it with this thread."""
        self._lock.give_up()

    @contextlib.contextmanager
    def locked(self, timeout_s: float | None = None) -> Iterator[None]:
        """`enter` and `leave` around a block."""
        try:
            self.enter(timeout_s)
            yield
        finally:
            self._lock.give_up()

    # Appending. All of this is called with the commit lock held.

    def allot(self, payload: bytes, count: int, kind: Kind = Kind.TRANSACTION) -> Allotted:
        """The next number of our own origin, and the whole frame under it."""
        words = self.words
        seqno = words[word.LAST_SEQNO] + 1
        origin_seqno = words[word.OWN_ORIGIN_SEQNO] + (kind is not _HISTORY)
        csn, now = words[word.LAST_CSN] + 1, (time.time_ns() // 1000) << CSN_COUNTER_BITS
        if now > csn:
            csn = now
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

    def append(self, data: bytes | Pieces, first_seqno: int, regions: int, *, defines: bool = False) -> None:
        """Write frames at the journal's end, beginning a new segment when they do not fit. Not yet visible to
        readers.

        DiskFullError, ExhaustedError: nothing is appended, and all is as it was. Any other failure poisons the journal.
        """
        words = self.words
        if first_seqno != words[word.LAST_SEQNO] + 1:
            raise InternalError(f"transaction {first_seqno} does not follow {words[word.LAST_SEQNO]}")
        size = len(data)
        end = words[word.END_OFFSET]
        # An empty segment is never left: the next one would bear the same number.
        if (
            end + size > self._segment_bytes
            or words[word.SEGMENT_SEALED]
            or words[word.SEGMENT_FOREIGN]
            or (defines and words[word.DEFINITION_COUNT] >= word.DEFINITIONS_MAX)
        ) and first_seqno != words[word.SEGMENT_FIRST_SEQNO]:
            self._switch(first_seqno)
            end = words[word.END_OFFSET]
        segment = self._newest.segment()
        try:
            segment.zeroed_offset = zeroed = words[word.ZEROED_OFFSET]
            if end + size > zeroed:
                words[word.ZEROED_OFFSET] = segment.make_room(end + size, size)
            words[word.INTENT_KIND] = APPENDS
            words[word.INTENT_OFFSET] = end
            words[word.INTENT_BYTES] = size
            words[word.INTENT_REGIONS] = regions
            words[word.INTENT_SEQNO] = first_seqno
            hit("append.before_write")
            segment.append(end, data)
            hit("append.after_write")
        except JournalIOError as error:
            if segment.poisoned or not isinstance(error, SPARED_ERRORS):
                self.poison(error)
            else:
                words[word.INTENT_SEQNO] = 0
            raise
        except BaseException as error:
            if segment.poisoned:  # an interrupt has taken the failure's place
                self.poison(error)
            raise

    def finish_own(self, allotted: Allotted, *, defines: bool = False) -> None:
        """Make one frame that `allot` made visible; the hot path of every commit."""
        words = self.words
        seqno, frame, origin_seqno, chain, csn = allotted
        if defines:
            self._note_definition(words[word.INTENT_OFFSET])
        words[word.END_OFFSET] = words[word.INTENT_OFFSET] + words[word.INTENT_BYTES]
        words[word.OWN_ORIGIN_SEQNO] = origin_seqno
        words[word.OWN_CHAIN] = chain
        words[word.LAST_CSN] = csn
        words[word.LAST_COMMIT_WALL_NS] = time.time_ns()
        regions = words[word.INTENT_REGIONS]
        while regions:  # `_mark_regions`, written out
            region = regions.bit_length() - 1
            words[word.REGION_APPENDED + region] = words[word.REGION_DONE + region] = seqno
            regions ^= 1 << region
        words[word.LAST_SEQNO] = seqno
        hit("finish.before_publish")
        self.pool.publish(frame, seqno, seqno, 1)
        words[word.INTENT_SEQNO] = 0
        if words[word.SLEEPERS] or words[word.SLEEPERS + 1]:
            self.ring()

    def finish_batch(self, batch: FrameBatch | PiecedBatch, last: Head, *, defines: bool = False) -> None:
        """Make received frames visible; `last` is the head of the batch's last frame. A long batch in pieces is to be
        read from the files: the kernel still has them."""
        words = self.words
        if defines:
            self._note_definition(words[word.INTENT_OFFSET])
        end = words[word.INTENT_OFFSET] + words[word.INTENT_BYTES]
        self.advance(end, last, words[word.INTENT_REGIONS], done=True)
        hit("finish.before_publish")
        data = batch.data
        if isinstance(data, bytes):
            self.pool.publish(data, batch.first_seqno, batch.last_seqno, batch.count)
        elif len(data) <= BATCH_BYTES_MAX:
            self.pool.publish(b"".join(map(bytes, data)), batch.first_seqno, batch.last_seqno, batch.count)
        else:
            self.pool.publish_in_files(batch.first_seqno, batch.last_seqno)
        words[word.INTENT_SEQNO] = 0
        self.ring()

    def void(self, allotted: Allotted, reason: str) -> None:
        """Turn an appended frame that no region has into a NULL record, durably. OutcomeUnknownError when that
        fails."""
        void(self, allotted, reason)

    def poison(self, error: BaseException | int) -> None:
        """No process of this instance appends any more until recovery has run."""
        number = error if isinstance(error, int) else getattr(error, "errno", None) or errno.EIO
        cause = getattr(error, "__cause__", None)
        self.words[word.FATAL] = getattr(cause, "errno", None) or number

    # Large transactions: their segment is on the disk already; it enters the chain by its name.

    def adopt(
        self,
        spool: Spool,
        partitions: tuple[int, ...],
        regions: int,
        note: Callable[[int], None],
    ) -> Allotted:
        """Rename a spooled transaction into the chain under the next number: constant time. Not yet visible to
        readers.

        `note` gets the number while failing is still free. Everything before it is synced first, so that only the
        newest ordinary segment can have a torn tail.
        """
        payload, count = spool.commit_payload(partitions)
        allotted = self.allot(payload, count, Kind.LARGE)
        note(allotted.seqno)
        self._adopt(spool, allotted.seqno, allotted.frame, regions)
        return allotted

    def adopt_received(self, spool: Spool, head: Head, frame: bytes, regions: int) -> None:
        """The same for one that carries its number already; `frame` is its commit frame."""
        self._adopt(spool, head.seqno, frame, regions)

    def _adopt(self, spool: Spool, seqno: int, frame: bytes, regions: int) -> None:
        words = self.words
        catalogue = self.catalogue_at_end()
        self.durability.sync_to_end(self._patience_s)
        header = self.next_header(seqno)
        words[word.INTENT_KIND] = ADOPTS
        words[word.INTENT_REGIONS] = regions
        words[word.INTENT_SEQNO] = seqno
        hit("adopt.before_rename")
        try:
            # What may stand under this name holds nothing: the newest segment right behind a seed, or one that a
            # killed writer made and did not come to use.
            adopt(spool, header, frame, catalogue, replace_empty=True)
        except JournalIOError as error:
            if isinstance(error, SPARED_ERRORS):
                words[word.INTENT_SEQNO] = 0
            else:
                self.poison(error)
            raise
        hit("adopt.after_rename")

    def finish_adopted(self, head: Head) -> None:
        """Make an adopted transaction visible; `head` is that of its commit frame. The next append begins a new
        segment."""
        self._enter_adopted(head, self.words[word.INTENT_REGIONS], done=True)
        self.words[word.INTENT_SEQNO] = 0
        self.ring()

    def _enter_adopted(self, head: Head, regions: int, *, done: bool) -> None:
        words = self.words
        words[word.SEGMENT_SEALED] = 1
        words[word.SEGMENT_FOREIGN] = 0
        words[word.DEFINITION_COUNT] = 0
        words[word.SEGMENT_FIRST_SEQNO] = head.seqno
        words[word.SEGMENT_GENERATION] += 1
        words[word.CATALOGUE_GENERATION] += 1
        self.advance(0, head, regions, done=done)
        self.durability.note_durable(head.seqno)
        self.pool.publish_in_files(head.seqno, head.seqno)

    # The words.

    def advance(self, end: int, last: Head, regions: int, *, done: bool) -> None:
        """The journal ends at offset `end` of its newest segment, with the frame whose head is `last`; of `regions`,
        `done` says whether they have committed up to there."""
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
        while regions:
            region = regions.bit_length() - 1
            words[word.REGION_APPENDED + region] = seqno
            if done:
                words[word.REGION_DONE + region] = seqno
            regions ^= 1 << region

    def _note_definition(self, offset: int) -> None:
        words = self.words
        count = words[word.DEFINITION_COUNT]
        if count and words[word.DEFINITION_OFFSET + count - 1] == offset:
            return
        words[word.DEFINITION_OFFSET + count] = offset
        words[word.DEFINITION_COUNT] = count + 1
        words[word.CATALOGUE_GENERATION] += 1

    def _mend(self) -> None:
        """Finish what a dead holder of the lock has begun; see INTENT above."""
        words = self.words
        first, regions = words[word.INTENT_SEQNO], words[word.INTENT_REGIONS]
        hit("mend.begin")
        if words[word.INTENT_KIND] == TAKES:
            mend_taken(self, first, regions)
            return
        if words[word.INTENT_KIND] == SWITCHES:
            # It must be used once it is there: a smaller frame would still fit the old one, and the chain would break.
            if os.path.lexists(self.chain.path_of(first)):
                sync_directory(self.directory)
                self._newest.use(self.chain.open(first, writable=True))
            words[word.INTENT_SEQNO] = 0
            return
        if words[word.INTENT_KIND] == ADOPTS:
            # Whoever was killed may not have come to sync the directory after the rename.
            sync_directory(self.directory)
            words[word.SEGMENT_GENERATION] += 1  # the name of the empty segment may be another file's now
            head = adopted_head(self.chain, first)
            if head is not None:
                self._enter_adopted(head, regions, done=False)
            words[word.INTENT_SEQNO] = 0
            self.ring()
            return
        offset, size = words[word.INTENT_OFFSET], words[word.INTENT_BYTES]
        segment = self.segment()
        tail = read_tail(segment, offset, size, first)
        if tail.batch is not None and tail.last is not None:
            for at in tail.definitions:
                self._note_definition(at)
            self.advance(offset + len(tail.batch.data), tail.last, regions, done=False)
            # Nothing happens when it was published, but for finishing a record that was left half done.
            self.pool.publish(tail.batch.data, first, tail.last.seqno, tail.batch.count)
        whole = len(tail.batch.data) if tail.batch is not None else 0
        if whole < tail.file_bytes:
            segment.append(offset + whole, bytes(tail.file_bytes - whole))
        words[word.INTENT_SEQNO] = 0
        self.ring()

    # Segments and what is in force.

    def segment(self) -> SegmentFile:
        """The segment that is appended to, open in this process. Commit lock held."""
        return self._newest.segment()

    def open_segment(self) -> SegmentFile:
        """A new descriptor on the segment that is appended to."""
        return self._newest.open_segment()

    def catalogue(self) -> Catalogue:
        """Definitions and history in force at the journal's end, and the position where its segment began. Commit
        lock held."""
        return self._newest.catalogue()

    def position(self) -> Position:
        """The journal's end: last seqno, vector and chains. Commit lock held."""
        received = self.received_position
        if received is not None and received.last_seqno == self.words[word.LAST_SEQNO]:
            return received
        return self._newest.position()

    def catalogue_at_end(self) -> Catalogue:
        """`catalogue` as a segment that begins behind the journal's end has it in its header."""
        here = self.position()
        return self.catalogue().newest().at(here.vector, here.chains)

    def next_header(self, first_seqno: int) -> SegmentHeader:
        """That of a segment behind the journal's end."""
        return self._newest.next_header(first_seqno)

    def begin_again(self, first_seqno: int) -> None:
        """An empty segment in the place of the newest one, which begins with that number, too."""
        self._newest.use(self._create_segment(self.next_header(first_seqno), self.catalogue_at_end()))

    def _create_segment(self, header: SegmentHeader, catalogue: Catalogue) -> SegmentFile:
        return create_segment(self.directory, header, catalogue, replace=True, grow_bytes=self._grow_bytes)

    def _switch(self, first_seqno: int) -> None:
        """Begin a new segment. Everything before it is synced first, so only the newest segment can have a torn
        tail."""
        catalogue = self.catalogue_at_end()
        self.durability.sync_to_end(self._patience_s)
        header = self.next_header(first_seqno)
        words = self.words
        words[word.INTENT_KIND] = SWITCHES
        words[word.INTENT_REGIONS] = 0
        words[word.INTENT_SEQNO] = first_seqno
        hit("switch.before_create")
        try:
            segment = self._create_segment(header, catalogue)
        except JournalIOError as error:
            words[word.INTENT_SEQNO] = 0  # nothing is appended
            if not isinstance(error, SPARED_ERRORS):
                self.poison(error)  # whether it has its name on the disk is not known, and asking again does not tell
            raise
        hit("switch.after_create")
        self._newest.use(segment)
        words[word.INTENT_SEQNO] = 0
        self.has_switched = True

    # For callers outside the lock.

    def catalogue_now(self) -> Catalogue:
        """`catalogue`, the lock taken for a moment."""
        with self.locked():
            return self.catalogue()

    def wait_durable(self, seqno: int) -> int:
        """See Durability.wait."""
        return self.durability.wait(seqno)

    def sync_to_end(self, timeout_s: float | None = None) -> int:
        """Make everything visible durable; returns the last durable seqno. `timeout_s`: see Durability.sync_to_end."""
        return self.durability.sync_to_end(timeout_s)
