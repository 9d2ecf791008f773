"""The receiver's link: what is handed on is provably next; everything else is dropped, counted, or refused by name."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from receiver_server.link import ReceiverLink, ReceiverProgress
from replicate.errors import DamagedError, GapError, InternalError, ProtocolViolationError
from replicate.journal.record import FrameBatch, renumbered
from replicate.limits import BATCH_BYTES_MAX, MIB
from replicate.model.vector import SynchronizationVector
from replicate.wire.codec import encode
from replicate.wire.event import (
    BatchReceived,
    Closed,
    CloseReason,
    Event,
    HeartbeatReceived,
    LargeReceived,
    PartsReceived,
    Started,
)
from replicate.wire.message import (
    CatalogueChunk,
    CatalogueEnd,
    Data,
    Heartbeat,
    Large,
    Message,
    MessageType,
    Parts,
    Start,
)
from replicate.wire.state import State
from tests.harness.link_pair import POOL_BYTES, ConnectionPair, Journal, connected
from tests.harness.link_pair import whole_pieces as frames_of

J = Journal(large=(8,))
J.write(12)
TOKEN = J.token(8)


def streaming(next_seqno: int = 1, **restart: object) -> ReceiverLink:
    return connected(ConnectionPair(), next_seqno, **restart).receiver


def data(first: int, last: int, **changed: object) -> Data:
    frames = b"".join(J.frames[first - 1 : last])
    message = Data(first, last, last - first + 1, len(frames), False, frames)
    return replace(message, **changed)  # type: ignore[arg-type]


def parts(first: int, end: int, seqno: int = 8, token: int = TOKEN) -> Parts:
    frames = b"".join(J.parts[8][first:end])
    return Parts(seqno, token, first, end - first, len(frames), False, frames)


def hear(link: ReceiverLink, *messages: Message) -> list[Event]:
    events = []
    for message in messages:
        events += link.receive(b"".join(encode(message)), 1.0)
    return events


def gap_of(events: list[Event]) -> GapError:
    (closed,) = events
    assert isinstance(closed, Closed)
    assert closed.reason is CloseReason.WE_REFUSED
    assert isinstance(closed.error, GapError)
    return closed.error


def test_the_next_transactions_are_handed_on() -> None:
    link = streaming()
    assert hear(link, data(1, 3), data(4, 4)) == [BatchReceived(J.batch(1, 3)), BatchReceived(J.batch(4, 1))]
    assert (link.next_expected_seqno, link.last_received_seqno, link.received_transactions) == (5, 4, 4)


def test_a_gap_names_both_numbers_and_hands_nothing_on() -> None:
    """Fault 74."""
    link = streaming()
    hear(link, data(1, 3))
    error = gap_of(hear(link, data(5, 6)))
    assert "transactions 5 to 6 came; next should be transaction 4" in str(error)
    assert error.facts["next_expected_seqno"] == 4
    assert link.last_received_seqno == 3
    (refuse,) = frames_of(b"".join(link.bytes_to_send()))[-1:]
    assert refuse[8] == MessageType.REFUSE
    assert b"5 to 6" in refuse


def test_a_frame_deleted_inside_a_batch_too() -> None:
    link = streaming()
    frames = b"".join(J.frames[seqno - 1] for seqno in (1, 2, 4, 5))
    error = gap_of(hear(link, Data(1, 4, 4, len(frames), False, frames)))
    assert "transaction 4 came inside a batch; next should be transaction 3" in str(error)
    assert link.last_received_seqno == 0


def test_duplicates_are_dropped_and_counted() -> None:
    """Fault 73."""
    link = streaming()
    hear(link, data(1, 5))
    assert hear(link, data(1, 5), data(5, 5)) == []
    assert link.duplicate_transactions == 6
    assert hear(link, data(3, 7)) == [BatchReceived(J.batch(6, 2))]
    assert link.duplicate_transactions == 9
    assert link.next_expected_seqno == 8


def test_a_large_transaction() -> None:
    link = streaming(8)
    events = hear(link, parts(0, 2), parts(2, 5), Large(8, TOKEN, 5, J.frames[7]), data(9, 9))
    assert [type(event) for event in events] == [PartsReceived, PartsReceived, LargeReceived, BatchReceived]
    assert b"".join(event.frames for event in events if isinstance(event, PartsReceived)) == b"".join(J.parts[8])
    assert events[2] == LargeReceived(8, TOKEN, 5, J.frames[7])


def test_duplicate_parts_are_dropped_and_counted() -> None:
    link = streaming(8)
    hear(link, parts(0, 3))
    assert hear(link, parts(0, 2)) == []
    (event,) = hear(link, parts(1, 5))
    assert isinstance(event, PartsReceived)
    assert (event.first_part, event.count, event.frames) == (3, 2, b"".join(J.parts[8][3:]))
    assert link.duplicate_parts == 4
    hear(link, Large(8, TOKEN, 5, J.frames[7]))
    assert hear(link, parts(0, 5), Large(8, TOKEN, 5, J.frames[7])) == []
    assert (link.duplicate_parts, link.duplicate_transactions) == (9, 1)


@pytest.mark.parametrize(
    "message",
    [
        parts(1, 2),
        parts(3, 5),
        parts(2, 3, token=TOKEN + 1),
        parts(2, 3, seqno=9),
        Large(8, TOKEN, 4, J.frames[7]),
        Large(8, TOKEN, 5, J.frames[7]),
        Large(9, TOKEN, 5, J.frames[7]),
        data(9, 9),
        data(8, 8),
    ],
    ids=repr,
)
def test_no_way_round_the_parts(message: Message) -> None:
    link = streaming(8)
    if message != parts(1, 2):
        hear(link, parts(0, 2))
    (closed,) = hear(link, message)
    assert isinstance(closed, Closed)
    assert isinstance(closed.error, GapError | ProtocolViolationError | DamagedError)
    assert link.next_expected_seqno == 8


def test_the_end_of_another_large_transaction_does_not_end_this_one() -> None:
    """Its message and its frame agree, its parts and token are those that are here; only its number is not."""
    link = streaming(8)
    hear(link, parts(0, 5))
    error = gap_of(hear(link, Large(9, TOKEN, 5, renumbered(J.frames[7], 9, 0))))
    assert "the end of large transaction 9 came; next should be transaction 8, part 5" in str(error)
    assert link.next_expected_seqno == 8


def restarted(start: Start, catalogue: bytes = b"", **restart: object) -> tuple[ReceiverLink, list[Event]]:
    pair = ConnectionPair()
    pair.settle()
    pair.receiver.accept(0.0)
    pair.receiver.report(ReceiverProgress(), 0.0)
    pair.receiver.send_restart(8, SynchronizationVector(), {}, **restart)  # type: ignore[arg-type]
    pair.settle()
    chunks = [CatalogueChunk(at, catalogue[at : at + 10]) for at in range(0, len(catalogue), 10)]
    return pair.receiver, hear(pair.receiver, start, *chunks, CatalogueEnd(len(catalogue), crc32c(catalogue)))


def test_parts_go_on_where_they_were_cut() -> None:
    link, events = restarted(Start(8, 2, 12, 25), b"a catalogue of 25 bytes..", next_part=2, token=TOKEN)
    assert events == [Started(Start(8, 2, 12, 25), b"a catalogue of 25 bytes..", False)]
    assert isinstance(hear(link, parts(2, 4))[0], PartsReceived)


def test_parts_begin_again_when_the_source_says_so() -> None:
    link, events = restarted(Start(8, 0, 12, 0), next_part=2, token=TOKEN + 7)
    assert events == [Started(Start(8, 0, 12, 0), b"", True)]
    assert isinstance(hear(link, parts(0, 4))[0], PartsReceived)


@pytest.mark.parametrize(("seqno", "part"), [(9, 0), (8, 1), (8, 3)])
def test_a_start_above_what_was_asked_is_a_gap(seqno: int, part: int) -> None:
    _, events = restarted(Start(seqno, part, 12, 0), next_part=2, token=TOKEN)
    assert isinstance(events[0], Closed)
    assert isinstance(events[0].error, GapError)
    assert "next should be transaction 8, part 2" in str(events[0].error)


def test_a_catalogue_that_is_not_what_was_announced() -> None:
    for start, catalogue in (
        (Start(8, 0, 1, 24), bytes(25)),
        (Start(8, 0, 1, 26), bytes(25)),
        (Start(8, 0, 1, 2**32 - 1), b""),
    ):
        _, events = restarted(start, catalogue)
        assert isinstance(events[0], Closed)
        assert isinstance(events[0].error, ProtocolViolationError)


def test_a_source_that_starts_lower_sends_duplicates() -> None:
    link, events = restarted(Start(6, 0, 12, 0))
    assert isinstance(events[0], Started)
    assert hear(link, data(6, 7)) == []
    assert hear(link, parts(0, 5), Large(8, TOKEN, 5, J.frames[7])) != []
    assert link.duplicate_transactions == 2


@pytest.mark.parametrize(
    "message",
    [
        data(1, 3, raw_bytes=5),
        data(1, 3, count=3, last_seqno=3, data=b"x" * 10, raw_bytes=10),
        data(1, 3, is_compressed=True),
        data(1, 2, data=data(1, 3).data, raw_bytes=len(data(1, 3).data)),
    ],
)
def test_messages_that_contradict_themselves(message: Message) -> None:
    link = streaming()
    (closed,) = hear(link, message)
    assert isinstance(closed, Closed)
    assert isinstance(closed.error, ProtocolViolationError | GapError)
    assert link.last_received_seqno == 0


def test_compression_that_was_not_agreed_upon() -> None:
    pair = ConnectionPair(primary=replace(ConnectionPair().source.me, features=()))
    link = connected(pair).receiver
    (closed,) = hear(link, data(1, 3, is_compressed=True))
    assert isinstance(closed, Closed)
    assert "not agreed" in str(closed.error)


def test_heartbeats_are_answered_at_once_with_what_was_reported() -> None:
    pair = connected(ConnectionPair())
    hear(pair.receiver, data(1, 7))
    pair.receiver.report(ReceiverProgress(5, 4, 1, 2, 0.1), 1.0)
    assert hear(pair.receiver, Heartbeat(9, 1, 7, 7, 1, 0)) == [HeartbeatReceived(Heartbeat(9, 1, 7, 7, 1, 0))]
    pair.source.next_send_seqno, pair.source.sent_bulk_bytes, pair.source.sent_bytes = 8, MIB, MIB
    pair.settle()
    reply = pair.source.last_reply
    assert reply is not None
    assert (reply.number, reply.last_received_seqno, reply.last_applied_seqno, reply.last_durable_seqno) == (9, 7, 5, 4)
    assert (reply.update_state, reply.receiver_backlog) == (1, 2)


def test_progress_is_told_within_a_second_and_not_more_often() -> None:
    """Replies carry applied and durable current within 1 s; a thousand reports in a second are one reply."""
    pair = connected(ConnectionPair())
    pair.source.next_send_seqno = 10**6
    pair.run_until(10)
    replies = 0
    for step in range(3000):
        now = 10 + step / 1000
        pair.receiver.report(ReceiverProgress(step, step, 1, 0, 0.0), now)
        pair.receiver.tick(now, 0)
        pieces = pair.receiver.bytes_to_send()
        replies += bool(pieces)
        for piece in pieces:
            pair.source.receive(piece, now)
        assert pair.source.last_reply is not None
        assert step - pair.source.last_reply.last_applied_seqno <= 1001
    assert 3 <= replies <= 4


def test_what_becomes_of_the_update_process_is_told_at_once() -> None:
    pair = connected(ConnectionPair())
    told = [0]
    for step, state in enumerate((0, 1, 1, 0, 2)):
        now = 10 + step / 1000
        pair.receiver.report(ReceiverProgress(update_state=state), now)
        assert pair.receiver.has_bytes_to_send == (told[-1] != state)
        for piece in pair.receiver.bytes_to_send():
            pair.source.receive(piece, now)
        assert pair.source.last_reply is not None
        told.append(pair.source.last_reply.update_state)
    assert told == [0, 0, 1, 1, 0, 2]


def test_restart_needs_acceptance_a_report_and_is_sent_once() -> None:
    pair = ConnectionPair()
    pair.settle()
    for prepare in (lambda: None, lambda: pair.receiver.accept(0.0)):
        prepare()
        with pytest.raises(InternalError):
            pair.receiver.send_restart(1, SynchronizationVector(), {})
    pair.receiver.report(ReceiverProgress(), 0.0)
    pair.receiver.send_restart(1, SynchronizationVector(), {})
    with pytest.raises(InternalError):
        pair.receiver.send_restart(1, SynchronizationVector(), {})


def test_restart_waits_for_a_pool_with_room() -> None:
    """Fault 63: an XOFF that died with its connection; the next one begins when the pool has drained."""
    pair = ConnectionPair()
    pair.settle()
    pair.receiver.accept(0.0)
    pair.receiver.report(ReceiverProgress(fill_fraction=0.97), 0.0)
    pair.receiver.send_restart(1, SynchronizationVector(), {})
    pair.run_until(100)
    assert pair.source.state is State.WAITING_FOR_RESTART
    pair.receiver.report(ReceiverProgress(fill_fraction=0.05), 100.0)
    pair.settle()
    assert pair.source.state is State.SEARCHING_FOR_RESTART


def test_xoff_and_xon_follow_the_pool_and_do_not_pile_up() -> None:
    pair = connected(ConnectionPair())
    for fill in [0.99, 0.01] * 500:
        pair.receiver.report(ReceiverProgress(fill_fraction=fill), 1.0)
    assert pair.receiver.bytes_to_send() == []
    pair.receiver.report(ReceiverProgress(fill_fraction=0.99), 1.0)
    pair.settle()
    assert pair.source.state is pair.receiver.state is State.STOPPED
    pair.receiver.report(ReceiverProgress(fill_fraction=0.01), 1.0)
    pair.settle()
    assert pair.source.state is pair.receiver.state is State.STREAMING


def test_xoff_leaves_before_the_acknowledgement_that_would_open_the_window() -> None:
    pair = connected(ConnectionPair(), 1)
    big = Journal()
    big.write(4, size=450_000)
    link = pair.receiver
    assert link.flow.capacity_bytes == POOL_BYTES == 4 * MIB
    for first in (1, 3):
        frames = b"".join(big.frames[first - 1 : first + 1])
        assert len(frames) < BATCH_BYTES_MAX
        (event,) = hear(link, Data(first, first + 1, 2, len(frames), False, frames))
        assert event == BatchReceived(FrameBatch(first, first + 1, 2, frames))
    said = [MessageType(frame[8]) for frame in frames_of(b"".join(link.bytes_to_send()))]
    assert said == [MessageType.XOFF, MessageType.HEARTBEAT_REPLY]


@pytest.mark.slow
@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
@settings(max_examples=300)
def test_random_bytes_never_raise(noise: bytes, cuts: list[int]) -> None:
    link = streaming()
    good = b"".join(encode(data(1, 2)))
    stream = good + noise
    events: list[Event] = []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        events += link.receive(stream[begin:end], 1.0)
    assert events[0] == BatchReceived(J.batch(1, 2))
    assert all(isinstance(event, Closed) for event in events[1:])


@given(st.integers(0, 3000), st.integers(0, 255))
@settings(max_examples=300)
def test_a_mutated_byte_hands_on_nothing_wrong(index: int, value: int) -> None:
    """I6, fault 61."""
    stream = bytearray(b"".join(b"".join(encode(data(first, first + 1))) for first in (1, 3, 5)))
    stream[index % len(stream)] = value
    link = streaming()
    taken = b"".join(event.batch.data for event in link.receive(stream, 1.0) if isinstance(event, BatchReceived))
    assert b"".join(J.frames[:6]).startswith(taken)
