"""What `replicate status` says on a secondary of what nobody knows now: never that all is level (fault 89)."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicate.admin.region_release import release_region
from replicate.cli.main import run
from replicate.daemon.files import DaemonFiles
from replicate.daemon.status_file import DaemonStatus
from replicate.instance.instance import Instance
from replicate.limits import MIB
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, SharedMemory
from replicate.status.collect import collect
from replicate.status.report import ReceivingReport, Status
from replicate.status.text import lines
from tests.harness.instances import insert, make_primary, session_of
from tests.replicate.status.test_collect import heard, says

LEVEL: dict[str, Any] = {
    "is_connected": True,
    "source": "east",
    "source_last_seqno": 30,
    "last_received_seqno": 30,
    "pool_percent": 0.0,
    "lag_s": 0.0,
    "heartbeat_period_s": 15.0,
}
CUT: dict[str, Any] = {**LEVEL, "is_connected": False, "lag_s": None, "lag_at_least_s": 0.1}


@pytest.fixture
def west(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """A secondary whose databases hold transactions up to 30."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setattr("replicate.journal.space.fill_percent", lambda disk: 30.0)
    made = Instance.create(tmp_path / "west", role="secondary", network=b"n" * 16)
    made.register_region("main", b"r" * 16, tmp_path / "gone.db")
    memory = SharedMemory.create(PoolKind.JOURNAL, made.content.uuid, configured_bytes=MIB, minimum_bytes=MIB)
    memory.words[word.LAST_SEQNO] = 30
    memory.mark_ready()
    yield made
    memory.close()


def look(west: Instance, facts: dict[str, Any], *, killed: bool = False) -> tuple[Status, ReceivingReport]:
    """`killed`: the Receiver Server has written this, and has been killed since."""
    fds = [says(west, "receiver", facts), says(west, "update", {})]
    try:
        if killed:
            os.close(fds.pop(0))
        found = collect(west)
    finally:
        for fd in fds:
            os.close(fd)
    assert found.receiving is not None
    return found, found.receiving


def codes(found: Status) -> set[str]:
    return {finding.code for finding in found.findings if finding.is_wrong} - {"REGION_UNREADABLE"}


@pytest.mark.parametrize("age_s", [0.0, 14.0, 18.0])
def test_a_pair_that_is_idle_and_heard_is_level(west: Instance, age_s: float) -> None:
    found, receiving = look(west, {**LEVEL, **heard(age_s)})
    assert (receiving.backlog, receiving.lag_s, receiving.backlog_at_least) == (0, 0.0, 0)
    assert (receiving.backlog_unknown_since, receiving.is_silent, found.bottleneck) == (None, False, "")
    assert receiving.last_heard is not None
    assert codes(found) == set()
    assert "bottleneck: none, everything is level" in "\n".join(lines(found))


def test_a_line_that_swallows_everything_is_told_of_while_its_connection_stands(west: Instance) -> None:
    found, receiving = look(west, {**LEVEL, **heard(57.0)})
    assert (receiving.backlog, receiving.lag_s, receiving.backlog_at_least) == (None, None, 0)
    assert receiving.lag_at_least_s is not None
    assert receiving.lag_at_least_s >= 57
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", receiving.backlog_unknown_since or "")
    assert receiving.last_heard == receiving.backlog_unknown_since
    assert codes(found) == {"SOURCE_SILENT"}
    assert found.bottleneck == "the connection from east: nothing comes over it"
    text = "\n".join(lines(found))
    assert re.search(r"source east: silent, last heard \d\d:\d\d:\d\d UTC, \d+\.\d s ago\n", text)
    assert "written 30 or more; received 30, applied 30" in text
    assert re.search(r"backlog unknown since \d\d:\d\d:\d\d UTC; lag at least \d+\.\d s\n", text)


def test_the_finding_says_on_which_host_the_primary_is(west: Instance) -> None:
    found, _ = look(west, {**LEVEL, **heard(57.0), "source_host": "192.0.2.1"})
    (do,) = (finding.do for finding in found.findings if finding.code == "SOURCE_SILENT")
    assert do.endswith("replicate -i east status (east is on host 192.0.2.1, by its name or its directory there)")


def test_of_several_sources_the_silent_one_is_named(west: Instance) -> None:
    """The others are heard, and what that one has written is not known."""
    each = {"is_connected": True, "last_seqno": 30, "last_received_seqno": 30, "last_applied_seqno": 30}
    several = [{"name": "b", "silent_s": 57.0, **each}, {"name": "c", "silent_s": None, **each}]
    west.change_role("primary", is_supplier=True)
    found, receiving = look(west, {**LEVEL, **heard(0.5), "source": "b, c", "suppliers": several})
    (silent,) = (finding for finding in found.findings if finding.code == "SOURCE_SILENT")
    assert (silent.text.partition(":")[0], silent.subject) == ("b has said nothing for 57 s", "b")
    assert "there: replicate -i b status" in silent.do
    assert (receiving.backlog, receiving.is_silent) == (None, False)
    text = "\n".join(lines(found))
    assert "from b: written 30; received 30, applied 30, silent\n" in text
    assert "from c: written 30; received 30, applied 30\n" in text
    found, _ = look(west, {**LEVEL, **heard(57.0), "source": "b, c", "suppliers": several})
    assert [one.subject for one in found.findings if one.code == "SOURCE_SILENT"] == ["b", "c"]


