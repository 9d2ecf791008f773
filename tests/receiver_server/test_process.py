"""The Receiver Server over real loopback TCP, with a real Source Server and a real Update Process beside it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from receiver_server import process as module
from receiver_server.position import find_applied, find_reference
from replicate.compare.compare import compare
from replicate.daemon.figures import FIGURES
from replicate.daemon.listening import listen
from replicate.daemon.own_introduction import introduction
from replicate.door.barrier import Barrier
from replicate.door.recovery.opening import close_door, open_door
from replicate.door.snapshot import door_of
from replicate.errors import AlreadyExistsError, ConfigurationError
from replicate.instance.consumers import Consumer, write_consumer
from replicate.instance.instance import Instance
from replicate.pool.receive_pool import ReceivePool, RecordKind
from replicate.pool.shared_memory import PoolKind, retire
from replicate.wire.event import Closed, CloseReason, Event
from source_server.link import SourceLink
from tests.harness.counting import count_calls
from tests.harness.link_pair import link_settings
from tests.harness.pair import Pair
from tests.harness.ports import free_port
from tests.harness.servers import Daemon, Relay, point, prove_to, servers
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update
from update_process.work_result import Waiting

pytestmark = pytest.mark.trio


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    door = open_door(made.primary)
    yield made
    close_door(door)


def pool_of(pair: Pair) -> ReceivePool:
    return ReceivePool.attach(pair.secondary.content.uuid)


async def received(daemon: Daemon, seqno: int) -> None:
    await wait_until_async(lambda: daemon.facts.get("last_received_seqno", 0) >= seqno, what=f"{seqno} received")


def levels(daemon: Daemon, text: str) -> list[str]:
    return [level for level, event, _ in daemon.log.lines if text in event]


async def test_an_empty_pool_takes_the_size_that_is_asked_for_and_a_full_one_waits(pair: Pair) -> None:
    pair.seed()
    async with servers() as running:
        listen_on = f"127.0.0.1:{free_port()}"
        update = running.start("update", pair.secondary, serve_update)
        receiver = await running.receiver(pair.secondary, receiver__listen=listen_on)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        last = await trio.to_thread.run_sync(lambda: pair.write(20))
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)
        await wait_until_async(lambda: pool_of(pair).used_bytes == 0)
        await receiver.stop()
        larger = await running.receiver(pair.secondary, receiver__listen=listen_on, receiver__pool_bytes=8 << 20)
        assert larger.facts["pool_bytes"] == 8 << 20
        last = await trio.to_thread.run_sync(lambda: pair.write(20))  # the Update Process, which lives on, takes it up
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)
        await update.stop()
        last = await trio.to_thread.run_sync(lambda: pair.write(20))
        await received(larger, last)
        await larger.stop()
        again = await running.receiver(pair.secondary, receiver__listen=listen_on, receiver__pool_bytes=6 << 20)
        assert again.facts["pool_bytes"] == 8 << 20
        update = running.start("update", pair.secondary, serve_update)
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)
    equal = await trio.to_thread.run_sync(lambda: compare(pair.primary, pair.secondary, timeout_s=60))
    assert equal.equal


@pytest.mark.slow
async def test_all_of_it_arrives_and_is_applied(pair: Pair) -> None:
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        update = running.start("update", pair.secondary, serve_update)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        last = await trio.to_thread.run_sync(lambda: pair.write(300))
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)
        await wait_until_async(lambda: source.facts.get("last_acknowledged_seqno") == last)
        await wait_until_async(lambda: receiver.facts.get("last_applied_seqno") == last)
        assert (receiver.facts["is_connected"], receiver.facts["source"]) == (True, "east")
        assert receiver.facts["source_host"] == "127.0.0.1"
        assert receiver.facts["update_process"] == "running"
        assert (source.facts["state"], source.facts["lag_s"], receiver.facts["lag_s"]) == ("sending", 0.0, 0.0)
        assert receiver.facts["source_last_seqno"] == last
    assert receiver.facts["state"] == "stopped"  # its text may also say that the Update Process, stopped first, is gone
    equal = await trio.to_thread.run_sync(lambda: compare(pair.primary, pair.secondary, timeout_s=60))
    assert equal.equal


async def test_a_source_that_refused_us_is_not_our_source(pair: Pair) -> None:
    pair.seed()
    write_consumer(pair.primary.consumers_directory, Consumer("west", uuid="ff" * 16))
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: "WRONG_INSTANCE" in str(source.facts.get("last_error")))
        await wait_until_async(lambda: bool(levels(receiver, "source introduced")), what="it had been let in")
        await wait_until_async(
            lambda: "east refused the stream: WRONG_INSTANCE" in receiver.context.text
        )  # of its status
        assert receiver.facts["source"] == ""


async def test_the_source_knows_since_when_nothing_is_applied(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """And tells it at once: `status` after an `update start` must not say what was true before it."""
    pair.seed()
    monkeypatch.setattr("source_server.process.CONSUMER_PERIOD_S", 3600.0)  # nothing else writes its status
    slowly = {"heartbeat_period_s": 600.0, "dead_after_s": 3600.0}
    async with servers() as running:
        receiver = await running.receiver(
            pair.secondary, **{f"receiver__{name}": value for name, value in slowly.items()}
        )
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary, **{f"source__{name}": value for name, value in slowly.items()})
        await wait_until_async(lambda: source.facts.get("peer_update_state") == "not running")
        assert 0 < source.facts["peer_not_applying_since_wall_ns"] <= time.time_ns()
        assert levels(source, "the peer applies nothing") == ["warning"]
        assert receiver.facts["source"] == "east"
        monkeypatch.setattr("receiver_server.link.ACKNOWLEDGE_PERIOD_S", 3600.0)
        running.start("update", pair.secondary, serve_update)
        await wait_until_async(lambda: source.facts.get("peer_update_state") == "running")
        assert source.facts["peer_not_applying_since_wall_ns"] == 0


async def test_the_source_knows_that_a_region_waits_and_that_it_does_no_more(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a release that knows no such state it is a number; the Update Process runs, and the stream with it."""
    monkeypatch.setattr("receiver_server.process.POOL_LOOK_S", 0.05)
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        running.start("update", pair.secondary, serve_update)
        await wait_until_async(lambda: source.facts.get("peer_update_state") == "running")
        assert source.facts["peer_region_waits"] is False
        pair.secondary.note_waiting("two")
        await wait_until_async(lambda: source.facts["peer_region_waits"] is True)
        assert source.facts["peer_not_applying_since_wall_ns"] == 0
        assert figure(receiver, "update_process_state") == 1
        pair.secondary.forget_waiting()
        await wait_until_async(lambda: source.facts["peer_region_waits"] is False)


