"""The receive pool of a supplier is taken away while one source streams and another one comes, as a restoration has it:
nothing that the first one has put there is missed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import receiver_server.process as module
from replicate.model.ruv import covers
from replicate.pool.shared_memory import PoolKind, retire
from tests.harness.servers import point, servers
from tests.harness.suppliers import Suppliers
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio


async def test_a_source_that_streams_begins_again_when_another_one_finds_the_pool_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setattr(module, "POOL_LOOK_S", 3600.0)  # so that the other source looks first
    three = await trio.to_thread.run_sync(lambda: Suppliers.create(tmp_path, 3))
    site = three.by["b"]
    async with servers() as running:
        receiver = await running.receiver(site)
        for name in ("a", "c"):
            point(three.by[name], "b", receiver)
        first = running.source(three.by["a"], "b")
        await trio.to_thread.run_sync(lambda: three.write("a", 5))
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == three.last_seqno("a"))
        await trio.to_thread.run_sync(retire, PoolKind.RECEIVE, site.content.uuid)
        other = running.source(three.by["c"], "b")
        await wait_until_async(lambda: other.facts.get("state") == "sending", what="the other one streams")
        await wait_until_async(lambda: first.facts.get("state") == "sending", what="the first one does")
        await trio.to_thread.run_sync(lambda: (three.write("c", 5), three.write("a", 5)))
        running.start("update", site, serve_update)
        for name in ("a", "c"):
            await wait_until_async(lambda name=name: covers(three.vector("b"), three.vector(name)), what="all is here")
        assert len(receiver.log.events("receive pool made again")) == 1
    assert [len(three.rows("b")[table]) for table in ("ta", "tc")] == [10, 5]
