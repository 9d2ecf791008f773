"""What both ends share: time, signs of life, death, the last word, bounded queues."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from receiver_server.link import ReceiverProgress
from replicate.errors import InternalError, PeerUnreachableError, ProtocolViolationError, WrongInstanceError
from replicate.wire.codec import encode
from replicate.wire.connection import FRAME_PROGRESS_S_MAX
from replicate.wire.event import CloseReason, Connected, SourceIntroduced
from replicate.wire.introduction import refusal
from replicate.wire.message import Heartbeat, MessageType, RefuseCode
from replicate.wire.state import State
from tests.harness.link_pair import (
    PRIMARY,
    RECEIVER_SETTINGS,
    SECONDARY,
    SETTINGS,
    WALL_NS,
    ConnectionPair,
    Journal,
    connected,
)
from tests.harness.link_pair import whole_pieces as frames_of

PERIOD_S = SETTINGS.heartbeat_period_s
DEAD_S = SETTINGS.dead_after_s


def types_of(pieces: list[bytes]) -> list[MessageType]:
    return [MessageType(frame[8]) for frame in frames_of(b"".join(pieces))]


def test_an_idle_hour_is_quiet_and_alive() -> None:
    pair = connected(ConnectionPair())
    pair.run_until(3600)
    assert pair.source.state is pair.receiver.state is State.STREAMING
    # One heartbeat and one reply each 15 s, some 60 bytes each.
    assert pair.source.sent_bytes < 300 * 100
    assert pair.receiver.sent_bytes < 500 * 100
    assert pair.source.round_trip_s == 0


def test_a_stopped_peer_whose_kernel_still_takes_bytes_is_noticed_by_the_source() -> None:
    """Fault 15."""
    pair = connected(ConnectionPair())
    pair.run_until(100)
    pair.frozen.add(pair.receiver)
    pair.run_until(100 + DEAD_S + PERIOD_S)
    closed = pair.close_of(pair.source_events)
    assert closed.reason is CloseReason.PEER_DEAD
    assert isinstance(closed.error, PeerUnreachableError)
    assert "oslo" in str(closed.error)
    assert "silent for 60.0 s" in str(closed.error)


def test_a_stopped_source_is_noticed_by_the_receiver() -> None:
    pair = connected(ConnectionPair())
    pair.run_until(100)
    pair.frozen.add(pair.source)
    pair.run_until(100 + DEAD_S + PERIOD_S)
    assert pair.close_of(pair.receiver_events).reason is CloseReason.PEER_DEAD


@pytest.mark.parametrize("deaf", ["there", "back"])
def test_a_one_way_cut_is_noticed_on_both_sides(deaf: str) -> None:
    """Fault 52: one side hears nothing; the other hears that nothing of its own arrives."""
    pair = connected(ConnectionPair())
    pair.run_until(100)
    getattr(pair, deaf).is_deaf = True
    pair.run_until(100 + DEAD_S + 3 * PERIOD_S)
    for events in (pair.source_events, pair.receiver_events):
        assert pair.close_of(events).reason is CloseReason.PEER_DEAD


def test_the_side_that_still_hears_says_why() -> None:
    pair = connected(ConnectionPair())
    pair.run_until(100)
    pair.back.is_deaf = True
    pair.frozen.add(pair.source)  # it would close first; here it keeps beating without hearing
    while pair.now < 300 and not pair.receiver.is_closed:
        pair.now += 5
        pair.source.tick(pair.now, WALL_NS)
        for piece in pair.source.bytes_to_send():
            pair.receiver_events += pair.receiver.receive(piece, pair.now)
        pair.source._last_heard = pair.source._unconfirmed_since = pair.now
        pair.step()
    assert "received nothing from us" in str(pair.close_of(pair.receiver_events).error)


def test_time_that_we_were_stopped_ourselves_is_not_held_against_the_peer() -> None:
    """Faults 16, 72: a virtual machine that slept for an hour finds the peer's bytes in its kernel, and goes on."""
    pair = connected(ConnectionPair())
    pair.run_until(100)
    pair.now = 3700.0
    assert pair.source.tick(pair.now, WALL_NS) == []
    assert pair.receiver.tick(pair.now, WALL_NS) == []
    pair.run_until(3800)
    assert pair.source.state is pair.receiver.state is State.STREAMING