async def test_a_second_source_is_refused_by_name_and_the_first_goes_on(pair: Pair, tmp_path: Path) -> None:
    pair.seed()
    other = Instance.create(tmp_path / "north", role="primary", name="north", network=pair.primary.content.network)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        first = running.source(pair.primary)
        await wait_until_async(lambda: first.facts.get("state") == "sending")
        point(other, "west", receiver)
        second = running.source(other)
        await wait_until_async(lambda: "SECOND_SOURCE" in str(second.facts.get("last_error")))
        assert "east" in second.facts["last_error"]
        assert "north" in second.facts["last_error"]
        last = await trio.to_thread.run_sync(lambda: pair.write(5))
        await received(receiver, last)
        assert len(first.log.events("connection made")) == 1
        assert receiver.log.events("second source refused")[0]["first"] == "east"


async def test_a_peer_of_another_network_is_refused(pair: Pair, tmp_path: Path) -> None:
    pair.seed()
    stranger = Instance.create(tmp_path / "stranger", role="primary", name="stranger")
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(stranger, "west", receiver)
        source = running.source(stranger)
        await wait_until_async(lambda: "WRONG_NETWORK" in str(source.facts.get("last_error")))
        assert receiver.facts["is_connected"] is False


async def test_a_refusal_that_repeats_is_a_few_lines_on_each_side(pair: Pair, tmp_path: Path) -> None:
    """One line for each new reason; the same again is counted, and told once an alert period."""
    pair.seed()
    stranger = Instance.create(tmp_path / "stranger", role="primary", name="stranger")
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        relay = Relay(int(receiver.facts["listen"].rpartition(":")[2]))
        await running.nursery.start(relay.run)
        point(stranger, "west", relay.port)
        source = running.source(stranger)
        await wait_until_async(lambda: relay.connections >= 15)
        for daemon in (source, receiver):
            assert [line["reason"] for line in daemon.log.events("connection refused")] == ["WRONG_NETWORK"]
            assert len(daemon.log.lines) <= 5, daemon.log.lines
        point(stranger, "west", 1)
        await wait_until_async(lambda: "UNREACHABLE" in str(source.facts.get("last_error")))
        failed = source.log.events("connection attempt failed")
        assert ["WRONG_NETWORK" in line["error"] for line in failed] == [True, False]
        for daemon in reversed(running.daemons):
            await daemon.stop()
        running.nursery.cancel_scope.cancel()


