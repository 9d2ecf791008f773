"""Lost files beside the stream: both links in simulated time, and the Source Server's hand on what comes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace

from replicate.errors import DiskFullError, InternalError
from replicate.lost import travel
from replicate.wire import codec
from replicate.wire.event import Closed, LostAcknowledged, LostOffered, LostReceived
from replicate.wire.features import Protocol
from replicate.wire.message import CHUNK_BYTES, LostChunk, LostOffer, LostTaken, Message
from source_server.lost_files import LostTaking
from tests.harness.link_pair import PRIMARY, SECONDARY, ConnectionPair, connected
from tests.harness.servers import ListLog

OFFER = LostOffer(99, 1000, 7, 9)


def streaming(**introductions: Any) -> ConnectionPair:
    return connected(ConnectionPair(**introductions))


def to_source(pair: ConnectionPair, message: Message) -> None:
    for event in pair.source.receive(b"".join(codec.encode(message)), pair.now):
        pair.source_events.append(event)


def to_receiver(pair: ConnectionPair, message: Message) -> None:
    for event in pair.receiver.receive(b"".join(codec.encode(message)), pair.now):
        pair.receiver_events.append(event)


@pytest.mark.parametrize("begin", [0, 400, 1000])
@pytest.mark.parametrize("stopped", [False, True])
def test_from_where_the_source_has_it_to_the_end(begin: int, stopped: bool) -> None:
    pair = streaming()
    if stopped:
        pair.receiver.flow.is_stopped = True
        pair.settle()
    pair.receiver.offer_lost(OFFER)
    pair.settle()
    assert pair.source_events[-1] == LostOffered(OFFER)
    pair.source.lost_taken(begin)
    pair.settle()
    at = begin
    while at < 1000:
        assert pair.receiver_events[-1] == LostAcknowledged(LostTaken(99, at))
        pair.receiver.send_lost(b"x" * 200)
        pair.settle()
        assert pair.source_events[-1] == LostReceived(OFFER, at, b"x" * 200)
        at += 200
        pair.source.lost_taken(at)
        pair.settle()
    assert pair.receiver_events[-1] == LostAcknowledged(LostTaken(99, 1000))
    with pytest.raises(InternalError):
        pair.receiver.send_lost(b"more")
    pair.receiver.offer_lost(replace(OFFER, check=100))  # the next one
    pair.settle()
    assert pair.source_events[-1] == LostOffered(replace(OFFER, check=100))
    pair.run_until(pair.now + 200)
    assert not pair.source.is_closed, "signs of life go on"


def test_an_older_release_and_a_secondary_are_offered_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert streaming().receiver.can_offer_lost
    assert not ConnectionPair().receiver.can_offer_lost, "before the stream runs"
    older = tuple(one for one in PRIMARY.features if one != "lost-1")
    for pair in (
        streaming(primary=replace(PRIMARY, features=older)),
        streaming(secondary=replace(SECONDARY, features=older)),
        streaming(primary=replace(PRIMARY, role="secondary")),
    ):
        assert not pair.receiver.can_offer_lost
        with pytest.raises(InternalError):
            pair.receiver.offer_lost(OFFER)
    monkeypatch.setattr("source_server.link.PROTOCOL", Protocol(1, 1))
    pair = streaming()
    assert not pair.receiver.can_offer_lost
    to_source(pair, OFFER)
    closed = pair.close_of(pair.source_events)
    assert "not in protocol 1.1" in str(closed.error)


@pytest.mark.parametrize(
    "message",
    [LostChunk(400, b"x" * 200), LostChunk(0, b"x" * 1001), LostChunk(0, b"x" * (CHUNK_BYTES + 1))],
    ids=["not next", "beyond the file", "too long"],
)
def test_what_is_not_next_ends_the_connection_by_name(message: LostChunk) -> None:
    pair = streaming()
    to_source(pair, message)
    assert "not next" in str(pair.close_of(pair.source_events).error), "nothing was offered"
    pair = streaming()
    to_source(pair, OFFER)
    to_source(pair, LostChunk(0, b"x"))
    assert "not next" in str(pair.close_of(pair.source_events).error), "nobody has said from where"
    pair = streaming()
    to_source(pair, replace(OFFER, file_bytes=2 * CHUNK_BYTES if len(message.data) > CHUNK_BYTES else 1000))
    pair.source.lost_taken(0)
    to_source(pair, message)
    assert "not next" in str(pair.close_of(pair.source_events).error)


def test_a_word_that_nobody_waits_for_ends_the_connection_by_name() -> None:
    for words in ([LostTaken(98, 0)], [LostTaken(99, 1001)], [LostTaken(99, 0), LostTaken(99, 0)]):
        pair = streaming()
        pair.receiver.offer_lost(OFFER)
        for word in words:
            to_receiver(pair, word)
        assert "what was not offered" in str(pair.close_of(pair.receiver_events).error)
    pair = streaming()
    to_receiver(pair, LostTaken(99, 0))
    assert "what was not offered" in str(pair.close_of(pair.receiver_events).error)


def test_more_than_has_come_is_not_taken() -> None:
    pair = streaming()
    with pytest.raises(InternalError):
        pair.source.lost_taken(0)
    to_source(pair, OFFER)
    with pytest.raises(InternalError):
        pair.source.lost_taken(1001)
    pair.source.lost_taken(400)
    with pytest.raises(InternalError):
        pair.source.lost_taken(300)


class File:
    """What travel.py has of a file; it fails as it is told."""

    path = Path("west-lost.jsonl")

    def __init__(self, offset: int = 0, error: Exception | None = None) -> None:
        self.offset, self._error = offset, error

    @property
    def is_whole(self) -> bool:
        return self.offset == OFFER.file_bytes

    def write(self, data: bytes) -> int:
        if self._error is not None:
            raise self._error
        self.offset += len(data)
        return self.offset


def heard(monkeypatch: pytest.MonkeyPatch, file: File | Exception, sizes: list[int]) -> tuple[list[int], ListLog]:
    """What is acknowledged when the file is offered, and comes in pieces of these sizes; the log."""
    taken: list[int] = []
    log = ListLog()

    def made(*_: object) -> File:
        if isinstance(file, Exception):
            raise file
        return file

    monkeypatch.setattr(travel, "IncomingLost", made)
    instance = SimpleNamespace(named="west")
    consumer = cast(Any, SimpleNamespace(log=log, instance=instance, peer_name="east"))
    link = cast(Any, SimpleNamespace(lost_taken=taken.append))
    taking = LostTaking(consumer, link, cast(Any, SimpleNamespace(closed=None, poke=lambda: None)))

    async def go() -> None:
        await taking.heard(LostOffered(OFFER))
        at = 0
        for size in sizes:
            await taking.heard(LostReceived(OFFER, at, b"x" * size))
            at += size

    trio.run(go)
    return taken, log


def test_each_piece_is_acknowledged_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, log = heard(monkeypatch, File(), [400, 600])
    assert taken == [0, 400, 1000]
    (line,) = log.events("lost file received")
    assert line["do"] == "replicate -i west lost apply west-lost.jsonl"


def test_one_that_is_there_is_acknowledged_and_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, log = heard(monkeypatch, File(1000), [])
    assert (taken, log.lines) == ([1000], [])


def test_what_cannot_be_taken_is_not_acknowledged_and_the_stream_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, log = heard(monkeypatch, DiskFullError("no room"), [400])
    assert (taken, len(log.events("lost file not taken"))) == ([], 1)
    taken, log = heard(monkeypatch, File(error=DiskFullError("no room")), [400, 600])
    assert (taken, len(log.events("lost file not taken"))) == ([0], 1)


def test_of_a_connection_that_has_ended_nothing_is_said() -> None:
    pair = streaming()
    to_source(pair, OFFER)
    pair.source.bye("stop")
    pair.source.lost_taken(0)
    assert [one for one in pair.source_events if isinstance(one, Closed)] == []
