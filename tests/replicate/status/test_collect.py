"""status/collect.py, status/report.py, status/text.py: what is collected, what follows from it, and how it reads."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.cli.main import run
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_heard import now as this_moment
from replicate.daemon.status_file import DaemonStatus
from replicate.errors import ERRORS
from replicate.instance.consumers import Consumer, write_consumer
from replicate.instance.instance import Instance
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.limits import MIB
from replicate.model.findings import CODES, SEVERITIES, FindingKind, explained
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, SharedMemory
from replicate.status.bottleneck import bottleneck
from replicate.status.collect import collect
from replicate.status.report import (
    DaemonReport,
    JournalReport,
    PeerReport,
    ReceivingReport,
    RegionReport,
    Status,
    each_once,
    findings,
)
from replicate.status.text import lines
from replicate.wire.introduction import refusal_from_peer
from replicate.wire.message import Refuse, RefuseCode
from tests.harness.instances import insert, make_primary, session_of
from tests.harness.manual import chapter
from tests.harness.regions import make_database

JOURNAL = JournalReport(True, 100, 100, 1, 1, 1, 10, 1000, 1.0, 10.0, 1000, "durable")
RUNS = DaemonReport("source-west", "serving", 1, "sending")
STOPPED = DaemonReport("source-west", "stopped", 1, "stopped")
PEER = PeerReport("west", "h:1", RUNS, True, False, 100, 100, 100, 100, 0, 0, 0, 0.0, 99, 1, "", False)
RECEIVING = ReceivingReport(
    replace(RUNS, name="receiver"), replace(RUNS, name="update"), True, "east", 100, 100, 100, 100, 0, 0, 0.0, 1.0
)
REGION = RegionReport("main", "/x", 100)


@pytest.mark.parametrize(
    ("percent", "severity", "mark"),
    [
        (69.9, None, ""),
        (70.0, "warning", "70 %"),
        (85.0, "warning", "85 %"),
        (94.9, "warning", "85 %"),
        (95.0, "error", "95 %"),
    ],
)
def test_cap_and_disk_are_warned_of_in_time(percent: float, severity: str | None, mark: str) -> None:
    for journal in (replace(JOURNAL, cap_percent=percent), replace(JOURNAL, disk_percent=percent)):
        found = findings("primary", journal, (REGION,), (PEER,), None)
        assert [f.severity for f in found] == ([severity] if severity else [])
        assert all(mark in f.text and f.do for f in found)


def test_an_archive_that_lags_and_a_peer_that_needs_it_are_named() -> None:
    journal = replace(JOURNAL, archive="/srv/archive", archived_seqno=40, archive_lag_bytes=2**20)
    assert not findings("primary", journal, (REGION,), (PEER,), None)
    behind = replace(journal, unarchived_bytes=3 * 2**20, first_kept_seqno=90)
    found = findings("primary", behind, (REGION,), (PEER, replace(PEER, name="south", last_durable_seqno=88)), None)
    assert [(f.code, f.subject) for f in found] == [("PEER_NEEDS_ARCHIVE", "south"), ("ARCHIVE_LAGS", "")]
    assert "needs transaction 89; the journal begins with 90" in found[0].text
    assert found[0].do.endswith("replay --journal /srv/archive")
    assert "3 MiB of finished journal after transaction 40" in found[1].text
    assert not findings("primary", behind, (REGION,), (replace(PEER, last_durable_seqno=89),), None)[1:]


def test_findings_name_the_command_and_errors_come_first() -> None:
    dead = replace(RUNS, state="dead", text="was serving")
    found = findings(
        "primary",
        replace(JOURNAL, fatal_errno=5),
        (replace(REGION, problem="REGION_REPLACED: …"),),
        (
            replace(PEER, source=STOPPED, needs_seed=True),
            replace(PEER, is_connected=False, last_error="UNREACHABLE: x", is_paused=True),
            replace(PEER, source=dead),
        ),
        None,
    )
    severities = [f.severity for f in found]
    assert severities == ["error"] * 4 + ["warning"] * 3
    text = "\n".join(f"{f.text} → {f.do}" for f in found)
    for part in (
        "errno 5",
        "REGION_REPLACED",
        "was dropped",
        "source start --peer west",
        "UNREACHABLE",
        "XOFF",
        "dead: was",
    ):
        assert part in text
    stopped = replace(RECEIVING, receiver=replace(STOPPED, name="receiver"), update=replace(dead, name="update"))
    text = "\n".join(f"{f.text} → {f.do}" for f in findings("secondary", JOURNAL, (), (), stopped))
    for part in ("receiver does not run", "receiver start", "update dead", "update start", "INSTANCE seed"):
        assert part in text
    waiting = findings("secondary", JOURNAL, (REGION,), (), replace(RECEIVING, is_connected=False))
    assert [f.severity for f in waiting] == ["warning"]
    assert [f.severity for f in findings("primary", JOURNAL, (), (), None)] == ["info", "info"]


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(shm))
    monkeypatch.setattr("replicate.journal.space.fill_percent", lambda disk: 30.0)  # however full the host's disk is
    return Instance.create(tmp_path / "east", role="primary")


@pytest.fixture
def words(instance: Instance) -> Iterator[memoryview]:
    memory = SharedMemory.create(
        PoolKind.JOURNAL, instance.content.uuid, configured_bytes=1 * MIB, minimum_bytes=1 * MIB
    )
    memory.mark_ready()
    yield memory.words
    memory.close()


def says(instance: Instance, name: str, facts: dict[str, Any]) -> int:
    files = DaemonFiles(instance.path, name)
    fd = files.lock.acquire()
    files.status.write(DaemonStatus(name, os.getpid(), "serving", str(facts.get("state", "")), 1, 2, facts))
    return fd


def heard(age_s: float, told_s: float | None = None, *, boot: int = 0, set_s: float = 0.0) -> dict[str, Any]:
    """What a daemon notes of the other side, last heard (and, where that is another time, told) so long ago.
    `set_s`: the wall clock was set on by so much since."""
    now = this_moment()
    ns = int(age_s * 1e9)
    told_ns = int((age_s if told_s is None else told_s) * 1e9)
    return {
        "last_heard_monotonic_ns": now.monotonic_ns - ns,
        "last_heard_wall_ns": now.wall_ns - ns - int(set_s * 1e9),
        "told_monotonic_ns": now.monotonic_ns - told_ns,
        "boot": boot or now.boot,
    }


def test_an_instance_that_nobody_has_opened(instance: Instance) -> None:
    status = collect(instance)
    assert (status.journal.is_open, status.journal.last_written_seqno, status.journal.last_durable_seqno) == (
        False,
        0,
        0,
    )
    assert not status.is_wrong
    assert status.bottleneck == ""
    text = "\n".join(lines(status))
    assert "last written 0, durable 0" in text
    assert "there is no region yet" in text
    assert text.isascii()


def test_a_journal_tells_its_end_when_the_last_region_is_gone_and_nobody_has_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    primary = make_primary(tmp_path / "east")
    with session_of(primary) as session:
        last = [insert(session, number) for number in range(5)][-1]
    release_region(Instance.open(primary.path), "main", timeout_s=5)
    status = collect(Instance.open(primary.path))
    journal = status.journal
    assert (journal.is_open, journal.last_written_seqno, journal.last_durable_seqno) == (False, last, last)
    assert (status.regions, last) == ((), 7)  # the history, the region, five rows
    # What the journal's own mark does not vouch for is not called durable.
    DurableSidecar.create(primary.journal_directory / SIDECAR_NAME, last - 2).close()
    journal = collect(Instance.open(primary.path)).journal
    assert (journal.last_written_seqno, journal.last_durable_seqno) == (last, last - 2)
    (primary.journal_directory / SIDECAR_NAME).unlink()
    status = collect(Instance.open(primary.path))
    assert status.journal.last_durable_seqno is None
    assert [f.code for f in status.findings if f.severity == "error"] == ["JOURNAL_UNREADABLE"]
    assert "durable unknown" in "\n".join(lines(status))


def test_primary(instance: Instance, words: memoryview) -> None:
    now = time.time_ns()
    words[word.LAST_SEQNO] = 500
    words[word.LAST_DURABLE_SEQNO] = 490
    words[word.LAST_COMMIT_WALL_NS] = now - 3_000_000_000
    (instance.journal_directory / f"{101:020d}.journal").write_bytes(b"x" * 8192)
    (instance.journal_directory / f"{301:020d}.journal").write_bytes(b"x" * 8192)
    (instance.journal_directory / "durable").write_bytes(b"x")
    instance.register_peer("west", "127.0.0.1", 7555)
    instance.register_peer("north", "127.0.0.1", 7556)
    write_consumer(instance.consumers_directory, Consumer("west", 400))
    facts = {
        "state": "sending",
        "last_sent_seqno": 480,
        "last_received_seqno": 470,
        "last_applied_seqno": 450,
        "transactions_from_pool": 99,
        "transactions_from_files": 1,
    }
    fd = says(instance, "source-west", facts)
    try:
        status = collect(instance)
    finally:
        os.close(fd)
    journal = status.journal
    assert (journal.last_written_seqno, journal.last_durable_seqno, journal.first_kept_seqno) == (500, 490, 101)
    assert journal.segments == 2
    west, north = status.peers
    assert (west.is_connected, west.last_applied_seqno, west.last_durable_seqno) == (True, 450, 400)
    assert (west.source_backlog, west.receiver_backlog, west.backlog) == (20, 20, 50)
    assert west.lag_s is not None
    assert 3.0 <= west.lag_s < 60
    assert (north.backlog, north.lag_s, north.last_applied_seqno) == (None, None, None)
    assert status.bottleneck == "the Source Server for north: it does not run"
    assert status.is_wrong
    text = "\n".join(lines(status))
    assert "  peer west: connected, not heard yet; 127.0.0.1:7555\n" in text
    assert "    written 500, sent 480; received 470, applied 450, durable 400\n" in text
    assert re.search(r"^    backlog 50, lag \d+\.\d s$", text, flags=re.MULTILINE)
    assert "  peer north: not connected, not heard yet; 127.0.0.1:7556\n" in text
    assert "    written 500, sent unknown; received unknown, applied unknown, durable 0\n" in text
    assert "    backlog unknown, lag unknown\n" in text
    assert "read 99 from the pool, 1 from files" in text
    assert "source start --peer north" in text


def test_what_was_sent_since_the_journal_was_looked_at_is_written_and_is_backlog(
    instance: Instance, words: memoryview
) -> None:
    words[word.LAST_SEQNO] = words[word.LAST_DURABLE_SEQNO] = 742
    instance.register_peer("west", "127.0.0.1", 7555)
    facts = {"state": "sending", "last_sent_seqno": 807, "last_received_seqno": 789, "last_applied_seqno": 787}
    fd = says(instance, "source-west", facts)
    try:
        status = collect(instance)
    finally:
        os.close(fd)
    (west,) = status.peers
    assert (west.source_backlog, west.receiver_backlog, west.backlog) == (0, 2, 20)
    assert "    written 807, sent 807; received 789, applied 787, durable 0\n" in "\n".join(lines(status))


def test_peer_that_is_level_has_no_lag_however_quiet_it_is(instance: Instance, words: memoryview) -> None:
    words[word.LAST_SEQNO] = 7
    words[word.LAST_COMMIT_WALL_NS] = 1
    instance.register_peer("west", "127.0.0.1", 7555)
    fd = says(instance, "source-west", {"state": "sending", "last_applied_seqno": 7, "lag_s": 12.0})
    try:
        status = collect(instance)
    finally:
        os.close(fd)
    assert (status.peers[0].backlog, status.peers[0].lag_s, status.bottleneck) == (0, 0.0, "")


RETIRED = refusal_from_peer(Refuse(RefuseCode.RETIRED, "east is gone for good, as west was told"), "west")


@pytest.mark.parametrize(
    ("error", "codes"),
    [("SEED_NEEDED: x", ["PEER_NOT_CONNECTED"]), (str(RETIRED), ["SUPPLIER_RETIRED"]), ("", [])],
)
def test_a_refused_peer_is_not_level_for_the_moment_in_which_it_is_tried_again(
    instance: Instance, words: memoryview, error: str, codes: list[str]
) -> None:
    instance.register_peer("west", "127.0.0.1", 7555)
    fd = says(instance, "source-west", {"state": "waiting for restart", "last_applied_seqno": 0, "last_error": error})
    try:
        status = collect(instance)
    finally:
        os.close(fd)
    assert [finding.code for finding in status.findings if finding.subject == "west"] == codes


def test_measured_lag_counts_when_the_newest_commit_is_young(instance: Instance, words: memoryview) -> None:
    words[word.LAST_SEQNO] = 8
    words[word.LAST_COMMIT_WALL_NS] = time.time_ns()
    instance.register_peer("west", "127.0.0.1", 7555)
    fd = says(instance, "source-west", {"state": "waiting for XON", "last_applied_seqno": 7, "lag_s": 3600.0})
    try:
        status = collect(instance)
    finally:
        os.close(fd)
    assert status.peers[0].lag_s == 3600.0
    assert "receive pool is full" in status.bottleneck


@pytest.mark.parametrize(("measured", "told"), [(2.5, 2.5), (0.0, 0.001)])
def test_a_running_daemons_measure_counts_when_the_wall_clock_is_set(
    instance: Instance, words: memoryview, measured: float, told: float
) -> None:
    """A day ahead: the newest commit looks a day old. (0.0: what is behind now came after it looked.)"""
    words[word.LAST_SEQNO] = 8
    words[word.LAST_COMMIT_WALL_NS] = time.time_ns() - 86_400 * 1_000_000_000
    instance.register_peer("west", "127.0.0.1", 7555)
    fd = says(instance, "source-west", {"state": "sending", "last_applied_seqno": 7, "lag_s": measured})
    try:
        assert collect(instance).peers[0].lag_s == told
    finally:
        os.close(fd)
    lag_s = collect(instance).peers[0].lag_s
    assert lag_s is not None
    assert lag_s > 86_000  # it has died, and nobody else knows better


def test_a_peer_that_has_said_nothing_for_long_is_told_of_while_its_connection_stands(
    instance: Instance, words: memoryview
) -> None:
    """By the monotonic clock, and from a heartbeat and a grace on (here of fifteen seconds)."""
    instance.register_peer("west", "127.0.0.1", 7555)
    for age_s, state, told in ((1, "sending", False), (17, "sending", False), (40, "sending", True), (40, "", False)):
        fd = says(instance, "source-west", {"state": state, "last_applied_seqno": 0, **heard(age_s)})
        try:
            status = collect(instance)
        finally:
            os.close(fd)
        found = [finding for finding in status.findings if finding.code == "PEER_SILENT"]
        assert [finding.subject for finding in found] == (["west"] if told else [])
        assert status.peers[0].is_silent == told
        if told:
            assert re.match(r"west has said nothing for 4\d s", found[0].text), found
            assert found[0].is_wrong
            assert "nothing comes over it" in status.bottleneck  # though backlog and lag are 0
            assert re.search(
                r"peer west: silent, last heard \d\d:\d\d:\d\d UTC, 4\d\.\d s ago", "\n".join(lines(status))
            )


def test_secondary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(shm))
    west = Instance.create(tmp_path / "west", role="secondary", network=b"n" * 16)
    status = collect(west)
    assert status.receiving is not None
    assert (status.receiving.receiver.state, status.receiving.backlog) == ("never started", None)
    assert status.bottleneck == "the first seed: this secondary holds nothing yet"
    (update,) = [finding for finding in status.findings if finding.subject == "update"]
    assert re.search("seed; then replicate -i .* update start$", update.do)  # which would only fail before it
    facts = {
        **heard(0),
        "is_connected": True,
        "source": "east",
        "source_last_seqno": 30,
        "last_received_seqno": 20,
        "pool_percent": 12.5,
        "lag_s": 4.0,
    }
    fds = [says(west, "receiver", facts), says(west, "update", {})]
    memory = SharedMemory.create(PoolKind.JOURNAL, west.content.uuid, configured_bytes=MIB, minimum_bytes=MIB)
    try:
        memory.words[word.LAST_SEQNO] = 15
        memory.mark_ready()
        status = collect(west)
    finally:
        memory.close()
        for fd in fds:
            os.close(fd)
    assert status.receiving is not None
    assert (status.receiving.receiver_backlog, status.receiving.backlog, status.receiving.lag_s) == (5, 15, 4.0)
    assert (status.receiving.source, status.receiving.pool_percent) == ("east", 12.5)
    assert status.bottleneck == "the first seed: this secondary holds nothing yet"
    text = "\n".join(lines(status))
    assert re.search(r"^  source east: connected, last heard \S+ UTC, \S+ s ago$", text, flags=re.MULTILINE)
    assert re.search(r"^    written 30; received 20, applied 15, durable [0-9]+\n    backlog 15, lag 4\.0 s$", text,
                     flags=re.MULTILINE)  # fmt: skip
    assert "receiver backlog 5, receive pool 12 % full" in text


@pytest.mark.parametrize(
    ("rate", "backlog", "told"),
    [
        (50.0, 6000, "backlog 6000, lag 1.0 s; 50 applied a second, level in 2 min"),
        (50.0, 0, "backlog 0, lag 1.0 s"),
        (None, 6000, "backlog 6000, lag 1.0 s"),
    ],
)
def test_what_is_said_of_the_time_was_measured_here(rate: float | None, backlog: int, told: str) -> None:
    level_in_s = None if rate is None else backlog / rate
    behind = replace(RECEIVING, backlog=backlog, lag_s=1.0, applied_per_s=rate, level_in_s=level_in_s)
    status = Status("west", "secondary", "/west", "", "", 1, 2, JOURNAL, (REGION,), (), behind, "", ())
    assert told in [line.strip() for line in lines(status, 200)]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"applied_per_s": 5.0}, (5.0, 3.0)),  # 15 are left
        ({"applied_per_s": None}, (None, None)),
        ({"applied_per_s": 0}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_the_rate_is_the_update_processs_and_the_time_follows_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], expected: tuple[float | None, float | None]
) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    west = Instance.create(tmp_path / "west", role="secondary", network=b"n" * 16)
    told = {**heard(0), "is_connected": True, "source": "east", "source_last_seqno": 15, "last_received_seqno": 15}
    fds = [says(west, "receiver", told), says(west, "update", facts)]
    try:
        receiving = collect(west).receiving
    finally:
        for fd in fds:
            os.close(fd)
    assert receiving is not None
    assert (receiving.applied_per_s, receiving.level_in_s) == expected


def test_the_sources_word_may_be_older_than_what_it_has_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    west = Instance.create(tmp_path / "west", role="secondary", network=b"n" * 16)
    fd = says(
        west,
        "receiver",
        {"is_connected": True, "source": "east", "source_last_seqno": 7, "last_received_seqno": 9, **heard(0)},
    )
    try:
        receiving = collect(west).receiving
    finally:
        os.close(fd)
    assert receiving is not None
    assert (receiving.source_last_seqno, receiving.last_received_seqno, receiving.backlog) == (9, 9, 9)


def test_what_is_broken_becomes_a_finding(instance: Instance, words: memoryview, tmp_path: Path) -> None:
    instance.register_region("main", b"r" * 16, tmp_path / "gone.db")
    instance.register_peer("west", "127.0.0.1", 7555)
    (instance.consumers_directory / "west.json").write_text("{")
    words[word.POOL_FORMAT] = 99
    status = collect(instance)
    text = "\n".join(finding.text for finding in status.findings)
    assert "gone.db" in text
    assert "consumer west is not readable" in text
    assert "format 99" in text
    assert status.regions[0].last_seqno is None


@pytest.mark.parametrize("is_mounted_so", [True, False])
@pytest.mark.parametrize("what", ["journal", "main"])
def test_what_cannot_be_written_becomes_a_finding(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, is_mounted_so: bool
) -> None:
    """Tests run as root, too, and cannot mount: the kernel's two answers are pretended."""
    database = tmp_path / "data" / "app.db"
    database.parent.mkdir()
    make_database(database)
    add_region(instance, database, name="main")
    assert "READ_ONLY" not in {finding.code for finding in collect(instance).findings}
    place = instance.journal_directory if what == "journal" else database
    real = os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        flags = os.ST_RDONLY if is_mounted_so and Path(path) == place else 0
        return os.statvfs_result([*real(path)[:8], flags, 255])

    def access(path: Path, mode: int, **_: bool) -> bool:
        return Path(path) != place or mode != os.W_OK

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(os, "access", access)
    (finding,) = [finding for finding in collect(instance).findings if finding.code == "READ_ONLY"]
    assert str(place) in finding.text
    assert finding.subject == what
    assert ("mount it read-write" if is_mounted_so else f"chmod u+w {place}") in finding.do