async def test_cut_in_the_middle_of_a_frame_nothing_is_lost_or_doubled(pair: Pair) -> None:
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        update = running.start("update", pair.secondary, serve_update)
        relay = Relay(int(receiver.facts["listen"].rpartition(":")[2]))
        await running.nursery.start(relay.run)
        point(pair.primary, "west", relay.port)
        running.source(pair.primary)
        last = 0
        for cut_after in (10, 700, 20_001, 50_017):
            relay.cut_after = cut_after
            last = await trio.to_thread.run_sync(lambda: pair.write(100, size=500))
            await wait_until_async(lambda: relay.cut_after is None, what="it is cut")
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)
        assert relay.connections > 3
        running.nursery.cancel_scope.deadline = trio.current_time() + 30
        for daemon in reversed(running.daemons):
            await daemon.stop()
        running.nursery.cancel_scope.cancel()
    assert len(pair.rows("account")) == 400


@pytest.mark.slow
async def test_a_frozen_source_is_noticed_in_time_and_a_frozen_receiver_too(pair: Pair) -> None:
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__dead_after_s=DEAD_AFTER_S)
        relay = Relay(int(receiver.facts["listen"].rpartition(":")[2]))
        await running.nursery.start(relay.run)
        point(pair.primary, "west", relay.port)
        source = running.source(pair.primary, source__dead_after_s=DEAD_AFTER_S)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        relay.is_frozen = True  # TCP goes on acknowledging, and nobody says anything
        began = trio.current_time()
        await wait_until_async(lambda: receiver.log.events("connection closed"))
        await wait_until_async(lambda: source.log.events("connection closed"))
        assert trio.current_time() - began < 120.0  # no end of a connection reaches either: minutes by TCP alone
        for daemon in (receiver, source):
            closed = daemon.log.events("connection closed")[0]
            assert closed["reason"] == CloseReason.PEER_DEAD.value
        relay.is_frozen = False
        last = await trio.to_thread.run_sync(lambda: pair.write(5))
        await received(receiver, last)
        for daemon in reversed(running.daemons):
            await daemon.stop()
        running.nursery.cancel_scope.cancel()


async def test_an_occupied_port_is_one_clear_error(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        async with servers() as running:
            with pytest.raises(AlreadyExistsError, match=address) as caught:
                await running.receiver(pair.secondary, receiver__listen=address)
        assert "ss -ltnp" in caught.value.do


async def test_only_loopback_without_certificates(pair: Pair) -> None:
    async with servers() as running:
        for wrong in ("0.0.0.0:0", "example.org:7430", "[::]:0", "[::ffff:127.0.0.1]:0"):
            with pytest.raises(ConfigurationError, match=r"loopback.*replicate certificate init") as caught:
                await running.receiver(pair.secondary, receiver__listen=wrong)
            assert caught.value.exit_code == 78


async def test_localhost_and_ipv6_report_what_was_bound() -> None:
    for text, host in (("localhost:0", "127.0.0.1"), ("[::1]:0", "::1")):
        try:
            listeners, address = await listen(text, where="receiver.listen")
        except ConfigurationError:
            assert host == "::1"  # a machine without IPv6
            continue
        assert address.host == host
        assert address.port > 0
        for listener in listeners:
            await listener.aclose()


DEAD_AFTER_S = 3.0
BEATS = 17
"""So many heartbeats of the source (tests/harness/servers.py) take longer than a peer may be silent."""


@pytest.mark.slow
async def test_not_seeded_yet_the_source_is_kept_and_served_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    beats = count_calls(monkeypatch, SourceLink, "_beat")
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__dead_after_s=DEAD_AFTER_S)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary, source__dead_after_s=DEAD_AFTER_S)
        await wait_until_async(lambda: receiver.facts.get("state") == "waiting for the seed")
        await wait_until_async(beats.since_now(BEATS))
        assert source.facts["state"] == "waiting for restart"
        assert len(source.log.events("connection made")) == 1
        await trio.to_thread.run_sync(pair.seed)
        last = await trio.to_thread.run_sync(lambda: pair.write(5))
        await received(receiver, last)
        assert len(source.log.events("connection made")) == 1


