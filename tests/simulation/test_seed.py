"""A seed over the wire in simulated time: cut at every chunk, slow disks, slow lines; it always ends, byte for byte."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from receiver_server.link import ReceiverProgress
from replicate.errors import GapError, InternalError, ProtocolViolationError
from replicate.model.vector import Position
from replicate.wire.codec import encode
from replicate.wire.event import (
    Closed,
    CloseReason,
    Event,
    RestartRequested,
    SeedAnnounced,
    SeedBeingMade,
    SeedComplete,
    SeedReceived,
    SeedRequested,
    SeedTaken,
    SourceIntroduced,
)
from replicate.wire.message import (
    CHUNK_BYTES,
    SEED_WINDOW_BYTES,
    MessageType,
    SeedAck,
    SeedChunk,
    SeedDone,
    SeedRequest,
    SeedStart,
)
from replicate.wire.state import State
from tests.harness.link_pair import PRIMARY, SETTINGS, ConnectionPair

SEED, OTHER, REQUEST = b"a" * 16, b"b" * 16, b"r" * 16
CHUNKS = 37


@dataclass
class Sites:
    """Two sites and a file. `made_s`: how long the making takes. `disk_bytes_per_s`: of the receiver's disk."""

    content: bytes
    seed: bytes = SEED
    made_s: float = 3.0
    disk_bytes_per_s: float = float("inf")
    here: bytearray = field(default_factory=bytearray)
    here_of: bytes = bytes(16)
    queue: list[SeedReceived | SeedComplete] = field(default_factory=list)
    queue_bytes_peak: int = 0
    taken: bool = False
    done: bool = False
    restarts: int = 0
    told: list[SeedBeingMade] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    ends: list[Closed] = field(default_factory=list)
    sent_chunks: int = 0
    now: float = 0.0
    _request: SeedRequest | None = None
    _requested_at: float | None = None
    _free_at: float = 0.0
    _prepared_at: float = -1.0

    def connect(self, mangle: Callable[[bytes], list[bytes]] | None = None) -> ConnectionPair:
        pair = ConnectionPair(now=self.now)
        pair.there.mangle = mangle
        pair.on_source, pair.on_receiver, pair.before_writing = self._source, self._receiver, self._work
        self.pair, self.queue, self._requested_at = pair, [], None
        return pair

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self.pair.run_until(self.now)

    def cut(self) -> None:
        for link, notice in ((self.pair.source, self._source), (self.pair.receiver, self._receiver)):
            for event in link.receive_eof(self.now):
                notice(event)

    def _source(self, event: Event) -> None:
        if isinstance(event, SeedRequested):
            self._requested_at = self.pair.now
        elif isinstance(event, SeedTaken):
            assert event.seed == self.seed
            self.taken = True
        elif isinstance(event, RestartRequested):
            self.restarts += 1
        elif isinstance(event, Closed):
            self.ends.append(event)

    def _work(self) -> None:
        link, now = self.pair.source, self.pair.now
        if self._requested_at is not None and link.state is State.SEEDING:
            if now < self._requested_at + self.made_s:
                if now >= self._prepared_at + 1:
                    self._prepared_at = now
                    link.prepare_seed(int(now - self._requested_at), int(self.made_s))
            else:
                assert self._request is not None
                offset = self._request.offset if self._request.seed == self.seed else 0
                link.start_seed(SeedStart(self.seed, offset, len(self.content), 99))
                self.offsets.append(offset)
                self._requested_at = None
        if link.can_send_seed and link.next_seed_offset < len(self.content):
            at = link.next_seed_offset
            link.send_seed(at, self.content[at : at + CHUNK_BYTES])
            self.sent_chunks += 1
        self._write()

    def _receiver(self, event: Event) -> None:
        link = self.pair.receiver
        if isinstance(event, SourceIntroduced):
            link.accept(self.pair.now)
            link.report(ReceiverProgress(), self.pair.now)
            if self.done:
                link.send_restart(100, Position().vector, {})
                return
            self._request = SeedRequest(REQUEST, self.here_of, len(self.here))
            link.request_seed(self._request)
        elif isinstance(event, SeedBeingMade):
            self.told.append(event)
        elif isinstance(event, SeedAnnounced):
            del self.here[event.start.offset :]
            self.here_of = event.start.seed
        elif isinstance(event, SeedReceived | SeedComplete):
            self.queue.append(event)
            waiting = sum(len(one.data) for one in self.queue if isinstance(one, SeedReceived))
            self.queue_bytes_peak = max(self.queue_bytes_peak, waiting)
        elif isinstance(event, Closed):
            self.ends.append(event)

    def _write(self) -> None:
        link = self.pair.receiver
        while self.queue and self._free_at <= self.pair.now and not link.is_closed:
            event = self.queue.pop(0)
            if isinstance(event, SeedReceived):
                assert event.offset == len(self.here)
                self.here += event.data
                self._free_at = max(self._free_at, self.pair.now) + len(event.data) / self.disk_bytes_per_s
                link.acknowledge_seed(len(self.here))
            else:
                assert event.file_bytes == len(self.here)
                self.done = True
                link.seed_taken()
                link.send_restart(100, Position().vector, {})


