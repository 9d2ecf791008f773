"""source_server/consumer_state.py: what is known of the consumer, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from replicate.daemon.daemon import DaemonContext
from replicate.errors import WrongInstanceError
from replicate.instance.file import PeerEntry
from replicate.pool import control as word
from replicate.wire.event import Acknowledged
from replicate.wire.message import HeartbeatReply, UpdateState
from source_server.consumer_state import PAUSED, ConsumerState
from tests.harness.servers import ListLog

pytestmark = pytest.mark.trio
WRITTEN = 100


@pytest.fixture
async def consumer() -> ConsumerState:
    """Of a journal of 100 transactions."""
    words = [0] * 64
    words[word.LAST_SEQNO] = words[word.LAST_DURABLE_SEQNO] = WRITTEN
    context = DaemonContext("source-west", Path("/east"), log=cast(Any, ListLog()))
    instance = SimpleNamespace(
        path=Path("/east"),
        consumers_directory=Path("/east/consumers"),
        peer=lambda name: PeerEntry(name, "127.0.0.1", 7430),
    )
    return ConsumerState(context, cast(Any, instance), cast(Any, SimpleNamespace(words=words)), "west")


def says(consumer: ConsumerState, *, received: int, applied: int, durable: int, state: UpdateState) -> None:
    consumer.acknowledged(Acknowledged(HeartbeatReply(1, 1, received, applied, durable, int(state), 0, 0, 0), 0.25))


async def test_before_its_first_word_nothing_of_it_is_a_metric(consumer: ConsumerState) -> None:
    unknown = ("last_sent_seqno", "last_received_seqno", "source_backlog", "receiver_backlog", "last_contact_s")
    assert [consumer.metrics()[name] for name in unknown] == [None] * 5
    consumer.heard.at(trio.current_time())
    consumer.progress.last_sent_seqno = 90
    says(consumer, received=80, applied=70, durable=60, state=UpdateState.RUNNING)
    found = consumer.metrics()
    assert [found[name] for name in unknown[:4]] == [90, 80, WRITTEN - 90, 10]
    assert (found["last_applied_seqno"], found["backlog"], found["round_trip_s"]) == (70, 30, 0.25)


@pytest.mark.parametrize("passive", [True, False])
async def test_nothing_waits_for_a_peer_that_is_served_once_we_are_primary(
    consumer: ConsumerState, monkeypatch: pytest.MonkeyPatch, passive: bool
) -> None:
    """The primary itself, for the way back: its own writes, which it has, were told as a backlog of ours."""
    monkeypatch.setattr(consumer.instance, "told_role", "secondary", raising=False)
    consumer.mode.follow(PeerEntry("west", "127.0.0.1", 7430, passive=passive))
    consumer.heard.at(trio.current_time())
    consumer.progress.last_sent_seqno = 90
    expected = 0 if passive else WRITTEN
    found = consumer.metrics()
    assert (found["backlog"], found["unacknowledged"]) == (expected, expected)
    assert found["source_backlog"] == (0 if passive else WRITTEN - 90)
    assert (consumer.lag_s() == 0.0) is passive
    monkeypatch.setattr(consumer.instance, "told_role", "primary")
    assert consumer.measured()["backlog"] == WRITTEN, "the journal is kept for it from now on"


async def test_a_position_only_rises_but_where_the_stream_begins_lower(consumer: ConsumerState) -> None:
    for durable, expected in ((50, 50), (40, 50), (60, 60)):
        says(consumer, received=80, applied=70, durable=durable, state=UpdateState.RUNNING)
        assert consumer.position.acknowledged_seqno == expected
    consumer.position.went_back(30)
    assert consumer.position.acknowledged_seqno == 30
    consumer.position.went_back(35)
    assert consumer.position.acknowledged_seqno == 30


async def test_each_word_wakes_who_waits_for_progress(consumer: ConsumerState) -> None:
    waited = consumer.progressed
    says(consumer, received=1, applied=1, durable=1, state=UpdateState.RUNNING)
    assert waited.is_set()
    assert not consumer.progressed.is_set()


async def test_another_instance_of_the_same_name_is_not_the_consumer(consumer: ConsumerState) -> None:
    consumer.met(b"w" * 16)
    consumer.met(b"w" * 16)
    with pytest.raises(WrongInstanceError, match="is named west, but is another one than before"):
        consumer.met(b"x" * 16)


async def test_when_its_update_process_stops_and_begins_is_said_once(consumer: ConsumerState) -> None:
    for _ in range(3):
        says(consumer, received=9, applied=5, durable=5, state=UpdateState.NOT_RUNNING)
    assert consumer.progress.not_applying_since_wall_ns
    assert not consumer.progress.is_applied_there
    says(consumer, received=9, applied=5, durable=5, state=UpdateState.RUNNING)
    assert consumer.progress.is_applied_there
    assert consumer.progress.not_applying_since_wall_ns == 0
    log = cast(ListLog, consumer.log)
    assert [event for _, event, _ in log.lines] == ["the peer applies nothing", "the peer applies again"]


async def test_ready_while_it_streams(consumer: ConsumerState) -> None:
    consumer.tell(last_error="no answer")
    assert consumer.why_not_ready() == "waiting for a connection: no answer"
    for activity in ("sending", PAUSED):
        consumer.tell(activity, last_error=None)
        assert consumer.why_not_ready() == ""