def test_a_wal_that_was_made_beside_a_read_only_database_is_named_too(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the mode that the database had. Once the database may be written again, the next commit met an IO error,
    and nothing had said why."""
    database = tmp_path / "data" / "app.db"
    database.parent.mkdir()
    make_database(database)
    add_region(instance, database, name="main")
    wal = Path(f"{database}-wal")
    wal.touch()
    closed = {database, wal}
    monkeypatch.setattr(os, "access", lambda path, mode, **_: Path(path) not in closed or mode != os.W_OK)

    def advice() -> list[str]:
        return [finding.do for finding in collect(instance).findings if finding.code == "READ_ONLY"]

    assert advice() == [f"chmod u+w {database} {wal}"]
    closed.remove(database)
    assert advice() == [f"chmod u+w {wal}"]


@pytest.mark.parametrize("width", [80, 60, 200])
def test_no_line_is_longer_than_the_terminal_but_for_what_is_pasted_whole(width: int) -> None:
    """With numbers as long as they get, an error of several sentences, and names that take their room."""
    large = 2**62
    error = (
        "UNREACHABLE: nobody answers: it was refused at once (ECONNREFUSED), again and again and again (ECONNREFUSED) "
        "[db2.example.com:7430]. There: replicate -i west-of-everything receiver status"
    )
    peer = replace(
        PEER, name="west-of-everything", address="db2.example.com:7430", is_connected=False, last_error=error,
        last_sent_seqno=large, last_received_seqno=large, last_applied_seqno=large, last_durable_seqno=large,
        backlog=large, lag_s=1e6, last_heard="2026-11-24 06:47:13 UTC", last_heard_s=54.2,
    )  # fmt: skip
    away = replace(
        RECEIVING, is_connected=False, source_last_seqno=large, last_received_seqno=large, last_applied_seqno=large,
        backlog=None, lag_s=None, lag_at_least_s=54.2, backlog_at_least=large,
        backlog_unknown_since="2026-11-24 06:47:13 UTC", last_heard="2026-11-24 06:47:13 UTC", last_heard_s=54.2,
    )  # fmt: skip
    found = each_once(findings("secondary", JOURNAL, (REGION,), (peer,), away))
    status = Status(
        "east", "secondary", "/x", "n", "u", 1, 0, JOURNAL, (REGION,), (peer,), away,
        bottleneck(JOURNAL, (peer,), away), found,
    )  # fmt: skip
    text = list(lines(status, width))
    for line in text:
        assert len(line) <= width or line.strip().startswith("replicate -"), line
    assert all(line == line.rstrip() and line.isascii() for line in text)
    whole = " ".join(" ".join(text).split())
    assert "backlog unknown since 06:47:13 UTC, at least 4611686018427387904; lag at least 54.2 s" in whole
    assert "peer west-of-everything: not connected, last heard 06:47:13 UTC, 54.2 s ago; db2.example.com:7430" in whole
    assert whole.count("ECONNREFUSED") == 2  # as often as the one error itself says it
    assert any("replicate -i west-of-everything receiver status" in line for line in text)


def test_an_error_that_several_findings_tell_stands_once() -> None:
    error = "REGION_REPLACED: the file is another one [/srv/shop.db]"
    failed = replace(RUNS, state="failed", error=f"{error}. Put the right one back")
    receiving = replace(RECEIVING, receiver=replace(failed, name="receiver"), update=replace(failed, name="update"))
    regions = (replace(REGION, problem=error, problem_do="put the right one back"),)
    found = each_once(findings("secondary", JOURNAL, regions, (), receiving))
    texts = {finding.subject: finding.text for finding in found}
    assert texts["main"] == f"region main: {error}"
    assert texts["receiver"] == "receiver failed by what REGION_REPLACED (main) tells"
    assert texts["update"] == "update failed by what REGION_REPLACED (main) tells"
    status = Status("w", "secondary", "/w", "n", "u", 1, 0, JOURNAL, regions, (), receiving, "", found)
    assert " ".join(lines(status, 200)).count("/srv/shop.db]") == 1
    other = replace(receiving, update=replace(failed, name="update", error="DAMAGED: else [/srv/shop.db]"))
    assert len({finding.text for finding in each_once(findings("secondary", JOURNAL, regions, (), other))}) == 3


@pytest.mark.parametrize("statement", ["CREATE TABLE foreign_one (x)", "DROP TRIGGER {guard}"])
def test_a_schema_that_somebody_else_changed_is_a_finding_before_the_next_commit(
    instance: Instance, tmp_path: Path, statement: str
) -> None:
    path = make_database(tmp_path / "a.db", "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    add_region(instance, path)
    assert not [finding for finding in collect(instance).findings if finding.severity == "error"]
    other = apsw.Connection(str(path))
    (guard,) = other.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' LIMIT 1").fetchone()
    other.execute(statement.format(guard=f'"{guard}"'))
    other.close()
    (finding,) = [finding for finding in collect(instance).findings if finding.severity == "error"]
    assert (finding.code, finding.subject) == ("SCHEMA_CHANGED", "main")
    assert "another client changed the schema" in finding.text
    assert "region release main" in finding.do


def test_codes_are_upper_snake_and_each_is_used_and_listed() -> None:
    root = Path(__file__).resolve().parents[3]
    source = "".join(
        (root / "replicate" / name).read_text()
        for name in (
            *("status/collect.py", "status/report.py", "status/journal.py", "status/comparing.py"),
            "status/roles.py",
            "status/indexes.py",
            "status/patrol.py",
            "status/merging.py",
            "status/clocks.py",
            "status/packets.py",
            "status/schema_fences.py",
            "security/tls_files.py",
        )
    )
    used = set(re.findall(r'"([A-Z]+_[A-Z_]+|COMPARED|CONFLICT|FENCED|FROZEN|RESTORING)"', source))
    for filled in set(re.findall(r'f"([A-Z]+)_\{level\}"', source)):
        used |= {f"{filled}_FULL", f"{filled}_FILLING"}
    assert used == set(CODES)
    for code, kind in CODES.items():
        assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code)
        assert re.fullmatch(r"[A-Z][^|\n]*\.", kind.meaning)
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\w+) \| (.*) \|$", chapter("errors"), flags=re.MULTILINE)
    assert [FindingKind(*row) for row in rows if row[1] in SEVERITIES] == list(CODES.values())


def test_a_code_is_explained(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["status", "--explain", "wal-pinned"]) == 0
    told = capsys.readouterr().out
    assert " ".join(told.split()) == f"WAL_PINNED warning {CODES['WAL_PINNED'].meaning}"
    assert told.splitlines()[1].startswith(" " * len("WAL_PINNED  warning  "))
    assert run(["status", "--explain", "all"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert run(["status", "--explain", "all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["code"] for row in told] == list(CODES)
    assert run(["status", "--explain", "WALL_PINNED"]) == 2
    assert "Did you mean WAL_PINNED?" in capsys.readouterr().err
    assert run(["status", "--explain", "CONFLICKT"]) == 2
    assert "Did you mean CONFLICT?" in capsys.readouterr().err
    assert run(["status", "--explain", "42"]) == 2
    assert "--explain all" in capsys.readouterr().err


def test_an_errors_code_is_explained_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The text of DAEMON_FAILED shows such codes."""
    assert run(["status", "--explain", "rollback_needed"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    wanted = "The secondary holds transactions that the primary does not have."
    assert told == f"ROLLBACK_NEEDED An error of exit code 76: {wanted}"
    assert run(["status", "--explain", "GAP", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["code"], row["severity"]) == ("GAP", None)
    for code in ERRORS:
        assert re.fullmatch(r"[A-Z].*[a-z)]\.", explained(code).meaning), code
    assert explained("INTERNAL").meaning.endswith("A state that should be impossible.")
    assert explained("SCHEMA_CHANGED") is CODES["SCHEMA_CHANGED"]


def test_json_has_what_the_text_has_and_the_exit_code_tells(
    instance: Instance, words: memoryview, capsys: pytest.CaptureFixture[str]
) -> None:
    """An instance without peers and regions is new, not broken; a failed journal is."""
    assert run(["-i", str(instance.path), "status", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(found["code"], found["severity"]) for found in told["findings"]] == [
        ("NO_REGION", "info"),
        ("NO_PEER", "info"),
    ]
    words[word.FATAL] = 5
    assert run(["-i", str(instance.path), "status", "--json"]) == 1
    (fatal, *_) = json.loads(capsys.readouterr().out)["findings"]
    assert set(fatal) == {"code", "severity", "text", "do", "subject", "brief"}
    assert (fatal["code"], fatal["severity"]) == ("JOURNAL_FATAL", "error")
    assert run(["-i", str(instance.path), "status"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert f"JOURNAL_FATAL error: {fatal['text']} Next: {fatal['do']}" in text
