"""What both ends of a connection have in common: frames in and out, the state table, signs of life, the last word.

Bytes in, events out; no socket and no clock here. The driver is one dull loop, the same for both servers:

    for event in link.receive(data, now): …     # bytes arrived            (link.receive_eof(now) at their end)
    for event in link.tick(now, wall_ns): …     # at link.deadline, and after other work
    for piece in link.bytes_to_send(): …        # after every call, until it gives nothing

Guarantees: trouble of the peer is an event, never an exception; InternalError is a call out of turn, our bug. Control
messages leave before bulk, and bulk one message at a time, so that a heartbeat waits for one batch at most. What
the peer can make us hold is bounded. A peer is dead when it is silent for `dead_after_s`, when it does not see our
bytes although we see its, or when a frame does not come to its end; time that *we* were stopped is not held against it.
Leaves to others: what is replicated (the two links), files, sockets, clocks. Pure.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from msgspec import Struct

from replicate.errors import InternalError, PeerUnreachableError, ReplicateError
from replicate.wire.codec import decode, encode
from replicate.wire.event import Closed, CloseReason, Event, HandoverSaid
from replicate.wire.features import FEATURE_ROLES, FEATURE_SINCE, Protocol
from replicate.wire.frame import FrameReader
from replicate.wire.introduction import as_refuse, refusal, refusal_from_peer
from replicate.wire.message import (
    LIMITS,
    MESSAGE_TYPES,
    OPENING_LIMITS,
    Bye,
    Handover,
    HandoverAsk,
    HandoverDone,
    HandoverReady,
    Introduction,
    Message,
    MessageType,
    Refuse,
    RefuseCode,
)
from replicate.wire.state import Conversation, Role, State

_TYPES: Final = {int(known): known for known in MessageType}
PROGRESS_BYTES_PER_S_MIN: Final = 1024
"""Slower than this a frame is not in progress: it would hide every heartbeat after it."""
FRAME_PROGRESS_S_MAX: Final = 20.0
"""A frame that has begun may bring nothing more for so long at most."""


class LinkSettings(Struct, frozen=True):
    """What an operator may set, and so without defaults of its own. Seconds; `dead_after_s` is at least two heartbeat
    periods (of either side).

    `expected_peer`: the name that the peer must bear (source only). `proven`: the names that the peer has proven to
    bear, of which its hello must say one (None: nobody has asked). `compression`: "none" or "zstd", used when the peer
    can (source only).
    """

    heartbeat_period_s: float
    dead_after_s: float
    hello_timeout_s: float
    expected_peer: str | None = None
    proven: frozenset[str] | None = None
    compression: str = ""


class Link:
    """The base of SourceLink and ReceiverLink.

    After a `Closed` event nothing more comes in; what `bytes_to_send` still gives is our last word. Send it, end the
    sending direction, and read on until the peer ends too (a few seconds at most): closing a socket with unread bytes
    resets the connection and may destroy the last word on its way.
    """

    def __init__(self, role: Role, settings: LinkSettings, me: Introduction, now: float, wall_ns: int) -> None:
        self.settings = settings
        self.me = me
        self.peer: Introduction | None = None
        """Who the other side says it is; None until its hello has been accepted."""
        self.protocol = Protocol(0, 0)
        """What both sides speak; 0.0 until the peer's hello has been accepted."""
        self.sent_bytes = 0
        self._conversation = Conversation(role)
        self._reader = FrameReader(OPENING_LIMITS)
        self._control: list[bytes] = []
        self._bulk: deque[list[bytes]] = deque()
        self._beat_wanted = False
        self._now = now
        self._wall = (now, wall_ns)
        self._hello_by = now + settings.hello_timeout_s
        self._dead_after_s = settings.dead_after_s
        self._last_heard = self.last_heard = now
        """The second is when the last bytes of the peer came; the first is moved on when *we* were stopped."""
        self._last_beat = now
        self._confirmed_bytes = 0
        self._unconfirmed_since = now
        self._frame_since: float | None = None
        self._is_bulk_flowing = False

    # What the driver asks.

    @property
    def state(self) -> State:
        """Where the conversation stands; its value is the word for the log."""
        return self._conversation.state

    @property
    def is_closed(self) -> bool:
        """True after the last event. `bytes_to_send` may still hold our last word."""
        return self._conversation.state is State.CLOSED

    @property
    def received_bytes(self) -> int:
        """All bytes that came in on this connection."""
        return self._reader.received_bytes

    @property
    def has_bytes_to_send(self) -> bool:
        """True when `bytes_to_send` would give something."""
        return bool(self._control or self._bulk or self._beat_wanted) or self._has_late_control()

    @property
    def deadline(self) -> float:
        """When `tick` must be called at the latest (monotonic seconds); inf once closed."""
        if self.is_closed:
            return math.inf
        due = self._dead_at()
        if self.peer is None:
            return min(due, self._hello_by)
        return due if self._beat_wanted else min(due, self._beat_due())

    # What the driver does.

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> list[Event]:
        """Take bytes as they came; the events in their order. Never raises for anything that the peer sent."""
        events: list[Event] = []
        if self.is_closed:
            return events
        self._wake(now)
        self._last_heard = self.last_heard = now
        self._reader.receive(data)
        try:
            while not self.is_closed and (frame := self._reader.next_frame()) is not None:
                self._frame_since = None
                self._conversation.received(_TYPES[frame.type])
                message = decode(frame.type, frame.body)
                if isinstance(message, Refuse):
                    error = refusal_from_peer(message, self._peer_name())
                    events.append(self._ended(CloseReason.PEER_REFUSED, error))
                elif isinstance(message, Bye):
                    events.append(self._ended(CloseReason.BYE, None, message.reason))
                else:
                    self._heard(message, now, events)
        except InternalError:
            raise
        except ReplicateError as error:
            events.append(self._refused(error))
        if self._reader.is_mid_frame and self._frame_since is None:
            self._frame_since = now
        if self._frame_since is not None or self._is_bulk_flowing:
            # The peer's confirmation waits for this bulk, for minutes on a slow line (1 MiB at 64 kbit/s: 131 s).
            self._unconfirmed_since = now
            self._is_bulk_flowing = False
        return events

    def receive_eof(self, now: float) -> list[Event]:
        """The peer's bytes have ended, or the socket has failed: the link closes."""
        if self.is_closed:
            return []
        self._now = now
        half = ", in the middle of a message" if self._reader.is_mid_frame else ""
        error = PeerUnreachableError(f"the connection was lost while {self.state.value}{half}", where=self._peer_name())
        return [self._ended(CloseReason.CONNECTION_LOST, error)]

    def tick(self, now: float, wall_ns: int) -> list[Event]:
        """Look at the clock: wants a heartbeat when one is due, finds a dead peer. Cheap; may be called at any time.

        `wall_ns`: wall clock, only ever shown to the peer.
        """
        if self.is_closed:
            return []
        self._wake(now)
        self._wall = (now, wall_ns)
        if self.peer is None and now >= self._hello_by:
            return [self._died(f"has not said who it is within {self.settings.hello_timeout_s:.2g} s")]
        if now >= self._dead_at():
            return [self._died(self._symptom(now))]
        if self.peer is not None and now >= self._beat_due():
            self._beat_wanted = True
        return []

    def bytes_to_send(self) -> list[bytes]:
        """All control messages that wait, then at most one bulk message, in pieces to be written in this order.

        They are gone from here: if they cannot be written, the connection is lost. Empty when nothing waits.
        """
        pieces = self._control
        self._control = []
        if self._has_late_control():
            pieces += self._late_control()
        if self._beat_wanted and not self.is_closed:
            self._beat_wanted = False
            self._last_beat = self._now
            pieces += self._say(self._beat())
        if self._bulk:
            pieces += self._bulk.popleft()
        if pieces:
            if self.sent_bytes == self._confirmed_bytes:
                self._unconfirmed_since = self._now
            self.sent_bytes += sum(map(len, pieces))
        return pieces

    def refuse(self, error: ReplicateError) -> list[Event]:
        """End the connection with a REFUSE that tells the peer why (see introduction.refusal). Gives the Closed event.

        Bulk that has not left yet is dropped.
        """
        return [] if self.is_closed else [self._refused(error)]

    def bye(self, reason: str) -> list[Event]:
        """End the connection in order. Bulk that has not left yet is dropped: see first that all is acknowledged."""
        if self.is_closed:
            return []
        self._bulk.clear()
        self._control += self._say(Bye(reason))
        return [self._ended(CloseReason.BYE, None, reason)]

    @property
    def is_streaming(self) -> bool:
        """It runs, or is paused."""
        return self.state in (State.STREAMING, State.STOPPED)

    @property
    def can_exchange_roles(self) -> bool:
        """The stream runs, and the peer knows how roles are exchanged over it."""
        return self.is_streaming and self._both_can(FEATURE_ROLES)

    def say_handover(self, message: HandoverAsk | HandoverReady | Handover | HandoverDone) -> None:
        """Say something about an exchange of roles. InternalError unless `can_exchange_roles`; nothing once closed."""
        if not self.is_closed and not self.can_exchange_roles:
            raise InternalError(f"{type(message).__name__} while {self.state.value}")
        pieces = self._say(message)
        if self._bulk:
            self._bulk.append(pieces)  # the end of the catalogue, above all, must be there before
        else:
            self._control += pieces

    # For the two links.

    def _heard(self, message: Message, now: float, events: list[Event]) -> None:
        """Act on a message that was in turn; append events, or raise a ReplicateError to refuse the peer."""
        if not isinstance(message, HandoverAsk | HandoverReady | Handover | HandoverDone):
            raise InternalError(f"nobody takes {type(message).__name__}")
        if not self._both_can(FEATURE_ROLES):
            raise refusal(RefuseCode.PROTOCOL, f"roles cannot be exchanged in protocol {self.protocol}")
        events.append(HandoverSaid(message))

    def _has_late_control(self) -> bool:
        return False

    def _late_control(self) -> list[bytes]:
        """Control that is decided only when it leaves, so that it is never out of date and never piles up."""
        return []

    def _beat(self) -> Message:
        """The sign of life, as it stands at this moment."""
        raise InternalError("no sign of life")

    def _beat_due(self) -> float:
        return self._last_beat + self.settings.heartbeat_period_s

    def _introduced(self, peer: Introduction, protocol: Protocol, now: float) -> None:
        """The peer's hello was accepted: larger messages are allowed, and signs of life begin."""
        self.peer = peer
        self.protocol = protocol
        self._reader.limits = LIMITS
        self._last_beat = now
        period_s = max(peer.heartbeat_period_ms / 1000, self.settings.heartbeat_period_s)
        self._dead_after_s = max(self.settings.dead_after_s, 2 * min(period_s, 3600.0))

    def _both_can(self, feature: str) -> bool:
        """Both sides name it, and it belongs to the protocol that both speak."""
        is_named = self.peer is not None and feature in self.peer.features and feature in self.me.features
        return is_named and FEATURE_SINCE[feature] <= self.protocol.minor

    def _say(self, message: Message) -> list[bytes]:
        """What to send for it; nothing after the last word: a task of the server may not have heard of that yet."""
        if self.is_closed:
            return []
        pieces = encode(message)
        self._conversation.sent(MESSAGE_TYPES[type(message)])
        return pieces

    def _confirmed(self, received_bytes: int, now: float) -> None:
        """The peer says how many of our bytes it has; that it rises proves that our direction works.

        More than we sent proves no more than all of it: a line that doubles frames is the receiver's to sort out.
        """
        received_bytes = min(received_bytes, self.sent_bytes)
        if received_bytes > self._confirmed_bytes:
            self._confirmed_bytes = received_bytes
            self._unconfirmed_since = now

    def _wall_ns(self) -> int:
        at, wall_ns = self._wall
        return max(0, wall_ns + int((self._now - at) * 1e9))

    def _peer_name(self) -> str:
        return self.peer.name if self.peer is not None else self.settings.expected_peer or "unknown peer"

    # Time.

    def _confirm_s(self) -> float:
        # What we sent last is confirmed by the peer's next sign of life, which may be a whole period away.
        return self._dead_after_s + self.settings.heartbeat_period_s

    def _dead_at(self) -> float:
        at = self._last_heard + self._dead_after_s
        if self.peer is not None and self.sent_bytes > self._confirmed_bytes:
            at = min(at, self._unconfirmed_since + self._confirm_s())
        if self._frame_since is not None:
            patience_s = min(FRAME_PROGRESS_S_MAX, self.settings.dead_after_s, self._dead_after_s)
            whole_s = patience_s + self._reader.frame_bytes / PROGRESS_BYTES_PER_S_MIN
            at = min(at, self._last_heard + patience_s, self._frame_since + whole_s)
        return at

    def _symptom(self, now: float) -> str:
        if now >= self._last_heard + self._dead_after_s:
            return f"has been silent for {now - self._last_heard:.1f} s"
        if self.sent_bytes > self._confirmed_bytes and now >= self._unconfirmed_since + self._confirm_s():
            return f"sends, but has received nothing from us for {now - self._unconfirmed_since:.1f} s"
        began = now - (self._frame_since or now)
        return f"does not come to the end of a message that it began {began:.1f} s ago"

    def _wake(self, now: float) -> None:
        """Move on in time. If nobody called for two periods past the deadline, *we* were stopped (SIGSTOP, a paused
        virtual machine): the peer's bytes may wait in the kernel, so give it one more period to be heard."""
        period_s = self.settings.heartbeat_period_s
        passed_s = now - self._now
        if passed_s <= period_s:  # nobody can have slept longer than that
            self._now = max(self._now, now)
            return
        slept_s = now - max(self._now, min(self.deadline, now))
        self._now = now
        if self.peer is None or slept_s <= period_s:
            return
        self._last_heard = max(self._last_heard, now - self._dead_after_s + period_s)
        self._unconfirmed_since = max(self._unconfirmed_since, now - self._confirm_s() + 2 * period_s)
        if self._frame_since is not None:
            self._frame_since += slept_s
            self._last_heard = now

    # Ends.

    def _died(self, symptom: str) -> Closed:
        error = PeerUnreachableError(
            f"the peer {symptom}", where=self._peer_name(), do="Look at the peer's log and at the network between"
        )
        return self._ended(CloseReason.PEER_DEAD, error)

    def _refused(self, error: ReplicateError) -> Closed:
        self._bulk.clear()
        if not self.is_closed:
            self._control += self._say(as_refuse(error))
        return self._ended(CloseReason.WE_REFUSED, error)

    def _ended(self, reason: CloseReason, error: ReplicateError | None, text: str = "") -> Closed:
        self._conversation.close()
        self._bulk.clear()
        self._beat_wanted = False
        if reason in (CloseReason.PEER_DEAD, CloseReason.CONNECTION_LOST, CloseReason.PEER_REFUSED):
            self._control.clear()
        return Closed(reason, error, text)
