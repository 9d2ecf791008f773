"""The source's end of a connection: says hello, answers the restart, sends the journal in order, keeps count.

How to drive it: see replicate/wire/connection.py. What it adds:

    link = SourceLink(settings, me, now, wall_ns)           # the hello waits in bytes_to_send
    Connected(peer)                     …                   # wait
    RestartRequested(restart)           link.start(…) or link.refuse(…), whenever the search is done
    link.can_send_bulk                  link.send_batch(…), send_parts(…), send_large(…): at most one, then write it out
    Acknowledged(reply, round_trip_s)   note the consumer's position
    SendingStopped, SendingResumed      for the log; can_send_bulk already knows
    SeedRequested(request)              link.prepare_seed(…) while it is made, then link.start_seed(…); and
    link.can_send_seed                  link.send_seed(…), until all is sent; SeedTaken: it is safe over there
    LostOffered, LostReceived           link.lost_taken(…) once that much of the file is here
    link.report(…)                      whenever our own position moved; heartbeats carry it

Guarantees: what leaves is one gap-free sequence from the point agreed on; a batch out of order is refused before a byte
of it leaves. Not more than the receiver's window, and one batch, is unacknowledged. Nothing leaves after XOFF but
heartbeats and the last word.
Leaves to others: where batches come from (reader), sockets, clocks. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from replicate.errors import GapError, InternalError
from replicate.journal.record import RESTATED_KINDS, FrameBatch
from replicate.journal.walk import walk
from replicate.limits import BATCH_BYTES_MAX, CATALOGUE_BYTES_MAX
from replicate.model.transaction import Kind
from replicate.wire.compression import Compressor
from replicate.wire.connection import Link, LinkSettings
from replicate.wire.event import (
    Acknowledged,
    Connected,
    Event,
    LostOffered,
    LostReceived,
    RestartRequested,
    SeedAcknowledged,
    SeedRequested,
    SeedTaken,
    SendingResumed,
    SendingStopped,
)
from replicate.wire.features import (
    FEATURE_ELEMENTS,
    FEATURE_FILTER,
    FEATURE_LOST,
    FEATURE_PARTITIONS,
    FEATURE_PATROL,
    FEATURE_SEED,
    FEATURE_SEED_PARTITIONS,
    FEATURE_SEED_REGIONS,
    FEATURE_ZSTD,
    PROTOCOL,
)
from replicate.wire.introduction import check_hello_reply, check_proven, refusal
from replicate.wire.message import (
    BULK_OVERHEAD_BYTES,
    CHUNK_BYTES,
    SEED_WINDOW_BYTES,
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
    SeedAck,
    SeedChunk,
    SeedDone,
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

_BEATS_REMEMBERED: Final = 64


class SourceProgress(Struct, frozen=True):
    """Where the source's journal stands. `last_commit_wall_ns`: wall clock of its newest commit, 0 for none."""

    last_seqno: int = 0
    last_durable_seqno: int = 0
    last_commit_wall_ns: int = 0


_FEATURE_OF: Final = {
    SeedRequest: FEATURE_SEED,
    SeedRequestRegions: FEATURE_SEED_REGIONS,
    SeedRequestPartitions: FEATURE_SEED_PARTITIONS,
}
_SEEDS: Final = (State.SEEDING, *BESIDE_STREAM)
"""In these a seed may be sent."""


