"""The receiver's end of a connection: judges the source, asks for the stream, hands on what is provably next.

How to drive it: see replicate/wire/connection.py. What it adds:

    link = ReceiverLink(settings, flow, me, now, wall_ns)
    SourceIntroduced(peer)          link.accept(now) or link.refuse(refusal(SECOND_SOURCE, …))
                                    link.send_restart(…) as soon as it is known from where
    Started(start, catalogue, …)    take over the catalogue; forget the parts if `discards_parts`
    BatchReceived, PartsReceived, LargeReceived             into the receive pool, in this order
    (link.request_seed(…)           in the place of the restart, which then follows; and SeedBeingMade, SeedAnnounced,
    SeedReceived, SeedComplete      link.acknowledge_seed(…) when it is written, link.seed_taken() when it is synced)
    HeartbeatReceived(heartbeat)    note the source's numbers; it is answered already
    link.offer_lost(…)              beside the stream; LostAcknowledged, then link.send_lost(…) of the next bytes
    link.report(progress, now)      at least once a second, and after each event that filled the pool

Guarantees: what is handed on is exactly `next_seqno`, `next_seqno` + 1, … of the restart, each once, every frame head
looked at. A gap is refused by a GapError that names both numbers, and nothing of that message is handed on. What lies
below the next number is a duplicate: dropped and counted. XOFF comes while the pool has room for all on its way.
Leaves to others: the receive pool, what a transaction holds, sockets, clocks. Pure.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c
from msgspec import Struct

from receiver_server.flow import Flow
from receiver_server.seed_arrival import SeedArrival
from replicate.errors import GapError, InternalError
from replicate.journal.record import FrameBatch
from replicate.limits import CATALOGUE_BYTES_MAX
from replicate.model.vector import Chains, SynchronizationVector
from replicate.wire.compression import Decompressor
from replicate.wire.connection import Link, LinkSettings
from replicate.wire.event import (
    BatchReceived,
    CheckReceived,
    Event,
    HeartbeatReceived,
    LargeReceived,
    LostAcknowledged,
    PartsReceived,
    SourceIntroduced,
    Started,
)
from replicate.wire.features import (
    FEATURE_COLUMNS,
    FEATURE_LOST,
    FEATURE_PARTITIONS,
    FEATURE_PATROL,
    FEATURE_ROWS,
    FEATURE_SEED,
    FEATURE_SEED_PARTITIONS,
    FEATURE_SEED_REGIONS,
    FEATURE_ZSTD,
    PROTOCOL,
)
from replicate.wire.frame_sequence import check_large, check_parts, check_sequence
from replicate.wire.introduction import check_hello, check_proven, refusal
from replicate.wire.message import (
    BULK_OVERHEAD_BYTES,
    CHUNK_BYTES,
    CatalogueChunk,
    CatalogueEnd,
    Check,
    Data,
    Heartbeat,
    HeartbeatReply,
    Hello,
    HelloReply,
    Introduction,
    Large,
    LostChunk,
    LostOffer,
    LostTaken,
    Message,
    Parts,
    RefuseCode,
    Restart,
    SeedChunk,
    SeedEnd,
    SeedPreparing,
    SeedRequest,
    SeedRequestPartitions,
    SeedRequestRegions,
    SeedStart,
    Start,
    Xoff,
    Xon,
)
from replicate.wire.state import BESIDE_STREAM, Role, State
from replicate.wire.vector_refusals import BY_VECTOR

ACKNOWLEDGE_PERIOD_S: Final = 1.0
"""Progress is told at most this often, heartbeats and the window apart."""


class ReceiverProgress(Struct, frozen=True):
    """Where this side stands. `fill_fraction` of the receive pool, 0.0 to 1.0; `receiver_backlog` in transactions.

    `last_applied_seqno` is committed in the regions; `last_durable_seqno` is there after a power loss, and is what the
    source prunes by: never report more than was synced.
    """

    last_applied_seqno: int = 0
    last_durable_seqno: int = 0
    update_state: int = 0
    receiver_backlog: int = 0
    fill_fraction: float = 0.0


class ReceiverLink(Link):
    """One connection, from the source's hello to the last word. A new connection needs a new link."""

    def __init__(self, settings: LinkSettings, flow: Flow, me: Introduction, now: float, wall_ns: int) -> None:
        """`now`: monotonic seconds, the clock of every later call. `wall_ns`: wall clock, shown to the peer."""
        super().__init__(Role.RECEIVER, settings, me, now, wall_ns)
        self.flow = flow
        self.next_expected_seqno = 0
        """The only seqno that may come next; all below has been handed on or was there before. 0 until the restart."""
        self.next_expected_part = 0
        """The only part of `next_expected_seqno` that may come next; 0 when nothing of it is here."""
        self.received_transactions = 0
        self.received_bulk_bytes = 0
        self.duplicate_transactions = 0
        self.duplicate_parts = 0
        self.last_heartbeat: Heartbeat | None = None
        self._token = 0
        self._hello: Hello | None = None
        self._start: Start | None = None
        self._catalogue = bytearray()
        self._decompressor = Decompressor()
        self._progress: ReceiverProgress | None = None
        self._restart: Restart | None = None
        self.seed = SeedArrival()
        self._lost: tuple[LostOffer, int] | None = None
        """What was offered, and up to where the source has it: -1 until it says so."""
        self._unreported_bytes = 0
        self._told: tuple[tuple[int, int, int, int], int] | None = None
        """Where we stood, and `received_bulk_bytes`, at the last sign of life."""

    # What the server does.

    @property
    def heard_of(self) -> Introduction | None:
        """Who the hello said it is from, also where it is refused; None before it has come."""
        return None if self._hello is None else self._hello.introduction

    def accept(self, now: float) -> None:
        """Answer the hello of SourceIntroduced. InternalError when there is none to answer."""
        if self._hello is None or self.peer is not None:
            raise InternalError(f"there is no hello to accept while {self.state.value}")
        protocol = check_hello(self._hello, self.me, PROTOCOL)
        self._control += self._say(HelloReply(protocol.major, protocol.minor, self.me))
        self._introduced(self._hello.introduction, protocol, now)

    def send_restart(
        self,
        next_seqno: int,
        vector: SynchronizationVector,
        chains: Chains,
        *,
        next_part: int = 0,
        token: int = 0,
        partitions: tuple[int, ...] = (),
        stop_filter: bool = False,
    ) -> None:
        """Ask for the stream (fields: see message.Restart; BY_VECTOR: the source says where it begins). Leaves as soon
        as the pool is below its XOFF level.

        InternalError before `accept` and a first `report`, or a second time.
        """
        if self.peer is None or self._restart is not None or self._progress is None:
            raise InternalError(f"a restart from {next_seqno} while {self.state.value}; accept and report come first")
        window_bytes = self.flow.window_bytes
        self._restart = Restart(next_seqno, vector, chains, next_part, token, partitions, stop_filter, window_bytes)
        self.next_expected_seqno = next_seqno
        self.next_expected_part = next_part
        self._token = token

    @property
    def can_subscribe(self) -> bool:
        """The source knows how to send some partitions only."""
        return self._both_can(FEATURE_PARTITIONS)

    @property
    def can_choose_rows(self) -> bool:
        """Whether the source sends some rows of a table."""
        return self._both_can(FEATURE_ROWS)

    @property
    def can_choose_columns(self) -> bool:
        """Whether the source sends some columns of a table."""
        return self._both_can(FEATURE_COLUMNS)

    @property
    def can_request_seed(self) -> bool:
        """The source knows how to send one."""
        return self._both_can(FEATURE_SEED)

    def request_seed(self, request: SeedRequest) -> None:
        """Ask for a seed (fields: see message.SeedRequest). InternalError out of turn, or of a source that cannot."""
        if not self.can_request_seed or self._restart is not None:
            raise InternalError(f"a seed cannot be asked for while {self.state.value}")
        self._ask_for_seed(request)

    @property
    def can_request_regions(self) -> bool:
        """The stream runs, and the source knows how to send a seed of some regions beside it."""
        return self._both_can(FEATURE_SEED_REGIONS) and self.state in BESIDE_STREAM

    def request_regions(self, request: SeedRequestRegions) -> None:
        """Ask for a seed of some regions. InternalError out of turn, or of a source that cannot."""
        if not self.can_request_regions:
            raise InternalError(f"a seed of regions cannot be asked for while {self.state.value}")
        self._ask_for_seed(request)

    @property
    def can_request_partitions(self) -> bool:
        """The stream runs, and the source knows how to send a seed of some partitions beside it."""
        return self._both_can(FEATURE_SEED_PARTITIONS) and self.state in BESIDE_STREAM

    def request_partitions(self, request: SeedRequestPartitions) -> None:
        """Ask for a seed of some partitions. InternalError out of turn, or of a source that cannot."""
        if not self.can_request_partitions:
            raise InternalError(f"a seed of partitions cannot be asked for while {self.state.value}")
        self._ask_for_seed(request)

    def _ask_for_seed(self, request: SeedRequest) -> None:
        self._control += self._say(request)
        self.seed.asked(request)

    def acknowledge_seed(self, offset: int) -> None:
        """Everything before `offset` is written. InternalError above what has come."""
        self.seed.acknowledge(offset)

    def seed_taken(self) -> None:
        """The seed is whole and on the disk. InternalError before SeedComplete."""
        self._control += self._say(self.seed.done())

    @property
    def can_offer_lost(self) -> bool:
        """The stream runs, and the source is a primary that takes lost files."""
        is_primary = self.peer is not None and self.peer.role == "primary"
        return is_primary and self._both_can(FEATURE_LOST) and self.state in (State.STREAMING, State.STOPPED)

    def offer_lost(self, offer: LostOffer) -> None:
        """Offer a lost file; what was offered before is given up. InternalError of a source that takes none."""
        if not self.can_offer_lost:
            raise InternalError(f"a lost file cannot be offered while {self.state.value}")
        self._bulk.append(self._say(offer))
        self._lost = offer, -1

    def send_lost(self, data: bytes) -> None:
        """Send the next bytes of the offered file, from where the source has it: once for each LostAcknowledged that
        is not of all of it. InternalError out of turn."""
        offer, offset = self._lost or (None, -1)
        if offer is None or offset < 0 or not 0 < len(data) <= min(CHUNK_BYTES, offer.file_bytes - offset):
            raise InternalError(f"{len(data)} bytes of a lost file out of turn, at {offset}")
        self._bulk.append(self._say(LostChunk(offset, data)))
        self._lost = offer, -1

    def _lost_taken(self, taken: LostTaken, events: list[Event]) -> None:
        offer, offset = self._lost or (None, -1)
        if offer is None or offset >= 0 or taken.check != offer.check or taken.offset > offer.file_bytes:
            raise refusal(RefuseCode.PROTOCOL, f"{self._peer_name()} has {taken.offset} bytes of what was not offered")
        self._lost = offer, taken.offset
        events.append(LostAcknowledged(taken))

    def report(self, progress: ReceiverProgress, now: float) -> None:
        """Where the Update Process and the receive pool stand: decides XOFF and XON, and is what replies tell.

        Call it once all events of a `receive` are in the pool: `fill_fraction` counts as including them. The source is
        told at once if something moved and the last reply is a second old; else `deadline` covers it.
        """
        if self.is_closed:
            return
        self._now = max(self._now, now)
        self._progress = progress
        self._unreported_bytes = 0
        self._regulate()
        if self.peer is not None and self._now >= self._beat_due():
            self._beat_wanted = True

    @property
    def last_received_seqno(self) -> int:
        """The last whole transaction handed on, or there before; 0 before the restart."""
        return max(0, self.next_expected_seqno - 1)

    def _fill_fraction(self) -> float:
        reported = self._progress.fill_fraction if self._progress is not None else 0.0
        return reported + self._unreported_bytes / self.flow.capacity_bytes

    def _regulate(self) -> None:
        self.flow.decide(self._fill_fraction())

    def _has_late_control(self) -> bool:
        # A restart waits for a pool that has room: nothing can be stopped before the stream runs.
        if self._restart is not None and self.state is State.WAITING_FOR_RESTART:
            return not self.flow.is_stopped
        return self._is_ack_to_be_said or self._is_pause_to_be_said

    @property
    def _is_ack_to_be_said(self) -> bool:
        return self.seed.is_ack_due and self.state in (State.SEEDING, State.SEEDED, *BESIDE_STREAM)

    @property
    def _is_pause_to_be_said(self) -> bool:
        """XOFF or XON."""
        return self.state in BESIDE_STREAM and self.flow.is_stopped != (self.state is State.STOPPED)

    def _late_control(self) -> list[bytes]:
        if self.state is State.WAITING_FOR_RESTART and self._restart is not None:
            return self._say(self._restart)
        said: list[bytes] = []
        if self._is_ack_to_be_said:
            said = self._say(self.seed.ack())
        return said + self._pause() if self._is_pause_to_be_said else said

    def _pause(self) -> list[bytes]:
        free_bytes = max(0, int((1 - self._fill_fraction()) * self.flow.capacity_bytes))
        if self.flow.is_stopped:
            return self._say(Xoff("the receive pool is above its level", free_bytes))
        return self._say(Xon(free_bytes))

    # Signs of life.

    def _standing(self) -> tuple[int, int, int, int]:
        progress = self._progress or ReceiverProgress()
        return (
            self.last_received_seqno,
            progress.last_applied_seqno,
            progress.last_durable_seqno,
            progress.update_state,
        )

    def _beat_due(self) -> float:
        standing = self._standing()
        told = None if self._told is None else self._told[0]
        if told is not None and standing[-1] != told[-1]:
            return self._last_beat  # at once: a primary's status would say that nothing is applied, when it is again
        if standing != told:
            return min(super()._beat_due(), self._last_beat + ACKNOWLEDGE_PERIOD_S)
        return super()._beat_due()

    def _beat(self) -> HeartbeatReply:
        received, applied, durable, state = standing = self._standing()
        self._told = standing, self.received_bulk_bytes
        return HeartbeatReply(
            self.last_heartbeat.number if self.last_heartbeat is not None else 0,
            self._wall_ns(),
            received,
            applied,
            durable,
            state,
            self._progress.receiver_backlog if self._progress is not None else 0,
            self.received_bytes,
            self.received_bulk_bytes,
        )

    # What is heard.

    def _heard(self, message: Message, now: float, events: list[Event]) -> None:
        match message:
            case Hello():
                self._hello = message
                check_hello(message, self.me, PROTOCOL)
                check_proven(message.introduction, self.settings.proven)
                events.append(SourceIntroduced(message.introduction))
            case Heartbeat():
                self._confirmed(message.received_bytes, now)
                self.last_heartbeat = message
                self._beat_wanted = True
                events.append(HeartbeatReceived(message))
            case Start():
                self._started(message)
            case CatalogueChunk(offset, data):
                self._chunk(offset, data)
            case CatalogueEnd(size, check):
                events.append(self._catalogue_complete(size, check))
            case Data():
                self._data(message, events)
            case Parts():
                self._parts(message, events)
            case Large():
                self._large(message, events)
            case LostTaken():
                self._lost_taken(message, events)
            case Check():
                self._checked(message, events)
            case SeedPreparing() | SeedStart() | SeedChunk() | SeedEnd():
                if (event := self.seed.heard(message, self._peer_name())) is not None:
                    events.append(event)
            case _:
                super()._heard(message, now, events)

    def _started(self, start: Start) -> None:
        if self._restart is not None and self._restart.next_seqno == BY_VECTOR:
            self.next_expected_seqno = start.from_seqno
        if start.from_seqno > self.next_expected_seqno:
            raise self._gap(f"the stream from transaction {start.from_seqno}")
        if start.from_seqno == self.next_expected_seqno and start.from_part not in (0, self.next_expected_part):
            raise self._gap(f"part {start.from_part} of transaction {start.from_seqno}")
        if start.catalogue_bytes > CATALOGUE_BYTES_MAX:
            raise refusal(RefuseCode.PROTOCOL, f"a catalogue of {start.catalogue_bytes} bytes is announced")
        self._start = start

    def _chunk(self, offset: int, data: bytes) -> None:
        assert self._start is not None
        if offset != len(self._catalogue) or offset + len(data) > self._start.catalogue_bytes:
            raise refusal(
                RefuseCode.PROTOCOL,
                f"catalogue bytes {offset} to {offset + len(data)}; next is {len(self._catalogue)} "
                f"of {self._start.catalogue_bytes}",
            )
        self._catalogue += data

    def _catalogue_complete(self, size: int, check: int) -> Started:
        assert self._start is not None
        catalogue = bytes(self._catalogue)
        self._catalogue.clear()
        if not size == len(catalogue) == self._start.catalogue_bytes or crc32c(catalogue) != check:
            raise refusal(RefuseCode.PROTOCOL, f"a catalogue of {size} bytes was sent, {len(catalogue)} arrived")
        discards = bool(self.next_expected_part) and self._start.from_part == 0
        if discards:
            self.next_expected_part = 0
            self._token = 0
        return Started(self._start, catalogue, discards)

    def _checked(self, check: Check, events: list[Event]) -> None:
        if not self._both_can(FEATURE_PATROL):
            raise refusal(RefuseCode.PROTOCOL, f"a check came, which is not in protocol {self.protocol}")
        if check.seqno > self.last_received_seqno:
            raise refusal(
                RefuseCode.PROTOCOL,
                f"{self._peer_name()} tells of transaction {check.seqno}; the last one sent is "
                f"{self.last_received_seqno}",
            )
        events.append(CheckReceived(check))

    def _data(self, message: Data, events: list[Event]) -> None:
        frames = self._unpacked(message)
        first, last, count = message.first_seqno, message.last_seqno, message.count
        expected = self.next_expected_seqno
        if first > expected or (last >= expected and self.next_expected_part):
            raise self._gap(f"transactions {first} to {last}")
        offset = check_sequence(frames, first, count, expected)
        self._took(len(frames))
        if last < expected:
            self.duplicate_transactions += count
            return
        if offset:
            self.duplicate_transactions += expected - first
            frames = frames[offset:]
            first, count = expected, last - expected + 1
        self.next_expected_seqno = last + 1
        self.received_transactions += count
        events.append(BatchReceived(FrameBatch(first, last, count, frames)))

    def _parts(self, message: Parts, events: list[Event]) -> None:
        frames = self._unpacked(message)
        seqno, token, first, count = message.seqno, message.token, message.first_part, message.count
        expected = self.next_expected_part
        if seqno > self.next_expected_seqno:
            raise self._gap(f"parts of transaction {seqno}")
        if seqno == self.next_expected_seqno and (first > expected or (expected and token != self._token)):
            raise self._gap(f"parts from {first} of transaction {seqno} (token {token:x})")
        offset = check_parts(frames, token, first, count, expected if seqno == self.next_expected_seqno else 0)
        self._took(len(frames))
        if seqno < self.next_expected_seqno or first + count <= expected:
            self.duplicate_parts += count
            return
        if offset:
            self.duplicate_parts += expected - first
            frames = frames[offset:]
            first, count = expected, first + count - expected
        self._token = token
        self.next_expected_part = first + count
        events.append(PartsReceived(seqno, token, first, count, frames))

    def _large(self, message: Large, events: list[Event]) -> None:
        seqno, parts = message.seqno, message.parts
        if seqno > self.next_expected_seqno:
            raise self._gap(f"the end of large transaction {seqno}")
        check_large(message.data, seqno, message.token, parts)
        self._took(len(message.data))
        if seqno < self.next_expected_seqno:
            self.duplicate_transactions += 1
            return
        if parts != self.next_expected_part or message.token != self._token:
            raise self._gap(f"the end of large transaction {seqno} after {parts} parts (token {message.token:x})")
        self.next_expected_seqno += 1
        self.next_expected_part = 0
        self._token = 0
        self.received_transactions += 1
        events.append(LargeReceived(seqno, message.token, parts, message.data))

    def _unpacked(self, message: Data | Parts) -> bytes:
        if message.is_compressed:
            if not self._both_can(FEATURE_ZSTD):
                raise refusal(RefuseCode.PROTOCOL, "a compressed message, and compression was not agreed upon")
            return self._decompressor.decompress(message.data, message.raw_bytes)
        if len(message.data) != message.raw_bytes:
            raise refusal(
                RefuseCode.PROTOCOL, f"{len(message.data)} bytes of journal frames, {message.raw_bytes} announced"
            )
        return message.data

    def _took(self, size: int) -> None:
        self._is_bulk_flowing = True
        self.received_bulk_bytes += size + BULK_OVERHEAD_BYTES
        self._unreported_bytes += size + BULK_OVERHEAD_BYTES
        self._regulate()
        # The source stops at its window: tell it well before.
        told_bytes = 0 if self._told is None else self._told[1]
        if self.received_bulk_bytes - told_bytes >= self.flow.window_bytes // 4:
            self._beat_wanted = True

    def _gap(self, came: str) -> GapError:
        part = f", part {self.next_expected_part}" if self.next_expected_part else ""
        return GapError(
            f"{came} came; next should be transaction {self.next_expected_seqno}{part}",
            where=self._peer_name(),
            do="Nothing of it was taken; the stream starts again from the last good position",
            next_expected_seqno=self.next_expected_seqno,
            next_expected_part=self.next_expected_part,
        )