async def test_a_source_that_came_first_does_not_call_the_secondary_unreachable_while_it_waits_for_its_seed(
    pair: Pair,
) -> None:
    """The first hour: status of the primary said that nobody listens, beside a connection that stood."""
    port = free_port()
    point(pair.primary, "west", port)
    async with servers() as running:
        source = running.source(pair.primary)
        await wait_until_async(lambda: "UNREACHABLE" in str(source.facts.get("last_error")))
        receiver = await running.receiver(pair.secondary, receiver__listen=f"127.0.0.1:{port}")
        await wait_until_async(lambda: receiver.facts.get("state") == "waiting for the seed")
        await wait_until_async(lambda: source.facts.get("state") == "waiting for restart")
        assert source.facts["last_error"] is None


async def test_the_update_process_is_missed_aloud(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALARM_PERIOD_S", 0.3)
    monkeypatch.setattr(module, "UPDATE_DEAD_AFTER_S", 0.5)
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        await wait_until_async(lambda: levels(receiver, "the Update Process is not running")[:2] == ["error"] * 2)
        assert receiver.facts["update_process"] == "not running"
        assert "not running" in receiver.context.text
        update = running.start("update", pair.secondary, serve_update)
        await wait_until_async(lambda: receiver.facts["update_process"] == "running")
        await update.stop()
        await wait_until_async(lambda: receiver.facts["update_process"] == "not running")
        pool = pool_of(pair)
        pool.note_update_process(1, 1)  # said so long ago, and stands still
        await wait_until_async(lambda: levels(receiver, "not answering") != [])
        pool.note_update_process(0, 0)
        pool.close()


@pytest.mark.slow
async def test_a_full_pool_stops_the_source_and_it_goes_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    beats = count_calls(monkeypatch, SourceLink, "_beat")
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__dead_after_s=DEAD_AFTER_S)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary, source__dead_after_s=DEAD_AFTER_S)
        last = await trio.to_thread.run_sync(lambda: pair.write(60, size=100_000))
        await wait_until_async(lambda: source.facts.get("state") == "waiting for XON")
        assert receiver.log.events("XOFF sent")
        await wait_until_async(beats.since_now(BEATS))
        assert len(source.log.events("connection made")) == 1
        assert receiver.facts["last_received_seqno"] < last
        running.start("update", pair.secondary, serve_update)
        await received(receiver, last)
        assert receiver.log.events("XON sent")
        await wait_until_async(lambda: source.facts["last_acknowledged_seqno"] == last)
        assert len(source.log.events("connection made")) == 1


async def test_statistics_tell_what_each_side_still_has(pair: Pair) -> None:
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__statistics_period_s=0.1)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        before = await trio.to_thread.run_sync(lambda: pair.last_seqno(pair.secondary))
        last = await trio.to_thread.run_sync(lambda: pair.write(60, size=100_000))

        def told() -> tuple[int | None, int]:
            found = (receiver.log.events("statistics") or [{"source_backlog": None, "receiver_backlog": 0}])[-1]
            return found["source_backlog"], found["receiver_backlog"]

        # Nobody applies, so the pool fills up, and the rest stays at the source.
        await wait_until_async(lambda: (told()[0] or 0) > 0 and sum(filter(None, told())) == last - before)
        running.start("update", pair.secondary, serve_update)
        await wait_until_async(lambda: told() == (0, 0))
        assert "filter" not in receiver.log.events("statistics")[-1]