def test_but_a_peer_that_died_meanwhile_is_found_one_period_later() -> None:
    pair = connected(ConnectionPair())
    pair.run_until(100)
    pair.frozen.add(pair.receiver)
    pair.now = 3700.0
    assert pair.source.tick(pair.now, WALL_NS) == []
    pair.run_until(3700 + 2 * PERIOD_S)
    assert pair.close_of(pair.source_events).reason is CloseReason.PEER_DEAD


def test_half_a_frame_without_progress_is_a_dead_peer() -> None:
    pair = connected(ConnectionPair())
    pair.run_until(100)
    pair.source.tick(100 + PERIOD_S, WALL_NS)
    beat = b"".join(pair.source.bytes_to_send())
    pair.frozen.add(pair.source)
    pair.there.write(beat[:-1], pair.now)
    pair.run_until(100 + FRAME_PROGRESS_S_MAX + 1)
    assert "end of a message" in str(pair.close_of(pair.receiver_events).error)


def test_a_frame_that_trickles_is_a_dead_peer_too() -> None:
    """A byte each few seconds is a sign of life by TCP's measure, and hides every heartbeat after it."""
    pair = connected(ConnectionPair())
    pair.frozen.add(pair.source)
    head = (1_000_000).to_bytes(4, "big") + bytes(4) + bytes([MessageType.DATA])
    pair.there.write(head, pair.now)
    while not pair.receiver.is_closed:
        assert pair.now < 2000
        pair.there.write(b"x", pair.now)
        pair.run_until(pair.now + 5)
    patience_s = FRAME_PROGRESS_S_MAX + 1_000_000 / 1024
    assert patience_s <= pair.now <= patience_s + 20


def test_a_slow_link_is_not_a_dead_peer() -> None:
    """Fault 57: a megabyte at 64 kbit/s takes two minutes, twice the time after which a silent peer is dead."""
    journal = Journal()
    journal.write(10, size=100_000)
    pair = connected(ConnectionPair())
    pair.there.bytes_per_s = 8000
    pair.there.cut = lambda data: [data[i : i + 1400] for i in range(0, len(data), 1400)]
    pair.source.send_batch(journal.batch(1, 10))
    pair.run_until(600)
    assert pair.receiver.last_received_seqno == 10
    assert pair.source.last_reply is not None
    assert pair.source.last_reply.last_received_seqno == 10
    assert not pair.source.is_closed
    assert not pair.receiver.is_closed


def test_nobody_says_hello() -> None:
    pair = ConnectionPair()
    pair.frozen.add(pair.source)
    pair.run_until(SETTINGS.hello_timeout_s + 0.1)
    closed = pair.close_of(pair.receiver_events)
    assert closed.reason is CloseReason.PEER_DEAD
    assert "not said who it is within 5 s" in str(closed.error)
    pair = ConnectionPair()
    pair.frozen.add(pair.receiver)
    pair.run_until(SETTINGS.hello_timeout_s + 0.1)
    assert pair.close_of(pair.source_events).reason is CloseReason.PEER_DEAD


def test_a_server_that_never_accepts_is_bounded_too() -> None:
    pair = ConnectionPair()
    pair.run_until(SETTINGS.hello_timeout_s + 0.1)
    assert isinstance(pair.receiver_events[0], SourceIntroduced)
    pair.close_of(pair.receiver_events)
    pair.close_of(pair.source_events)


def test_before_the_hello_nothing_large_and_nothing_else_is_read() -> None:
    pair = ConnectionPair()
    pair.source.bytes_to_send()
    head = (5000).to_bytes(4, "big") + bytes(4)
    for message_type in set(MessageType) - {MessageType.BYE, MessageType.REFUSE, MessageType.HELLO_REPLY}:
        pair = ConnectionPair()
        events = pair.receiver.receive(head + bytes([message_type]), 0.0)
        closed = pair.close_of(events)
        assert closed.reason is CloseReason.WE_REFUSED
        assert isinstance(closed.error, ProtocolViolationError)
        assert types_of(pair.receiver.bytes_to_send()) == [MessageType.REFUSE]


def test_a_source_that_meets_a_source() -> None:
    pair = ConnectionPair()
    other = ConnectionPair(primary=replace(PRIMARY, instance=b"q" * 16, name="rome"))
    closed = pair.close_of(pair.source.receive(b"".join(other.source.bytes_to_send()), 0.0))
    assert "HELLO came out of turn" in str(closed.error)


