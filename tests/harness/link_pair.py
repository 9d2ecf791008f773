"""Both links back to back in simulated time, over a wire that can be slow, deaf, cut, or cut into single bytes.

`ConnectionPair` is one connection (after h11's helper of that name): it moves bytes and time, and collects events.
`LinkedSites` are two over many connections: a journal on one side, a receive pool and an Update Process on the other.
Nothing here sleeps; a simulated hour takes milliseconds. What is checked is in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from receiver_server.flow import Flow
from receiver_server.link import ReceiverLink, ReceiverProgress
from replicate.journal.record import FrameBatch, large_payload, pack_elements, pack_frame, pack_part
from replicate.journal.walk import walk
from replicate.limits import BATCH_BYTES_MAX, PART_BYTES
from replicate.model.transaction import Kind, Op
from replicate.model.vector import Position
from replicate.settings.table import ReceiverConfig, SourceConfig
from replicate.wire.connection import Link, LinkSettings
from replicate.wire.event import (
    Acknowledged,
    BatchReceived,
    Closed,
    Event,
    LargeReceived,
    PartsReceived,
    RestartRequested,
    SourceIntroduced,
    Started,
)
from replicate.wire.features import FEATURES
from replicate.wire.frame import FRAME_HEAD_BYTES
from replicate.wire.message import Introduction
from replicate.wire.resync import LargeHead, SourceView, StartAt, decide
from source_server.link import SourceLink, SourceProgress

WALL_NS = 1_700_000_000_000_000_000
NETWORK = bytes(range(16))
PRIMARY = Introduction(NETWORK, b"p" * 16, "paris", "primary", 1, "0.1", FEATURES, BATCH_BYTES_MAX, 15_000, 0)
SECONDARY = Introduction(NETWORK, b"s" * 16, "oslo", "secondary", 1, "0.1", FEATURES, BATCH_BYTES_MAX, 15_000, 0)
POOL_BYTES = 4 * 1024 * 1024


def link_settings(**changes: Any) -> LinkSettings:
    """Those of a Source Server as the table of settings has them."""
    table = SourceConfig()
    return LinkSettings(table.heartbeat_period_s, table.dead_after_s, table.connect_timeout_s, **changes)


def receiver_flow() -> Flow:
    """Of a small pool, with the levels of the table of settings."""
    table = ReceiverConfig()
    return Flow(POOL_BYTES, table.xoff_percent, table.xon_percent)


SETTINGS = link_settings(expected_peer="oslo")
RECEIVER_SETTINGS = link_settings()


def whole_pieces(stream: bytes) -> list[bytes]:
    """Cut bytes that hold whole wire frames into those frames."""
    frames = []
    while stream:
        end = FRAME_HEAD_BYTES + int.from_bytes(stream[:4], "big")
        assert end <= len(stream)
        frames.append(stream[:end])
        stream = stream[end:]
    return frames


@dataclass
class Pipe:
    """One direction. `cut` splits what is written; `mangle` may drop, double or change whole wire frames."""

    delay_s: float = 0.0
    bytes_per_s: float = math.inf
    is_deaf: bool = False
    cut: Callable[[bytes], Iterable[bytes]] | None = None
    mangle: Callable[[bytes], Iterable[bytes]] | None = None
    flying: list[tuple[float, bytes]] = field(default_factory=list)
    free_at: float = 0.0

    def write(self, data: bytes, now: float) -> None:
        """Put bytes on the wire; they arrive in order, after the delay, at the pipe's speed."""
        frames = [data] if self.mangle is None else [out for one in whole_pieces(data) for out in self.mangle(one)]
        for frame in frames:
            for piece in self.cut(frame) if self.cut is not None else (frame,):
                self.free_at = max(self.free_at, now) + len(piece) / self.bytes_per_s
                if not self.is_deaf:
                    self.flying.append((self.free_at + self.delay_s, piece))

    def is_writable(self, now: float) -> bool:
        """A kernel buffer of about a quarter of a second."""
        return self.free_at <= now + 0.25

    def arrive(self, now: float) -> list[bytes]:
        """What has arrived by now."""
        count = 0
        while count < len(self.flying) and self.flying[count][0] <= now:
            count += 1
        arrived = [data for _, data in self.flying[:count]]
        del self.flying[:count]
        return [] if self.is_deaf else arrived

    @property
    def next_arrival(self) -> float:
        return self.flying[0][0] if self.flying else math.inf


