"""The verbs of the daemons: names, flags, what is printed and which exit code; the processes are in test_daemon.py."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from replicate.cli.root import root
from replicate.daemon import control, daemon
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_heard import now as this_moment
from replicate.daemon.status_file import DaemonStatus
from replicate.errors import ConfigurationError, NotFoundError, ReplicateError, TryAgainError, UsageError
from replicate.instance.instance import Instance


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    made = Instance.create(tmp_path / "east", role="primary")
    made.register_peer("west", "127.0.0.1", 7555)
    monkeypatch.setenv("REPLICATE_INSTANCE", str(made.path))
    return made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], float]]:
    calls: list[tuple[str, list[str], float]] = []

    def start(files: DaemonFiles, arguments: list[str], *, timeout_s: float) -> control.StartedDaemon:
        calls.append((files.name, arguments, timeout_s))
        return control.StartedDaemon(4711, "listening on 127.0.0.1:7430")

    monkeypatch.setattr(control, "start", start)
    return calls


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(root, arguments, standalone_mode=False)
    if isinstance(result.exception, ReplicateError):
        raise result.exception
    assert result.exception is None, result.exception
    return result.return_value or 0, result.stdout


def test_start(instance: Instance, started: list[tuple[str, list[str], float]]) -> None:
    code, out = invoke("receiver", "start", "--listen", "127.0.0.1:0", "--timeout", "3")
    both = [f"{name} serves as process 4711: listening on 127.0.0.1:7430\n" for name in ("receiver", "update")]
    hint = "a secondary receives; if that is what you mean: replicate -i SECONDARY receiver start\n"
    assert (code, out) == (0, hint.join(both))
    assert started.pop()[0] == "update"
    assert invoke("receiver", "start", "--no-update") == (0, both[0])
    started.pop()
    invoke("source", "start", "--set", "log.level=debug")
    _, out = invoke("update", "start", "--json")
    assert json.loads(out)["pid"] == 4711
    path = str(instance.path)
    assert started == [
        ("receiver", ["-i", path, "receiver", "run", "--set", "receiver.listen=127.0.0.1:0"], 3.0),
        ("source-west", ["-i", path, "source", "run", "--peer", "west", "--set", "log.level=debug"], 30.0),
        ("update", ["-i", path, "update", "run"], 30.0),
    ]


def test_start_without_a_peer_starts_the_source_servers_of_all(
    instance: Instance, started: list[tuple[str, list[str], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `stop` stops all. One that runs goes on, and one that cannot serve keeps no other from it."""
    for number, name in enumerate(("north", "south"), 7556):
        instance.register_peer(name, "127.0.0.1", number)
    instance.register_peer("post", "", 0)
    start = control.start

    def some(files: DaemonFiles, arguments: list[str], *, timeout_s: float) -> control.StartedDaemon:
        if files.name == "source-north":
            raise TryAgainError("source-north did not serve")
        return start(files, arguments, timeout_s=timeout_s)

    monkeypatch.setattr(control, "start", some)
    held = DaemonFiles(instance.path, "source-south").lock.acquire()
    try:
        result = CliRunner().invoke(root, ["source", "start", "--set", "log.level=debug"], standalone_mode=False)
    finally:
        os.close(held)
    assert isinstance(result.exception, TryAgainError)
    assert [name for name, _, _ in started] == ["source-west"]
    assert started[0][1][-2:] == ["--set", "log.level=debug"]
    assert result.stdout.splitlines() == [
        f"source-south runs already as process {os.getpid()}",
        "source-west serves as process 4711: listening on 127.0.0.1:7430",
    ]
    monkeypatch.setattr(control, "start", start)
    _, out = invoke("source", "start", "--json")
    assert set(json.loads(out)) == {"source-north", "source-south", "source-west"}


def test_start_refuses_what_cannot_work_before_any_process(
    instance: Instance, started: list[tuple[str, list[str], float]]
) -> None:
    with pytest.raises(ConfigurationError, match=r"receiver\.listen"):
        invoke("receiver", "start", "--listen", "127.0.0.1:99999")
    with pytest.raises(ConfigurationError, match="unknown"):
        invoke("update", "start", "--set", "update.x=1")
    with pytest.raises(UsageError, match="KEY=VALUE"):
        invoke("update", "start", "--set", "update.x")
    with pytest.raises(NotFoundError, match="there are: west"):
        invoke("source", "start", "--peer", "north")
    instance.register_peer("north", "127.0.0.1", 7556)
    with pytest.raises(UsageError, match="several peers"):
        invoke("source", "start", "--passive")
    with pytest.raises(UsageError, match="several peers"):
        invoke("source", "run")
    assert not started


