"""The receive pool: what has arrived and is not yet applied, in shared memory, between two processes.

One producer (the Receiver Server) and one consumer (the Update Process). It is never overwritten: `offer` says no when
there is no room. Either may die alone. Their places are words of the pool, so the process that starts again goes on
where its predecessor was: the consumer reads again what was not freed; the producer learns what is there and asks its
source for the rest.

A supplier has one for each of its sources: the *lanes* of one memory.

Guarantees: a record that is read is whole, was written at that address, and none is missing before it. Memory that does
not verify is DamagedError, never data.
Leaves to others: frames (except the number of the first part in a record of parts), flow control, who rings whom.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from itertools import chain
from typing import Final

from msgspec import Struct

from replicate.errors import (
    ConfigurationError,
    DamagedError,
    DiskFullError,
    InternalError,
    JournalIOError,
    PermissionRefusedError,
)
from replicate.journal.record import read_part
from replicate.journal.walk import walk
from replicate.limits import LANES_MAX, RECEIVE_POOL_BYTES_MIN
from replicate.model.moment import wall_ns
from replicate.pool.control import CONTROL_BYTES, CONTROL_WORDS, SLEEPERS, SLEEPERS_WORDS
from replicate.pool.ring import (
    HEAD_BYTES,
    RecordKind,
    aligned,
    pack_head,
    pack_padding,
    parse_apart,
    room_at,
    whole_bytes,
)
from replicate.pool.shared_memory import PoolKind, SharedMemory, affordable_bytes, whole_pages
from replicate.system.failpoint import hit

__all__ = ["UPDATE_SLOT", "ReceivePool", "ReceivedRecord", "RecordKind"]

# Words. The producer's and the consumer's are on cache lines of their own; each word has one writer.
WRITTEN: Final = 16
"""Address up to which records are complete."""
LAST_RECEIVED_SEQNO: Final = 17
"""Last transaction received whole."""
RECEIVED_PARTS: Final = 18
"""Parts received of the transaction after it; 0 when none."""
RECEIVER_PID: Final = 19
RECEIVER_ALIVE_NS: Final = 20
RECEIVER_GENERATION: Final = 21
"""Rises with each producer that opens the pool."""
CONNECTED: Final = 22
SOURCE_WALL_NS: Final = 23
"""The source's wall clock when it gave its last word of itself. (Earlier releases put the time of its newest commit
here: by that, what is here looks younger.)"""
SOURCE_LAST_SEQNO: Final = 24
RESTART_DONE: Final = 25
CLOCKS_BEYOND_NS: Final = 26
"""The latest of the sources' wall clocks less the monotonic one (model/clock_skew.py)."""
CLOCKS_HEARD_NS: Final = 27
"""When that was said (monotonic); 0: never."""
SOURCE_TOLD_NS: Final = 29
"""When the source's last word of itself came (monotonic); 0: never."""
SOURCE_PERIOD_MS: Final = 30
"""How often the source sends such a word, as it says itself."""
LANES: Final = 31
"""How many lanes it has, the first of which has WRITTEN and READ; 0: one. Written once, at creation."""

READ: Final = 32
"""Address up to which records are freed. (The producer moves it too, but only while a restart is asked for.)"""
APPLIED_SEQNO: Final = 33
DURABLE_SEQNO: Final = 34
UPDATE_PID: Final = 35
UPDATE_ALIVE_NS: Final = 36
"""Monotonic."""
RESTART_REQUEST: Final = 38
"""Counts requests; one is open while it is above RESTART_DONE."""

LANE_WRITTEN: Final = 80
"""LANE_WRITTEN + i, 0 < i < LANES_MAX: WRITTEN of lane i."""
LANE_READ: Final = 88
"""LANE_READ + i: its READ."""

UPDATE_SLOT: Final = 0
"""The doorbell of the Update Process."""

