"""What a link tells its server: one frozen Struct an event.

Guarantees: events come in the order in which their messages came; `Closed` is the last one of a connection.
Leaves to others: what the server does about it (its docstring says what must be done next). Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from replicate.errors import ReplicateError
from replicate.journal.record import FrameBatch
from replicate.wire.message import (
    Check,
    Handover,
    HandoverAsk,
    HandoverDone,
    HandoverReady,
    Heartbeat,
    HeartbeatReply,
    Introduction,
    LostOffer,
    LostTaken,
    Restart,
    SeedRequest,
    SeedStart,
    Start,
)


class CloseReason(Enum):
    """How a connection ended."""

    BYE = "bye"
    """In order, by either side; `Closed.error` is None."""
    PEER_REFUSED = "refused by the peer"
    WE_REFUSED = "refused by us"
    PEER_DEAD = "peer dead"
    CONNECTION_LOST = "connection lost"


class Closed(Struct, frozen=True):
    """The last event of a link. Next: write what `bytes_to_send` still gives, then close the socket.

    `error` says what and what to do (None after a BYE); `text` is the reason of a BYE.
    """

    reason: CloseReason
    error: ReplicateError | None
    text: str = ""


class HandoverSaid(Struct, frozen=True):
    """The peer has said something about an exchange of roles. The answer goes out by `Link.say_handover`."""

    message: HandoverAsk | HandoverReady | Handover | HandoverDone


# At the source.


class Connected(Struct, frozen=True):
    """The receiver has answered and is who it should be. Next: wait for RestartRequested."""

    peer: Introduction


class RestartRequested(Struct, frozen=True):
    """The receiver has said from where. Next: `resync.decide`, then `SourceLink.start` or `.refuse`."""

    restart: Restart


class SendingStopped(Struct, frozen=True):
    """XOFF: `can_send_bulk` is false until SendingResumed. `free_bytes` of the receive pool are left."""

    reason: str
    free_bytes: int


class SendingResumed(Struct, frozen=True):
    """XON: go on from `next_send_seqno`."""

    free_bytes: int


class Acknowledged(Struct, frozen=True):
    """How far the receiver has come. `reply` was checked: no number in it lies above what was sent.

    `round_trip_s`: of the heartbeat that it answers; None when it was sent unasked.
    """

    reply: HeartbeatReply
    round_trip_s: float | None


class SeedRequested(Struct, frozen=True):
    """The receiver wants a seed first. Next: `SourceLink.prepare_seed` while it is made, then `start_seed`, or
    `refuse`."""

    request: SeedRequest


class SeedAcknowledged(Struct, frozen=True):
    """The receiver has written the seed up to `offset`: `can_send_seed` may have become true."""

    offset: int


class SeedTaken(Struct, frozen=True):
    """The receiver has the whole seed on its disk. Next: forget the file, wait for RestartRequested."""

    seed: bytes


# At the receiver.


class SourceIntroduced(Struct, frozen=True):
    """A source has said who it is, and belongs to us. Next: `ReceiverLink.accept`, or `.refuse` (a second source, an
    instance that is not registered), within the hello's deadline."""

    peer: Introduction


class Started(Struct, frozen=True):
    """The source will send from `start.from_seqno`, part `start.from_part`; the catalogue that holds there is complete.

    `catalogue`: its bytes as the source gave them to `SourceLink.start`, checked by length and CRC.
    `discards_parts`: the half-received large transaction will be sent again from its first part.
    Next: take the catalogue over before the first batch.
    """

    start: Start
    catalogue: bytes
    discards_parts: bool


class BatchReceived(Struct, frozen=True):
    """The next transactions, gap-free. Next: into the receive pool, in this order."""

    batch: FrameBatch


class PartsReceived(Struct, frozen=True):
    """The next part frames of the large transaction `seqno`. A `first_part` of 0 discards what was there of it."""

    seqno: int
    token: int
    first_part: int
    count: int
    frames: bytes


class LargeReceived(Struct, frozen=True):
    """The commit frame of the large transaction `seqno`; all its `parts` parts have been handed on."""

    seqno: int
    token: int
    parts: int
    frame: bytes


class HeartbeatReceived(Struct, frozen=True):
    """Where the source stands. It is answered already. Next: note the numbers for `status`."""

    heartbeat: Heartbeat


class SeedBeingMade(Struct, frozen=True):
    """The source makes the seed that was asked for: `done` of its `pages`."""

    done: int
    pages: int


class SeedAnnounced(Struct, frozen=True):
    """The seed follows from `start.offset` on: what was asked for, or 0 (what is here of another one is void)."""

    start: SeedStart


class SeedReceived(Struct, frozen=True):
    """The next bytes of the seed. Next: write them, then `ReceiverLink.acknowledge_seed`."""

    offset: int
    data: bytes


class SeedComplete(Struct, frozen=True):
    """All of it has come. Next: sync it, then `ReceiverLink.seed_taken`."""

    file_bytes: int


class LostOffered(Struct, frozen=True):
    """The receiver has a lost file. Next: `SourceLink.lost_taken`, with how much of it is here."""

    offer: LostOffer


class LostReceived(Struct, frozen=True):
    """The next bytes of the file that was offered. Next: write them, then `SourceLink.lost_taken`."""

    offer: LostOffer
    offset: int
    data: bytes


class LostAcknowledged(Struct, frozen=True):
    """The source has the offered file up to `taken.offset`."""

    taken: LostTaken


class CheckReceived(Struct, frozen=True):
    """The source has told what it holds of a range."""

    check: Check


Event: TypeAlias = (
    Closed
    | CheckReceived
    | HandoverSaid
    | Connected
    | RestartRequested
    | SendingStopped
    | SendingResumed
    | Acknowledged
    | SeedRequested
    | SeedAcknowledged
    | SeedTaken
    | SourceIntroduced
    | Started
    | BatchReceived
    | PartsReceived
    | LargeReceived
    | HeartbeatReceived
    | SeedBeingMade
    | SeedAnnounced
    | SeedReceived
    | SeedComplete
    | LostOffered
    | LostReceived
    | LostAcknowledged
)
