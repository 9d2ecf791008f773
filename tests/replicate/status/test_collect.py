"""status/collect.py, status/report.py, status/text.py: what is collected, what follows from it, and how it reads."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate.admin.regions import add_region
from replicate.admin.release import release_region
from replicate.cli.main import run
from replicate.daemon.files import DaemonFiles, DaemonStatus
from replicate.findings import CODES, SEVERITIES, Kind
from replicate.instance.consumers import Consumer, write_consumer
from replicate.instance.instance import Instance
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.limits import MIB
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, SharedMemory
from replicate.status.collect import collect
from replicate.status.report import (
    DaemonReport,
    JournalReport,
    PeerReport,
    ReceivingReport,
    RegionReport,
    bottleneck,
    findings,
)
from replicate.status.text import lines, seconds, size
from tests.harness.instances import insert, make_primary, session_of
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
    ("peer", "expected"),
    [
        (PEER, ""),
        (replace(PEER, source=STOPPED), "Source Server for west: it does not run"),
        (replace(PEER, is_connected=False, backlog=5), "the connection to west at h:1"),
        (replace(PEER, is_paused=True, backlog=5), "receive pool is full"),
        (replace(PEER, backlog=5, source_backlog=0, receiver_backlog=5), "the Update Process at west"),
        (replace(PEER, backlog=5, source_backlog=5, receiver_backlog=0), "the Source Server for west, or the network"),
        (replace(PEER, backlog=None, is_connected=False), "the connection to west"),
    ],
)
def test_bottleneck_on_the_primary(peer: PeerReport, expected: str) -> None:
    found = bottleneck(JOURNAL, (PEER, peer), None)
    assert expected in found
    assert bool(expected) == bool(found)


@pytest.mark.parametrize(
    ("receiving", "expected"),
    [
        (RECEIVING, ""),
        (replace(RECEIVING, update=STOPPED), "Update Process: it does not run"),
        (replace(RECEIVING, receiver_backlog=3, backlog=3), "the Update Process"),
        (replace(RECEIVING, receiver=STOPPED), "Receiver Server: it does not run"),
        (replace(RECEIVING, is_connected=False), "no source is connected"),
        (replace(RECEIVING, backlog=3), "the source, or the network"),
    ],
)
def test_bottleneck_on_the_secondary(receiving: ReceivingReport, expected: str) -> None:
    found = bottleneck(JOURNAL, (), receiving)
    assert expected in found
    assert bool(expected) == bool(found)


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
    assert "3 MiB of finished journal behind transaction 40" in found[1].text
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


@pytest.mark.parametrize(("value", "text"), [(None, "unknown"), (0.04, "0.0 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (3 * MIB, "3.0 MiB"), (2**50, "1024.0 TiB")]
)
def test_sizes(value: int, text: str) -> None:
    assert size(value) == text


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
    fd = files.acquire()
    files.write_status(DaemonStatus(name, os.getpid(), "serving", str(facts.get("state", "")), 1, 2, facts))
    return fd


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
    west_row, north_row = re.findall("^  peer +(.*)", text, flags=re.MULTILINE)
    assert re.fullmatch(r"west +connected +500 +480 +470 +450 +400 +50 +\d+\.\d s +127\.0\.0\.1:7555", west_row)
    assert re.fullmatch(r"north +not connected +500( +unknown){3} +0( +unknown){2} +127\.0\.0\.1:7556", north_row)
    assert "read 99 from the pool, 1 from files" in text
    assert "source start --peer north" in text


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
    """By the monotonic clock, and from two heartbeats on (here of fifteen seconds)."""
    instance.register_peer("west", "127.0.0.1", 7555)
    for age_s, state, told in ((1, "sending", False), (40, "sending", True), (40, "waiting", False)):
        heard_ns = time.monotonic_ns() - age_s * 10**9
        fd = says(instance, "source-west", {"state": state, "last_heard_monotonic_ns": heard_ns})
        try:
            status = collect(instance)
        finally:
            os.close(fd)
        found = [finding for finding in status.findings if finding.code == "PEER_SILENT"]
        assert [finding.subject for finding in found] == (["west"] if told else [])
        if told:
            assert re.match(r"west has said nothing for \d+ s", found[0].text), found
            assert not found[0].is_wrong


def test_secondary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(shm))
    west = Instance.create(tmp_path / "west", role="secondary", network=b"n" * 16)
    status = collect(west)
    assert status.receiving is not None
    assert (status.receiving.receiver.state, status.receiving.backlog) == ("never started", None)
    assert status.bottleneck == "the Update Process: it does not run"
    facts = {
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
    assert status.bottleneck == "the Update Process"
    text = "\n".join(lines(status))
    assert re.search(r"^  source +east +connected +30 +- +20 +15 +[0-9]+ +15 +4\.0 s +-$", text, flags=re.MULTILINE)
    assert "receiver backlog 5, receive pool 12 % full" in text


def test_the_sources_word_may_be_older_than_what_it_has_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    west = Instance.create(tmp_path / "west", role="secondary", network=b"n" * 16)
    fd = says(
        west, "receiver", {"is_connected": True, "source": "east", "source_last_seqno": 7, "last_received_seqno": 9}
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
def test_what_can_not_be_written_becomes_a_finding(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, is_mounted_so: bool
) -> None:
    """Tests run as root, too, and can not mount: the kernel's two answers are pretended."""
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