_DATA_KINDS: Final = {
    int(kind): kind for kind in (RecordKind.FRAMES, RecordKind.PARTS, RecordKind.LARGE, RecordKind.CATALOGUE)
}

assert LANES < READ
assert RESTART_REQUEST < SLEEPERS
assert SLEEPERS + SLEEPERS_WORDS <= LANE_WRITTEN
assert LANE_WRITTEN + LANES_MAX <= LANE_READ
assert LANE_READ + LANES_MAX <= CONTROL_WORDS


class ReceivedRecord(Struct, frozen=True):
    """One record, copied out. `free(next_address)` frees it and all before it."""

    kind: RecordKind
    first_seqno: int
    last_seqno: int
    count: int
    data: bytes
    address: int
    next_address: int


class ReceivePool:
    """Either side of the pool; `words` die with `close()`.

    Producer: copy head and data, raise WRITTEN, then note what was received. Killed before WRITTEN: the record is not
    there (nothing but room is needed, so there is no EARLY). Killed before the note: `open_producer` finds it by the
    records. Consumer: raise READ when what lies before it is committed.

    A consumer that cannot go on (parts whose transaction it no longer has, a gap) asks for a *restart*: it stops
    reading, the producer empties the pool, agrees a new start with its source, and says done.

    Lanes are equal shares of the memory, each with places of its own. What is said of the two processes, of the source
    and of restarts is all lanes' together. `size_bytes`: of memory, all of it or a lane's share.
    """

    __slots__ = (
        "_others",
        "_read",
        "_ring",
        "_written",
        "capacity",
        "memory",
        "record_bytes_max",
        "size_bytes",
        "words",
    )

    def __init__(self, memory: SharedMemory, lane: int = 0) -> None:
        """Takes over `memory`; use `create`, `attach` or `open_producer`. `lane`: for the pool's own use."""
        self.memory = memory
        self.words = memory.words
        count = _lanes(memory)
        self.size_bytes = memory.bytes // count
        self.capacity = (memory.bytes - CONTROL_BYTES) // count // 8 * 8
        begin = CONTROL_BYTES + lane * self.capacity
        self._ring = memory.view[begin : begin + self.capacity]
        self._written, self._read = (LANE_WRITTEN + lane, LANE_READ + lane) if lane else (WRITTEN, READ)
        self._others = () if lane else tuple(ReceivePool(memory, other) for other in range(1, count))
        self.record_bytes_max = self.capacity // 2
        """With padding a record takes less than twice its length: one of this length always fits an empty pool."""

    @classmethod
    def create(
        cls, instance: bytes, *, configured_bytes: int, last_seqno: int, replace: bool = False, lanes: int = 1
    ) -> ReceivePool:
        """An empty pool after `last_seqno` (the last one applied), ready for use, and we are its producer. It has so
        many `lanes`, or as many as there can be (`lanes_in`).

        `instance`: the 16 bytes of its UUID. Only under the Receiver Server's own lock. Errors: SharedMemory.create.
        """
        memory = SharedMemory.create(
            PoolKind.RECEIVE,
            instance,
            configured_bytes=configured_bytes,
            minimum_bytes=RECEIVE_POOL_BYTES_MIN,
            replace=replace,
        )
        fcntl.flock(memory.fd, fcntl.LOCK_SH)  # the kernel knows that a process uses it, until that ends
        if (count := lanes_in(memory.bytes, lanes)) > 1:
            memory.words[LANES] = count
        pool = cls(memory)
        for index in (LAST_RECEIVED_SEQNO, APPLIED_SEQNO, DURABLE_SEQNO):
            pool.words[index] = last_seqno
        pool.words[RECEIVER_GENERATION] = 1
        memory.mark_ready()
        return pool

    @classmethod
    def attach(cls, instance: bytes) -> ReceivePool:
        """The pool that is there, as its consumer or as an onlooker. Errors: see SharedMemory.attach."""
        memory = SharedMemory.attach(PoolKind.RECEIVE, instance)
        fcntl.flock(memory.fd, fcntl.LOCK_SH)
        try:
            return cls(memory)
        except DamagedError:
            memory.close()
            raise

    @classmethod
    def open_producer(cls, instance: bytes) -> ReceivePool:
        """The pool that is there, as its producer: what a killed predecessor left unnoted is counted.

        Only under the Receiver Server's own lock. DamagedError when a record does not verify: make a new pool then
        (`create` with `replace`), and nothing is lost, because the source sends again what is not applied.
        """
        pool = cls.attach(instance)
        try:
            pool._recount()
        except BaseException:
            pool.close()
            raise
        pool.words[RECEIVER_GENERATION] += 1
        return pool

    def can_be_remade(self, configured_bytes: int) -> bool:
        """Whether it has another size than is configured, nothing is in it, and there is room for one of just that size
        beside it: the Update Process may keep this one for a moment. Only its producer may ask, before it goes on."""
        wanted_bytes = whole_pages(configured_bytes)
        words = self.words
        if wanted_bytes == self.memory.bytes or not self.is_empty or self.received_parts:
            return False
        if words[RESTART_REQUEST] != words[RESTART_DONE]:
            return False
        return self._affordable_bytes(configured_bytes) == wanted_bytes

    def can_be_divided(self, configured_bytes: int, lanes: int) -> bool:
        """Whether there is room beside it for one of more lanes, where so many are wanted."""
        return lanes_in(self._affordable_bytes(configured_bytes), lanes) > len(self.lanes)

    def _affordable_bytes(self, configured_bytes: int) -> int:
        """How large one beside it could be; 0: there is no room for any."""
        try:
            return affordable_bytes(self.memory.path.parent, configured_bytes, RECEIVE_POOL_BYTES_MIN)
        except (DiskFullError, JournalIOError, PermissionRefusedError):
            return 0

    def is_current(self) -> bool:
        """Whether this still is the instance's pool: one system call."""
        return self.memory.is_current()

    def close(self) -> None:
        """Drop the mapping; the pool lives on. May be called twice."""
        for lane in self.lanes:
            lane._ring.release()
        self.memory.close()

    # Facts that both sides, and onlookers, may ask: first of all lanes, then of this one.

    @property
    def lanes(self) -> tuple[ReceivePool, ...]:
        """A pool for each source, this one first; of a secondary's, this one alone."""
        return (self, *self._others)

    @property
    def is_empty(self) -> bool:
        """Whether all is freed."""
        return not any(lane.used_bytes for lane in self.lanes)

    @property
    def arrived_address(self) -> int:
        """Moves when something arrives in any lane: a consumer sleeps until it differs from what it saw."""
        others = self._others
        return self.words[WRITTEN] if not others else sum(lane.written_address for lane in self.lanes)

    @property
    def fullest(self) -> float:
        """How full the fullest lane is, as `fill_fraction`."""
        return max(lane.fill_fraction for lane in self.lanes)

    @property
    def used_bytes(self) -> int:
        """Bytes that are not freed, heads and padding included."""
        return max(0, self.words[self._written] - self.words[self._read])

    @property
    def fill_fraction(self) -> float:
        """0.0: empty, 1.0: full."""
        return self.used_bytes / self.capacity

    @property
    def written_address(self) -> int:
        """Address up to which records are complete."""
        return self.words[self._written]

    @property
    def read_address(self) -> int:
        """Address up to which records are freed."""
        return self.words[self._read]

    @property
    def last_received_seqno(self) -> int:
        """Last transaction received whole."""
        return self.words[LAST_RECEIVED_SEQNO]

    @property
    def received_parts(self) -> int:
        """Parts received of the transaction after `last_received_seqno`."""
        return self.words[RECEIVED_PARTS]

    @property
    def applied_seqno(self) -> int:
        """As the Update Process noted it."""
        return self.words[APPLIED_SEQNO]

    @property
    def durable_seqno(self) -> int:
        """As the Update Process noted it."""
        return self.words[DURABLE_SEQNO]

    @property
    def update_note(self) -> tuple[int, int]:
        """What `note_update_process` was given last; zeros: none is there."""
        return self.words[UPDATE_PID], self.words[UPDATE_ALIVE_NS]

    def update_alive_since_s(self, now_ns: int) -> float | None:
        """Seconds since the Update Process last said that it lives; None when none does. `now_ns`: monotonic."""
        if not self.words[UPDATE_PID]:
            return None
        return max(0, now_ns - self.words[UPDATE_ALIVE_NS]) / 1e9

    # The producer.

    def offer(self, data: bytes, first_seqno: int, last_seqno: int, count: int, kind: RecordKind) -> bool:
        """Add a record; False when there is no room for it now: nothing changed, offer it again later.

        FRAMES: whole frames. PARTS: `count` parts of transaction first_seqno = last_seqno, in order. LARGE: its commit
        frame. CATALOGUE: a catalogue frame. ConfigurationError for what would not fit an empty pool.
        """
        length = HEAD_BYTES + len(data)
        capacity = self.capacity
        if length > self.record_bytes_max:
            raise ConfigurationError(
                f"{len(data)} bytes do not fit a receive pool of {self.size_bytes}",
                where=str(self.memory.path),
                do="Make receiver.pool_bytes, and /dev/shm, larger",
            )
        words = self.words
        written = words[self._written]
        offset = written % capacity
        room = capacity - offset
        size = aligned(length)
        start = written if size <= room else written + room
        end = start + size
        if end - words[self._read] > capacity:
            return False
        ring = self._ring
        if start != written:
            if room >= HEAD_BYTES:
                ring[offset : offset + HEAD_BYTES] = pack_padding(written, room)
            offset = 0
        ring[offset + HEAD_BYTES : offset + length] = data
        hit("offer.after_data")
        ring[offset : offset + HEAD_BYTES] = pack_head(kind, start, first_seqno, last_seqno, count, data)
        hit("offer.after_head")
        words[self._written] = end
        hit("offer.after_written")
        if kind is RecordKind.PARTS:
            words[RECEIVED_PARTS] += count
        elif kind is not RecordKind.CATALOGUE:
            words[RECEIVED_PARTS] = 0
            words[LAST_RECEIVED_SEQNO] = last_seqno
        return True

    def restart_requested(self) -> int:
        """The number of an open request, else 0: stop offering, and call `restart`."""
        request = self.words[RESTART_REQUEST]
        return request if request != self.words[RESTART_DONE] else 0

    @property
    def restarts(self) -> int:
        """The number of the last request that was answered."""
        return int(self.words[RESTART_DONE])

    def restart(self, last_received_seqno: int) -> None:
        """Drop everything that is not freed and begin after `last_received_seqno`; answers an open request.

        The producer may do this only while a request is open, or while no consumer lives: InternalError otherwise.
        """
        words = self.words
        request = self.restart_requested()
        if not request and words[UPDATE_PID]:
            raise InternalError("the receive pool cannot be emptied under a consumer that has not asked for it")
        for lane in self.lanes:
            words[lane._read] = words[lane._written]
        words[RECEIVED_PARTS] = 0
        words[LAST_RECEIVED_SEQNO] = last_received_seqno
        if request:
            words[RESTART_DONE] = request

    def note_received(self, last_seqno: int, parts: int = 0) -> None:
        """What is offered next begins after `last_seqno`, and those parts of the one after it. For a producer whose
        secondary was filled again since: what was received before counts no more."""
        self.words[RECEIVED_PARTS] = parts
        self.words[LAST_RECEIVED_SEQNO] = last_seqno

    def note_source(self, last_seqno: int, told_wall_ns: int, told_ns: int, period_ms: int) -> None:
        """What the source said of itself at `told_ns` (monotonic), `told_wall_ns` by its own clock, and will say
        again after `period_ms`."""
        self.words[SOURCE_LAST_SEQNO] = last_seqno
        self.words[SOURCE_WALL_NS] = told_wall_ns
        self.words[SOURCE_PERIOD_MS] = period_ms
        self.words[SOURCE_TOLD_NS] = told_ns

    def source_note(self) -> tuple[int, int, int, int]:
        """What `note_source` was given last; zeros before."""
        words = self.words
        return words[SOURCE_LAST_SEQNO], words[SOURCE_WALL_NS], words[SOURCE_TOLD_NS], words[SOURCE_PERIOD_MS]

    def note_clocks(self, beyond_ns: int, now_ns: int) -> None:
        """The latest of the sources' wall clocks is so far beyond our monotonic one, which says `now_ns`."""
        self.words[CLOCKS_BEYOND_NS] = beyond_ns
        self.words[CLOCKS_HEARD_NS] = now_ns

    @property
    def clocks_note(self) -> tuple[int, int]:
        """What `note_clocks` was given last; zeros before."""
        return self.words[CLOCKS_BEYOND_NS], self.words[CLOCKS_HEARD_NS]

    @property
    def source_told_ns(self) -> int:
        """When the source's last word of itself came (monotonic); 0: never."""
        return self.words[SOURCE_TOLD_NS]

    def source_told_s(self, now_ns: int) -> float | None:
        """Seconds since the source's last word of itself; None when there was none. `now_ns`: monotonic."""
        told_ns = self.source_told_ns
        return max(0, now_ns - told_ns) / 1e9 if told_ns else None

    @property
    def source_period_s(self) -> float:
        """How often the source says where it stands; 0.0 before its first word."""
        return self.words[SOURCE_PERIOD_MS] / 1000

    @property
    def is_connected(self) -> bool:
        """Whether the Receiver Server has a source, as it noted last."""
        return bool(self.words[CONNECTED])

    def note_receiver(self, pid: int, alive_ns: int, *, connected: bool) -> None:
        """The Receiver Server lives (monotonic nanoseconds), and whether a source is connected. pid 0: it leaves."""
        self.words[RECEIVER_PID] = pid
        self.words[RECEIVER_ALIVE_NS] = alive_ns
        self.words[CONNECTED] = int(connected)

    # The consumer.

    def peek(self, address: int | None = None) -> Iterator[ReceivedRecord]:
        """The records from `address` on (default: the first that is not freed), copied, until there is no more.

        DamagedError for a record that does not verify: nothing after it can be read; ask for a new pool.
        """
        words = self.words
        capacity = self.capacity
        place: int = words[self._read] if address is None else address
        while place < words[self._written]:
            offset = place % capacity
            room = room_at(place, capacity)
            if room < HEAD_BYTES:
                place += room
                continue
            available = min(room, words[self._written] - place)
            head_bytes = bytes(self._ring[offset : offset + HEAD_BYTES])
            length = min(whole_bytes(head_bytes), available)
            data = bytes(self._ring[offset + HEAD_BYTES : offset + length])
            head = parse_apart(head_bytes, data, place)
            if head is None:
                raise DamagedError(
                    f"the receive pool does not verify at address {place}",
                    where=str(self.memory.path),
                    do="Restart the Receiver Server: it makes a new pool, and what is not applied is sent again",
                    address=place,
                )
            following = place + aligned(head.length)
            if head.kind != RecordKind.PADDING:
                kind = _DATA_KINDS.get(head.kind)
                if kind is None:
                    raise DamagedError(f"a record of unknown kind {head.kind}", where=str(self.memory.path))
                yield ReceivedRecord(
                    kind,
                    head.first_seqno,
                    head.last_seqno,
                    head.count,
                    data,
                    place,
                    following,
                )
            place = following

    def commit_times(self, applied_seqno: int, now_ns: int) -> Iterator[tuple[int, int]]:
        """For the lag of one that begins: of each record that is not freed its first transaction after
        `applied_seqno`, and when that was committed, on the monotonic clock (nanoseconds; `now_ns` at most). By the
        source's clock, which its last word ties to ours: what differs between the two clocks does not count. Nothing
        before such a word.

        DamagedError as `peek`.
        """
        _, told_wall_ns, told_ns, _ = self.source_note()
        if not told_ns or not told_wall_ns:
            return
        for record in self.peek():
            if record.kind not in (RecordKind.FRAMES, RecordKind.LARGE) or record.last_seqno <= applied_seqno:
                continue
            for _, head in walk(record.data):
                if head.seqno > applied_seqno:
                    yield head.seqno, min(now_ns, told_ns + wall_ns(head.csn) - told_wall_ns)
                    break

    @property
    def memory_of_data(self) -> memoryview:
        """Where the data of records lies until it is freed. What was verified when it was read is up to its reader
        again to verify again: others have this memory, too."""
        return self._ring

    def place_of_data(self, record: ReceivedRecord) -> int:
        """Where in `memory_of_data` that of `record` begins."""
        return record.address % self.capacity + HEAD_BYTES

    def free(self, upto_address: int) -> None:
        """What lies before `upto_address` is committed, its room may be used again. Going back is InternalError."""
        if not self.read_address <= upto_address <= self.written_address:
            raise InternalError(f"freeing up to {upto_address}, outside of what the receive pool holds")
        self.words[self._read] = upto_address

    def note_applied(self, applied_seqno: int, durable_seqno: int) -> None:
        """Positions for the Receiver Server's replies."""
        self.words[APPLIED_SEQNO] = applied_seqno
        self.words[DURABLE_SEQNO] = durable_seqno

    def note_update_process(self, pid: int, alive_ns: int) -> None:
        """The Update Process lives (monotonic nanoseconds). pid 0: it leaves. (Until it has found a new pool, the
        producer says so.)"""
        self.words[UPDATE_PID] = pid
        self.words[UPDATE_ALIVE_NS] = alive_ns

    def request_restart(self) -> int:
        """Ask the producer to begin again after what is applied. Read nothing until `restart_done(number)`."""
        number: int = max(self.words[RESTART_REQUEST], self.words[RESTART_DONE]) + 1
        self.words[RESTART_REQUEST] = number
        return number

    def restart_done(self, number: int) -> bool:
        """Whether that request was answered."""
        return self.words[RESTART_DONE] >= number

    def _recount(self) -> None:
        """What the records themselves say was received; the words of a killed producer may be one record behind."""
        words = self.words
        last: int = words[LAST_RECEIVED_SEQNO]
        parts: int = words[RECEIVED_PARTS]
        if words[APPLIED_SEQNO] > last:  # the record not noted is freed already
            last, parts = words[APPLIED_SEQNO], 0
        for record in chain.from_iterable(lane.peek() for lane in self.lanes):  # all are to verify
            if record.kind is RecordKind.PARTS:
                if record.first_seqno == last + 1:
                    parts = max(parts, read_part(record.data, 0)[1] + record.count)
            elif record.kind is not RecordKind.CATALOGUE and record.last_seqno > last:
                last, parts = record.last_seqno, 0
        words[RECEIVED_PARTS] = parts
        words[LAST_RECEIVED_SEQNO] = last


def lanes_in(memory_bytes: int, wanted: int) -> int:
    """How many lanes a pool of that size has where so many are wanted: each is as large as a pool must be at least."""
    return max(1, min(wanted, LANES_MAX, memory_bytes // RECEIVE_POOL_BYTES_MIN))


def _lanes(memory: SharedMemory) -> int:
    count: int = memory.words[LANES] or 1
    if count > LANES_MAX:
        raise DamagedError(f"a receive pool of {count} lanes: there are {LANES_MAX} at most", where=str(memory.path))
    return count