def test_run_calls_the_frame_with_the_settings_given(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def run_daemon(name: str, path: Path, _serve: object, *, overrides: object, ready_fd: int | None) -> None:
        calls.append((name, path, overrides, ready_fd))

    monkeypatch.setattr(daemon, "run_daemon", run_daemon)
    invoke(
        "receiver", "run", "--listen", "[::1]:9", "--set", "receiver.xoff_percent=70", "--set=receiver.xon_percent=60"
    )
    invoke("source", "run", "--ready-fd", "5")
    invoke("update", "run")
    settings = {"receiver.listen": "[::1]:9", "receiver.xoff_percent": "70", "receiver.xon_percent": "60"}
    assert calls == [
        ("receiver", instance.path, settings, None),
        ("source-west", instance.path, {}, 5),
        ("update", instance.path, {}, None),
    ]


@pytest.mark.parametrize(
    ("stopped", "code", "text"),
    [
        (control.Stopped(was_running=False), 0, "does not run"),
        (control.Stopped(was_running=True), 0, "stopped"),
        (control.Stopped(was_running=True, drained=False), 0, "stopped before everything was drained"),
        (control.Stopped(was_running=True, drained=False, killed=True), 1, "did not end and was killed"),
    ],
)
def test_stop(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, stopped: control.Stopped, code: int, text: str
) -> None:
    asked: list[tuple[str, float]] = []

    def stop(files: DaemonFiles, *, timeout_s: float) -> control.Stopped:
        asked.append((files.name, timeout_s))
        return stopped

    monkeypatch.setattr(control, "stop", stop)
    assert invoke("source", "stop", "--timeout", "2") == (code, f"source-west: {text}\n")
    (instance.path / "replicate.toml").write_text("broken")
    assert invoke("update", "stop")[0] == code
    assert asked == [("source-west", 2.0), ("update", 120.0)]


def test_status_and_reopen_log(instance: Instance) -> None:
    assert invoke("receiver", "status") == (1, "receiver: never started\n")
    assert invoke("source", "reopen-log") == (1, "source-west: does not run\n")
    files = DaemonFiles(instance.path, "source-west")
    fd = files.lock.acquire()
    try:
        files.status.write(
            DaemonStatus("source-west", os.getpid(), "serving", "sending", 1, 2, {"last_sent_seqno": 7, "xoff": False})
        )
        code, out = invoke("source", "status")
        assert code == 0
        assert out.splitlines() == [
            f"source-west: serving (process {os.getpid()}): sending",
            "  last_sent_seqno  7",
            "  xoff             False",
        ]
        assert json.loads(invoke("source", "status", "--json")[1])["source-west"]["facts"]["last_sent_seqno"] == 7
        with pytest.raises(ReplicateError, match="Source Server of peer west runs"):
            invoke("peer", "remove", "west")
    finally:
        os.close(fd)
    told = invoke("source", "status")[1].splitlines()
    assert told[0].startswith("source-west: dead: was serving, and ended without a word")
    assert told[1:] == [
        "  as it last told, 1970-01-01 00:00:00 UTC:",
        "  last_sent_seqno  7",
        "  xoff             False",
    ]


def test_a_removed_peers_daemon_is_not_listed_unless_it_runs(instance: Instance) -> None:
    files = DaemonFiles(instance.path, "source-east")
    fd = files.lock.acquire()
    files.status.write(DaemonStatus("source-east", os.getpid(), "serving", "sending", 1, 2))
    assert "source-east: serving" in invoke("source", "status")[1]
    os.close(fd)
    assert invoke("source", "status") == (1, "source-west: never started\n")
    assert invoke("source", "status", "--peer", "east")[1].startswith("source-east: dead")  # who asks for it gets it


def test_people_get_dates_and_ages_and_no_nanoseconds(instance: Instance) -> None:
    files = DaemonFiles(instance.path, "receiver")
    fd = files.lock.acquire()
    now = this_moment()
    facts = {
        "last_heard_monotonic_ns": now.monotonic_ns - 54 * 10**9,
        "last_heard_wall_ns": 1_700_000_000 * 10**9,
        "told_monotonic_ns": now.monotonic_ns - 57 * 10**9,
        "peer_not_applying_since_wall_ns": 0,
        "boot": now.boot,
        "lag_s": None,
    }
    try:
        files.status.write(DaemonStatus("receiver", os.getpid(), "serving", "receiving", 1, 2, facts))
        out = invoke("receiver", "status")[1]
        told = json.loads(invoke("receiver", "status", "--json")[1])["receiver"]["facts"]
    finally:
        os.close(fd)
    assert told == facts
    rows = dict(line.split(maxsplit=1) for line in out.splitlines()[1:])
    assert rows.keys() == {"last_heard", "told", "peer_not_applying_since", "lag_s"}
    assert (rows["last_heard"], rows["peer_not_applying_since"], rows["lag_s"]) == ("2023-11-14 22:13:20 UTC", "-", "-")
    assert rows["told"].endswith(" s ago")
    assert not any(word.isdigit() and len(word) > 9 for word in out.split())


def test_what_ran_is_stopped_also_where_the_instance_cannot_be_opened(instance: Instance) -> None:
    """That run/ is missing is told with the word to stop every process first."""
    os.close(DaemonFiles(instance.path, "source-west").lock.acquire())
    shutil.rmtree(instance.run_directory)
    with pytest.raises(NotFoundError, match=r"'run' of the instance is missing.*Stop every process"):
        invoke("status")
    assert invoke("source", "stop") == (0, "source-west: does not run\n")
    (instance.path / "instance.json").write_text("{")
    assert invoke("source", "status")[0] == 1
