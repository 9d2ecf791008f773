"""A replay at work, as others see it: status, the daemons' own, and those who want to release the region meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replicate.admin.region_release import release_region
from replicate.cli.main import run as command
from replicate.daemon.daemon import STOPPED
from replicate.daemon.files import DaemonFiles
from replicate.daemon.status_file import FAILED, DaemonStatus
from replicate.errors import AlreadyRunningError
from replicate.status.collect import collect
from tests.harness.pair import Pair, run
from tests.harness.replaying import replayed
from update_process.replay.apply import Progress


def during(pair: Pair, look: Callable[[], object]) -> None:
    """Call `look` once while a replay is at work."""
    run(pair, "UPDATE account SET balance = balance + 1")
    looked: list[object] = []

    def told(_progress: Progress) -> None:
        if not looked:
            looked.append(look())

    replayed(pair, told=told)
    assert looked


def failed(pair: Pair, name: str) -> None:
    """What a daemon that ended by an error has left."""
    files = DaemonFiles(pair.secondary.path, name)
    files.lock.make_directories()
    files.status.write(DaemonStatus(name, 1, FAILED, "failed", 1, 2, {"last_received_seqno": 7}, "CONFLICT: x", 65))


def test_status_names_the_replay_and_no_start(pair: Pair) -> None:
    failed(pair, "update")
    found: list[Any] = []
    during(pair, lambda: found.append(collect(pair.secondary)))
    (status,) = found
    assert [one.code for one in status.findings] == ["REPLAY_RUNS"]
    assert "a replay of this instance is under way (process " in status.findings[0].text
    assert status.findings[0].do.startswith("wait for its end")
    assert status.bottleneck == "the replay that is under way"
    assert not status.is_wrong
    assert [one.code for one in collect(pair.secondary).findings] == ["CONFLICT", "DAEMON_STOPPED"]


def test_the_daemons_own_status_names_it(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    failed(pair, "update")
    during(pair, lambda: command(["-i", str(pair.secondary.path), "update", "status"]))
    out = capsys.readouterr().out
    assert f"update: {STOPPED}: a replay is under way in its place, process " in out
    assert "CONFLICT" not in out


def test_a_region_is_not_released_and_nobody_says_that_a_daemon_runs(pair: Pair) -> None:
    def release() -> None:
        with pytest.raises(AlreadyRunningError, match="a replay of this instance is under way as process"):
            release_region(pair.secondary, "main", timeout_s=1)

    during(pair, release)
    assert [entry.name for entry in pair.secondary.regions] == ["main"]
