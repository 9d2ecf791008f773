"""The commit door: the one way into an instance's journal. Numbers, appends, and mends what a killed writer left.

Guarantees, under the commit lock: numbers are allotted without a hole; a number becomes visible to readers
(LAST_SEQNO) only once its frame is whole and its outcome is known; whatever a killed holder left half done is
finished or zeroed before anything else happens; the first failed write or sync poisons the journal for every process
of the instance. Refuses to know: SQL, row images, sockets. Regions are bits here; what COMMIT means is commit.py's
and apply_session.py's.

Order of locks, always: region locks (in region-id order), then SQLite's write lock, then the commit lock. The sync
lock (durability.py) is taken alone or under the commit lock, and its holder waits for no other.

INTENT words. Before a frame is written, its place and number stand in INTENT_OFFSET, INTENT_BYTES, INTENT_REGIONS
and, last, INTENT_SEQNO; when everything is done INTENT_SEQNO goes back to 0. So the next holder of the lock knows all
that a dead one may have touched: whole frames there are *redone* (the words are recomputed from the frames, the pool
gets them, the regions are marked unfinished), the rest is zeroed. LAST_SEQNO stands before them until COMMIT has
returned, which is also why a failed COMMIT can be voided in place: no reader has been allowed to see the frame. The
design had VOID as a record of its own; in place, there is never a moment at which a reader could take the first of
the two for the truth.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from replicate.durability import Durability
from replicate.errors import AlreadyExistsError, DiskFullError, JournalIOError, OutcomeUnknownError
from replicate.failpoint import hit
from replicate.instance import Instance
from replicate.journal.catalogue import catalogue_before, catalogue_with
from replicate.journal.chain import Chain
from replicate.journal.header import SegmentHeader
from replicate.journal.record import FRAME_HEAD_BYTES, FrameBatch, Head, pack_frame
from replicate.journal.segment import SegmentFile, create_segment, open_segment, segment_name
from replicate.journal.spool import Spool, adopt
from replicate.limits import PARTITION_STREAM
from replicate.locks import FileLock
from replicate.mending import adopted_head, read_tail
from replicate.pool import control as word
from replicate.pool.doorbell import Doorbells
from replicate.pool.journal_pool import JournalPool
from replicate.transaction import Catalogue, Kind
from replicate.vector import Position

COMMIT_LOCK_TIMEOUT_S: Final = 30.0
"""A commit holds the lock for microseconds, a segment switch for milliseconds: only a stopped process holds it
longer."""
CSN_COUNTER_BITS: Final = 12
"""A csn is microseconds of wall time, shifted by this: 4096 changes a microsecond before it runs ahead of the
clock."""


@dataclass(frozen=True, slots=True)
class Allotted:
    """A frame with the number that it will have; nothing of it is visible yet."""

    seqno: int
    frame: bytes
    origin_seqno: int
    chain: int
    csn: int


class Door:
    """One per process and instance (`opening.open_door`). Threads share it; a forked child must not."""

    def __init__(
        self, instance: Instance, pool: JournalPool, chain: Chain, on_close: Callable[[Door], None] | None = None
    ) -> None:
        self._on_close = on_close
        self.instance = instance
        self.pool = pool
        self.words = pool.words
        self.chain = chain
        self.pid = os.getpid()
        self.users = 0
        """How many times this door was opened and not closed yet (opening.py)."""
        self.received_position: Position | None = None
        """On a secondary: what the Update Process of this process has applied; None on a primary."""
        self._directory = os.fspath(instance.journal_directory)
        self._thread_lock = threading.Lock()
        self._commit_lock = FileLock(instance.locks_directory / "commit.lock")
        self._segment: SegmentFile | None = None
        self._doorbells = Doorbells(instance.run_directory)
        self._catalogue: tuple[int, Catalogue] | None = None
        self.durability = Durability(instance, self.words, self.open_segment)

    def close(self) -> None:
        """Give the door up; the last of its users in this process closes it."""
        if self._on_close is not None:
            self._on_close(self)
        else:
            self.dispose()

    def dispose(self) -> None:
        """Close every descriptor; the pool stays for others. Use `close`."""
        self.durability.close()
        self._commit_lock.close()
        self._doorbells.close()
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self.pool.close()

    # The lock.

    @contextlib.contextmanager
    def locked(self, timeout_s: float = COMMIT_LOCK_TIMEOUT_S) -> Iterator[None]:
        """Hold the commit lock. What a dead holder left is mended first.

        Raises BusyError after `timeout_s` seconds, PoolReplacedError when the pool is no longer this instance's,
        JournalIOError when the journal is poisoned; the lock is not held then.
        """
        if not self._thread_lock.acquire(timeout=timeout_s if timeout_s > 0 else 0.001):
            self._commit_lock.acquire(0, what="the commit lock")  # raises BusyError, or the holder has just gone
        try:
            if not self._commit_lock.held:
                self._commit_lock.acquire(timeout_s, what="the commit lock")
            try:
                self.pool.check_current()
                self.durability.check_alive()
                if self.words[word.INTENT_SEQNO]:
                    self._mend()
                yield
            finally:
                self._commit_lock.release()
        finally:
            self._thread_lock.release()

    # Appending. All of this is called with the commit lock held.

    def allot(self, payload: bytes, count: int, kind: Kind = Kind.TRANSACTION) -> Allotted:
        """The next number of our own origin, and the whole frame under it."""
        words = self.words
        seqno = words[word.LAST_SEQNO] + 1
        origin_seqno = words[word.OWN_ORIGIN_SEQNO] + (kind != Kind.HISTORY)
        csn = max(words[word.LAST_CSN] + 1, (time.time_ns() // 1000) << CSN_COUNTER_BITS)
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

    def append(self, data: bytes, first_seqno: int, regions: int, *, defines: bool = False) -> None:
        """Write frames at the journal's end, beginning a new segment when they do not fit. Not yet visible to
        readers.

        DiskFullError: nothing is appended, and everything is as it was. Any other failure poisons the journal.
        """
        words = self.words
        end = words[word.END_OFFSET]
        full = end + len(data) > self.instance.config.journal.segment_bytes
        # An empty segment is never left: the next one would bear the same number.
        if first_seqno != words[word.SEGMENT_FIRST_SEQNO] and (
            words[word.SEGMENT_SEALED]
            or words[word.SEGMENT_FOREIGN]
            or full
            or (defines and words[word.DEFINITION_COUNT] >= word.DEFINITIONS_MAX)
        ):
            self._switch(first_seqno)
            end = words[word.END_OFFSET]
        segment = self.segment()
        try:
            if end + len(data) > words[word.ZEROED_OFFSET]:
                segment.zeroed_offset = words[word.ZEROED_OFFSET]
                words[word.ZEROED_OFFSET] = segment.ensure_zeroed(end + len(data))
            segment.zeroed_offset = words[word.ZEROED_OFFSET]
            words[word.INTENT_ADOPTS] = 0
            words[word.INTENT_OFFSET] = end
            words[word.INTENT_BYTES] = len(data)
            words[word.INTENT_REGIONS] = regions
            words[word.INTENT_SEQNO] = first_seqno
            hit("append.before_write")
            segment.append(end, data)
            hit("append.after_write")
        except JournalIOError as error:
            if segment.poisoned or not isinstance(error, DiskFullError):
                self.poison(error)
            else:
                words[word.INTENT_SEQNO] = 0
            raise

    def finish_own(self, allotted: Allotted, *, defines: bool = False) -> None:
        """Make one frame that `allot` made visible; the hot path of every commit."""
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

    def finish_batch(self, batch: FrameBatch, last: Head, *, defines: bool = False) -> None:
        """Make received frames visible; `last` is the head of the batch's last frame."""
        words = self.words
        if defines:
            self._note_definition(words[word.INTENT_OFFSET])
        end = words[word.INTENT_OFFSET] + words[word.INTENT_BYTES]
        self._advance(end, last, words[word.INTENT_REGIONS], done=True)
        hit("finish.before_publish")
        self.pool.publish(batch.data, batch.first_seqno, batch.last_seqno, batch.count)
        words[word.INTENT_SEQNO] = 0
        self._doorbells.ring(self.pool)

    def void(self, allotted: Allotted, reason: str) -> None:
        """Turn an appended frame that no region has into a NULL record, durably. OutcomeUnknownError when that
        fails."""
        words = self.words
        try:
            if words[word.INTENT_ADOPTS]:
                os.unlink(os.path.join(self._directory, segment_name(allotted.seqno)))
                words[word.INTENT_SEQNO] = 0
                return
            # The NULL record has exactly the length of the frame that it replaces: str32 of the reason, padded; no
            # partitions.
            room = len(allotted.frame) - FRAME_HEAD_BYTES - 6
            text = f"void: {reason}".encode()[:room].ljust(room)
            payload = b"\xdb" + room.to_bytes(4, "big") + text + b"\x90"
            frame, chain = pack_frame(
                Kind.NULL,
                allotted.seqno,
                words[word.LAST_DURABLE_SEQNO],
                words[word.OWN_CHAIN],
                words[word.OWN_ORIGIN],
                allotted.origin_seqno,
                allotted.csn,
                payload,
                2,
            )
            self.segment().append(words[word.INTENT_OFFSET], frame)
            self.segment().sync()
        except (OSError, JournalIOError) as error:
            self.poison(error)
            raise OutcomeUnknownError(
                f"transaction {allotted.seqno} failed, and could not be voided in the journal",
                where=self._directory,
                do="Stop every process of this instance, mend the disk, start again: recovery decides",
            ) from error
        words[word.INTENT_REGIONS] = 0
        self.finish_own(Allotted(allotted.seqno, frame, allotted.origin_seqno, chain, allotted.csn))

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
        catalogue = self._catalogue_at_end()
        self.durability.sync_to_end()
        words[word.INTENT_ADOPTS] = 1
        words[word.INTENT_REGIONS] = regions
        words[word.INTENT_SEQNO] = seqno
        # Right behind a seed (or a switch whose append failed) the newest segment has no frame, and bears this number.
        is_empty = words[word.SEGMENT_FIRST_SEQNO] == seqno
        header = replace(self.segment().header, created_wall_ns=time.time_ns()) if is_empty else self._header(seqno)
        hit("adopt.before_rename")
        try:
            adopt(spool, header, frame, catalogue, replace_empty=is_empty)
        except JournalIOError as error:
            if isinstance(error, DiskFullError):
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
        self._doorbells.ring(self.pool)

    def _enter_adopted(self, head: Head, regions: int, *, done: bool) -> None:
        words = self.words
        words[word.SEGMENT_SEALED] = 1
        words[word.DEFINITION_COUNT] = 0
        words[word.SEGMENT_FIRST_SEQNO] = head.seqno
        words[word.CATALOGUE_GENERATION] += 1
        self._advance(0, head, regions, done=done)
        self.durability.note_durable(head.seqno)
        self.pool.publish_in_files(head.seqno, head.seqno)

    # The words.

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
        if words[word.INTENT_ADOPTS]:
            head = adopted_head(self.chain, first)
            if head is not None:
                self._enter_adopted(head, regions, done=False)
            words[word.INTENT_SEQNO] = 0
            return
        offset, size = words[word.INTENT_OFFSET], words[word.INTENT_BYTES]
        segment = self.segment()
        tail = read_tail(segment, offset, size, first)
        if tail.batch is not None and tail.last is not None:
            for at in tail.definitions:
                self._note_definition(at)
            self._advance(offset + len(tail.batch.data), tail.last, regions, done=False)
            if words[word.LAST_PUBLISHED_SEQNO] < tail.last.seqno:
                self.pool.publish(tail.batch.data, first, tail.last.seqno, tail.batch.count)
        whole = len(tail.batch.data) if tail.batch is not None else 0
        if whole < size:
            segment.append(offset + whole, bytes(size - whole))
        words[word.INTENT_SEQNO] = 0
        self._doorbells.ring(self.pool)

    # Segments and what is in force.

    def segment(self) -> SegmentFile:
        """The segment that is appended to, open in this process. Commit lock held."""
        first = self.words[word.SEGMENT_FIRST_SEQNO]
        sealed = bool(self.words[word.SEGMENT_SEALED])
        known = self._segment
        if known is None or known.header.first_seqno != first or (sealed and not known.header.adopted):
            if self._segment is not None:
                self._segment.close()
                self._segment = None
            self._segment = self.open_segment()
        return self._segment

    def open_segment(self) -> SegmentFile:
        """A new descriptor on the segment that is appended to."""
        words = self.words
        content = self.instance.content
        return open_segment(
            os.path.join(self._directory, segment_name(words[word.SEGMENT_FIRST_SEQNO])),
            network=content.network,
            instance=content.uuid,
            writable=True,
            zeroed_offset=words[word.ZEROED_OFFSET],
        )

    def _header(self, first_seqno: int) -> SegmentHeader:
        words = self.words
        content = self.instance.content
        previous = self.segment().header
        return SegmentHeader(
            network=content.network,
            instance=content.uuid,
            incarnation=content.incarnation,
            first_seqno=first_seqno,
            created_wall_ns=time.time_ns(),
            previous_first_seqno=previous.first_seqno,
            previous_last_seqno=words[word.LAST_SEQNO],
            previous_end_offset=words[word.END_OFFSET],
            previous_check=previous.check,
            origin_seqno=words[word.OWN_ORIGIN_SEQNO],
            chain=words[word.OWN_CHAIN],
        )

    def _switch(self, first_seqno: int) -> None:
        """Begin a new segment. Everything before it is synced first, so only the newest segment can have a torn
        tail."""
        words = self.words
        catalogue = self._catalogue_at_end()
        self.durability.sync_to_end()
        header = self._header(first_seqno)
        hit("switch.before_create")
        try:
            segment = create_segment(self._directory, header, catalogue)
        except AlreadyExistsError:
            # A writer was killed between making this segment and using it: it holds nothing, since we are the first
            # to number this.
            os.unlink(os.path.join(self._directory, segment_name(first_seqno)))
            segment = create_segment(self._directory, header, catalogue)
        hit("switch.after_create")
        if self._segment is not None:
            self._segment.close()
        self._segment = segment
        words[word.DEFINITION_COUNT] = 0
        words[word.ZEROED_OFFSET] = segment.zeroed_offset
        words[word.END_OFFSET] = segment.read_catalogue()[1]
        words[word.SEGMENT_FIRST_SEQNO] = first_seqno
        words[word.SEGMENT_FOREIGN] = 0
        words[word.SEGMENT_SEALED] = 0
        words[word.CATALOGUE_GENERATION] += 1

    def catalogue(self) -> Catalogue:
        """Definitions and history in force at the journal's end, and the position where its segment began. Commit
        lock held."""
        words = self.words
        generation = words[word.CATALOGUE_GENERATION]
        if self._catalogue is None or self._catalogue[0] != generation:
            offsets = tuple(words[word.DEFINITION_OFFSET + i] for i in range(words[word.DEFINITION_COUNT]))
            segment = self.segment()
            known = segment.read_catalogue()[0]
            self._catalogue = (generation, catalogue_with(known, segment, offsets))
        return self._catalogue[1]

    def position(self) -> Position:
        """The journal's end: last seqno, vector and chains. Commit lock held."""
        words = self.words
        last_seqno = words[word.LAST_SEQNO]
        if self.received_position is not None and self.received_position.last_seqno == last_seqno:
            return self.received_position
        if self.instance.role != "primary" or words[word.SEGMENT_FOREIGN]:
            # Other origins move within a segment, and only its frames say how far: rare questions may walk them.
            there = catalogue_before(self.chain, last_seqno + 1)
            return Position(last_seqno, there.vector, there.chains)
        known = self.catalogue()
        origin, origin_seqno = words[word.OWN_ORIGIN], words[word.OWN_ORIGIN_SEQNO]
        vector = known.vector.raised(origin, PARTITION_STREAM, origin_seqno) if origin_seqno else known.vector
        return Position(last_seqno, vector, {**known.chains, origin: (origin_seqno, words[word.OWN_CHAIN])})

    def _catalogue_at_end(self) -> Catalogue:
        here = self.position()
        return self.catalogue().newest().at(here.vector, here.chains)

    # For callers outside the lock.

    def catalogue_now(self) -> Catalogue:
        """`catalogue`, the lock taken for a moment."""
        with self.locked():
            return self.catalogue()

    def wait_durable(self, seqno: int) -> int:
        """See Durability.wait."""
        return self.durability.wait(seqno)

    def sync_to_end(self) -> int:
        """Make everything visible durable; returns the last durable seqno."""
        return self.durability.sync_to_end()
