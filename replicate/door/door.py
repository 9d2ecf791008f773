"""The commit door: the one way into an instance's journal. Numbers, appends, and mends what a killed writer left.

Guarantees, under the commit lock: numbers are allotted without a hole; a number becomes visible to readers
(LAST_SEQNO) only once its frame is whole and its outcome is known; whatever a killed holder left half done is
finished or zeroed before anything else happens; the first failed write or sync poisons the journal for every process
of the instance. Leaves to others: SQL, row images, sockets. Regions are bits here; what COMMIT means is
door/primary.py's and secondary.py's.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from replicate.door.appended_segment import NewestSegment
from replicate.door.durability import Durability
from replicate.door.ledger import ADOPTS, APPENDS, SWITCHES, TAKES, Allotted, Ledger, Moved
from replicate.door.lock import CommitLock
from replicate.door.received_range import enter_taken, finish_taken, mend_taken
from replicate.door.recovery.journal_end import adopted_head, read_tail
from replicate.door.voiding import void
from replicate.errors import (
    ClockAheadError,
    DiskFullError,
    InternalError,
    JournalIOError,
    NotPrimaryError,
    NotWriterError,
)
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import commit_lock_path
from replicate.journal.chain import Chain
from replicate.journal.prepared_segment import AsideSegment
from replicate.journal.record import FrameBatch, Head, pack_frame
from replicate.journal.reserve import give_up
from replicate.journal.segment import SegmentFile
from replicate.journal.spool import Spool, adopt
from replicate.journal.walk import PiecedBatch, Pieces
from replicate.limits import BATCH_BYTES_MAX
from replicate.model.moment import CSN_CAP, CSN_COUNTER_BITS, readable
from replicate.model.transaction import Catalogue, Kind
from replicate.model.vector import Position
from replicate.pool.control import (
    CSN_END,
    CSN_END_UNTIL_NS,
    DEFINITION_COUNT,
    DEFINITIONS_MAX,
    END_OFFSET,
    FATAL,
    INTENT_BYTES,
    INTENT_KIND,
    INTENT_OFFSET,
    INTENT_REGIONS,
    INTENT_SEQNO,
    LAST_COMMIT_WALL_NS,
    LAST_CSN,
    LAST_DURABLE_SEQNO,
    LAST_SEQNO,
    OWN_CHAIN,
    OWN_ORIGIN,
    OWN_ORIGIN_SEQNO,
    REGION_APPENDED,
    REGION_DONE,
    ROLE,
    ROLE_SECONDARY,
    SEGMENT_FIRST_SEQNO,
    SEGMENT_FOREIGN,
    SEGMENT_GENERATION,
    SEGMENT_SEALED,
    SLEEPERS,
    ZEROED_OFFSET,
)
from replicate.pool.doorbell import Doorbells
from replicate.pool.journal_pool import JournalPool
from replicate.system.failpoint import hit
from replicate.system.files import sync_directory
from replicate.system.os_errors import FULL, SPARED_ERRORS

COMMIT_LOCK_TIMEOUT_S: Final = 30.0
"""A commit holds the lock for microseconds, a segment switch for milliseconds: only a stopped process holds it
longer."""
_HISTORY: Final = Kind.HISTORY


class Door:
    """One per process and instance (`opening.open_door`). Threads share it; a forked child must not.

    Order of locks, always: region locks (in region-id order), then SQLite's write lock, then the commit lock. The sync
    lock (door/durability.py) is taken alone or under the commit lock, and its holder waits for no other.

    The intent (door/ledger.py) tells the next holder of the lock all that a dead one may have touched: whole frames
    there are *redone* (the words are recomputed from the frames, the pool gets them, the regions are marked
    unfinished), the rest is zeroed. No reader may see a frame before COMMIT has returned; so a failed COMMIT is voided
    in place (voiding.py), and there is never a moment at which a reader could take a frame for the truth that is none.
    """

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
        """How many times this door was opened and not closed yet (door/recovery/opening.py)."""
        self.has_switched = False
        """A segment was begun through this door since somebody last cleared this: it is time to prune."""
        self.lock_timeout_s = COMMIT_LOCK_TIMEOUT_S
        self._patience_s: float | None = None
        """How long the process that holds the commit lock now waits for the sync lock; None: as long as a flush may
        take."""
        self.directory = os.fspath(instance.journal_directory)
        """Of the segments."""
        self._segment_bytes = instance.config.journal.segment_bytes
        self._doorbells = Doorbells(instance.run_directory)
        self.end = NewestSegment(instance, self.words, chain)
        self._lock = CommitLock(commit_lock_path(instance))
        try:
            self.durability = Durability(instance, self.words, self.open_segment, self.ring, pool.memory)
            self.ledger = Ledger(pool, self.durability, self.ring, is_supplier=instance.is_supplier)
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
            for part in (self.pool, self.end, self._doorbells, self._lock, self.durability):
                rest.callback(part.close)

    def ring(self) -> None:
        """Wake what sleeps until there is something new in the pool."""
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
                memory.look_again_s = 0.0  # what is refused is refused each time
                self.end.check_place()
                memory.look_again_s = looked
            if words[FATAL]:
                self.durability.check_alive()
            if words[INTENT_SEQNO]:
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
        """The next number of our own origin, and the whole frame under it. NotPrimaryError on a secondary, but for the
        record with which it becomes a primary."""
        words = self.words
        if words[ROLE] == ROLE_SECONDARY and kind is not _HISTORY:
            self._refuse_to_allot()
        seqno = words[LAST_SEQNO] + 1
        origin_seqno = words[OWN_ORIGIN_SEQNO] + (kind is not _HISTORY)
        csn, now = words[LAST_CSN] + 1, (time.time_ns() // 1000) << CSN_COUNTER_BITS
        if now > csn:
            csn = now
        if csn >= (words[CSN_END] or CSN_CAP):
            self._check_clock(csn)
        frame, chain = pack_frame(
            kind,
            seqno,
            words[LAST_DURABLE_SEQNO],
            words[OWN_CHAIN],
            words[OWN_ORIGIN],
            origin_seqno,
            csn,
            payload,
            count,
        )
        # A named tuple's own constructor is a function of Python: a percent of a commit, measured.
        return tuple.__new__(Allotted, (seqno, frame, origin_seqno, chain, csn))

    def _check_clock(self, csn: int) -> None:
        """ClockAheadError for a csn at CSN_CAP, or at CSN_END while that holds."""
        words = self.words
        if csn >= CSN_CAP:
            raise ClockAheadError(
                f"a transaction of {self.instance.name} would bear the time {readable(csn)}, and none may from 2100 on",
                do="Set the clock of this host right; then do the transaction again",
            )
        if time.monotonic_ns() < words[CSN_END_UNTIL_NS]:
            raise ClockAheadError(
                f"a transaction of {self.instance.name} would bear the time {readable(csn)}, and by the clock of every "
                f"host that was heard here of late nothing may from {readable(words[CSN_END])} on ([update] "
                "clock_ahead_max_s): the others would stop at it",
                do="Set right whichever clock is wrong (timedatectl, chronyc tracking); then do the transaction again",
            )

    def _refuse_to_allot(self) -> NoReturn:
        self.instance.look_again()
        if (by := self.instance.content.retired_by) is not None:
            raise gone_for_good(self.instance, str(self.instance.path), by.name, by.seqno)
        raise NotPrimaryError(
            f"instance {self.instance.name} is secondary: it gives no numbers of its own",
            where=str(self.instance.path),
            do="Write on the primary",
        )

    def append(self, data: bytes | Pieces, first_seqno: int, regions: int, *, defines: bool = False) -> None:
        """Write frames at the journal's end, beginning a new segment when they do not fit. Not yet visible to
        readers.

        DiskFullError, ExhaustedError: nothing is appended, and all is as it was. Any other failure poisons the journal.
        Where the disk is full, the reserve is given up first, if there is one.
        """
        words = self.words
        if first_seqno != words[LAST_SEQNO] + 1:
            raise InternalError(f"transaction {first_seqno} does not follow {words[LAST_SEQNO]}")
        size = len(data)
        end = words[END_OFFSET]
        # An empty segment is never left: the next one would bear the same number.
        if (
            end + size > self._segment_bytes
            or words[SEGMENT_SEALED]
            or words[SEGMENT_FOREIGN]
            or (defines and words[DEFINITION_COUNT] >= DEFINITIONS_MAX)
        ) and first_seqno != words[SEGMENT_FIRST_SEQNO]:
            self._switch(first_seqno)
            end = words[END_OFFSET]
        segment = self.end.segment()
        try:
            segment.zeroed_offset = zeroed = words[ZEROED_OFFSET]
            if end + size > zeroed:
                words[ZEROED_OFFSET] = segment.make_room(end + size, size)
            words[INTENT_KIND] = APPENDS
            words[INTENT_OFFSET] = end
            words[INTENT_BYTES] = size
            words[INTENT_REGIONS] = regions
            words[INTENT_SEQNO] = first_seqno
            hit("append.before_write")
            segment.append(end, data)
            hit("append.after_write")
        except JournalIOError as error:
            if segment.poisoned or not isinstance(error, SPARED_ERRORS):
                self.poison(error)
                raise
            words[INTENT_SEQNO] = 0
            if not (isinstance(error, DiskFullError) and give_up(self.chain.directory)):
                raise
            self.append(data, first_seqno, regions, defines=defines)
        except BaseException as error:
            if segment.poisoned:  # an interrupt has taken the failure's place
                self.poison(error)
            raise

    def finish_own(self, allotted: Allotted, *, defines: bool = False) -> None:
        """Make one frame that `allot` made visible; the hot path of every commit."""
        words = self.words
        seqno, frame, origin_seqno, chain, csn = allotted
        if defines:
            self.ledger.note_definition(words[INTENT_OFFSET])
        words[END_OFFSET] = words[INTENT_OFFSET] + words[INTENT_BYTES]
        words[OWN_ORIGIN_SEQNO] = origin_seqno
        words[OWN_CHAIN] = chain
        words[LAST_CSN] = csn
        words[LAST_COMMIT_WALL_NS] = time.time_ns()
        regions = words[INTENT_REGIONS]
        while regions:  # `Ledger.advance`, written out
            region = regions.bit_length() - 1
            words[REGION_APPENDED + region] = words[REGION_DONE + region] = seqno
            regions ^= 1 << region
        words[LAST_SEQNO] = seqno
        hit("finish.before_publish")
        self.pool.publish(frame, seqno, seqno, 1)
        words[INTENT_SEQNO] = 0
        if words[SLEEPERS] or words[SLEEPERS + 1]:
            self.ring()

    def finish_batch(
        self, batch: FrameBatch | PiecedBatch, last: Head, *, defines: bool = False, moved: Moved | None = None
    ) -> None:
        """Make received frames visible; `last` is the head of the batch's last frame, `moved` as in `Ledger.advance`. A
        long batch in pieces is to be read from the files: the kernel still has them."""
        words = self.words
        if defines:
            self.ledger.note_definition(words[INTENT_OFFSET])
        end = words[INTENT_OFFSET] + words[INTENT_BYTES]
        self.ledger.advance(end, last, words[INTENT_REGIONS], done=True, moved=moved)
        hit("finish.before_publish")
        data = batch.data
        if isinstance(data, bytes):
            self.pool.publish(data, batch.first_seqno, batch.last_seqno, batch.count)
        elif len(data) <= BATCH_BYTES_MAX:
            self.pool.publish(b"".join(map(bytes, data)), batch.first_seqno, batch.last_seqno, batch.count)
        else:
            self.pool.publish_in_files(batch.first_seqno, batch.last_seqno)
        words[INTENT_SEQNO] = 0
        self.ring()

    def region_failed(self, number: int) -> None:
        """COMMIT of a region failed with that errno. Where its disk is full, the journal's reserve is given up: most
        often it is the same disk, and the transactions after this one go on. Commit lock held."""
        if number in FULL:
            give_up(self.chain.directory)

    def void(self, allotted: Allotted, reason: str) -> None:
        """Turn an appended frame that no region has into a NULL record, durably. OutcomeUnknownError when that
        fails."""
        voided = void(self.ledger, self.end, allotted, reason)
        if voided is not None:
            self.finish_own(voided)

    def poison(self, error: BaseException | int) -> None:
        """No process of this instance appends any more until recovery has run."""
        self.ledger.poison(error)

    # Large transactions: their segment is on the disk already; it enters the chain by its name.

    def adopt(
        self,
        spool: Spool,
        partitions: tuple[int, ...],
        regions: int,
        note: Callable[[Allotted], None],
    ) -> Allotted:
        """Rename a spooled transaction into the chain under the next number: constant time. Not yet visible to
        readers.

        `note` gets it while failing is still free. Everything before it is synced first, so that only the
        newest ordinary segment can have a torn tail.
        """
        payload, count = spool.commit_payload(partitions)
        allotted = self.allot(payload, count, Kind.LARGE)
        note(allotted)
        self._adopt(spool, allotted.seqno, allotted.frame, regions)
        return allotted

    def adopt_received(self, spool: Spool, head: Head, frame: bytes, regions: int) -> None:
        """The same for one that carries its number already; `frame` is its commit frame."""
        self._adopt(spool, head.seqno, frame, regions)

    def _adopt(self, spool: Spool, seqno: int, frame: bytes, regions: int) -> None:
        catalogue = self.end.catalogue_at_end()
        self.durability.sync_to_end(self._patience_s)
        header = self.end.next_header(seqno)
        self.ledger.intend(ADOPTS, seqno, regions)
        hit("adopt.before_rename")
        try:
            # What may stand under this name holds nothing: the newest segment right after a seed, or one that a
            # killed writer made and did not come to use.
            adopt(spool, header, frame, catalogue, replace_empty=True)
        except JournalIOError as error:
            if isinstance(error, SPARED_ERRORS):
                self.ledger.done()
            else:
                self.poison(error)
            raise
        hit("adopt.after_rename")

    def finish_adopted(self, head: Head) -> None:
        """Make an adopted transaction visible; `head` is that of its commit frame. The next append begins a new
        segment."""
        self.ledger.enter_segment(head.seqno, head, 0, self.words[INTENT_REGIONS], done=True)

    # A range that was written aside.

    def begin_aside(self) -> AsideSegment:
        """A segment aside that continues the journal's end as it is now. Takes the commit lock for a moment.

        DiskFullError, JournalIOError; what `enter` raises.
        """
        with self.locked():
            catalogue = self.end.catalogue_at_end()
            self.durability.sync_to_end()
            header = self.end.next_header(self.words[LAST_SEQNO] + 1)
        return AsideSegment(self.instance.journal_directory, header, catalogue)

    def enter_taken(self, aside: AsideSegment, regions: int) -> None:
        """As `received_range.enter_taken`."""
        enter_taken(self.ledger, self.end, aside, regions)

    def finish_taken(self, aside: AsideSegment) -> None:
        """As `received_range.finish_taken`."""
        finish_taken(self.ledger, aside)
        self.has_switched = True

    # After a killed holder of the lock.

    def _mend(self) -> None:
        """Finish what a dead holder of the lock has begun; see INTENT above."""
        words = self.words
        first, regions = words[INTENT_SEQNO], words[INTENT_REGIONS]
        hit("mend.begin")
        if words[INTENT_KIND] == TAKES:
            self.has_switched |= mend_taken(self.ledger, self.end, first, regions)
            return
        if words[INTENT_KIND] == SWITCHES:
            # It must be used once it is there: a smaller frame would still fit the old one, and the chain would break.
            if os.path.lexists(self.chain.path_of(first)):
                sync_directory(self.directory)
                self.end.use(self.chain.open(first, writable=True))
            words[INTENT_SEQNO] = 0
            return
        if words[INTENT_KIND] == ADOPTS:
            # The process that was killed may not have come to sync the directory after the rename.
            sync_directory(self.directory)
            words[SEGMENT_GENERATION] += 1  # the name of the empty segment may be another file's now
            head = adopted_head(self.chain, first)
            if head is not None:
                self.ledger.enter_segment(first, head, 0, regions, done=False)
            else:
                self.ledger.done()
                self.ring()
            return
        offset, size = words[INTENT_OFFSET], words[INTENT_BYTES]
        segment = self.segment()
        tail = read_tail(segment, offset, size, first)
        if tail.batch is not None and tail.last is not None:
            for at in tail.definitions:
                self.ledger.note_definition(at)
            self.ledger.advance(offset + len(tail.batch.data), tail.last, regions, done=False, moved=tail.moved)
            # Nothing happens when it was published, but for finishing a record that was left half done.
            self.pool.publish(tail.batch.data, first, tail.last.seqno, tail.batch.count)
        whole = len(tail.batch.data) if tail.batch is not None else 0
        if whole < tail.file_bytes:
            segment.append(offset + whole, bytes(tail.file_bytes - whole))
        words[INTENT_SEQNO] = 0
        self.ring()

    # Segments and what is in force.

    def segment(self) -> SegmentFile:
        """The segment that is appended to, open in this process. Commit lock held."""
        return self.end.segment()

    def open_segment(self) -> SegmentFile:
        """A new descriptor on the segment that is appended to."""
        return self.end.open_segment()

    def catalogue(self) -> Catalogue:
        """Definitions and history in force at the journal's end, and the position where its segment began. Commit
        lock held."""
        return self.end.catalogue()

    def position(self) -> Position:
        """The journal's end: last seqno, vector and chains. Commit lock held."""
        return self.end.position()

    def begin_partial(self) -> None:
        """Have the journal say, of what comes from here on, that it is not all: a new segment. Commit lock held. Raises
        what an append raises."""
        if not self.end.segment().header.is_partial:
            self._switch(int(self.words[LAST_SEQNO]) + 1, is_partial=True)

    def begin_whole(self) -> None:
        """The same for a primary, whose journal says no more that it is not all."""
        if self.end.segment().header.is_partial:
            self._switch(int(self.words[LAST_SEQNO]) + 1)

    def _switch(self, first_seqno: int, *, is_partial: bool = False) -> None:
        """Begin a new segment. Everything before it is synced first, so only the newest segment can have a torn
        tail. `is_partial`: see NewestSegment.next_header."""
        catalogue = self.end.catalogue_at_end()
        self.durability.sync_to_end(self._patience_s)
        header = self.end.next_header(first_seqno, is_partial=is_partial)
        self.ledger.intend(SWITCHES, first_seqno, 0)
        hit("switch.before_create")
        try:
            segment = self.end.create(header, catalogue)
        except JournalIOError as error:
            self.ledger.done()  # nothing is appended
            if isinstance(error, DiskFullError) and give_up(self.chain.directory):
                self._switch(first_seqno, is_partial=is_partial)
                return
            if not isinstance(error, SPARED_ERRORS):
                self.poison(error)  # whether it has its name on the disk is not known, and asking again does not tell
            raise
        hit("switch.after_create")
        self.end.use(segment)
        self.ledger.done()
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


def gone_for_good(instance: Instance, where: str, by: str, seqno: int = 0) -> NotWriterError:
    """Others take nothing from this one any more, as `by` says, which has what stands here up to `seqno`."""
    name, since = instance.name, f" --from {seqno + 1}" if seqno else ""
    return NotWriterError(
        f"{name} was said to be gone for good, by {by}, and nobody takes from it any more",
        where=where,
        do=f"Write on {by}. To see what only {name} has: replicate -i {instance.named} journal show{since}. To have "
        "that in a file, and make this site again: replicate help suppliers (A supplier is gone for good)",
        writer=by,
    )