class ConnectionPair:
    """One connection between two links, in simulated time."""

    def __init__(
        self,
        settings: LinkSettings = SETTINGS,
        receiver_settings: LinkSettings = RECEIVER_SETTINGS,
        *,
        primary: Introduction = PRIMARY,
        secondary: Introduction = SECONDARY,
        now: float = 0.0,
    ) -> None:
        self.now = now
        self.source = SourceLink(settings, primary, now, WALL_NS)
        self.receiver = ReceiverLink(receiver_settings, receiver_flow(), secondary, now, WALL_NS)
        self.there = Pipe()
        self.back = Pipe()
        self.source_events: list[Event] = []
        self.receiver_events: list[Event] = []
        self.frozen: set[Link] = set()
        """Links that are stopped (SIGSTOP): the kernel still takes bytes for them, they do nothing."""
        self.on_source: Callable[[Event], None] = self.source_events.append
        self.on_receiver: Callable[[Event], None] = self.receiver_events.append
        self.before_writing: Callable[[], None] = lambda: None

    def _ends(self) -> list[tuple[Link, Pipe, Pipe, Callable[[Event], None]]]:
        return [
            (self.source, self.back, self.there, self.on_source),
            (self.receiver, self.there, self.back, self.on_receiver),
        ]

    def step(self) -> bool:
        """Let both ends do what they can at this moment; True if anything moved."""
        moved = False
        self.before_writing()
        for link, inward, outward, notice in self._ends():
            if link in self.frozen:
                continue
            for data in inward.arrive(self.now):
                moved = True
                for event in link.receive(data, self.now):
                    notice(event)
            if link.deadline <= self.now:
                moved = True
                for event in link.tick(self.now, WALL_NS + int(self.now * 1e9)):
                    notice(event)
            while outward.is_writable(self.now) and (pieces := link.bytes_to_send()):
                moved = True
                outward.write(b"".join(pieces), self.now)
        return moved

    def settle(self) -> None:
        """Everything that can happen without time passing."""
        while self.step():
            pass

    def next_time(self) -> float:
        """When something will happen next; inf if nothing will."""
        times = [self.there.next_arrival, self.back.next_arrival]
        for link, _, outward, _ in self._ends():
            if link not in self.frozen:
                times.append(link.deadline)
                if link.has_bytes_to_send and not outward.is_writable(self.now):
                    times.append(outward.free_at - 0.25)
        return min(time for time in times if time > self.now) if any(time > self.now for time in times) else math.inf

    def run_until(self, until: float) -> None:
        """Let time pass, from one happening to the next."""
        self.settle()
        while (following := self.next_time()) <= until:
            self.now = following
            self.settle()
        self.now = max(self.now, until)

    def close_of(self, events: list[Event]) -> Closed:
        """The last event, which must be the link's end."""
        assert events, "nothing happened"
        assert isinstance(events[-1], Closed), events[-1]
        return events[-1]


def connected(pair: ConnectionPair, next_seqno: int = 1, **restart: object) -> ConnectionPair:
    """Bring a pair to streaming from `next_seqno`, with an empty catalogue."""
    pair.settle()
    pair.receiver.accept(pair.now)
    pair.receiver.report(ReceiverProgress(), pair.now)
    pair.receiver.send_restart(next_seqno, Position().vector, {}, **restart)  # type: ignore[arg-type]
    pair.settle()
    requested = pair.source.restart
    assert requested is not None
    pair.source.start(next_seqno, requested.next_part, b"")
    pair.settle()
    return pair