async def test_what_has_arrived_outlives_the_receiver(pair: Pair) -> None:
    pair.seed()
    async with servers() as running:
        address = f"127.0.0.1:{free_port()}"
        receiver = await running.receiver(pair.secondary, receiver__listen=address)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        last = await trio.to_thread.run_sync(lambda: pair.write(50))
        await received(receiver, last)
        await receiver.stop()
        again = await running.receiver(pair.secondary, receiver__listen=address)
        await wait_until_async(lambda: again.log.events("restart sent"))
        assert again.log.events("restart sent")[0]["next_seqno"] == last + 1
        assert again.log.events("receive pool found")
        update = running.start("update", pair.secondary, serve_update)
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)


async def test_a_request_to_begin_again_is_answered_after_what_is_applied(pair: Pair) -> None:
    applied = pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        last = await trio.to_thread.run_sync(lambda: pair.write(20))
        await received(receiver, last)
        pool = pool_of(pair)
        number = pool.request_restart()
        await wait_until_async(lambda: pool.restart_done(number))
        await wait_until_async(lambda: len(receiver.log.events("restart sent")) == 2)
        assert receiver.log.events("restart sent")[1]["next_seqno"] == applied + 1
        await received(receiver, last)
        frames = [record for record in pool.peek() if record.kind is RecordKind.FRAMES]
        assert frames[0].first_seqno == applied + 1
        assert frames[-1].last_seqno == last
        pool.close()


async def test_a_large_transaction_goes_on_where_it_was_cut(pair: Pair) -> None:
    pair.seed()

    def big() -> int:
        connection = pair.connect()
        notes = [("x" * 50_000,) for _ in range(100)]
        connection.executemany("INSERT INTO account(owner, note) VALUES ('o', ?)", notes)
        connection.commit()
        last: int = connection.last_seqno
        connection.close()
        return last

    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        update = running.start("update", pair.secondary, serve_update)
        relay = Relay(int(receiver.facts["listen"].rpartition(":")[2]))
        await running.nursery.start(relay.run)
        point(pair.primary, "west", relay.port)
        running.source(pair.primary)
        await wait_until_async(lambda: receiver.facts.get("state") == "receiving")
        relay.cut_after = 2_500_000
        last = await trio.to_thread.run_sync(big)
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)
        assert max(event["next_part"] for event in receiver.log.events("restart sent")) > 3
        for daemon in reversed(running.daemons):
            await daemon.stop()
        running.nursery.cancel_scope.cancel()
    assert len(pair.rows("account")) == 100


async def test_a_removed_or_damaged_pool_is_made_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POOL_LOOK_S", 0.3)
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        update = running.start("update", pair.secondary, serve_update)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        last = await trio.to_thread.run_sync(lambda: pair.write(20))
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)
        retire(PoolKind.RECEIVE, pair.secondary.content.uuid)
        await wait_until_async(lambda: receiver.log.events("receive pool made again"))
        last = await trio.to_thread.run_sync(lambda: pair.write(20))
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)


async def test_what_the_pool_holds_counts_and_a_gap_in_it_does_not(pair: Pair) -> None:
    applied = pair.seed()
    last = pair.write(30)
    with pair.receive_pool() as pool:
        assert find_applied(pair.secondary) is not None
        pair.deliver(pool, upto=applied + 10, record_bytes=1000)
        found = find_reference(pair.secondary, pool)
        assert found is not None
        assert (found.applied_seqno, found.position.last_seqno, found.parts) == (applied, applied + 10, None)
        with pair.applier(pool) as applier:
            pair.deliver(pool, upto=applied + 20, record_bytes=1000)
            records = list(pool.peek())
            applier.work(30.0)
            assert pool.applied_seqno == applied + 20
        again = find_reference(pair.secondary, pool)
        assert again is not None
        assert again.applied_seqno == again.position.last_seqno == applied + 20
        door = open_door(pair.primary)
        with door.locked():
            assert door.position().last_seqno == last
        close_door(door)
        assert records[0].first_seqno == applied + 1


