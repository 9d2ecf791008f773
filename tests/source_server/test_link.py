"""The source's link: gap-free order, the window, XOFF, acknowledgements that are checked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from receiver_server.link import ReceiverProgress
from replicate.errors import GapError, InternalError
from replicate.journal.record import FrameBatch
from replicate.limits import BATCH_BYTES_MAX, CATALOGUE_BYTES_MAX
from replicate.wire.codec import encode
from replicate.wire.event import Acknowledged, Connected, RestartRequested, SendingResumed, SendingStopped
from replicate.wire.message import CHUNK_BYTES, HeartbeatReply, MessageType, Restart, Xoff, Xon
from replicate.wire.state import State
from source_server.link import SourceProgress
from tests.harness.link_pair import SECONDARY, SETTINGS, WALL_NS, ConnectionPair, Journal, connected
from tests.harness.link_pair import whole_pieces as frames_of


def journal(count: int = 20) -> Journal:
    made = Journal(large=(15,))
    made.write(count)
    return made


def types_of(pieces: list[bytes]) -> list[MessageType]:
    return [MessageType(frame[8]) for frame in frames_of(b"".join(pieces))]


def test_from_hello_to_restart() -> None:
    pair = connected(ConnectionPair(), next_seqno=7)
    assert [type(event) for event in pair.source_events[:2]] == [Connected, RestartRequested]
    assert pair.source.peer == SECONDARY
    assert pair.source.restart is not None
    assert pair.source.restart.next_seqno == 7
    assert (pair.source.next_send_seqno, pair.source.last_sent_seqno) == (7, 6)


def test_only_the_next_transactions_leave() -> None:
    pair = connected(ConnectionPair())
    j = journal()
    for wrong in (j.batch(2, 3), replace(j.batch(1, 3), count=2), replace(j.batch(1, 3), last_seqno=1)):
        with pytest.raises(GapError, match="next should be 1"):
            pair.source.send_batch(wrong)
    assert not pair.source.has_bytes_to_send
    pair.source.send_batch(j.batch(1, 3))
    pair.settle()
    with pytest.raises(GapError, match=r"transactions 5 to 7 .* next should be 4"):
        pair.source.send_batch(j.batch(5, 3))
    pair.source.send_batch(j.batch(4, 3))
    assert (pair.source.next_send_seqno, pair.source.sent_transactions) == (7, 6)


def test_a_large_transaction_in_parts() -> None:
    pair = connected(ConnectionPair(), next_seqno=15)
    link, j = pair.source, journal()
    parts, token = j.parts[15], j.token(15)
    for seqno, first in ((16, 0), (15, 1)):
        with pytest.raises(GapError):
            link.send_parts(seqno, token, first, 1, parts[0])
    with pytest.raises(GapError):
        link.send_large(15, token, 5, j.frames[14])
    link.send_parts(15, token, 0, 3, b"".join(parts[:3]))
    pair.settle()
    assert link.next_send_part == 3
    with pytest.raises(GapError):
        link.send_batch(j.batch(16, 1))
    with pytest.raises(GapError):
        link.send_parts(15, token + 1, 3, 1, parts[3])
    with pytest.raises(GapError):
        link.send_large(15, token, 5, j.frames[14])
    link.send_parts(15, token, 3, 2, b"".join(parts[3:]))
    pair.settle()
    link.send_large(15, token, 5, j.frames[14])
    pair.settle()
    assert (link.next_send_seqno, link.next_send_part) == (16, 0)
    assert pair.receiver.last_received_seqno == 15


def test_one_batch_at_a_time_and_heartbeats_before_it() -> None:
    pair = connected(ConnectionPair())
    link, j = pair.source, journal()
    link.send_batch(j.batch(1, 3))
    assert not link.can_send_bulk
    with pytest.raises(InternalError):
        link.send_batch(j.batch(4, 3))
    link.tick(20.0, WALL_NS)
    assert types_of(link.bytes_to_send()) == [MessageType.HEARTBEAT, MessageType.DATA]
    assert link.can_send_bulk


def test_catalogue_chunks_leave_one_by_one() -> None:
    pair = ConnectionPair()
    pair.settle()
    pair.receiver.accept(0.0)
    pair.receiver.report(ReceiverProgress(), 0.0)
    pair.receiver.send_restart(1, Restart(1).vector, {})
    pair.settle()
    pair.source.start(1, 0, bytes(CHUNK_BYTES * 2 + 1))
    said = []
    while pieces := pair.source.bytes_to_send():
        said.append(types_of(pieces))
        pair.source.tick(pair.source.deadline, WALL_NS)
    chunk, end, beat = MessageType.CATALOGUE_CHUNK, MessageType.CATALOGUE_END, MessageType.HEARTBEAT
    assert said[0] == [MessageType.START, chunk]
    assert [[kind for kind in row if kind is not beat] for row in said[1:4]] == [[chunk], [chunk], [end]]


@pytest.mark.parametrize(("seqno", "part", "size"), [(2, 0, 0), (1, 1, 0), (1, 0, CATALOGUE_BYTES_MAX + 1)])
def test_a_start_must_answer_the_restart(seqno: int, part: int, size: int) -> None:
    pair = ConnectionPair()
    pair.settle()
    pair.receiver.accept(0.0)
    pair.receiver.report(ReceiverProgress(), 0.0)
    pair.receiver.send_restart(1, Restart(1).vector, {})
    pair.settle()
    with pytest.raises(InternalError):
        pair.source.start(seqno, part, bytes(size))
    assert not pair.source.has_bytes_to_send
    pair.source.start(1, 0, b"")


def test_xoff_stops_bulk_and_nothing_else() -> None:
    pair = connected(ConnectionPair())
    link, j = pair.source, journal()
    events = link.receive(b"".join(encode(Xoff("full", 5))), 1.0)
    assert events == [SendingStopped("full", 5)]
    assert (link.state, link.can_send_bulk) == (State.STOPPED, False)
    with pytest.raises(InternalError):
        link.send_batch(j.batch(1, 1))
    link.tick(16.0, WALL_NS)
    assert types_of(link.bytes_to_send()) == [MessageType.HEARTBEAT]
    assert link.receive(b"".join(encode(Xon(9))), 17.0) == [SendingResumed(9)]
    link.send_batch(j.batch(1, 1))


def reply(**changed: int) -> bytes:
    fields = dict.fromkeys(HeartbeatReply.__slots__, 0) | changed
    return b"".join(encode(HeartbeatReply(**fields)))


def test_the_window_closes_and_opens() -> None:
    pair = connected(ConnectionPair())
    pair.frozen.add(pair.receiver)
    big = Journal()
    big.write(12, size=300_000)
    link = pair.source
    while link.can_send_bulk:
        link.send_batch(big.batch(link.next_send_seqno, 1))
        link.bytes_to_send()
    assert pair.receiver.flow.window_bytes <= link.sent_bulk_bytes < pair.receiver.flow.window_bytes + BATCH_BYTES_MAX
    last = link.last_sent_seqno
    events = link.receive(reply(last_received_seqno=last, received_bulk_bytes=link.sent_bulk_bytes - 10), 1.0)
    assert isinstance(events[0], Acknowledged)
    assert link.can_send_bulk


@pytest.mark.parametrize(
    "lie",
    [
        {"last_received_seqno": 4},
        {"last_applied_seqno": 4},
        {"last_durable_seqno": 4},
    ],
)
def test_no_acknowledgement_above_what_was_sent(lie: dict[str, int]) -> None:
    """I4: nothing may be pruned by a number that cannot be."""
    pair = connected(ConnectionPair())
    pair.source.send_batch(journal().batch(1, 3))
    pair.source.bytes_to_send()
    closed = pair.close_of(pair.source.receive(reply(**lie), 1.0))
    assert closed.error is not None
    assert closed.error.facts["reason"] == "PROTOCOL"


def test_byte_counts_above_what_was_sent_count_as_all_of_it() -> None:
    pair = connected(ConnectionPair())
    pair.source.send_batch(journal().batch(1, 3))
    pair.source.bytes_to_send()
    events = pair.source.receive(reply(received_bytes=1 << 40, received_bulk_bytes=1 << 40), 1.0)
    assert isinstance(events[0], Acknowledged)
    assert pair.source.acknowledged_bulk_bytes == pair.source.sent_bulk_bytes


def test_before_the_start_an_acknowledgement_is_no_event() -> None:
    pair = ConnectionPair()
    pair.settle()
    pair.receiver.accept(0.0)
    pair.settle()
    assert pair.source.receive(reply(last_durable_seqno=10**9, update_state=2), 1.0) == []
    assert pair.source.last_reply is not None
    assert pair.source.last_reply.update_state == 2


def test_heartbeats_carry_where_we_are() -> None:
    pair = connected(ConnectionPair())
    pair.source.report(SourceProgress(9, 8, 77))
    pair.run_until(16)
    beat = pair.receiver.last_heartbeat
    assert beat is not None
    assert (beat.last_seqno, beat.last_durable_seqno, beat.last_commit_wall_ns) == (9, 8, 77)
    assert abs(beat.wall_ns - WALL_NS - 15 * 10**9) < 10**9
    assert beat.received_bytes > 0


def test_round_trip_time() -> None:
    pair = connected(ConnectionPair())
    pair.there.delay_s = pair.back.delay_s = 0.2
    pair.run_until(40)
    assert pair.source.round_trip_s == pytest.approx(0.4)


def test_compression_is_used_when_both_can() -> None:
    zstd = replace(SETTINGS, compression="zstd")
    j = Journal()
    j.write(100, size=200)
    sizes = []
    for secondary in (SECONDARY, replace(SECONDARY, features=())):
        pair = connected(ConnectionPair(zstd, secondary=secondary))
        before = pair.source.sent_bytes
        pair.source.send_batch(j.batch(1, 100))
        pair.settle()
        sizes.append(pair.source.sent_bytes - before)
        assert pair.receiver.last_received_seqno == 100
    assert sizes[0] < sizes[1] / 3


def test_bulk_larger_than_a_batch_is_our_bug() -> None:
    pair = connected(ConnectionPair())
    with pytest.raises(InternalError):
        pair.source.send_batch(FrameBatch(1, 1, 1, bytes(BATCH_BYTES_MAX + 1)))


def test_an_older_release_knows_no_definitions_without_their_statements() -> None:
    for secondary, knows in ((SECONDARY, True), (replace(SECONDARY, features=("partitions-1",)), False)):
        assert connected(ConnectionPair(secondary=secondary)).source.can_leave_out_elements is knows