def test_the_last_word_arrives_and_nothing_after_it() -> None:
    pair = connected(ConnectionPair())
    events = pair.receiver.refuse(refusal(RefuseCode.SECOND_SOURCE, "rome streams already", source="rome"))
    assert pair.close_of(events).reason is CloseReason.WE_REFUSED
    pair.settle()
    closed = pair.close_of(pair.source_events)
    assert closed.reason is CloseReason.PEER_REFUSED
    assert closed.error is not None
    assert closed.error.facts["reason"] == "SECOND_SOURCE"
    assert "rome streams already" in str(closed.error)
    for link in (pair.source, pair.receiver):
        assert link.is_closed
        assert link.deadline == math.inf
        assert link.receive(b"anything", 1.0) == link.tick(1.0, 0) == link.receive_eof(1.0) == link.bye("") == []
        assert link.refuse(refusal(RefuseCode.GAP, "")) == []
        assert link.bytes_to_send() == []


def test_a_bye_is_an_end_in_order() -> None:
    pair = connected(ConnectionPair())
    assert pair.close_of(pair.source.bye("stop requested")).reason is CloseReason.BYE
    pair.settle()
    closed = pair.close_of(pair.receiver_events)
    assert (closed.reason, closed.error, closed.text) == (CloseReason.BYE, None, "stop requested")


def test_the_connection_is_lost() -> None:
    pair = connected(ConnectionPair())
    closed = pair.close_of(pair.source.receive_eof(5.0))
    assert closed.reason is CloseReason.CONNECTION_LOST
    assert "while streaming" in str(closed.error)
    pair.receiver.receive(b"\0", 5.0)
    assert "in the middle of a message" in str(pair.close_of(pair.receiver.receive_eof(5.0)).error)
    assert pair.receiver.bytes_to_send() == []


def test_signs_of_life_do_not_pile_up_when_nobody_writes_them() -> None:
    """I8: a peer that floods us with heartbeats and never reads makes us hold one reply."""
    pair = connected(ConnectionPair())
    for second in range(1000):
        pair.source.tick(second * PERIOD_S, WALL_NS)
        for piece in pair.source.bytes_to_send():
            pair.receiver.receive(piece, second * PERIOD_S)
    pieces = pair.receiver.bytes_to_send()
    assert types_of(pieces) == [MessageType.HEARTBEAT_REPLY]
    assert pair.source.bytes_to_send() == []


def test_the_longer_period_of_both_sides_counts() -> None:
    """A source that beats each 100 s is not dead for a receiver that was told 60."""
    slow = replace(SETTINGS, heartbeat_period_s=100.0, dead_after_s=300.0)
    pair = connected(ConnectionPair(slow, RECEIVER_SETTINGS, primary=replace(PRIMARY, heartbeat_period_ms=100_000)))
    pair.run_until(5000)
    assert pair.receiver.state is State.STREAMING


def test_a_wrong_peer_is_refused_by_both() -> None:
    pair = ConnectionPair(secondary=replace(SECONDARY, name="rome"))
    pair.settle()
    pair.receiver.accept(0.0)
    pair.settle()
    closed = pair.close_of(pair.source_events)
    assert isinstance(closed.error, WrongInstanceError)
    assert not any(isinstance(event, Connected) for event in pair.source_events)
    assert pair.close_of(pair.receiver_events).reason is CloseReason.PEER_REFUSED


def test_out_of_turn_calls_are_our_bug() -> None:
    pair = ConnectionPair()
    with pytest.raises(InternalError):
        pair.receiver.accept(0.0)
    with pytest.raises(InternalError):
        pair.source.start(1, 0, b"")
    connected(pair)
    with pytest.raises(InternalError):
        pair.receiver.accept(0.0)


def test_signs_of_life_do_not_pile_up_before_a_peer_that_does_not_read() -> None:
    pair = ConnectionPair()
    pair.settle()
    pair.receiver.accept(pair.now)
    pair.receiver.report(ReceiverProgress(), pair.now)
    pair.settle()
    for number in range(1, 1000):
        pair.receiver.receive(b"".join(encode(Heartbeat(number, 0, number, number, 0, 0))), pair.now)
        pair.receiver.report(ReceiverProgress(receiver_backlog=number), pair.now)
    assert len(b"".join(pair.receiver.bytes_to_send())) < 200
    for _ in range(1000):
        pair.source._beat_wanted = True
        pair.source.bytes_to_send()
    assert len(pair.source._beats) <= 64
