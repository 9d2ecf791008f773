"""The journal pool: the newest transactions of the journal in shared memory, for readers that hold no lock.

It is a cache; the journal files are the truth. So it is lossy: a slow reader is *lapped*, reads the files, and comes
back. A publisher waits for nobody.

Guarantees: a PoolReader yields, or names as InFiles, every transaction from `next_seqno` on, once, in order, without
a gap. Bytes that do not verify are never yielded; they are counted, and read from the files.
Leaves to others: files of the journal, what the commit words mean (but LAST_SEQNO), how a reader sleeps.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from replicate.errors import DamagedError, InternalError
from replicate.journal.record import FrameBatch
from replicate.journal.walk import walk
from replicate.limits import BATCH_BYTES_MAX, POOL_BYTES_MIN
from replicate.pool.control import (
    CONTROL_BYTES,
    EARLY,
    LAST_PUBLISHED_SEQNO,
    LAST_SEQNO,
    POOL_STATE,
    SLEEPERS,
    STATE_CLOSED,
    WRITTEN,
)
from replicate.pool.ring import (
    CHECK_BYTES,
    HEAD_BYTES,
    RecordKind,
    aligned,
    pack_head,
    pack_padding,
    parse,
    unpack_head,
    whole_bytes,
)
from replicate.pool.shared_memory import PoolKind, SharedMemory
from replicate.system.failpoint import hit

STALLED_S: Final = 0.1
"""A number that is in the journal but not in the pool for so long was left by a killed publisher: read the files."""

_FRAMES: Final = int(RecordKind.FRAMES)
_IN_FILES: Final = int(RecordKind.IN_FILES)
_PADDING: Final = int(RecordKind.PADDING)


class Lapped(Enum):
    """The reader was overtaken: a normal result. `note_written`, read the journal files, then `resume`."""

    LAPPED = "lapped"


LAPPED: Final = Lapped.LAPPED


class InFiles(Struct, frozen=True):
    """These transactions are not in the pool: read them from the journal, then `advance`."""

    first_seqno: int
    last_seqno: int


class JournalPool:
    """One per process and instance. `words` are the control words (control.py); they die with `close()`.

    Publisher, under the commit lock: raise EARLY, copy data, then head, store LAST_PUBLISHED_SEQNO, raise WRITTEN. A
    publisher that is killed leaves EARLY above WRITTEN; the next one finishes the record if it is whole, and else turns
    its place into padding. Neither word is ever lowered, so a reader's check against EARLY is right at every moment.
    """

    __slots__ = ("_ring", "capacity", "memory", "record_bytes_max", "words")

    def __init__(self, memory: SharedMemory) -> None:
        """Takes over `memory`; use `create` or `attach`."""
        self.memory = memory
        self.words = memory.words
        self._ring = memory.view[CONTROL_BYTES:]
        self.capacity = memory.bytes - CONTROL_BYTES
        self.record_bytes_max = min(self.capacity // 4, BATCH_BYTES_MAX + HEAD_BYTES)
        """Larger ones are left to the files: one of them would push out most of what readers still want."""

    @classmethod
    def create(cls, instance: bytes, *, configured_bytes: int, last_seqno: int, replace: bool = False) -> JournalPool:
        """An empty pool after `last_seqno`, in state BUILDING: fill the commit words, then call `mark_ready()`.

        Under the commit lock. `instance`: the 16 bytes of its UUID. Errors: see SharedMemory.create.
        """
        memory = SharedMemory.create(
            PoolKind.JOURNAL,
            instance,
            configured_bytes=configured_bytes,
            minimum_bytes=POOL_BYTES_MIN,
            replace=replace,
        )
        pool = cls(memory)
        pool.words[LAST_PUBLISHED_SEQNO] = last_seqno
        return pool

    @classmethod
    def attach(cls, instance: bytes) -> JournalPool:
        """The pool that is there. Errors: see SharedMemory.attach."""
        return cls(SharedMemory.attach(PoolKind.JOURNAL, instance))

    def mark_ready(self) -> None:
        """From now on others may attach."""
        self.memory.mark_ready()

    def is_current(self) -> bool:
        """Whether this still is the instance's pool: one system call. (The door asks `SharedMemory.was_current`.)"""
        return self.memory.is_current()

    def check_current(self) -> None:
        """PoolReplacedError unless `is_current()`."""
        self.memory.check_current()

    def sleeping(self) -> int:
        """Not 0 when a reader wants its doorbell rung (doorbell.Doorbells.ring)."""
        words = self.words
        return words[SLEEPERS] | words[SLEEPERS + 1]

    def close(self) -> None:
        """Drop the mapping; the pool lives on. May be called twice."""
        self._ring.release()
        self.memory.close()

    # Publishing, all under the commit lock.

    def publish(self, data: bytes, first_seqno: int, last_seqno: int, count: int) -> None:
        """Make `count` whole frames visible to readers, in one record.

        What a killed publisher left is repaired first. Numbers between the last publish and `first_seqno` become an
        IN_FILES record; a batch that was published before (redone after a kill) is left alone. A batch too large for
        the ring is published as IN_FILES. InternalError when only a part of it was published before: nothing changed.
        """
        words = self.words
        written = words[WRITTEN]
        if words[EARLY] != written:
            self.repair()
            written = words[WRITTEN]
        if first_seqno != words[LAST_PUBLISHED_SEQNO] + 1:
            if not self._bridge(first_seqno, last_seqno):
                return
            written = words[WRITTEN]
        length = HEAD_BYTES + len(data)
        if length > self.record_bytes_max:
            self._put(written, _IN_FILES, first_seqno, last_seqno, 0, b"")
        else:
            self._put(written, _FRAMES, first_seqno, last_seqno, count, data)

    def publish_in_files(self, first_seqno: int, last_seqno: int) -> None:
        """Tell readers to read these transactions from the journal. The rules of `publish` hold."""
        self.repair()
        if first_seqno != self.words[LAST_PUBLISHED_SEQNO] + 1 and not self._bridge(first_seqno, last_seqno):
            return
        self._put(self.words[WRITTEN], _IN_FILES, first_seqno, last_seqno, 0, b"")

    def repair(self) -> int:
        """Finish or void what a killed publisher left. Returns LAST_PUBLISHED_SEQNO, which is right from then on.

        Safe to be killed in, and to repeat. DamagedError when no publisher can have left it so; nothing changed then.
        """
        words = self.words
        written, early = words[WRITTEN], words[EARLY]
        if early == written:
            return words[LAST_PUBLISHED_SEQNO]
        if written % 8 or early % 8 or not 0 < early - written <= 2 * self.capacity:
            raise DamagedError(
                f"the journal pool's words contradict each other: written up to {written}, announced up to {early}",
                where=str(self.memory.path),
                do="Stop every process of this instance, then start again: the pool is made again from the journal",
            )
        ring = self._ring
        room = self.capacity - written % self.capacity
        start = written
        if early - written > room:
            start = written + room
            if room >= HEAD_BYTES:
                offset = written % self.capacity
                ring[offset : offset + HEAD_BYTES] = pack_padding(written, room)
        offset = start % self.capacity
        head = parse(bytes(ring[offset : offset + early - start]), 0, start)
        if (
            head is not None
            and head.kind in (_FRAMES, _IN_FILES)
            and start + aligned(head.length) == early
            and head.first_seqno <= words[LAST_PUBLISHED_SEQNO] + 1 <= head.last_seqno + 1
        ):
            words[LAST_PUBLISHED_SEQNO] = head.last_seqno
        else:
            ring[offset : offset + HEAD_BYTES] = pack_padding(start, early - start)
        hit("repair.before_written")
        words[WRITTEN] = early
        return words[LAST_PUBLISHED_SEQNO]

    def _bridge(self, first_seqno: int, last_seqno: int) -> bool:
        words = self.words
        published = words[LAST_PUBLISHED_SEQNO]
        if last_seqno <= published:
            return False
        if first_seqno <= published:
            raise InternalError(f"publishing {first_seqno} to {last_seqno}, but {published} is published already")
        self._put(words[WRITTEN], _IN_FILES, published + 1, first_seqno - 1, 0, b"")
        return True

    def _put(self, written: int, kind: int, first_seqno: int, last_seqno: int, count: int, data: bytes) -> None:
        words = self.words
        ring = self._ring
        capacity = self.capacity
        length = HEAD_BYTES + len(data)
        offset = written % capacity
        room = capacity - offset
        size = (length + 7) & ~7
        if size <= room:
            start = written
            head = pack_head(kind, start, first_seqno, last_seqno, count, data)
            words[EARLY] = end = start + size
            hit("publish.after_early")
        else:
            start = written + room
            head = pack_head(kind, start, first_seqno, last_seqno, count, data)
            words[EARLY] = end = start + size
            hit("publish.after_early")
            if room >= HEAD_BYTES:
                ring[offset : offset + HEAD_BYTES] = pack_padding(written, room)
                hit("publish.after_padding")
            offset = 0
        ring[offset + HEAD_BYTES : offset + length] = data
        hit("publish.after_data")
        ring[offset : offset + HEAD_BYTES] = head
        hit("publish.after_head")
        words[LAST_PUBLISHED_SEQNO] = last_seqno
        hit("publish.after_published")
        words[WRITTEN] = end
        hit("publish.after_written")