class Journal:
    """A journal in memory: single transactions and large ones, from one origin, with true chain hashes."""

    ORIGIN = 0x7171_7171

    def __init__(self, large: Iterable[int] = (), parts: int = 5, part_bytes: int = 3000) -> None:
        self.frames: list[bytes] = []
        self.parts: dict[int, list[bytes]] = {}
        self.positions = [Position()]
        self._large = frozenset(large)
        self._parts = parts
        self._part_bytes = min(part_bytes, PART_BYTES)

    @property
    def last_seqno(self) -> int:
        return len(self.frames)

    def token(self, seqno: int) -> int:
        return 0xABC000 + seqno

    def write(self, count: int, size: int = 60) -> None:
        """Commit `count` more transactions of about `size` bytes."""
        for _ in range(count):
            seqno = self.last_seqno + 1
            before = self.positions[-1]
            _, chain = before.chains.get(self.ORIGIN, (0, 0))
            kind, payload = Kind.TRANSACTION, pack_elements(Op.INSERT, 0x8000_0001, 0, [seqno, bytes(size)])
            if seqno in self._large:
                kind, payload = Kind.LARGE, self._write_parts(seqno)
            frame, chain = pack_frame(kind, seqno, 0, chain, self.ORIGIN, seqno, seqno, *payload)
            self.frames.append(frame)
            self.positions.append(before.advanced(seqno, self.ORIGIN, seqno, chain))

    def _write_parts(self, seqno: int) -> tuple[bytes, int]:
        chain, frames = 0, []
        for number in range(self._parts):
            data = bytes([seqno % 256]) * self._part_bytes
            frame, chain = pack_part(self.ORIGIN, self.token(seqno), number, data, chain)
            frames.append(frame)
        self.parts[seqno] = frames
        return large_payload(self.token(seqno), self._parts, self._parts * self._part_bytes, chain, (1,))

    def batch(self, first_seqno: int, count: int) -> FrameBatch:
        """Plain transactions from `first_seqno` on, up to the next large one."""
        last = min(first_seqno + count - 1, self.last_seqno)
        last = min([last, *(seqno - 1 for seqno in self.parts if seqno > first_seqno)])
        return FrameBatch(first_seqno, last, last - first_seqno + 1, b"".join(self.frames[first_seqno - 1 : last]))

    def view(self, next_seqno: int) -> SourceView:
        """What resync.decide needs."""
        reachable = 0 < next_seqno <= self.last_seqno + 1
        large = LargeHead(self.token(next_seqno), self._parts) if next_seqno in self.parts else None
        return SourceView(self.positions[-1], 1, (), self.positions[next_seqno - 1] if reachable else None, large)


