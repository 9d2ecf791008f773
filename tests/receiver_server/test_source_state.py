"""receiver_server/source_state.py: what is known of the source and of the pool, and what is told of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from receiver_server.position import ReceivedParts, Reference
from receiver_server.returning_primary import Returning
from receiver_server.source_state import EMPTIED_S, ServedConnection, SourceState
from replicate.admin.partitions import create
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.figures import page
from replicate.errors import DiskFullError
from replicate.instance.instance import Instance
from replicate.model.clock_skew import PeerClock
from replicate.model.vector import Position, SynchronizationVector
from replicate.pool.receive_pool import ReceivePool, RecordKind
from replicate.pool.shared_memory import PoolKind, retire
from replicate.wire.message import UpdateState
from tests.harness.servers import ListLog

pytestmark = pytest.mark.trio


class Served:
    """The connection of a source that has asked for the stream."""

    def __init__(self) -> None:
        self.link: Any = SimpleNamespace(next_expected_seqno=1, last_heard=trio.current_time(), peer=None)
        self.drive: Any = None
        self.gone = trio.Event()
        self.is_streaming = True
        self.has_asked = True
        self.clock = PeerClock()
        self.peer_name, self.is_stopped = "east", False
        self.ended: list[str] = []

    def report(self) -> None:
        pass

    def end(self, reason: str) -> None:
        self.ended.append(reason)
        self.has_asked = False  # it comes again as another one
        self.gone.set()


@pytest.fixture
async def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SourceState]:
    """With an empty pool, after transaction 5."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pool = ReceivePool.create(b"w" * 16, configured_bytes=4 << 20, last_seqno=5, replace=False)
    context = DaemonContext("receiver", tmp_path, log=cast(Any, ListLog()))
    content = SimpleNamespace(fence=None)
    instance = cast(Any, SimpleNamespace(path=tmp_path, run_directory=tmp_path, content=content, is_supplier=False))
    made = SourceState(context, instance, pool, Returning(context, instance))
    yield made
    made.close()


async def test_partitions_that_are_here_are_a_figure_of_each(source: SourceState, tmp_path: Path) -> None:
    """Where some are wanted only; a secondary with all has none."""
    instance = Instance.create(tmp_path / "west", role="secondary", name="west", network=b"n" * 16)
    source.instance = instance

    def told() -> list[str]:
        lines = page("receiver", source.metrics, {"daemon": "receiver"}).decode().splitlines()
        return [line.partition("{")[2] for line in lines if line.startswith("dualsite_partition_here_state{")]

    assert told() == []
    for name in ("sales", "stock"):
        create(instance, name)
    assert told() == []
    instance.change_subscription(lambda now: replace(now, wanted=(1, 2), held=(1,)))
    assert [line.rpartition("=")[2] for line in told()] == ['"DEFAULT"} 0.0', '"sales"} 0.0'], "before the first copy"
    instance.register_region("main", b"m" * 16, tmp_path / "main.db")
    assert told() == ['daemon="receiver",partition="DEFAULT"} 1.0', 'daemon="receiver",partition="sales"} 0.0']
    instance.change_subscription(lambda now: replace(now, wanted=None, held=(1, 3)))
    assert [line.rpartition("=")[2] for line in told()] == ['"DEFAULT"} 1.0', '"sales"} 0.0', '"stock"} 1.0']
    instance.change_subscription(lambda now: replace(now, held=None))
    assert told() == []