def made(chunks: float = CHUNKS, **options: float) -> Sites:
    dice = random.Random(7)
    sites = Sites(dice.randbytes(int(CHUNK_BYTES * chunks) + 11), **options)  # type: ignore[arg-type]
    sites.connect()
    return sites


def whole(sites: Sites) -> None:
    assert bytes(sites.here) == sites.content
    assert sites.done
    assert sites.taken
    assert sites.restarts == 1
    assert sites.pair.source.state is State.SEARCHING_FOR_RESTART


def test_it_is_made_and_sent_and_the_restart_follows_on_the_same_connection() -> None:
    sites = made()
    sites.run(10)
    whole(sites)
    assert [event.pages for event in sites.told]
    assert sites.ends == []


def test_nothing_to_send_any_more() -> None:
    sites = made()
    sites.here, sites.here_of = bytearray(sites.content), SEED
    sites.cut()
    sites.connect()
    sites.run(10)
    whole(sites)
    assert sites.sent_chunks == 0


def cut_at(number: int) -> Callable[[bytes], list[bytes]]:
    """Chunks up to that one arrive."""
    seen = 0

    def some(frame: bytes) -> list[bytes]:
        nonlocal seen
        if frame[8] in (MessageType.SEED_CHUNK, MessageType.SEED_END):
            seen += 1
            return [frame] if seen <= number else []
        return [frame]

    return some


