"""Active and passive: the Source Server sleeps and wakes by order, wherever it is, and comes back in its mode."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from replicate.daemon import orders
from replicate.daemon.control import DaemonFailedError
from replicate.daemon.figures import fields
from replicate.door.recovery.opening import close_door, make_chain, open_door
from replicate.errors import FormatUnknownError
from replicate.instance.consumers import read_consumer
from replicate.instance.instance import Instance
from source_server import process as module
from tests.harness.counting import count_calls
from tests.harness.pair import Pair
from tests.harness.servers import Daemon, point, servers
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    (made.primary.path / "replicate.toml").write_text("[journal]\nsegment_bytes = 1048576\npool_bytes = 1048576\n")
    made.primary = Instance.open(made.primary.path)
    made.seed()
    door = open_door(made.primary)
    yield made
    close_door(door)


async def order(pair: Pair, passive: bool, peer: str = "west") -> dict[str, Any]:
    """As the commands do it."""
    pair.primary.set_mode(peer, passive=passive)
    answer = await trio.to_thread.run_sync(orders.give, pair.primary, f"source-{peer}", orders.FOLLOW)
    assert answer is not None
    return answer


def told(daemon: Daemon, event: str) -> list[str]:
    return [one for _, one, _ in daemon.log.lines if event in one]


def wal_pending(pair: Pair) -> bool:
    """Whether there is a WAL with more in it than its header, so that the database lacks something."""
    wal = Path(f"{pair.primary.regions[0].path}-wal")
    return wal.exists() and wal.stat().st_size > 32


async def test_it_sleeps_wakes_and_sleeps_again_and_writers_go_on(pair: Pair) -> None:
    pair.primary.set_mode("west", passive=True)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        running.start("update", pair.secondary, serve_update)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "passive" and told(source, "passive"))
        assert (source.context.text, source.facts["mode"], source.context.missing()) == ("passive", "passive", "")
        last = await trio.to_thread.run_sync(lambda: pair.write(5))
        assert told(source, "connection") == []
        assert (await order(pair, passive=False)) == {"mode": "active"}
        await wait_until_async(lambda: source.facts.get("last_acknowledged_seqno") == last)
        assert (source.facts["state"], source.facts["mode"]) == ("sending", "active")
        assert (await order(pair, passive=True)) == {"mode": "passive"}
        assert source.facts["state"] == "passive"
        known = read_consumer(pair.primary.consumers_directory, "west")
        assert known is not None
        assert known.acknowledged_seqno == last  # stored when the order is answered
        await wait_until_async(lambda: receiver.log.events("connection closed"))
        closed = receiver.log.events("connection closed")[0]
        assert (closed["reason"], closed["text"]) == ("bye", "the Source Server was deactivated")
        last = await trio.to_thread.run_sync(lambda: pair.write(5))
        assert (await order(pair, passive=False)) == {"mode": "active"}
        await wait_until_async(lambda: source.facts.get("last_acknowledged_seqno") == last)


async def test_what_it_flushes_is_in_the_database(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        connection = pair.connect()  # stays, so that the last one out is none of the writers
        try:
            for number in range(1000, 1003):
                connection.execute("INSERT INTO account(owner, note) VALUES (?, ?)", (number, "x" * 3000))
                connection.commit()
            path = pair.primary.regions[0].path
            assert wal_pending(pair)
            before = path.read_bytes()
            assert b"x" * 1000 not in before
            await order(pair, passive=True)
            assert b"x" * 1000 in path.read_bytes()
            connection.execute("INSERT INTO account(owner, note) VALUES (?, ?)", (2000, "y" * 3000))
            connection.commit()
            await source.stop()
            assert b"y" * 1000 in path.read_bytes()  # a stop of a passive one flushes, too
        finally:
            connection.close()


@pytest.mark.slow
async def test_in_the_middle_of_the_stream(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__pool_bytes=16 << 20)
        running.start("update", pair.secondary, serve_update)
        last = await trio.to_thread.run_sync(lambda: pair.write(1500, size=3000))
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary, source__batch_bytes=4096)
        for _ in range(6):
            await wait_until_async(lambda: source.facts.get("state") == "sending")
            assert (await order(pair, passive=True)) == {"mode": "passive"}
            assert (await order(pair, passive=False)) == {"mode": "active"}
        await wait_until_async(lambda: source.facts.get("last_acknowledged_seqno") == last)
    assert [row[0] for row in pair.rows("account", pair.secondary)] == [row[0] for row in pair.rows("account")]


async def test_while_the_peer_has_asked_for_a_pause(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__pool_bytes=4 << 20)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        last = await trio.to_thread.run_sync(lambda: pair.write(60, size=100_000))
        await wait_until_async(lambda: source.facts.get("state") == "waiting for XON")
        assert (await order(pair, passive=True)) == {"mode": "passive"}
        assert source.facts["state"] == "passive"
        await wait_until_async(lambda: receiver.facts.get("state") == "waiting for a connection")
        running.start("update", pair.secondary, serve_update)
        assert (await order(pair, passive=False)) == {"mode": "active"}
        await wait_until_async(lambda: source.facts.get("last_acknowledged_seqno") == last)


async def test_towards_a_dead_peer_and_twice(pair: Pair) -> None:
    async with servers() as running:
        point(pair.primary, "west", 1)
        source = running.source(pair.primary, source__hard_tries=0, source__soft_period_s=3600.0)

        def is_waiting_for_an_hour() -> bool:
            return "UNREACHABLE" in str(source.facts.get("last_error"))

        for number in (1, 2):
            await wait_until_async(is_waiting_for_an_hour)
            assert len(told(source, "soft connection attempt failed")) == number
            assert (await order(pair, passive=True)) == {"mode": "passive"}
            assert source.facts["last_error"] is None
            assert (await order(pair, passive=True)) == {"mode": "passive"}
            assert (await order(pair, passive=False)) == {"mode": "active"}
        await wait_until_async(is_waiting_for_an_hour)
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        assert (await order(pair, passive=False)) == {"mode": "active"}  # again: the hour is cut short
        await wait_until_async(lambda: source.facts.get("state") == "sending")


async def test_while_a_peer_does_not_say_hello(pair: Pair) -> None:
    async with servers() as running:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        async with listener:
            point(pair.primary, "west", listener.socket.getsockname()[1])
            source = running.source(pair.primary, source__connect_timeout_s=3600.0)
            async with await listener.accept():
                assert (await order(pair, passive=True)) == {"mode": "passive"}
                assert source.facts["state"] == "passive"


async def test_it_comes_back_in_its_mode(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        await order(pair, passive=True)
        await source.stop()
        assert source.context.text == "stopped"
        point(pair.primary, "west", receiver)  # an address that is given again changes no mode
        again = running.source(pair.primary)
        await wait_until_async(lambda: told(again, "passive"))
        assert told(again, "connection") == []


async def test_a_passive_one_prunes_and_keeps_what_its_peer_needs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRUNE_PERIOD_S", 0.2)
    prunings = count_calls(monkeypatch, module, "prune_journal")
    pair.primary.set_mode("west", passive=True)
    async with servers() as running:
        source = running.source(pair.primary)
        await wait_until_async(lambda: told(source, "passive"))
        await trio.to_thread.run_sync(lambda: pair.write(60, size=60_000))
        await wait_until_async(prunings.since_now(2))
        assert len(make_chain(pair.primary).first_seqnos()) == 4
        pair.acknowledge()  # as if it had got it some other way
        await wait_until_async(lambda: len(make_chain(pair.primary).first_seqnos()) <= 2)
        assert source.facts["state"] == "passive"


async def test_statistics_and_metrics_say_the_mode(pair: Pair) -> None:
    pair.primary.set_mode("west", passive=True)
    async with servers() as running:
        source = running.source(pair.primary, source__statistics_period_s=0.1)
        await wait_until_async(lambda: source.log.events("statistics"))
        line = source.log.events("statistics")[-1]
        assert (line["mode"], line["state"], line["cut_s"]) == ("passive", "passive", 0.0)
        found = source.context.figures()
        assert found["passive"] is True
        assert "passive" not in fields("source", found)
        await order(pair, passive=False)
        assert source.context.figures()["passive"] is False


async def test_what_is_no_order_is_told_and_harms_nothing(pair: Pair, tmp_path: Path) -> None:
    pair.primary.set_mode("west", passive=True)
    assert orders.give(pair.primary, "source-west", orders.FOLLOW) is None
    async with servers() as running:
        source = running.source(pair.primary)
        await wait_until_async(lambda: told(source, "passive"))
        with pytest.raises(DaemonFailedError, match=r"FORMAT_UNKNOWN.*no such order.*dance") as caught:
            await trio.to_thread.run_sync(orders.give, pair.primary, "source-west", "dance")
        assert caught.value.own_exit_code == FormatUnknownError.exit_code
        socket = pair.primary.run_directory / "source-west.socket"
        assert socket.stat().st_mode & 0o777 == 0o600
        for line, code in ((b"what\n", "USAGE"), (b'{"format": 2, "order": "follow"}\n', "FORMAT_UNKNOWN"), (b"", "")):
            async with await trio.open_unix_socket(os.fspath(socket)) as stream:
                await stream.send_all(line)
                if code:
                    assert json.loads(await stream.receive_some())["error"].startswith(code)
        pair.primary.unregister_peer("west")
        with pytest.raises(DaemonFailedError, match="no peer 'west'"):
            await trio.to_thread.run_sync(orders.give, pair.primary, "source-west", orders.FOLLOW)
        assert source.facts["state"] == "passive"
