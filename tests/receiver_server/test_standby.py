"""A Receiver Server on a primary refuses by name, and its Source Server makes no noise about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replicate.instance.instance import Instance
from source_server import process as source_process
from tests.harness.pair import Pair
from tests.harness.servers import point, servers
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio


async def test_a_source_is_refused_by_name_tries_on_without_noise_and_is_let_in_after_a_change(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_process, "PRIMARY_THERE_S", 0.05)
    other = Instance.create(tmp_path / "other", role="primary", name="other", network=pair.primary.content.network)
    pair.primary.register_peer("other", "127.0.0.1", 1)
    async with servers() as running:
        standby = await running.receiver(other)
        assert standby.context.text == "standing by: this instance is primary"
        point(pair.primary, "other", standby)
        source = running.source(pair.primary, "other")
        await wait_until_async(lambda: source.facts.get("state") == "passive: other is primary")
        assert source.facts["mode"] == "active"
        assert "WRONG_ROLE: other is primary" in source.facts["last_error"]
        for _ in range(3):
            refused = source.context.figures()["refused_connections"]["WRONG_ROLE"]
            await wait_until_async(lambda n=refused: source.context.figures()["refused_connections"]["WRONG_ROLE"] > n)
        met = [event for level, event, _ in source.log.lines if level == "warning"]
        assert met == ["another primary was met"], "once"
        assert len(source.log.events("connection closed")) == 1
        assert [line["reason"] for line in standby.log.events("connection refused")] == ["WRONG_ROLE"]
        met = [event for level, event, _ in standby.log.lines if level in ("warning", "error")]
        assert met == ["another primary was met"], "once"
        address = standby.facts["listen"]
        await standby.stop()
        assert standby.context.text == "stopped"
        # What an operator does after a change of roles, by systemd or by hand: it is started again, as it is.
        await wait_until_async(lambda: "UNREACHABLE" in str(source.facts["last_error"]))
        await running.receiver(pair.secondary, receiver__listen=address)
        await wait_until_async(lambda: source.log.events("connection closed")[-1]["reason"] != "WRONG_ROLE")


async def test_strangers_hear_nothing_and_a_crowd_is_bounded(pair: Pair) -> None:
    async with servers() as running:
        standby = await running.receiver(
            pair.primary, receiver__connections_per_address_max=2, receiver__connections_max=4,
            receiver__hello_timeout_s=30.0,
        )  # fmt: skip
        port = int(standby.facts["listen"].rpartition(":")[2])
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(5)]
        await wait_until_async(lambda: standby.log.events("connection refused"))
        await streams[-1].send_all(b"GET / HTTP/1.1\r\n\r\n" * 20)
        said = b""
        with trio.move_on_after(30):
            while piece := await streams[-1].receive_some():
                said += piece
        assert b"WRONG_ROLE" not in said
        assert pair.primary.name.encode() not in said
        for stream in streams:
            await stream.aclose()


async def test_an_update_process_on_a_primary_sleeps(pair: Pair) -> None:
    async with servers() as running:
        update = running.start("update", pair.primary, serve_update)
        await wait_until_async(lambda: update.context.text == "standing by: this instance is primary")
        assert (update.context.state, update.context.missing()) == ("serving", "")
        await update.stop()
        assert update.context.text == "stopped"