class SourceLink(Link):
    """One connection, from the hello to the last word. A new connection needs a new link."""

    def __init__(self, settings: LinkSettings, me: Introduction, now: float, wall_ns: int) -> None:
        """`now`: monotonic seconds, the clock of every later call. `wall_ns`: wall clock, shown to the peer."""
        super().__init__(Role.SOURCE, settings, me, now, wall_ns)
        self.restart: Restart | None = None
        """What the receiver has asked for; None until RestartRequested."""
        self.next_send_seqno = 0
        """The first transaction that has not been given to this link yet; 0 until `start`."""
        self.next_send_part = 0
        """The first part not given yet of the large transaction `next_send_seqno`; 0 when none of it has gone."""
        self.sent_transactions = 0
        self.sent_bulk_bytes = 0
        """Journal frames given to this link, before compression, and BULK_OVERHEAD_BYTES a message."""
        self.acknowledged_bulk_bytes = 0
        self.last_reply: HeartbeatReply | None = None
        self.round_trip_s: float | None = None
        self.next_lost_offset = 0
        """The first byte of the lost file that has not come yet."""
        self._lost: LostOffer | None = None
        self._lost_acknowledged = -1
        self.next_seed_offset = 0
        """The first byte of the seed file that has not been given to this link yet."""
        self.acknowledged_seed_offset = 0
        self._seed: SeedStart | None = None
        self._preparing: SeedPreparing | None = None
        """The newest word on it that has not left: a peer that does not read piles none up."""
        self._progress = SourceProgress()
        self._token = 0
        self._window_bytes = 0
        self._compressor: Compressor | None = None
        self._beat_number = 0
        self._beats: OrderedDict[int, float] = OrderedDict()
        self._control += self._say(Hello(PROTOCOL.major, PROTOCOL.minor, me))

    def report(self, progress: SourceProgress) -> None:
        """Our own position, for the next heartbeat."""
        self._progress = progress

    def start(self, from_seqno: int, from_part: int, catalogue: bytes) -> None:
        """Answer the restart: the stream begins there, after the packed catalogue that holds there.

        InternalError when there is no restart to answer, or it asked for another seqno or an earlier part.
        """
        restart = self.restart
        if (
            restart is None
            or restart.next_seqno not in (BY_VECTOR, from_seqno)
            or not 0 <= from_part <= restart.next_part
        ):
            raise InternalError(f"start at {from_seqno}, part {from_part}, does not answer {restart}")
        if len(catalogue) > CATALOGUE_BYTES_MAX:
            raise InternalError(f"a catalogue of {len(catalogue)} bytes; at most {CATALOGUE_BYTES_MAX} are allowed")
        self._control += self._say(Start(from_seqno, from_part, self._progress.last_seqno, len(catalogue)))
        for offset in range(0, len(catalogue), CHUNK_BYTES):
            self._bulk.append(self._say(CatalogueChunk(offset, catalogue[offset : offset + CHUNK_BYTES])))
        self._bulk.append(self._say(CatalogueEnd(len(catalogue), crc32c(catalogue))))
        self.next_send_seqno = from_seqno
        self.next_send_part = from_part
        self._token = restart.token if from_part else 0
        self._window_bytes = restart.window_bytes
        if self.settings.compression == "zstd" and self._both_can(FEATURE_ZSTD):
            self._compressor = Compressor()

    @property
    def can_send_bulk(self) -> bool:
        """True when one more batch may be given: streaming, no XOFF, the last one has left, the window is open."""
        return (
            self.state is State.STREAMING
            and not self._bulk
            and self.sent_bulk_bytes - self.acknowledged_bulk_bytes < self._window_bytes
        )

    @property
    def last_sent_seqno(self) -> int:
        """The last whole transaction given to this link, or before it by an earlier one; 0 before `start`."""
        return max(0, self.next_send_seqno - 1)

    def send_batch(self, batch: FrameBatch) -> None:
        """Queue whole transactions. GapError when the batch does not begin at `next_send_seqno` or is not gap-free
        (nothing of it is sent; the server should close the connection); InternalError when `can_send_bulk` is false."""
        self._check_turn(len(batch.data))
        first, last = batch.first_seqno, batch.last_seqno
        if first != self.next_send_seqno or last - first + 1 != batch.count or batch.count < 1 or self.next_send_part:
            raise GapError(
                f"transactions {first} to {last} ({batch.count} of them) were to be sent; next should be "
                f"{self.next_send_seqno}, part {self.next_send_part}",
                where=self._peer_name(),
                do="The connection starts again; if it repeats, run `replicate -i INSTANCE journal verify`",
            )
        is_compressed, data = self._packed(batch.data)
        self._bulk.append(self._say(Data(first, last, batch.count, len(batch.data), is_compressed, data)))
        self.next_send_seqno = last + 1
        self.sent_transactions += batch.count
        self.sent_bulk_bytes += len(batch.data) + BULK_OVERHEAD_BYTES

    @property
    def can_leave_out_elements(self) -> bool:
        """Whether the peer knows definitions that come without a statement."""
        return self._both_can(FEATURE_ELEMENTS)

    @property
    def knows_all_kinds(self) -> bool:
        """Whether `check_known` has nothing to look at, as long as the connection stands."""
        return self._both_can(FEATURE_FILTER) and self._both_can(FEATURE_PARTITIONS)

    def check_known(self, frames: bytes) -> None:
        """That the peer knows what kinds of frames these are. PeerRefusedError (TOO_OLD) when they hold a transaction
        told in other words, and its release knows none; of a peer that does, nothing is looked at."""
        if self.knows_all_kinds:
            return
        knows_words, knows_sections = self._both_can(FEATURE_FILTER), self._both_can(FEATURE_PARTITIONS)
        for _, head in walk(frames):
            if head.kind == Kind.MIXED and not knows_sections:
                raise refusal(
                    RefuseCode.TOO_OLD,
                    f"transaction {head.seqno} is over several partitions, which {self._peer_name()} does not know",
                    seqno=head.seqno,
                )
            if knows_words:
                continue
            if head.kind in RESTATED_KINDS:
                raise refusal(
                    RefuseCode.TOO_OLD,
                    f"transaction {head.seqno} was told in other words (by a filter, or a conflict that was "
                    f"overwritten), which {self._peer_name()} does not know",
                    seqno=head.seqno,
                )

    def send_parts(self, seqno: int, token: int, first_part: int, count: int, frames: bytes) -> None:
        """Queue `count` part frames of the large transaction `seqno`. Errors as `send_batch`."""
        self._check_turn(len(frames))
        fits = seqno == self.next_send_seqno and first_part == self.next_send_part and count > 0
        if not fits or (first_part and token != self._token):
            raise GapError(
                f"parts from {first_part} of transaction {seqno} (token {token:x}) were to be sent; next should be "
                f"{self.next_send_seqno}, part {self.next_send_part} (token {self._token:x})",
                where=self._peer_name(),
            )
        is_compressed, data = self._packed(frames)
        self._bulk.append(self._say(Parts(seqno, token, first_part, count, len(frames), is_compressed, data)))
        self._token = token
        self.next_send_part += count
        self.sent_bulk_bytes += len(frames) + BULK_OVERHEAD_BYTES

    def send_large(self, seqno: int, token: int, parts: int, frame: bytes) -> None:
        """Queue the commit frame of a large transaction, after its `parts` parts. Errors as `send_batch`."""
        self._check_turn(len(frame))
        if (seqno, parts, token) != (self.next_send_seqno, self.next_send_part, self._token):
            raise GapError(
                f"the end of large transaction {seqno} ({parts} parts) was to be sent; next should be "
                f"{self.next_send_seqno}, part {self.next_send_part}",
                where=self._peer_name(),
            )
        self._bulk.append(self._say(Large(seqno, token, parts, frame)))
        self.next_send_seqno += 1
        self.next_send_part = 0
        self._token = 0
        self.sent_transactions += 1
        self.sent_bulk_bytes += len(frame) + BULK_OVERHEAD_BYTES

    # The seed.

    def prepare_seed(self, done: int, pages: int) -> None:
        """Say how far the making is. InternalError when no seed was asked for, or it has been started."""
        if self._seed is not None:
            raise InternalError("a seed that is being sent is not being made")
        self._preparing = SeedPreparing(done, pages)

    def _has_late_control(self) -> bool:
        return self._preparing is not None and self.state in _SEEDS

    def _late_control(self) -> list[bytes]:
        preparing, self._preparing = self._preparing, None
        return self._say(preparing) if preparing is not None else []

    def start_seed(self, start: SeedStart) -> None:
        """Answer the request: the file's bytes follow from `start.offset` on. InternalError out of turn."""
        if self._seed is not None or not 0 <= start.offset <= start.file_bytes:
            raise InternalError(f"a seed was started twice, or at byte {start.offset} of {start.file_bytes}")
        self._control += self._say(start)
        self._seed, self._preparing = start, None
        self.next_seed_offset = self.acknowledged_seed_offset = start.offset
        self._end_seed()

    @property
    def can_send_seed(self) -> bool:
        """True when one more chunk may be given: the last one has left, and the window is open."""
        return (
            self._seed is not None
            and self.state in _SEEDS
            and not self._bulk
            and self.next_seed_offset - self.acknowledged_seed_offset < SEED_WINDOW_BYTES
        )

    def send_seed(self, offset: int, data: bytes) -> None:
        """Queue the bytes at `offset`, at most CHUNK_BYTES. InternalError when they are not next, or out of turn."""
        seed = self._seed
        end = offset + len(data)
        if seed is None or not self.can_send_seed or offset != self.next_seed_offset or end > seed.file_bytes:
            raise InternalError(f"seed bytes {offset} to {end}; next is {self.next_seed_offset}, {self.state.value}")
        if not 0 < len(data) <= CHUNK_BYTES:
            raise InternalError(f"a chunk of {len(data)} bytes; at most {CHUNK_BYTES} are allowed")
        self._bulk.append(self._say(SeedChunk(offset, data)))
        self.next_seed_offset = end
        self._end_seed()

    def _end_seed(self) -> None:
        if self._seed is not None and self.next_seed_offset == self._seed.file_bytes:
            self._bulk.append(self._say(SeedEnd(self._seed.file_bytes)))

    # The patrol.

    @property
    def knows_patrol(self) -> bool:
        """Whether the peer verifies what we tell of ranges."""
        return self._both_can(FEATURE_PATROL)

    def can_send_check(self, seqno: int) -> bool:
        """Whether a check made at that transaction may go: it was sent before, and nothing waits to be."""
        return self.knows_patrol and self.can_send_bulk and 0 < seqno <= self.last_sent_seqno

    def send_check(self, check: Check) -> None:
        """Tell what we hold of a range. InternalError when `can_send_check` is false."""
        if not self.can_send_check(check.seqno):
            raise InternalError(f"a check at transaction {check.seqno}; the last one sent is {self.last_sent_seqno}")
        self._control += self._say(check)

    # A lost file.

    def lost_taken(self, offset: int) -> None:
        """The offered file is here up to `offset`. InternalError when none was offered, or that much has not come."""
        offer = self._lost
        if offer is None or not self.next_lost_offset <= offset <= offer.file_bytes:
            raise InternalError(f"{offset} bytes of a lost file are taken; {self.next_lost_offset} have come")
        self.next_lost_offset = self._lost_acknowledged = offset
        if self.state in (State.STREAMING, State.STOPPED):
            self._control += self._say(LostTaken(offer.check, offset))

    def _lost_heard(self, message: LostOffer | LostChunk, events: list[Event]) -> None:
        if not self._both_can(FEATURE_LOST):
            raise refusal(RefuseCode.PROTOCOL, f"a lost file is offered, which is not in protocol {self.protocol}")
        if isinstance(message, LostOffer):
            self._lost, self.next_lost_offset, self._lost_acknowledged = message, 0, -1
            events.append(LostOffered(message))
            return
        offset, end = message.offset, message.offset + len(message.data)
        # One chunk at a time: nothing more is held here than that.
        is_next = offset == self.next_lost_offset == self._lost_acknowledged
        if self._lost is None or not is_next or end > self._lost.file_bytes or len(message.data) > CHUNK_BYTES:
            raise refusal(RefuseCode.PROTOCOL, f"bytes {offset} to {end} of a lost file are not next")
        self.next_lost_offset = end
        self._is_bulk_flowing = True
        events.append(LostReceived(self._lost, offset, message.data))

    def _check_turn(self, size: int) -> None:
        if not self.can_send_bulk or not 0 < size <= BATCH_BYTES_MAX:
            raise InternalError(f"{size} bytes of bulk while {self.state.value}, {len(self._bulk)} messages waiting")

    def _packed(self, data: bytes) -> tuple[bool, bytes]:
        packed = self._compressor.compress(data) if self._compressor is not None else None
        return (False, data) if packed is None else (True, packed)

    # What is heard.

    def _heard(self, message: Message, now: float, events: list[Event]) -> None:
        match message:
            case HelloReply():
                protocol = check_hello_reply(message, self.me, self.settings.expected_peer, PROTOCOL)
                check_proven(message.introduction, self.settings.proven)
                self._introduced(message.introduction, protocol, now)
                self._beat_wanted = True
                events.append(Connected(message.introduction))
            case Restart():
                self.restart = message
                events.append(RestartRequested(message))
            case HeartbeatReply():
                acknowledged = self._acknowledged(message, now)
                # Before START only the restart says what the receiver has, and nobody has checked that yet.
                if self.next_send_seqno:
                    events.append(acknowledged)
            case SeedRequest():  # of all regions, or of some, or of partitions
                if not self._both_can(_FEATURE_OF[type(message)]):
                    raise refusal(RefuseCode.PROTOCOL, f"a seed is asked for, which is not in protocol {self.protocol}")
                self._seed = None
                events.append(SeedRequested(message))
            case SeedAck(offset):
                self._seed_acknowledged(offset, events)
            case SeedDone(seed):
                if self._seed is None or seed != self._seed.seed:
                    raise refusal(RefuseCode.PROTOCOL, f"{self._peer_name()} has a seed that was not sent")
                events.append(SeedTaken(seed))
            case LostOffer() | LostChunk():
                self._lost_heard(message, events)
            case Xoff(reason, free_bytes):
                events.append(SendingStopped(reason, free_bytes))
            case Xon(free_bytes):
                events.append(SendingResumed(free_bytes))
            case _:
                super()._heard(message, now, events)

    def _seed_acknowledged(self, offset: int, events: list[Event]) -> None:
        if self._seed is None or offset > self.next_seed_offset:
            raise refusal(
                RefuseCode.PROTOCOL,
                f"{self._peer_name()} acknowledges byte {offset} of the seed; {self.next_seed_offset} were sent",
            )
        self.acknowledged_seed_offset = max(self.acknowledged_seed_offset, offset)
        events.append(SeedAcknowledged(offset))

    def _acknowledged(self, reply: HeartbeatReply, now: float) -> Acknowledged:
        self._confirmed(reply.received_bytes, now)
        newest = max(reply.last_received_seqno, reply.last_applied_seqno, reply.last_durable_seqno)
        if self.next_send_seqno and newest > self.last_sent_seqno:
            raise refusal(
                RefuseCode.PROTOCOL,
                f"{self._peer_name()} acknowledges transaction {newest}; the last one sent is {self.last_sent_seqno}",
            )
        # A peer that overstates this only fills its own pool.
        received_bulk_bytes = min(reply.received_bulk_bytes, self.sent_bulk_bytes)
        self.acknowledged_bulk_bytes = max(self.acknowledged_bulk_bytes, received_bulk_bytes)
        self.last_reply = reply
        sent_at = self._beats.get(reply.number)
        for number in [known for known in self._beats if known <= reply.number]:
            del self._beats[number]
        if sent_at is None:
            return Acknowledged(reply, None)
        self.round_trip_s = now - sent_at
        return Acknowledged(reply, self.round_trip_s)

    def _beat(self) -> Heartbeat:
        self._beat_number += 1
        self._beats[self._beat_number] = self._now
        while len(self._beats) > _BEATS_REMEMBERED:
            self._beats.popitem(last=False)
        progress = self._progress
        return Heartbeat(
            self._beat_number,
            self._wall_ns(),
            progress.last_seqno,
            progress.last_durable_seqno,
            progress.last_commit_wall_ns,
            self.received_bytes,
        )
