"""The question how far a Source Server is: the answer of one that runs, of none, and of one that talks nonsense."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replicate.daemon import source_progress as module
from replicate.daemon.source_progress import SentProgress, progress_facts, progress_of, read_progress
from replicate.errors import NotFoundError, TryAgainError
from replicate.instance.instance import Instance
from tests.harness.pair import Pair
from tests.harness.servers import servers
from tests.harness.waiting import wait_until_async

MEASURED = {
    "last_written_seqno": 9,
    "last_sent_seqno": 8,
    "last_received_seqno": 7,
    "last_applied_seqno": 6,
    "last_acknowledged_seqno": 5,
    "connected": True,
    "peer_update_state": "running",
    "state": "sending",
}


def test_what_is_told_is_read_again() -> None:
    facts = progress_facts(MEASURED, None)
    assert "state" not in facts
    assert read_progress(facts) == SentProgress(9, 8, 7, 6, 5, True, "running", "")
    assert read_progress(progress_facts(MEASURED, "UNREACHABLE: no")).error == "UNREACHABLE: no"


@pytest.mark.parametrize("facts", [{}, {**progress_facts(MEASURED, ""), "last_sent_seqno": "many"}])
def test_an_answer_that_makes_no_sense_is_none(facts: dict[str, object]) -> None:
    with pytest.raises(TryAgainError, match="makes no sense"):
        read_progress(facts)


def test_one_that_does_not_run_is_told_by_name(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "alpha", role="primary", name="alpha")
    with pytest.raises(NotFoundError, match=r"source-west does not run.*alpha source start --peer west"):
        progress_of(instance, "source-west")


@pytest.mark.trio
async def test_a_source_server_says_what_it_knows_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path)
    pair.seed()
    async with servers() as running:
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("last_error"))
        told = await trio.to_thread.run_sync(module.progress_of, pair.primary, "source-west")
        assert not told.is_connected
        assert told.error == source.facts["last_error"]
        assert told.last_written_seqno >= told.last_acknowledged_seqno
