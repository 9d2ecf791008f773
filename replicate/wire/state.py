"""Who may say what when: one table for both roles.

To change the protocol, change the table below and nothing else; no `if state ==` belongs into the links. The table is
keyed by role because messages cross: a receiver that has said XOFF still gets the DATA that was on its way, while a
source that has heard XOFF may send none. What one side may send in a state, the other side must be able to receive in
every state that it can be in meanwhile; tests/replicate/wire/test_state.py walks all interleavings to prove it.

Guarantees: an illegal move raises and changes nothing; CLOSED is final.
Leaves to others: what a message holds, time, bytes. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from replicate.errors import InternalError, ProtocolViolationError
from replicate.wire.message import MessageType


class Role(Enum):
    """Which end of the connection: the source sends the journal, the receiver takes it."""

    SOURCE = "source"
    RECEIVER = "receiver"
    __hash__ = object.__hash__  # each is there once; an Enum's own is two calls in Python, for every message


class Direction(Enum):
    """Seen from the role: SEND is what we say, RECEIVE is what we hear."""

    SEND = "send"
    RECEIVE = "receive"
    __hash__ = object.__hash__


class State(Enum):
    """Where the conversation stands. The values are the words of status and log (GT.M's, where it has one)."""

    OPENING = "opening"
    """Nothing said yet."""
    GREETING = "greeting"
    """The source has said hello; the receiver has not answered."""
    WAITING_FOR_RESTART = "waiting for restart"
    """Both know each other; the receiver has not said yet from where."""
    SEARCHING_FOR_RESTART = "searching for restart"
    """The receiver has said from where; the source looks whether it can."""
    SEEDING = "sending the seed"
    """The receiver has asked for a seed instead; it is made, then sent."""
    SEEDED = "waiting until the seed is safe"
    """The seed was sent whole; the receiver brings it to its disk."""
    STARTING = "sending catalogue"
    STREAMING = "streaming"
    STOPPED = "waiting for XON"
    CLOSED = "closed"
    __hash__ = object.__hash__


_M: Final = MessageType
_SAY: Final = Direction.SEND
_HEAR: Final = Direction.RECEIVE
_BULK: Final = (_M.DATA, _M.PARTS, _M.LARGE, _M.CHECK)
"""What a side that has heard XOFF does not send."""

Move = tuple[Direction, MessageType]

_LAST_WORDS: Final[dict[Move, State]] = {
    (direction, last): State.CLOSED for direction in Direction for last in (_M.BYE, _M.REFUSE)
}
_SEED: Final = (_M.SEED_PREPARING, _M.SEED_START, _M.SEED_CHUNK)
_SOURCE_LOST: Final = ((_HEAR, _M.LOST_OFFER), (_HEAR, _M.LOST_CHUNK), (_SAY, _M.LOST_TAKEN))
_RECEIVER_LOST: Final = ((_SAY, _M.LOST_OFFER), (_SAY, _M.LOST_CHUNK), (_HEAR, _M.LOST_TAKEN))
_SOURCE_HANDS_OVER: Final = (
    (_SAY, _M.HANDOVER_ASK),
    (_HEAR, _M.HANDOVER_READY),
    (_SAY, _M.HANDOVER),
    (_HEAR, _M.HANDOVER_DONE),
)
_RECEIVER_TAKES_OVER: Final = (
    (_HEAR, _M.HANDOVER_ASK),
    (_SAY, _M.HANDOVER_READY),
    (_HEAR, _M.HANDOVER),
    (_SAY, _M.HANDOVER_DONE),
)
_SEED_SAID: Final = (*_SEED, _M.SEED_END)
_SEED_HEARD: Final = (_M.SEED_REQUEST_REGIONS, _M.SEED_REQUEST_PARTITIONS, _M.SEED_ACK, _M.SEED_DONE)
_SOURCE_SEEDS: Final = (*((_SAY, one) for one in _SEED_SAID), *((_HEAR, one) for one in _SEED_HEARD))
_RECEIVER_SEEDS: Final = (*((_HEAR, one) for one in _SEED_SAID), *((_SAY, one) for one in _SEED_HEARD))
_SOURCE_BESIDE: Final = (*_SOURCE_LOST, *_SOURCE_HANDS_OVER, *_SOURCE_SEEDS)
_RECEIVER_BESIDE: Final = (*_RECEIVER_LOST, *_RECEIVER_TAKES_OVER, *_RECEIVER_SEEDS)
_SOURCE_BEATS: Final = ((_SAY, _M.HEARTBEAT), (_HEAR, _M.HEARTBEAT_REPLY))
_RECEIVER_BEATS: Final = ((_HEAR, _M.HEARTBEAT), (_SAY, _M.HEARTBEAT_REPLY))


def _stay(state: State, *moves: Move) -> dict[Move, State]:
    return dict.fromkeys(moves, state)


TRANSITIONS: Final[dict[Role, dict[State, dict[Move, State]]]] = {
    Role.SOURCE: {
        State.OPENING: _LAST_WORDS | {(_SAY, _M.HELLO): State.GREETING},
        State.GREETING: _LAST_WORDS | {(_HEAR, _M.HELLO_REPLY): State.WAITING_FOR_RESTART},
        State.WAITING_FOR_RESTART: _LAST_WORDS
        | _stay(State.WAITING_FOR_RESTART, *_SOURCE_BEATS)
        | {(_HEAR, _M.RESTART): State.SEARCHING_FOR_RESTART, (_HEAR, _M.SEED_REQUEST): State.SEEDING},
        State.SEEDING: _LAST_WORDS
        | _stay(State.SEEDING, *_SOURCE_BEATS, (_HEAR, _M.SEED_ACK), *((_SAY, seed) for seed in _SEED))
        | {(_SAY, _M.SEED_END): State.SEEDED},
        State.SEEDED: _LAST_WORDS
        | _stay(State.SEEDED, *_SOURCE_BEATS, (_HEAR, _M.SEED_ACK))
        | {(_HEAR, _M.SEED_DONE): State.WAITING_FOR_RESTART},
        State.SEARCHING_FOR_RESTART: _LAST_WORDS
        | _stay(State.SEARCHING_FOR_RESTART, *_SOURCE_BEATS)
        | {(_SAY, _M.START): State.STARTING},
        State.STARTING: _LAST_WORDS
        | _stay(State.STARTING, *_SOURCE_BEATS, (_SAY, _M.CATALOGUE_CHUNK))
        | {(_SAY, _M.CATALOGUE_END): State.STREAMING},
        State.STREAMING: _LAST_WORDS
        | _stay(State.STREAMING, *_SOURCE_BEATS, *_SOURCE_BESIDE, *((_SAY, bulk) for bulk in _BULK))
        | {(_HEAR, _M.XOFF): State.STOPPED},
        State.STOPPED: _LAST_WORDS
        | _stay(State.STOPPED, *_SOURCE_BEATS, *_SOURCE_BESIDE)
        | {(_HEAR, _M.XON): State.STREAMING},
        State.CLOSED: {},
    },
    Role.RECEIVER: {
        State.OPENING: _LAST_WORDS | {(_HEAR, _M.HELLO): State.GREETING},
        State.GREETING: _LAST_WORDS | {(_SAY, _M.HELLO_REPLY): State.WAITING_FOR_RESTART},
        State.WAITING_FOR_RESTART: _LAST_WORDS
        | _stay(State.WAITING_FOR_RESTART, *_RECEIVER_BEATS)
        | {(_SAY, _M.RESTART): State.SEARCHING_FOR_RESTART, (_SAY, _M.SEED_REQUEST): State.SEEDING},
        State.SEEDING: _LAST_WORDS
        | _stay(State.SEEDING, *_RECEIVER_BEATS, (_SAY, _M.SEED_ACK), *((_HEAR, seed) for seed in _SEED))
        | {(_HEAR, _M.SEED_END): State.SEEDED},
        State.SEEDED: _LAST_WORDS
        | _stay(State.SEEDED, *_RECEIVER_BEATS, (_SAY, _M.SEED_ACK))
        | {(_SAY, _M.SEED_DONE): State.WAITING_FOR_RESTART},
        State.SEARCHING_FOR_RESTART: _LAST_WORDS
        | _stay(State.SEARCHING_FOR_RESTART, *_RECEIVER_BEATS)
        | {(_HEAR, _M.START): State.STARTING},
        State.STARTING: _LAST_WORDS
        | _stay(State.STARTING, *_RECEIVER_BEATS, (_HEAR, _M.CATALOGUE_CHUNK))
        | {(_HEAR, _M.CATALOGUE_END): State.STREAMING},
        State.STREAMING: _LAST_WORDS
        | _stay(
            State.STREAMING,
            *_RECEIVER_BEATS,
            *_RECEIVER_BESIDE,
            *((_HEAR, bulk) for bulk in _BULK),
        )
        | {(_SAY, _M.XOFF): State.STOPPED},
        # What the source sent before it heard XOFF still arrives.
        State.STOPPED: _LAST_WORDS
        | _stay(State.STOPPED, *_RECEIVER_BEATS, *_RECEIVER_BESIDE, *((_HEAR, bulk) for bulk in _BULK))
        | {(_SAY, _M.XON): State.STREAMING},
        State.CLOSED: {},
    },
}

BESIDE_STREAM: Final = (State.STREAMING, State.STOPPED)
"""In these, what goes beside the stream may be said."""


class Conversation:
    """The state of one end of one connection."""

    __slots__ = ("role", "state")

    def __init__(self, role: Role) -> None:
        self.role = role
        self.state = State.OPENING

    def sent(self, message_type: MessageType) -> State:
        """Note that we say this now. InternalError, and no change, when it is not our turn: that is a bug of ours."""
        to = TRANSITIONS[self.role][self.state].get((_SAY, message_type))
        if to is None:
            raise InternalError(f"a {self.role.value} that is {self.state.value} may not send {message_type.name}")
        self.state = to
        return to

    def received(self, message_type: MessageType) -> State:
        """Note that we heard this. ProtocolViolationError, and no change, when it is not the peer's turn."""
        to = TRANSITIONS[self.role][self.state].get((_HEAR, message_type))
        if to is None:
            raise ProtocolViolationError(
                f"{message_type.name} came out of turn: this {self.role.value} is {self.state.value}",
                do="The connection is closed; compare the releases of both sides",
            )
        self.state = to
        return to

    def close(self) -> None:
        """The connection is gone without a last word."""
        self.state = State.CLOSED