class LinkedSites:
    """Two sites, as many connections as it takes. The secondary keeps what it received; an Update Process frees it."""

    def __init__(
        self,
        journal: Journal,
        settings: LinkSettings = SETTINGS,
        *,
        batch: int = 7,
        parts: int = 2,
        apply_s: float = 0.0,
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.batch = batch
        self.parts_at_once = parts
        self.apply_s = apply_s
        self.now = 0.0
        self.applying = True
        self.position = Position()
        self.received: list[bytes] = []
        self.received_parts: list[bytes] = []
        self.parts_of: dict[int, list[bytes]] = {}
        self.part_token = 0
        self.applied_seqno = 0
        self.pool: list[tuple[int, int]] = []
        self.pool_bytes = 0
        self.pool_bytes_peak = 0
        self.applied_at = 0.0
        self.acknowledged_seqno = 0
        self.ends: list[Closed] = []
        self.restarts: list[RestartRequested] = []
        self.duplicates = 0
        self.connect()

    def connect(self, **pipes: Pipe) -> ConnectionPair:
        """A new connection; whatever was on the old wire is gone."""
        pair = ConnectionPair(self.settings, replace(self.settings, expected_peer=None), now=self.now)
        pair.there = pipes.get("there", pair.there)
        pair.back = pipes.get("back", pair.back)
        pair.on_source = self._source_heard
        pair.on_receiver = self._receiver_heard
        pair.before_writing = self._work
        self.pair = pair
        return pair

    def run(self, seconds: float) -> None:
        """Let time pass, the Update Process included."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + (self.apply_s or seconds))
            self.pair.run_until(self.now)

    def cut(self) -> None:
        """The connection is lost without a word; both sides learn it at once."""
        for link, notice in ((self.pair.source, self._source_heard), (self.pair.receiver, self._receiver_heard)):
            for event in link.receive_eof(self.now):
                notice(event)
        self.duplicates += self.pair.receiver.duplicate_transactions

    # The source's server.

    def _source_heard(self, event: Event) -> None:
        link = self.pair.source
        if isinstance(event, RestartRequested):
            self.restarts.append(event)
            decision = decide(event.restart, self.journal.view(event.restart.next_seqno))
            if isinstance(decision, StartAt):
                link.start(decision.seqno, decision.part, b"catalogue")
            else:
                for end in link.refuse(decision.error()):
                    self._source_heard(end)
        elif isinstance(event, Acknowledged):
            self.acknowledged_seqno = event.reply.last_durable_seqno
        elif isinstance(event, Closed):
            self.ends.append(event)

    def _work(self) -> None:
        link, journal = self.pair.source, self.journal
        link.report(SourceProgress(journal.last_seqno, journal.last_seqno, WALL_NS))
        if link.can_send_bulk and link.next_send_seqno <= journal.last_seqno:
            seqno, part = link.next_send_seqno, link.next_send_part
            if seqno not in journal.parts:
                link.send_batch(journal.batch(seqno, self.batch))
            elif part == len(journal.parts[seqno]):
                link.send_large(seqno, journal.token(seqno), part, journal.frames[seqno - 1])
            else:
                frames = journal.parts[seqno][part : part + self.parts_at_once]
                link.send_parts(seqno, journal.token(seqno), part, len(frames), b"".join(frames))
        self._apply()

    # The receiver's server.

    def _receiver_heard(self, event: Event) -> None:
        link = self.pair.receiver
        if isinstance(event, SourceIntroduced):
            link.accept(self.pair.now)
            link.report(self._progress(), self.pair.now)
            parts = len(self.received_parts)
            token = self.part_token if parts else 0
            link.send_restart(
                self.position.last_seqno + 1, self.position.vector, self.position.chains, next_part=parts, token=token
            )
        elif isinstance(event, Started):
            assert event.catalogue == b"catalogue"
            if event.discards_parts:
                self.received_parts.clear()
        elif isinstance(event, BatchReceived):
            for offset, head in walk(event.batch.data):
                self._took(event.batch.data[offset : offset + head.frame_bytes])
            self._pooled(event.batch.last_seqno, len(event.batch.data))
        elif isinstance(event, PartsReceived):
            assert event.first_part == len(self.received_parts)
            self.part_token = event.token
            for offset, head in walk(event.frames):
                self.received_parts.append(event.frames[offset : offset + head.frame_bytes])
            self._pooled(event.seqno - 1, len(event.frames))
        elif isinstance(event, LargeReceived):
            assert event.parts == len(self.received_parts)
            self.parts_of[event.seqno] = self.received_parts
            self.received_parts = []
            self._took(event.frame)
            self._pooled(event.seqno, len(event.frame))
        elif isinstance(event, Closed):
            self.ends.append(event)
        if not link.is_closed:
            link.report(self._progress(), self.pair.now)

    def _took(self, frame: bytes) -> None:
        head = next(walk(frame))[1]
        assert head.seqno == self.position.last_seqno + 1
        self.received.append(frame)
        self.position = self.position.advanced(head.seqno, head.origin, head.origin_seqno, head.chain)

    def _pooled(self, last_seqno: int, size: int) -> None:
        self.pool.append((last_seqno, size + 40))
        self.pool_bytes += size + 40
        self.pool_bytes_peak = max(self.pool_bytes_peak, self.pool_bytes)
        assert self.pool_bytes <= POOL_BYTES, "the receive pool has overflowed"

    def _progress(self) -> ReceiverProgress:
        backlog = self.position.last_seqno - self.applied_seqno
        fill = self.pool_bytes / POOL_BYTES
        return ReceiverProgress(self.applied_seqno, self.applied_seqno, 1, backlog, fill)

    def _apply(self) -> None:
        """One record each `apply_s` seconds; all at once when that is 0."""
        changed = False
        while self.applying and self.pool and self.applied_at + self.apply_s <= self.pair.now:
            self.applied_at = self.pair.now if self.apply_s else self.applied_at
            last_seqno, size = self.pool.pop(0)
            self.applied_seqno = max(self.applied_seqno, last_seqno)
            self.pool_bytes -= size
            changed = True
        if changed:
            self.pair.receiver.report(self._progress(), self.pair.now)