@pytest.mark.turns(4)
@pytest.mark.parametrize("number", range(CHUNKS + 2))
def test_cut_at_every_chunk_it_goes_on_at_that_byte(number: int) -> None:
    sites = made()
    sites.cut()
    sites.connect(cut_at(number))
    sites.run(6)
    arrived = min(number * CHUNK_BYTES, len(sites.content))
    assert len(sites.here) == arrived
    sites.cut()
    sites.sent_chunks = 0
    sites.connect()
    sites.run(10)
    whole(sites)
    assert sites.offsets[-1] == arrived
    assert sites.sent_chunks == -(-(len(sites.content) - arrived) // CHUNK_BYTES)


def test_a_source_that_has_another_seed_begins_again() -> None:
    sites = made()
    sites.cut()
    sites.connect(cut_at(20))
    sites.run(6)
    assert len(sites.here) == 20 * CHUNK_BYTES
    sites.cut()
    sites.seed, sites.content = OTHER, sites.content[::-1]
    sites.connect()
    sites.run(10)
    whole(sites)
    assert sites.offsets[-1] == 0


def test_a_cut_before_the_word_that_it_is_safe_costs_nothing_but_that_word() -> None:
    sites = made()
    sites.pair.back.mangle = lambda frame: [] if frame[8] == MessageType.SEED_DONE else [frame]
    sites.run(6)
    assert sites.done
    assert not sites.taken
    sites.cut()
    sites.connect()  # it has the seed: it asks for the stream
    sites.run(2)
    assert sites.restarts == 1


def test_a_slow_disk_holds_the_source_back_and_memory_is_bounded() -> None:
    sites = made(100, disk_bytes_per_s=1_000_000)
    sites.run(20)
    assert sites.pair.source.next_seed_offset < len(sites.content)
    assert sites.queue_bytes_peak <= SEED_WINDOW_BYTES + CHUNK_BYTES
    sites.run(90)
    whole(sites)
    assert sites.ends == []


def test_heartbeats_are_not_delayed_by_a_seed_on_a_slow_line() -> None:
    """The making takes longer than a peer may be silent, and so does the sending; both stay alive."""
    sites = Sites(bytes(CHUNK_BYTES * 40), made_s=200)
    pair = sites.connect()
    pair.there.bytes_per_s = 50_000
    heard: list[float] = []
    seen = pair.on_receiver

    def note(event: Event) -> None:
        if type(event).__name__ == "HeartbeatReceived":
            heard.append(pair.now)
        seen(event)

    pair.on_receiver = note
    sites.run(900)
    whole(sites)
    assert sites.ends == []
    gaps = [later - earlier for earlier, later in itertools.pairwise(heard)]
    one_chunk_s = CHUNK_BYTES / 50_000
    assert max(gaps) <= SETTINGS.heartbeat_period_s + 2 * one_chunk_s + 0.5


@pytest.mark.parametrize("number", [1, 5, CHUNKS])
def test_a_chunk_lost_on_the_way_is_refused_by_name_and_sent_again(number: int) -> None:
    seen = 0

    def drop(frame: bytes) -> list[bytes]:
        nonlocal seen
        seen += frame[8] == MessageType.SEED_CHUNK
        return [] if frame[8] == MessageType.SEED_CHUNK and seen == number else [frame]

    sites = made()
    sites.cut()
    sites.ends.clear()
    sites.connect(drop)
    sites.run(6)
    refused = next(end for end in sites.ends if end.reason is CloseReason.WE_REFUSED)
    assert isinstance(refused.error, GapError)
    assert f"next is byte {(number - 1) * CHUNK_BYTES} of" in str(refused.error)
    sites.connect()
    sites.run(10)
    whole(sites)


def test_every_chunk_doubled_is_harmless() -> None:
    sites = made()
    sites.cut()
    sites.ends.clear()
    sites.connect(lambda frame: [frame] * (1 + (frame[8] == MessageType.SEED_CHUNK)))
    sites.run(10)
    whole(sites)
    assert sites.ends == []


def test_it_ends_whatever_the_line_does() -> None:
    for number in range(30):
        dice = random.Random(number)
        sites = made(8)
        for _ in range(dice.randrange(1, 5)):
            sites.cut()
            pair = sites.connect()
            trouble = dice.choice(["lose", "double", "damage"])
            pair.there.mangle = lambda frame, trouble=trouble, dice=dice: _mangled(frame, trouble, dice)  # type: ignore[misc]
            pair.there.bytes_per_s = dice.choice([1e5, 1e6, 1e9])
            sites.disk_bytes_per_s = dice.choice([1e5, 1e6, 1e9])
            sites.run(dice.choice([1.0, 5.0, 20.0]))
            assert sites.content.startswith(bytes(sites.here))
        sites.cut()
        sites.restarts = 0
        sites.disk_bytes_per_s = 1e9
        sites.connect()
        sites.run(20)
        assert bytes(sites.here) == sites.content
        assert sites.done
        assert sites.restarts == 1


def _mangled(frame: bytes, trouble: str, dice: random.Random) -> list[bytes]:
    if dice.random() > 0.1:
        return [frame]
    if trouble == "lose":
        return []
    if trouble == "damage":
        return [frame[:-1] + bytes([frame[-1] ^ 4])]
    return [frame, frame]


# What is refused.


def seeding(seed: SeedStart | None = None) -> ConnectionPair:
    pair = ConnectionPair()
    pair.settle()
    pair.receiver.accept(pair.now)
    pair.receiver.report(ReceiverProgress(), pair.now)
    pair.receiver.request_seed(SeedRequest(REQUEST, bytes(16), 0))
    pair.settle()
    if seed is not None:
        pair.source.start_seed(seed)
        pair.settle()
    return pair


def test_words_about_a_seed_do_not_pile_up_before_a_peer_that_does_not_read() -> None:
    """Only the newest of each is of use; a peer may send in crumbs, and leave the answers unread for ever."""
    pair = seeding()
    for page in range(1000):
        pair.source.prepare_seed(page, 1000)
    assert len(pair.source.bytes_to_send()) == 1
    assert not pair.source.has_bytes_to_send
    pair = seeding(SeedStart(SEED, 0, 1000, 9))
    for offset in range(1000):
        pair.receiver.receive(b"".join(encode(SeedChunk(offset, b"x"))), pair.now)
        pair.receiver.acknowledge_seed(offset + 1)
    assert pair.receiver.bytes_to_send() == encode(SeedAck(1000))
    assert not pair.receiver.has_bytes_to_send


def test_a_source_that_cannot_is_not_asked() -> None:
    pair = ConnectionPair(primary=replace(PRIMARY, features=("zstd",)))
    pair.settle()
    pair.receiver.accept(pair.now)
    pair.receiver.report(ReceiverProgress(), pair.now)
    assert not pair.receiver.can_request_seed
    with pytest.raises(InternalError, match="cannot be asked for"):
        pair.receiver.request_seed(SeedRequest(REQUEST, bytes(16), 0))


def test_our_own_bugs_are_internal_errors() -> None:
    pair = seeding()
    with pytest.raises(InternalError):
        pair.source.send_seed(0, b"before the start")
    pair.source.start_seed(SeedStart(SEED, 0, 100, 9))
    for offset, data in ((1, b"x"), (0, bytes(101)), (0, b"")):
        with pytest.raises(InternalError):
            pair.source.send_seed(offset, data)
    for again in (lambda: pair.source.start_seed(SeedStart(SEED, 0, 100, 9)), lambda: pair.source.prepare_seed(1, 2)):
        with pytest.raises(InternalError):
            again()
    pair.settle()
    with pytest.raises(InternalError):
        pair.receiver.acknowledge_seed(1)


@pytest.mark.parametrize(
    "sent",
    [
        SeedStart(SEED, 5, 100, 9),  # from a byte that was not asked for
        SeedStart(SEED, 0, 100, 9),
        SeedChunk(0, bytes(101)),
    ],
    ids=["offset", "twice", "too long"],
)
def test_a_source_that_sends_nonsense_is_refused(sent: SeedStart | SeedChunk) -> None:
    pair = seeding(None if isinstance(sent, SeedStart) and sent.offset else SeedStart(SEED, 0, 100, 9))
    pair.source._control += pair.source._say(sent)
    pair.settle()
    closed = pair.close_of(pair.receiver_events)
    assert closed.reason is CloseReason.WE_REFUSED
    assert isinstance(closed.error, ProtocolViolationError | GapError)


def test_a_receiver_that_acknowledges_what_was_not_sent_is_refused() -> None:
    pair = seeding(SeedStart(SEED, 0, 100, 9))
    pair.receiver.seed.next_offset = 50
    pair.receiver.acknowledge_seed(50)
    pair.settle()
    assert "byte 50 of the seed; 0 were sent" in str(pair.close_of(pair.source_events).error)


def test_a_receiver_that_has_another_seed_is_refused() -> None:
    pair = seeding(SeedStart(SEED, 0, 0, 9))
    pair.receiver._control += pair.receiver._say(SeedDone(OTHER))
    pair.settle()
    assert "a seed that was not sent" in str(pair.close_of(pair.source_events).error)