class PoolReader:
    """Reads a pool without any lock. `next_seqno` is the first transaction that has not been yielded.

    `laps` and `damaged_records` count; a damaged record is memory that does not verify although nobody overtook us.

    Reader: look at WRITTEN and EARLY, copy, look at EARLY again (overtaken while copying: lapped), then verify each
    record: its own address, its check, its numbers. Its first number, not LAST_PUBLISHED_SEQNO, decides what must come
    from the files: a reader bounded by a seqno word lost a record in three of four runs.
    """

    __slots__ = ("_address", "_capacity", "_pool", "_ring", "_stalled_seqno", "_stalled_since_s", "_words",
                 "damaged_records", "laps", "next_seqno")  # fmt: skip

    def __init__(self, pool: JournalPool, next_seqno: int) -> None:
        """A reader at the pool's end: what is in it already, and what is missing from it, is named InFiles."""
        self._pool = pool
        self._words = pool.words
        self._ring = pool.memory.view[CONTROL_BYTES:]
        self._capacity = pool.capacity
        self._address = pool.words[WRITTEN]
        self._stalled_seqno = 0
        self._stalled_since_s = 0.0
        self.next_seqno = next_seqno
        self.laps = 0
        self.damaged_records = 0

    def close(self) -> None:
        """Let go of the pool's memory; do this before the pool is closed. May be called twice."""
        self._ring.release()

    def note_written(self) -> int:
        """The address to `resume` at after the files have been read; note it before reading them."""
        return self._words[WRITTEN]

    def resume(self, address: int, next_seqno: int) -> None:
        """Go on at a noted address; `next_seqno` is the first one not read from the files.

        InternalError for an address that is none: nothing changed then.
        """
        if address % 8 or address > self._words[WRITTEN]:
            raise InternalError(f"{address} is no address of this pool")
        self._address = address
        self.next_seqno = next_seqno

    def advance(self, next_seqno: int) -> None:
        """Everything below `next_seqno` was read from the files; the place in the pool stays."""
        self.next_seqno = next_seqno

    def poll(self, max_bytes: int) -> FrameBatch | InFiles | Lapped | None:
        """The next transactions: whole records up to `max_bytes` of frames (at least one), or where to find them.

        None: nothing new. FrameBatch.first_seqno is `next_seqno`, which moves after it. InFiles begins there
        too. PoolReplacedError when the pool is not the instance's any more (noticed while idle, or when it was
        closed); nothing is skipped then.
        """
        words = self._words
        capacity = self._capacity
        while True:
            if words[POOL_STATE] == STATE_CLOSED:
                self._pool.check_current()
            address = self._address
            written = words[WRITTEN]
            if address == written:
                return self._idle()
            if words[EARLY] - address > capacity:
                return self._lapped()
            offset = address % capacity
            room = capacity - offset
            if room < HEAD_BYTES:
                self._address = address + room
                continue
            available = min(written - address, room)
            chunk = bytes(self._ring[offset : offset + min(available, max_bytes + HEAD_BYTES)])
            if len(chunk) < HEAD_BYTES:  # no publisher leaves its words so
                self.damaged_records += 1
                return self._lapped()
            length = whole_bytes(chunk)
            if len(chunk) < length <= available:
                chunk = bytes(self._ring[offset : offset + length])
            if words[EARLY] - address > capacity:
                return self._lapped()
            found = self._take(chunk, address, max_bytes)
            if found is not None:
                return found

    def _take(self, chunk: bytes, address: int, max_bytes: int) -> FrameBatch | InFiles | Lapped | None:
        """Whatever stands first in `chunk`, a stable copy from `address` on. None: only what is to be passed over."""
        position, total, count, last = 0, 0, 0, 0
        end = len(chunk)
        first = expected = self.next_seqno
        pieces: list[bytes] = []
        while position + HEAD_BYTES <= end:
            # ring.parse, written out: this loop is half of what a Source Server does with a small transaction.
            check, length, own, record_first, record_last, number, kind = unpack_head(chunk, position)
            after = position + (length if kind != _PADDING else HEAD_BYTES)
            if own != address + position or length < HEAD_BYTES or after > end:
                break
            if crc32c(chunk[position + CHECK_BYTES : after]) != check:
                break
            if record_last < expected:  # padding has 0
                position += (length + 7) & ~7
                continue
            if record_first != expected or kind != _FRAMES:
                if pieces:
                    break
                if record_first > expected or kind != _FRAMES:
                    self._address = address + position
                    return InFiles(expected, record_first - 1 if record_first > expected else record_last)
            data = chunk[position + HEAD_BYTES : after]
            if record_first < expected:
                data, number = _from_seqno(data, expected), record_last - expected + 1
            total += len(data)
            if pieces and total > max_bytes:
                break
            pieces.append(data)
            count += number
            last = record_last
            expected = last + 1
            position += (length + 7) & ~7
        if not position:
            self.damaged_records += 1
            return self._lapped()
        # What stopped us after the first record begins the next look, which will tell cut from bad.
        self._address = address + position
        if not pieces:
            return None
        self.next_seqno = expected
        return FrameBatch(first, last, count, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _lapped(self) -> Lapped:
        self.laps += 1
        return LAPPED

    def _idle(self) -> InFiles | None:
        """At the pool's end. What is missing although nobody publishes was never in it, or left by the dead."""
        words = self._words
        early = words[EARLY]
        published = words[LAST_PUBLISHED_SEQNO]
        next_seqno = self.next_seqno
        if published >= next_seqno and early == words[WRITTEN] == self._address:
            return InFiles(next_seqno, published)
        last = words[LAST_SEQNO]
        if last >= next_seqno and words[WRITTEN] == self._address:
            now_s = time.monotonic()
            if self._stalled_seqno != next_seqno:
                self._stalled_seqno = next_seqno
                self._stalled_since_s = now_s
            elif now_s - self._stalled_since_s >= STALLED_S:
                return InFiles(next_seqno, last)
        self._pool.check_current()
        return None


def _from_seqno(data: bytes, seqno: int) -> bytes:
    """The frames of a batch from `seqno` on."""
    for offset, head in walk(data):
        if head.seqno >= seqno:
            return data[offset:]
    raise DamagedError(f"a record of the journal pool that should hold transaction {seqno} does not")