@asynccontextmanager
async def laned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int) -> AsyncIterator[SourceState]:
    """Of a supplier that b and c send to; its pool has so many lanes."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    content = SimpleNamespace(fence=None, uuid=b"w" * 16)
    instance = cast(Any, SimpleNamespace(path=tmp_path, run_directory=tmp_path, content=content, is_supplier=True))
    default = DaemonContext("receiver", tmp_path, log=cast(Any, ListLog()))
    context = replace(default, config=default.config.with_values({"receiver.pool_bytes": 8 << 20}))

    async def applied_soon(*_: object) -> None:
        return None

    monkeypatch.setattr("receiver_server.source_state.find_applied_soon", applied_soon)
    monkeypatch.setattr("receiver_server.source_state.find_applied", lambda _instance: None)
    pool = ReceivePool.create(b"w" * 16, configured_bytes=8 << 20, last_seqno=0, lanes=lanes)
    state = SourceState(context, instance, pool, Returning(context, instance))
    assert state.suppliers is not None
    for name in ("b", "c"):
        state.suppliers.entered(name.encode(), name, cast(Any, Served()))
    yield state
    state.close()


def served(source: SourceState) -> Served:
    made = Served()
    connection: ServedConnection = made
    source.entered(connection)
    return made


async def test_the_refusal_is_told_until_a_source_is_accepted(source: SourceState) -> None:
    source.was_refused("east", "AHEAD")
    source.tell()
    assert "; east refused the stream: AHEAD" in source.context.text
    connection = served(source)
    assert "refused" not in source.context.text
    source.left(connection)
    assert "refused" not in source.context.text
    assert source.active is None


async def test_what_it_sends_counts_where_its_word_is_older(source: SourceState) -> None:
    served(source)
    source.streams("east", 10)
    source.received(9, 4, 400, None)
    assert source.last_seqno == 10
    source.received(12, 3, 300, None)
    assert source.last_seqno == 12
    parts = ReceivedParts(13, 7, 2)
    source.received(13, 0, 100, parts)  # a part of a transaction is none of it
    assert (source.last_seqno, source.parts) == (12, parts)
    assert source.statistics.total("transactions") == 7


async def test_a_source_that_has_less_than_the_one_before_begins_the_lag_again(source: SourceState) -> None:
    source.streams("east", 100)
    source.known_of_source()
    before = source.lag
    source.streams("east", 100)
    assert source.lag is before
    source.streams("rome", 50)
    assert source.lag is not before
    assert source.name == "rome"


async def test_from_where_the_stream_is_asked_for_is_what_the_pool_says(source: SourceState) -> None:
    reference = Reference(4, Position(8, SynchronizationVector(), {}), ReceivedParts(9, 7, 2))
    source.update_state = UpdateState.RUNNING
    source.known(reference)
    assert (source.pool.last_received_seqno, source.applied_seqno, source.parts) == (8, 5, ReceivedParts(9, 7, 2))
    source.update_state = UpdateState.NOT_RUNNING  # so the regions were replaced by older ones
    source.known(reference)
    assert (source.pool.applied_seqno, source.applied_seqno) == (4, 4)


async def test_a_pool_is_replaced_by_an_empty_one_after_what_is_applied(
    source: SourceState, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def applied(*_: object) -> Position:
        return Position(7, SynchronizationVector(), {})

    monkeypatch.setattr("receiver_server.source_state.find_applied_soon", applied)
    source.instance = cast(
        Any, SimpleNamespace(content=SimpleNamespace(uuid=b"w" * 16), path=source.instance.path, is_supplier=False)
    )
    first = source.pool
    first.note_source(9, 1, 2, 3000)
    first.note_clocks(7, 8)
    await source.replace_pool()
    assert source.pool is not first
    assert (source.pool.last_received_seqno, source.applied_seqno) == (7, 7)
    assert source.pool.source_period_s == 3.0, "what the source has said of itself is kept"
    assert source.pool.clocks_note == (7, 8), "and what keeps a host from writing whose clock is ahead"


@pytest.mark.parametrize("is_applied", [True, False], ids=["applied", "nobody applies"])
async def test_what_was_received_is_applied_before_the_pool_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, is_applied: bool
) -> None:
    """Its source may be lost before it has sent that again. A source that asks meanwhile is sent away as the others."""
    async with laned(tmp_path, monkeypatch, lanes=1) as state:
        assert state.suppliers is not None
        first, other = Served(), Served()
        state.suppliers.connections[b"b"] = cast(Any, first)
        state.suppliers.connections[b"c"] = cast(Any, other)
        other.has_asked, state.update_state = False, UpdateState.RUNNING
        old = state.pool
        assert old.offer(b"x" * 100, 1, 1, 1, RecordKind.FRAMES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(state.renew_pool)
            await trio.sleep(EMPTIED_S / 2)
            assert first.ended == ["each source gets a receive pool of its own"]
            assert state.pool is old
            other.has_asked = True
            if is_applied:
                old.free(old.written_address)
        assert state.pool is not old
        assert len(state.pool.lanes) == 2
        assert len(other.ended) == 1


async def test_a_pool_that_is_not_empty_yet_is_not_divided_at_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """What is in it stays for the Update Process."""
    async with laned(tmp_path, monkeypatch, lanes=1) as state:
        old, state.update_state = state.pool, UpdateState.RUNNING
        assert old.offer(b"x" * 100, 1, 1, 1, RecordKind.FRAMES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(state.renew_pool)
            await trio.sleep(EMPTIED_S / 2)
            state.context.stop_requested.set()
        assert state.pool is old
        assert old.used_bytes


async def test_a_pool_that_cannot_be_made_again_is_what_is_told(
    source: SourceState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one that is closed, which its connection would look at in the end."""

    async def applied(*_: object) -> None:
        return None

    def full(*_: object, **_more: object) -> ReceivePool:
        raise DiskFullError("no room for a pool")

    connection = served(source)
    connection.gone.set()
    monkeypatch.setattr("receiver_server.source_state.find_applied_soon", applied)
    monkeypatch.setattr(ReceivePool, "create", full)
    source.instance.content.uuid = b"w" * 16
    with pytest.raises(DiskFullError):
        await source.replace_pool()
    source.left(connection)
    assert source.active is None


