"""The way to a peer that is primary, tried: what keeps a stream away is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replicate.daemon.control import DaemonFailedError
from replicate.daemon.orders import PROBE, give
from tests.harness.certificates import Authority
from tests.harness.pair import Pair
from tests.harness.ports import free_port
from tests.harness.servers import point, servers
from tests.harness.waiting import wait_until_async

pytestmark = pytest.mark.trio


async def test_it_reaches_who_is_primary_and_names_what_is_in_the_way(pair: Pair) -> None:
    """By the order that a Receiver Server gives to the passive Source Server beside it."""
    site, port = pair.secondary, free_port()
    site.register_peer(pair.primary.name, "127.0.0.1", port)
    site.set_mode(pair.primary.name, passive=True)
    daemon = f"source-{pair.primary.name}"
    async with servers() as running:
        source = running.source(site, pair.primary.name)
        await wait_until_async(lambda: source.context.state == "serving")

        async def probed() -> object:
            return await trio.to_thread.run_sync(give, site, daemon, PROBE)

        with pytest.raises(DaemonFailedError, match=f"UNREACHABLE.*{port}"):
            await probed()
        standby = await running.receiver(pair.primary, receiver__allow="somebody-else")
        point(site, pair.primary.name, standby)
        with pytest.raises(DaemonFailedError, match=r"NOT_AUTHENTICATED|receiver\.allow"):
            await probed()
        await standby.stop()
        standby = await running.receiver(pair.primary)
        point(site, pair.primary.name, standby)
        assert await probed() == {"peer": pair.primary.name, "address": standby.facts["listen"]}
        assert source.facts["state"] == "passive"
        receiver = await running.receiver(site)
        point(site, pair.primary.name, receiver)
        with pytest.raises(DaemonFailedError):
            await probed()


async def test_a_certificate_that_is_taken_by_nobody_is_named(pair: Pair, tmp_path: Path) -> None:
    """Of another CA; with one of the same the way is free."""
    site = pair.secondary
    ours, others = (Authority(tmp_path / name) for name in ("ours", "others"))
    ours.install(site)
    others.install(pair.primary)
    site.register_peer(pair.primary.name, "127.0.0.1", free_port())
    site.set_mode(pair.primary.name, passive=True)

    async def probed() -> object:
        return await trio.to_thread.run_sync(give, site, f"source-{pair.primary.name}", PROBE)

    async with servers() as running:
        source = running.source(site, pair.primary.name, tls__loopback=True)
        await wait_until_async(lambda: source.context.state == "serving")
        standby = await running.receiver(pair.primary, receiver__allow=site.name, tls__loopback=True)
        point(site, pair.primary.name, standby)
        with pytest.raises(DaemonFailedError, match="certificate"):
            await probed()
        await standby.stop()
        ours.install(pair.primary)
        standby = await running.receiver(pair.primary, receiver__allow=site.name, tls__loopback=True)
        point(site, pair.primary.name, standby)
        assert await probed() == {"peer": pair.primary.name, "address": standby.facts["listen"]}