@pytest.mark.parametrize("daemon", ["receiver", "update"])
async def test_a_daemon_that_begins_knows_how_old_the_backlog_is(pair: Pair, daemon: str) -> None:
    """It is an hour old by the source's clock, and nothing of it is applied."""
    pair.seed()
    last = pair.write(3)
    async with servers() as running:
        with pair.receive_pool() as pool, door_of(pair.secondary) as door, Barrier(door, timeout_s=600) as barrier:
            barrier.raise_to(pool.last_received_seqno)
            assert pair.deliver(pool) == last
            pool.note_source(last, time.time_ns() + 3600 * 10**9, time.monotonic_ns(), 15_000)
            if daemon == "receiver":
                receiver = await running.receiver(pair.secondary)
                least_s = receiver.facts["lag_at_least_s"]
            else:
                update = running.start("update", pair.secondary, serve_update)
                await wait_until_async(lambda: update.facts.get("state") == Waiting.BARRIER.value)
                least_s = figure(update, "lag_at_least_seconds")
            assert least_s is not None
            assert 3599 <= least_s < 3700


async def test_too_many_silent_connections_are_closed(pair: Pair) -> None:
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__hello_timeout_s=0.5, receiver__connections_max=2)
        port = int(receiver.facts["listen"].rpartition(":")[2])
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(3)]
        while not receiver.log.events("closed unheard"):  # where we stood still, the first ones are gone already
            streams.append(await trio.open_tcp_stream("127.0.0.1", port))
            await trio.sleep(0.01)
        with trio.fail_after(60):
            for stream in streams:
                await _until_end(stream)
        assert receiver.facts["is_connected"] is False


async def _until_end(stream: trio.SocketStream) -> None:
    try:
        while await stream.receive_some(1000):
            pass
    except trio.BrokenResourceError:
        pass
    await stream.aclose()


async def test_rubbish_ends_its_connection_only(pair: Pair) -> None:
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        port = int(receiver.facts["listen"].rpartition(":")[2])
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n" * 100)
        with trio.fail_after(60):
            await _until_end(stream)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        await wait_until_async(lambda: receiver.facts.get("state") == "receiving")


async def test_the_stop_is_said_to_the_source(pair: Pair) -> None:
    """A plain link in place of a Source Server: the last word arrives."""
    pair.seed()
    events: list[Event] = []
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        port = int(receiver.facts["listen"].rpartition(":")[2])
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await prove_to(stream, pair.primary)
        me = introduction(pair.primary, 15.0)
        link = SourceLink(link_settings(expected_peer="west"), me, trio.current_time(), 0)
        await stream.send_all(b"".join(link.bytes_to_send()))
        await wait_until_async(lambda: receiver.facts["is_connected"] is True)
        receiver.context.stop_requested.set()
        while data := await stream.receive_some(65536):
            events += link.receive(data, trio.current_time())
        await stream.aclose()
    closed = events[-1]
    assert isinstance(closed, Closed)
    assert (closed.reason, closed.text) == (CloseReason.BYE, "the Receiver Server was stopped")


