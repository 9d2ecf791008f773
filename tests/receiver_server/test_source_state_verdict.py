"""A source's refusal is kept for `rollback`, and goes when a source serves this secondary again: with real daemons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from receiver_server.source_state import SourceState
from replicate.cli import main
from replicate.instance.instance import Instance
from replicate.roles.change_of_role import become_secondary
from replicate.roles.source_refusal import look_at_verdict, note_verdict
from tests.harness.counting import count_calls
from tests.harness.pair import assert_equal
from tests.harness.servers import point, servers
from tests.harness.sites import Sites
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio


async def test_refused_rolled_back_by_what_was_said_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    sites = Sites.level(tmp_path)
    sites.write(4)
    common = sites.take_over()
    become_secondary(sites.secondary)
    old, new = Instance.open(sites.secondary.path), sites.primary
    kept = old.run_directory / "rollback.json"
    written: list[int] = []

    def noting(*given: Any) -> None:
        written.append(1)
        note_verdict(*given)

    monkeypatch.setattr("receiver_server.source_state.note_verdict", noting)
    refusals = count_calls(monkeypatch, SourceState, "was_refused")
    async with servers() as running:
        receiver = await running.receiver(old)
        point(new, "east", receiver)
        source = running.source(new, "east")
        await wait_until_async(kept.exists)
        await wait_until_async(refusals.since_now(2))
        assert len(written) == 1, "the same again is not written again"
        for daemon in (source, receiver):
            await daemon.stop()
    said = json.loads(kept.read_text())
    assert (said["source"], said["ended_by"], said["more_from"]) == ("west", "west", common + 1)
    assert main.run(["-i", str(old.path), "rollback"]) == 0, capsys.readouterr().err
    assert f"west took over after transaction {common}" in capsys.readouterr().err
    old = sites.secondary = Instance.open(old.path)
    kept.write_text(json.dumps({**said, "incarnation": old.content.incarnation}))
    assert look_at_verdict(old) is not None
    last = sites.last_seqno(new)
    async with servers() as running:
        receiver = await running.receiver(old)
        running.start("update", old, serve_update)
        point(new, "east", receiver)
        running.source(new, "east")
        await wait_until_async(lambda: receiver.facts.get("last_applied_seqno") == last)
        assert not kept.exists(), "it is served, so nothing is to be taken back"
    await trio.to_thread.run_sync(assert_equal, sites)
