"""What a link tells its server: one frozen dataclass an event.

Guarantees: events come in the order in which their messages came; `Closed` is the last one of a connection.
Leaves to others: what the server does about it (its docstring says what must be done next). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

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


@dataclass(frozen=True, slots=True)
class Closed:
    """The last event of a link. Next: write what `bytes_to_send` still gives, then close the socket.

    `error` says what and what to do (None after a BYE); `text` is the reason of a BYE.
    """

    reason: CloseReason
    error: ReplicateError | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class HandoverSaid:
    """The peer has said something about an exchange of roles. The answer goes out by `Link.say_handover`."""

    message: HandoverAsk | HandoverReady | Handover | HandoverDone


# At the source.


@dataclass(frozen=True, slots=True)
class Connected:
    """The receiver has answered and is who it should be. Next: wait for RestartRequested."""

    peer: Introduction


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """The receiver has said from where. Next: `resync.decide`, then `SourceLink.start` or `.refuse`."""

    restart: Restart


@dataclass(frozen=True, slots=True)
class SendingStopped:
    """XOFF: `can_send_bulk` is false until SendingResumed. `free_bytes` of the receive pool are left."""

    reason: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class SendingResumed:
    """XON: go on from `next_send_seqno`."""

    free_bytes: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """How far the receiver has come. `reply` was checked: no number in it lies above what was sent.

    `round_trip_s`: of the heartbeat that it answers; None when it was sent unasked.
    """

    reply: HeartbeatReply
    round_trip_s: float | None


@dataclass(frozen=True, slots=True)
class SeedRequested:
    """The receiver wants a seed first. Next: `SourceLink.prepare_seed` while it is made, then `start_seed`, or
    `refuse`."""

    request: SeedRequest


@dataclass(frozen=True, slots=True)
class SeedAcknowledged:
    """The receiver has written the seed up to `offset`: `can_send_seed` may have become true."""

    offset: int


@dataclass(frozen=True, slots=True)
class SeedTaken:
    """The receiver has the whole seed on its disk. Next: forget the file, wait for RestartRequested."""

    seed: bytes


# At the receiver.


@dataclass(frozen=True, slots=True)
class SourceIntroduced:
    """A source has said who it is, and belongs to us. Next: `ReceiverLink.accept`, or `.refuse` (a second source, an
    instance that is not registered), within the hello's deadline."""

    peer: Introduction


@dataclass(frozen=True, slots=True)
class Started:
    """The source will send from `start.from_seqno`, part `start.from_part`; the catalogue that holds there is complete.

    `catalogue`: its bytes as the source gave them to `SourceLink.start`, checked by length and CRC.
    `discards_parts`: the half-received large transaction will be sent again from its first part.
    Next: take the catalogue over before the first batch.
    """

    start: Start
    catalogue: bytes
    discards_parts: bool


@dataclass(frozen=True, slots=True)
class BatchReceived:
    """The next transactions, gap-free. Next: into the receive pool, in this order."""

    batch: FrameBatch


@dataclass(frozen=True, slots=True)
class PartsReceived:
    """The next part frames of the large transaction `seqno`. A `first_part` of 0 discards what was there of it."""

    seqno: int
    token: int
    first_part: int
    count: int
    frames: bytes


@dataclass(frozen=True, slots=True)
class LargeReceived:
    """The commit frame of the large transaction `seqno`; all its `parts` parts have been handed on."""

    seqno: int
    token: int
    parts: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """Where the source stands. It is answered already. Next: note the numbers for `status`."""

    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class SeedBeingMade:
    """The source makes the seed that was asked for: `done` of its `pages`."""

    done: int
    pages: int


@dataclass(frozen=True, slots=True)
class SeedAnnounced:
    """The seed follows from `start.offset` on: what was asked for, or 0 (what is here of another one is void)."""

    start: SeedStart


@dataclass(frozen=True, slots=True)
class SeedReceived:
    """The next bytes of the seed. Next: write them, then `ReceiverLink.acknowledge_seed`."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SeedComplete:
    """All of it has come. Next: sync it, then `ReceiverLink.seed_taken`."""

    file_bytes: int


@dataclass(frozen=True, slots=True)
class LostOffered:
    """The receiver has a lost file. Next: `SourceLink.lost_taken`, with how much of it is here."""

    offer: LostOffer


@dataclass(frozen=True, slots=True)
class LostReceived:
    """The next bytes of the file that was offered. Next: write them, then `SourceLink.lost_taken`."""

    offer: LostOffer
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class LostAcknowledged:
    """The source has the offered file up to `taken.offset`."""

    taken: LostTaken


@dataclass(frozen=True, slots=True)
class CheckReceived:
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