async def test_a_line_that_swallows_everything_is_told_on_both_sides_and_nothing_is_called_level(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 89: all that the secondary has heard of is applied, and its connection stands."""
    monkeypatch.setattr("replicate.model.contact.GRACE_LEAST_S", 0.3)
    pair.seed()
    async with servers() as running, trio.open_nursery() as nursery:
        receiver = await running.receiver(
            pair.secondary, receiver__dead_after_s=3600.0, receiver__statistics_period_s=0.1
        )
        update = running.start("update", pair.secondary, serve_update, update__statistics_period_s=0.1)
        relay = Relay(int(receiver.facts["listen"].rpartition(":")[2]))
        await nursery.start(relay.run)
        point(pair.primary, "west", relay.port)
        source = running.source(pair.primary, source__dead_after_s=3600.0, source__statistics_period_s=0.1)
        last = await trio.to_thread.run_sync(lambda: pair.write(3))
        daemons = (source, receiver, update)
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)
        await wait_until_async(lambda: not any(daemon.context.missing() for daemon in daemons), what="all are ready")
        await wait_until_async(lambda: [figure(daemon, "lag_seconds") for daemon in daemons] == [0.0] * 3)
        relay.is_frozen = True
        await trio.to_thread.run_sync(lambda: pair.write(3))
        await wait_until_async(lambda: all(daemon.context.missing() for daemon in daemons), what="none is ready")
        for daemon, silent in ((source, "the peer is silent"), (receiver, "the source is silent")):
            await wait_until_async(lambda d=daemon, s=silent: s in d.context.text, what=silent)  # type: ignore[misc]
            assert {level for level, event, _ in daemon.log.lines if event == silent} == {"warning"}
            found = daemon.log.events
            await wait_until_async(lambda f=found: f("statistics")[-1]["silent_s"] > 0)  # type: ignore[misc]
            assert found("statistics")[-1]["cut_s"] == 0
        for daemon in (receiver, update):
            known = ("known_state", "lag_seconds", "backlog_transactions")
            assert [figure(daemon, name) for name in known] == [0, None, None]
            assert (figure(daemon, "lag_at_least_seconds") or 0) > 0.5
            await wait_until_async(
                lambda d=daemon: d.log.events("statistics")[-1]["lag_s"] is None,  # type: ignore[misc]
                what="the log tells it",
            )
            line = daemon.log.events("statistics")[-1]
            assert line["lag_at_least_s"] > 0.5
            assert (line["backlog_max"], line["backlog_at_least_max"]) == (None, 0)
        assert (receiver.facts["lag_s"], figure(receiver, "source_backlog_transactions")) == (None, None)
        assert "has not said for" in receiver.context.missing()
        assert figure(source, "known_state") == 0
        assert (figure(source, "lag_seconds") or 0) > 0
        relay.is_frozen = False
        await wait_until_async(lambda: not any(daemon.context.missing() for daemon in daemons), what="all are ready")
        await wait_until_async(lambda: [figure(daemon, "lag_seconds") for daemon in daemons] == [0.0] * 3)
        await wait_until_async(lambda: bool(receiver.log.events("the source is silent no more")))
        await wait_until_async(lambda: receiver.log.events("statistics")[-1]["backlog_max"] is not None)
        # And without its source it knows nothing at once, whatever the last heartbeat was.
        await source.stop()
        await wait_until_async(lambda: receiver.facts["is_connected"] is False)
        assert (receiver.facts["lag_s"], figure(receiver, "lag_seconds")) == (None, None)
        await wait_until_async(lambda: figure(update, "lag_seconds") is None)
        assert update.context.missing() == "no source is connected"
        assert receiver.facts["lag_at_least_s"] is not None
        await receiver.stop()
        again = await running.receiver(pair.secondary)  # since when nothing is known outlives the Receiver Server
        assert again.facts["lag_s"] is None
        assert again.facts["lag_at_least_s"] > 0
        assert again.facts["last_heard_monotonic_ns"] == again.facts["told_monotonic_ns"] > 0
        nursery.cancel_scope.cancel()


async def test_a_cut_leaves_its_trace_in_the_statistics_of_both_sides(pair: Pair) -> None:
    pair.seed()
    async with servers() as running, trio.open_nursery() as nursery:
        receiver = await running.receiver(pair.secondary, receiver__statistics_period_s=0.1)
        relay = Relay(int(receiver.facts["listen"].rpartition(":")[2]))
        await nursery.start(relay.run)
        point(pair.primary, "west", relay.port)
        source = running.source(pair.primary, source__statistics_period_s=0.1, source__hard_period_s=0.5)
        for daemon in (source, receiver):
            await wait_until_async(lambda d=daemon: not d.context.missing())  # type: ignore[misc]
            daemon.log.lines.clear()
        await relay.cut()
        for daemon in (source, receiver):
            found = daemon.log.events
            await wait_until_async(lambda f=found: sum(one["cuts"] for one in f("statistics")) == 1)  # type: ignore[misc]
            await wait_until_async(lambda f=found: any(one["cut_s"] > 0 for one in f("statistics")))  # type: ignore[misc]
            await wait_until_async(lambda f=found: f("statistics")[-1]["cut_s"] == 0)  # type: ignore[misc]
            assert {"lag_s_max", "backlog_max", "xoff", "paused_s"} <= found("statistics")[-1].keys()
        nursery.cancel_scope.cancel()


def figure(daemon: Daemon, name: str) -> float | None:
    """What /metrics would give, None where it is left out."""
    (value,) = [value for one, value in daemon.context.figures().items() if FIGURES[one].metric == name]
    return value