def test_all_regions_and_peers_stand_in_one_table(instance: Instance, tmp_path: Path) -> None:
    for name in ("main", "stock"):
        instance.register_region(name, name.encode().ljust(16, b"-"), tmp_path / f"{name}.db")
    for name in ("west", "north"):
        instance.register_peer(name, "127.0.0.1", 7555)
    text = list(lines(collect(instance)))
    (head,) = [number for number, line in enumerate(text) if line.split()[:2] == ["name", "state"]]
    rows = [line.split()[:2] for line in text[head + 1 : head + 5]]
    assert rows == [["region", "main"], ["region", "stock"], ["peer", "west"], ["peer", "north"]]
    at = text[head].index("where")
    assert all(line[at - 1] == " " and line[at] != " " for line in text[head + 1 : head + 5])


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
        for name in ("status/collect.py", "status/report.py", "status/journal.py", "security/tls_files.py")
    )
    used = set(re.findall(r'"([A-Z]+_[A-Z_]+)"', source))
    for filled in set(re.findall(r'f"([A-Z]+)_\{level\}"', source)):
        used |= {f"{filled}_FULL", f"{filled}_FILLING"}
    assert used == set(CODES)
    for code, kind in CODES.items():
        assert re.fullmatch(r"[A-Z]+(_[A-Z]+)+", code)
        assert re.fullmatch(r"[A-Z][^|\n]*\.", kind.meaning)
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\w+) \| (.*) \|$", (root / "README.md").read_text(), flags=re.MULTILINE)
    assert [Kind(*row) for row in rows if row[1] in SEVERITIES] == list(CODES.values())


def test_a_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--explain", "wal-pinned"]) == 0
    assert capsys.readouterr().out == f"WAL_PINNED  warning  {CODES['WAL_PINNED'].meaning}\n"
    assert run(["status", "--explain", "all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["code"] for row in told] == list(CODES)
    assert run(["status", "--explain", "WALL_PINNED"]) == 2
    assert "Did you mean WAL_PINNED?" in capsys.readouterr().err
    assert run(["status", "--explain", "42"]) == 2
    assert "--explain all" in capsys.readouterr().err


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
    assert set(fatal) == {"code", "severity", "text", "do", "subject"}
    assert (fatal["code"], fatal["severity"]) == ("JOURNAL_FATAL", "error")
    assert run(["-i", str(instance.path), "status"]) == 1
    assert f"JOURNAL_FATAL error: {fatal['text']}. Next: {fatal['do']}" in capsys.readouterr().out
