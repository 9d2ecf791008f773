"""A seed as it arrives: each byte once and in order, whatever comes twice, and every refusal by name."""

from __future__ import annotations

import random

import pytest

from receiver_server.seed_arrival import SeedArrival
from replicate.errors import GapError, InternalError, ProtocolViolationError
from replicate.wire.event import SeedAnnounced, SeedBeingMade, SeedComplete, SeedReceived
from replicate.wire.message import (
    CHUNK_BYTES,
    SEED_WINDOW_BYTES,
    SeedAck,
    SeedChunk,
    SeedDone,
    SeedEnd,
    SeedPreparing,
    SeedRequest,
    SeedStart,
)

SEED, OTHER, WISH = bytes(range(16)), bytes(range(1, 17)), b"w" * 16
PEER = "east"


def announced(file_bytes: int, offset: int = 0) -> SeedArrival:
    """One that goes on at `offset`, and is announced so."""
    arrival = SeedArrival()
    arrival.asked(SeedRequest(WISH, SEED, offset))
    start = SeedStart(SEED, offset, file_bytes, 9)
    assert arrival.heard(start, PEER) == SeedAnnounced(start)
    return arrival


@pytest.mark.parametrize("number", range(20))
def test_each_byte_is_handed_on_once_whatever_comes_twice(number: int) -> None:
    chance = random.Random(number)
    content = chance.randbytes(chance.randrange(1, 5000))
    begin = chance.randrange(len(content)) if number % 2 else 0
    arrival = announced(len(content), begin)
    here = bytearray(content[:begin])
    while len(here) < len(content):
        at = chance.randrange(len(here) + 1)
        data = content[at : at + chance.randrange(1, 700)]
        event = arrival.heard(SeedChunk(at, data), PEER)
        if event is not None:
            assert isinstance(event, SeedReceived)
            assert event.offset == len(here)
            here += event.data
        assert arrival.next_offset == len(here)
    assert here == content
    assert arrival.heard(SeedEnd(len(content)), PEER) == SeedComplete(len(content))
    assert arrival.done() == SeedDone(SEED)


def test_how_far_the_seed_is_made_is_told() -> None:
    assert SeedArrival().heard(SeedPreparing(3, 7), PEER) == SeedBeingMade(3, 7)


def test_bytes_that_were_not_announced_are_a_gap() -> None:
    arrival = SeedArrival()
    arrival.asked(SeedRequest(WISH, SEED, 0))
    for message in (SeedChunk(0, b"x"), SeedEnd(0)):
        with pytest.raises(GapError, match="of the seed came"):
            arrival.heard(message, PEER)


def test_a_hole_an_early_end_and_bytes_beyond_the_file_are_gaps() -> None:
    arrival = announced(100)
    arrival.heard(SeedChunk(0, bytes(40)), PEER)
    for message in (SeedChunk(41, b"x"), SeedChunk(40, bytes(61)), SeedEnd(40), SeedEnd(100)):
        with pytest.raises(GapError, match="next is byte 40 of 100"):
            arrival.heard(message, PEER)
    assert arrival.next_offset == 40


def test_more_than_the_window_is_refused_until_something_is_acknowledged() -> None:
    room = SEED_WINDOW_BYTES + CHUNK_BYTES
    arrival = announced(2 * room)
    for at in range(0, room, CHUNK_BYTES):
        arrival.heard(SeedChunk(at, bytes(CHUNK_BYTES)), PEER)
    with pytest.raises(ProtocolViolationError, match="east sends a seed beyond its window"):
        arrival.heard(SeedChunk(room, b"x"), PEER)
    assert not arrival.is_ack_due
    arrival.acknowledge(CHUNK_BYTES)
    assert arrival.is_ack_due
    assert arrival.ack() == SeedAck(CHUNK_BYTES)
    assert not arrival.is_ack_due
    assert arrival.heard(SeedChunk(room, b"x"), PEER) == SeedReceived(room, b"x")


def test_what_has_not_come_cannot_be_acknowledged() -> None:
    arrival = announced(100)
    with pytest.raises(InternalError, match="byte 1 of the seed is acknowledged; 0 have come"):
        arrival.acknowledge(1)


@pytest.mark.parametrize(
    "start",
    [SeedStart(SEED, 6, 100, 9), SeedStart(OTHER, 5, 100, 9), SeedStart(SEED, 5, 4, 9)],
    ids=["from elsewhere", "another seed's", "beyond its end"],
)
def test_it_begins_where_it_was_asked_for_or_at_the_beginning(start: SeedStart) -> None:
    arrival = SeedArrival()
    arrival.asked(SeedRequest(WISH, SEED, 5))
    with pytest.raises(ProtocolViolationError, match="a seed from byte"):
        arrival.heard(start, PEER)
    again = SeedStart(OTHER, 0, 100, 9)
    assert arrival.heard(again, PEER) == SeedAnnounced(again)
    with pytest.raises(ProtocolViolationError, match="a seed from byte 0"):
        arrival.heard(again, PEER)


def test_the_next_request_begins_again() -> None:
    arrival = announced(10)
    arrival.heard(SeedChunk(0, bytes(10)), PEER)
    arrival.acknowledge(10)
    arrival.asked(SeedRequest(WISH, OTHER, 0))
    assert not arrival.is_ack_due
    start = SeedStart(OTHER, 0, 20, 9)
    assert arrival.heard(start, PEER) == SeedAnnounced(start)
    assert arrival.next_offset == 0