def test_the_command_ends_with_1_and_its_json_is_null_where_nobody_knows(
    west: Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    fds = [says(west, "receiver", {**LEVEL, **heard(57.0)}), says(west, "update", {})]
    try:
        assert run(["-i", str(west.path), "status", "--json"]) == 1
    finally:
        for fd in fds:
            os.close(fd)
    told = json.loads(capsys.readouterr().out)["receiving"]
    assert (told["backlog"], told["lag_s"], told["backlog_at_least"], told["is_silent"]) == (None, None, 0, True)
    assert told["lag_at_least_s"] >= 57


@pytest.mark.parametrize("age_s", [0.5, 57.0])
def test_a_source_that_was_killed_leaves_nothing_known_at_once(west: Instance, age_s: float) -> None:
    found, receiving = look(west, {**CUT, **heard(age_s)})
    assert (receiving.backlog, receiving.lag_s, receiving.is_silent) == (None, None, False)
    assert receiving.lag_at_least_s is not None
    assert receiving.lag_at_least_s >= age_s
    assert codes(found) == {"NO_SOURCE"}
    assert found.bottleneck == "the connection: no source is connected"
    assert "not connected, last heard" in "\n".join(lines(found))


@pytest.mark.parametrize(("boot", "set_s"), [(0, -86_400.0), (0, 86_400.0), (77, 0.0)])
def test_of_a_receiver_that_was_killed_too_the_age_is_right_whatever_was_set(
    west: Instance, boot: int, set_s: float
) -> None:
    """Of this boot by the clock that nobody sets; of an earlier one by the wall clock, and since the start at least."""
    found, receiving = look(west, {**LEVEL, **heard(57.0, boot=boot, set_s=set_s)}, killed=True)
    assert (receiving.backlog, receiving.lag_s) == (None, None)
    assert receiving.last_heard_s is not None
    assert receiving.lag_at_least_s is not None
    least = 57.0 if not boot else max(57.0, time.monotonic() - 60)
    assert least <= receiving.last_heard_s < least + 3600
    assert receiving.lag_at_least_s >= 57.0
    assert codes(found) == {"DAEMON_DEAD"}


def test_a_source_that_has_never_said_how_it_stands_is_not_level(west: Instance) -> None:
    found, receiving = look(west, {**LEVEL, "source_last_seqno": None, **heard(0.1)})
    assert (receiving.backlog, receiving.lag_s) == (None, None)
    assert found.bottleneck == "not known: the source has not said lately how it stands"
    found, receiving = look(west, {**CUT, "source_last_seqno": None, "lag_at_least_s": None})
    assert (receiving.last_heard, receiving.lag_at_least_s, receiving.backlog_unknown_since) == (None, None, None)
    text = "\n".join(lines(found))
    assert "not connected, not heard yet\n" in text
    assert "backlog unknown; lag unknown\n" in text


def test_before_the_stream_has_begun_nothing_is_level(west: Instance) -> None:
    """Just after the first `update start`: the last heartbeat named what the seed has, some seconds ago."""
    found, receiving = look(west, {**LEVEL, "is_streaming": False, **heard(3.0)})
    assert (receiving.backlog, receiving.lag_s, receiving.is_silent) == (None, None, False)
    assert found.bottleneck == "not known: the source has not said lately how it stands"
    assert not codes(found)
    _, receiving = look(west, {**LEVEL, "is_streaming": True, **heard(3.0)})
    assert (receiving.backlog, receiving.lag_s) == (0, 0.0)


def test_on_a_slow_line_a_batch_is_no_silence_and_the_source_still_has_to_say_how_it_stands(west: Instance) -> None:
    """Its bytes come all the time, and the heartbeat waits for their end: to be busy is no finding."""
    found, receiving = look(west, {**LEVEL, "source_last_seqno": 90, "lag_s": None, **heard(0.1, 40.0)})
    assert (receiving.backlog, receiving.lag_s, receiving.backlog_at_least) == (None, None, 60)
    assert codes(found) == set()
    assert re.search(r"backlog unknown since \S+ UTC, at least 60; lag at least \d+\.\d s", "\n".join(lines(found)))


def test_what_the_primary_has_not_sent_has_an_age_after_the_release_of_its_last_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has the journal open then, and the Source Server has ended when all was level."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    primary = make_primary(tmp_path / "east")
    primary.register_peer("west", "127.0.0.1", 7555)
    with session_of(primary) as session:
        last = insert(session, 1)
        ended = time.time_ns()
        facts = {"state": "stopped", "last_applied_seqno": last, "lag_s": 0.0, **heard(5.0)}
        DaemonFiles(primary.path, "source-west").lock.make_directories()
        DaemonFiles(primary.path, "source-west").status.write(
            DaemonStatus("source-west", os.getpid(), "stopped", "stopped", ended, ended, facts)
        )
        assert insert(session, 2) == last + 1
        committed_s = time.time()
    release_region(Instance.open(primary.path), "main", timeout_s=5, force=True)
    least_s = time.time() - committed_s
    status = collect(Instance.open(primary.path))
    (peer,) = status.peers
    assert (status.journal.is_open, peer.backlog) == (False, 1)
    assert peer.lag_s is not None
    assert least_s <= peer.lag_s < least_s + 3600
    assert re.search(r"backlog 1, lag (?!0\.0)\S+ s", "\n".join(lines(status)))
