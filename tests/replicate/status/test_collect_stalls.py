"""What `replicate status` says when the secondary applies nothing: a stopped Update Process, a full disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.admin.regions import add_region
from replicate.daemon.files import DaemonFiles
from replicate.daemon.status_file import SERVING, DaemonStatus
from replicate.instance.instance import Instance
from replicate.status.collect import collect
from replicate.status.report import JournalReport, findings
from replicate.status.text import lines
from tests.harness.instances import SCRIPT, insert, session_of
from tests.harness.regions import make_database

JOURNAL = JournalReport(True, 100, 100, 1, 1, 1, 1, 100, 1.0, 1.0, 10**9, "durable")


def source_says(instance: Instance, facts: dict[str, object]) -> int:
    files = DaemonFiles(instance.path, "source-west")
    fd = files.lock.acquire()
    now = time.time_ns()
    files.status.write(DaemonStatus("source-west", os.getpid(), SERVING, "sending", now, now, facts))
    return fd


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    made = Instance.create(tmp_path / "east", role="primary")
    made.register_peer("west", "127.0.0.1", 7555)
    return made


def test_a_peer_whose_update_process_does_not_run_is_no_finding_while_nothing_waits_for_it(primary: Instance) -> None:
    """It is started again, for example: a finding that comes and goes is not read any more."""
    facts = {"state": "sending", "peer_update_state": "not running", "peer_not_applying_since_wall_ns": 10**9}
    fd = source_says(primary, facts)
    try:
        found = collect(primary)
    finally:
        os.close(fd)
    assert "PEER_NOT_APPLYING" not in {f.code for f in found.findings}
    assert "    the Update Process there is not running since 1970-01-01 00:00:01 UTC" in lines(found)


@pytest.fixture
def written(primary: Instance) -> None:
    """Transactions, the last of which is number 11."""
    add_region(primary, make_database(primary.path.parent / "app.db", SCRIPT))
    with session_of(primary) as session:
        assert [insert(session, number) for number in range(9)][-1] == 11


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("state", ["not running", "not answering"])
def test_a_peer_that_applies_nothing(primary: Instance, state: str) -> None:
    facts = {
        "state": "sending",
        "last_sent_seqno": 11,
        "last_received_seqno": 11,
        "last_applied_seqno": 4,
        "peer_update_state": state,
        "peer_not_applying_since_wall_ns": 1_700_000_000 * 10**9,
    }
    fd = source_says(primary, facts)
    try:
        found = collect(primary)
        (finding,) = [f for f in found.findings if f.code == "PEER_NOT_APPLYING"]
    finally:
        os.close(fd)
    assert finding.text == f"west applies nothing since 2023-11-14 22:13:20 UTC: its Update Process is {state}"
    assert finding.is_wrong
    # Without the Source Server nobody knows.
    assert "PEER_NOT_APPLYING" not in {f.code for f in collect(primary).findings}


def test_a_peer_that_applies_is_no_finding(primary: Instance) -> None:
    facts = {"state": "sending", "peer_update_state": "running", "peer_not_applying_since_wall_ns": 0}
    fd = source_says(primary, facts)
    try:
        assert "PEER_NOT_APPLYING" not in {f.code for f in collect(primary).findings}
    finally:
        os.close(fd)


def test_a_region_that_waits_at_a_peer_is_told_while_the_peer_is_connected(primary: Instance) -> None:
    fd = source_says(primary, {"state": "sending", "peer_region_waits": True})
    try:
        found = collect(primary)
    finally:
        os.close(fd)
    assert [f.subject for f in found.findings if f.code == "REGION_WAITS"] == ["west"]
    assert "REGION_WAITS" not in {f.code for f in collect(primary).findings}  # nobody tells us now


def test_a_full_disk_says_that_what_daemons_tell_may_be_old() -> None:
    full = replace(JOURNAL, disk_percent=100.0, disk_free_bytes=0, fatal_errno=28)
    found = {f.code: f for f in findings("secondary", full, (), (), None)}
    assert "their numbers and states may be old" in found["DISK_FULL"].text
    assert "start the daemons that have stopped" in found["DISK_FULL"].do
    assert "ENOSPC, errno 28" in found["JOURNAL_FATAL"].text
    roomy = replace(full, disk_percent=96.0, disk_free_bytes=10**9)
    assert "may be old" not in " ".join(f.text for f in findings("secondary", roomy, (), (), None))