@pytest.mark.parametrize("is_taken_away", [False, True], ids=["by us", "as it was taken away"])
async def test_an_update_process_that_works_is_not_called_gone_as_the_pool_is_made_again(
    source: SourceState, monkeypatch: pytest.MonkeyPatch, is_taken_away: bool
) -> None:
    """It takes the new one in a moment. Where a change of the role took the old one away, it ends with that."""

    async def applied(*_: object) -> None:
        return None

    monkeypatch.setattr("receiver_server.source_state.find_applied_soon", applied)
    source.instance.content.uuid = b"w" * 16
    source.pool.note_update_process(17, 8_000_000_000)
    if is_taken_away:
        retire(PoolKind.RECEIVE, b"w" * 16)
    await source.replace_pool()
    assert source.pool.update_alive_since_s(9_000_000_000) == (None if is_taken_away else 1.0)


async def test_only_a_source_that_has_asked_for_the_stream_is_sent_away(source: SourceState) -> None:
    await source.disconnect("nobody is there")
    connection = served(source)
    await source.disconnect("the pool is gone")
    assert connection.ended == ["the pool is gone"]
    connection.has_asked = False
    connection.gone = trio.Event()
    await source.disconnect("again")
    assert connection.ended == ["the pool is gone"]


async def test_a_clock_that_differs_is_told_while_its_source_is_connected(source: SourceState) -> None:
    connection = served(source)
    source.tell()
    assert "clocks" not in source.context.facts
    assert source.pool.clocks_note == (0, 0)
    now_ns = time.monotonic_ns()
    for _ in range(3):
        connection.clock.heard(time.time_ns() + 5_000_000_000, now_ns)
    source.tell()
    assert source.context.facts["clocks"] == {"east": 5}
    beyond_ns, heard_ns = source.pool.clocks_note
    assert beyond_ns == connection.clock.beyond_ns
    assert heard_ns >= now_ns
    for _ in range(8):
        connection.clock.heard(1, now_ns)  # it says 1970
    source.tell()
    assert source.context.facts["clocks"]["east"] < -1_000_000_000
    assert source.pool.clocks_note[0] == 0
    source.left(connection)
    source.tell()
    assert source.context.facts["clocks"] == {}


async def test_ready_while_a_source_streams_and_says_where_it_stands(source: SourceState) -> None:
    source.update_state = UpdateState.RUNNING
    source.tell("waiting for a connection")
    assert source.why_not_ready() == "waiting for a connection"
    connection = served(source)
    source.streams("east", 5)
    assert source.why_not_ready()  # it has not said where it stands
    connection.is_streaming = False
    assert source.why_not_ready() == source.context.text


@pytest.mark.parametrize("is_made_again", [False, True], ids=["asked by the Update Process", "the pool is made again"])
async def test_what_suppliers_had_sent_is_not_applied_because_it_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    """Each has a lane, and counts by the places in it: these say nothing after that."""
    async with laned(tmp_path, monkeypatch, lanes=2) as state:
        assert state.suppliers is not None
        for one in state.suppliers.by.values():
            one.begins(1, 3)
        assert not state.measured(state.known_of_source())["paused"]
        cast(Any, state.suppliers.connections[b"b"]).is_stopped = True
        assert state.measured(state.known_of_source())["paused"], "that one came first"
        state.suppliers.connections.clear()  # both have gone since
        one, other = state.suppliers.by.values()
        assert state.pool_of(one) is not state.pool_of(other)
        for supplied in (one, other):
            pool = state.pool_of(supplied)
            for seqno in (1, 3):
                assert pool.offer(b"x" * 100, seqno, seqno, 1, RecordKind.FRAMES)
                supplied.received(seqno, pool.written_address, 1)
        state.pool_of(other).free(state.pool_of(other).written_address)
        if is_made_again:
            await state.replace_pool()
        else:
            number = state.pool.request_restart()
            await state.begin_anew()
            assert state.pool.restart_done(number)
        assert state.pool.is_empty
        state.pool_of(one).offer(b"x" * 10_000, 1, 1, 1, RecordKind.FRAMES)
        state.pool_of(one).free(state.pool_of(one).written_address)
        assert state.applied_seqno == 3, "all of the other one's"
        assert (one.applied_seqno, one.was_level, other.was_level) == (0, False, True)
