"""The daemon frame and its control from outside, with real processes and a toy `serve`."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from replicate.daemon import control
from replicate.daemon.daemon import DaemonContext, _Frame, notify, watchdog_period_s
from replicate.daemon.files import DaemonFiles
from replicate.daemon.lock_file import LockFile, Running, daemon_names
from replicate.daemon.status_file import DEAD, FAILED, SERVING, STOPPED
from replicate.errors import AlreadyRunningError, JournalIOError, NotFoundError, TryAgainError
from replicate.system.processes import is_ended
from tests.harness.servers import ListLog
from tests.harness.waiting import wait_until

PROGRAM = ("-m", "tests.harness.toy_daemon")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DaemonFiles]:
    instance = tmp_path / "an instance"
    instance.mkdir()
    made = DaemonFiles(instance, "toy")
    yield made
    running = made.lock.probe()
    if running is not None and running.pid:
        os.kill(running.pid, signal.SIGKILL)


def start(files: DaemonFiles, mode: str = "serve", timeout_s: float = 60.0) -> control.StartedDaemon:
    return control.start(files, [str(files.instance_path), mode], timeout_s=timeout_s, program=PROGRAM)


def events(files: DaemonFiles) -> list[dict[str, Any]]:
    return [json.loads(line) for line in files.log.read_bytes().split(b"\n")[:-1]]


def test_start_returns_when_it_serves_and_stop_when_it_has_drained(files: DaemonFiles) -> None:
    started = start(files)
    assert started.text == "listening on nothing"
    running = files.lock.probe()
    assert running is not None
    assert running.pid == started.pid
    wait_until(lambda: (s := files.read_status()) is not None and s.facts.get("last_number", 0) > 1)
    status = files.read_status()
    assert status is not None
    assert (status.state, status.pid, status.is_running) == (SERVING, started.pid, True)
    assert daemon_names(files.instance_path) == ("toy",)

    assert control.stop(files, timeout_s=7.0) == control.Stopped(was_running=True, drained=True)
    assert files.lock.probe() is None
    status = files.read_status()
    assert status is not None
    assert (status.state, status.text) == (STOPPED, "stopped; drained")
    assert status.facts["timeout_s"] == 7.0
    assert [e["event"] for e in events(files)] == ["daemon started", "serving", "stop requested", "daemon ended"]


def test_second_start_and_second_run_are_refused(files: DaemonFiles) -> None:
    started = start(files)
    with pytest.raises(AlreadyRunningError, match=f"process {started.pid}"):
        start(files)
    run = subprocess.run(
        [sys.executable, *PROGRAM, str(files.instance_path), "serve"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 73
    assert run.stderr.count("\n") == 1
    assert "ALREADY_RUNNING" in run.stderr
    assert files.lock.probe() is not None


def test_stopping_what_does_not_run_is_well(files: DaemonFiles) -> None:
    assert control.stop(files, timeout_s=1.0) == control.Stopped(was_running=False)
    assert files.read_status() is None
    assert not control.reopen_log(files)


def test_refusal_at_start_is_the_daemons_own_line_and_exit_code(files: DaemonFiles) -> None:
    with pytest.raises(control.DaemonFailedError) as caught:
        start(files, "refused")
    assert str(caught.value) == "PEER_REFUSED: the toy was refused [nowhere]. Play with another"
    assert caught.value.own_exit_code == 76
    status = files.read_status()
    assert status is not None
    assert (status.state, status.exit_code) == (FAILED, 76)
    assert any(e["event"] == "daemon failed" and e["reason"] == "TOY" for e in events(files))


def test_unknown_exception_is_70_one_line_and_a_traceback_in_the_log(files: DaemonFiles) -> None:
    with pytest.raises(control.DaemonFailedError, match="INTERNAL: unexpected ValueError: two") as caught:
        start(files, "crash")
    assert caught.value.own_exit_code == 70
    assert "\n" not in str(caught.value)
    failed = next(e for e in events(files) if e["event"] == "daemon failed")
    assert "Traceback" in failed["exception"]


def test_crash_while_serving_is_told_by_the_status(files: DaemonFiles) -> None:
    start(files, "crash-later")
    wait_until(lambda: files.lock.probe() is None)
    status = files.read_status()
    assert status is not None
    assert (status.state, status.exit_code) == (FAILED, 70)
    assert "KeyError" in status.error


@pytest.mark.parametrize("mode", ["no-memory", "no-thread"])
def test_fault_19_no_memory_is_named_and_no_bug_of_ours(files: DaemonFiles, mode: str) -> None:
    start(files, mode)
    wait_until(lambda: files.lock.probe() is None)
    status = files.read_status()
    assert status is not None
    assert status.exit_code == 75
    assert "no memory left" in status.error
    failed = next(e for e in events(files) if e["event"] == "daemon failed")
    assert "Traceback" in failed["exception"]


def test_a_daemon_that_vanishes_or_does_not_serve(files: DaemonFiles) -> None:
    with pytest.raises(control.DaemonFailedError, match="exit code 9"):
        start(files, "vanish")
    with pytest.raises(TryAgainError, match="did not serve within"):
        start(files, "never-ready", timeout_s=1.5)
    assert files.lock.probe() is None


@pytest.mark.slow
def test_a_start_that_was_refused_leaves_no_empty_log(files: DaemonFiles) -> None:
    def sizes() -> dict[str, int]:
        return {path.name: path.stat().st_size for path in files.log.parent.iterdir()}

    with pytest.raises(control.DaemonFailedError):
        start(files, "vanish")
    with pytest.raises(TryAgainError):
        start(files, "never-ready", timeout_s=0.0)
    assert all(sizes().values()), sizes()
    with pytest.raises(control.DaemonFailedError):
        start(files, "refused")
    assert all(sizes().values()), sizes()
    for path in (files.log, files.standard_error):
        path.write_text("")  # as a rotation makes them
    with pytest.raises(TryAgainError):
        start(files, "never-ready", timeout_s=0.0)
    assert files.log.exists()
    assert files.standard_error.exists()
    start(files)
    with pytest.raises(AlreadyRunningError):
        start(files)
    assert files.standard_error.exists(), "it belongs to the one that runs"


def test_a_disk_too_full_for_any_word_is_named(files: DaemonFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was called a bug of ours, and a log named that was empty."""
    with pytest.raises(control.DaemonFailedError, match=r"INTERNAL: .* exit code 74"):
        start(files, "no-room")
    monkeypatch.setattr(control, "ROOM_BYTES", 2**62)  # as if the disk had less left
    with pytest.raises(control.DaemonFailedError, match=r"^DISK_FULL: .*Free space on its file system$") as caught:
        start(files, "no-room")
    assert caught.value.own_exit_code == 74


def test_a_killed_daemon_reads_as_dead_and_can_be_started_again(files: DaemonFiles) -> None:
    os.kill(start(files).pid, signal.SIGKILL)
    wait_until(lambda: files.lock.probe() is None)
    status = files.read_status()
    assert status is not None
    assert status.state == DEAD
    assert start(files).pid != status.pid


def test_the_end_of_a_killed_daemon_is_waited_for_by_the_next_start(
    files: DaemonFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its lock until the last of its threads is gone: `kill -9` and a start at once were refused."""
    dying = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    dying.kill()
    left = 5

    def probe(_lock: LockFile) -> Running | None:
        nonlocal left
        left -= 1
        return Running(dying.pid) if left > 0 else None

    with monkeypatch.context() as patched:
        patched.setattr(LockFile, "probe", probe)
        started = start(files)
        assert left <= 0
    dying.communicate()
    assert files.lock.probe() == Running(started.pid)
    monkeypatch.setattr(control, "DYING_S", 0.0)  # and one that lives is not waited for at all
    with pytest.raises(AlreadyRunningError):
        start(files)


def test_a_stop_returns_when_the_process_is_gone(files: DaemonFiles) -> None:
    """It gives its lock up a moment before."""
    pid = start(files, "slow-end").pid
    assert control.stop(files, timeout_s=60.0).drained
    assert is_ended(pid)


def test_drain_is_cut_short_at_the_timeout_and_by_a_second_signal(files: DaemonFiles) -> None:
    start(files, "slow-drain")
    assert control.stop(files, timeout_s=0.2) == control.Stopped(was_running=True, drained=False)
    pid = start(files, "slow-drain").pid
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: (s := files.read_status()) is not None and s.state == "stopping")
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: files.lock.probe() is None)
    assert not any(e["event"] == "daemon failed" for e in events(files))


@pytest.mark.slow
def test_a_deaf_daemon_is_killed_in_the_end(files: DaemonFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CUT_SHORT_GRACE_S", 0.3)
    start(files, "deaf")
    assert control.stop(files, timeout_s=0.1) == control.Stopped(was_running=True, drained=False, killed=True)


def test_log_is_reopened_on_request(files: DaemonFiles) -> None:
    start(files)
    files.log.rename(files.log.with_suffix(".1"))
    assert control.reopen_log(files)
    wait_until(files.log.exists)
    wait_until(lambda: [e["event"] for e in events(files)] == ["log reopened"])


def test_a_process_that_keeps_a_daemon_from_running_is_never_signalled(files: DaemonFiles) -> None:
    """Log rotation asks every daemon to reopen its log: SIGHUP ended a replay."""
    got = []
    before = signal.signal(signal.SIGHUP, lambda *_: got.append(1))
    fd = files.lock.acquire(instead="replay")
    try:
        assert not control.reopen_log(files)
    finally:
        os.close(fd)
        signal.signal(signal.SIGHUP, before)
    assert not got


def test_ending_on_its_own_is_a_clean_end(files: DaemonFiles) -> None:
    start(files, "end")
    wait_until(lambda: files.lock.probe() is None)
    status = files.read_status()
    assert status is not None
    assert (status.state, status.exit_code) == (STOPPED, 0)


def test_configuration_is_checked_before_serving(files: DaemonFiles) -> None:
    (files.instance_path / "replicate.toml").write_text("[log]\nlevl = 'info'\n")
    with pytest.raises(control.DaemonFailedError, match=r"unknown key log\.levl") as caught:
        start(files)
    assert caught.value.own_exit_code == 78


def test_missing_instance_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such instance"):
        DaemonFiles(tmp_path / "nowhere", "toy").lock.acquire()


def test_a_lock_that_cannot_be_written_is_named_and_not_held(
    files: DaemonFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(JournalIOError, match=r"No space left on device.*toy\.lock"):
            files.lock.acquire()
    assert files.lock.probe() is None
    os.close(files.lock.acquire())


def test_systemd_is_told(files: DaemonFiles, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.settimeout(60)
        heard: list[str] = []

        def listen() -> None:
            while not (heard and heard[-1].startswith("STOPPING=1\nSTATUS")):
                heard.append(server.recv(4096).decode())

        listener = threading.Thread(target=listen)
        listener.start()
        environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        with subprocess.Popen(
            [sys.executable, *PROGRAM, str(files.instance_path), "serve"], env=environment
        ) as process:
            wait_until(lambda: any(m.startswith("READY=1") for m in heard))
            wait_until(lambda: heard.count("WATCHDOG=1") > 2)
            process.terminate()
            assert process.wait(60) == 0
        listener.join(60)
    assert "READY=1\nSTATUS=listening on nothing" in heard
    assert heard[-1] == "STOPPING=1\nSTATUS=stopped; drained"


def test_watchdog_of_another_process_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    assert watchdog_period_s() == 1.5
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_period_s() is None
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    notify("READY=1")  # nobody there: nothing happens


@pytest.mark.trio
async def test_context_alone_serves_the_tests_of_daemons(tmp_path: Path) -> None:
    context = DaemonContext("toy", tmp_path)
    context.status("one", x=1)
    context.ready("two")
    context.ready("three")
    context.status(y=2)
    assert (context.state, context.text, context.facts) == (SERVING, "three", {"x": 1, "y": 2})


def test_a_role_that_is_followed_is_told_when_it_is_another_one(tmp_path: Path) -> None:
    log = ListLog()
    context = DaemonContext("toy", tmp_path, log=cast(Any, log))

    def follows(role: str, incarnation: int) -> None:
        context.follows(
            cast(Any, SimpleNamespace(name="east", told_role=role, content=SimpleNamespace(incarnation=incarnation)))
        )

    for role, incarnation in (("primary", 1), ("primary", 1), ("secondary", 2), ("secondary", 2), ("secondary", 3)):
        follows(role, incarnation)
    assert [fields for _, event, fields in log.lines if event == "role followed"] == [
        {"name": "east", "role": "secondary", "incarnation": 2},
        {"name": "east", "role": "secondary", "incarnation": 3},
    ]


def test_a_pid_that_was_given_to_another_process_is_not_believed(files: DaemonFiles) -> None:
    fd = files.lock.acquire()
    try:
        os.pwrite(fd, f"{os.getppid()} 12345\n".encode(), 0)
        running = files.lock.probe()
        assert running is not None
        assert running.pid == 0
    finally:
        os.close(fd)


@pytest.mark.slow
def test_two_threads_that_tell_the_status_leave_it_whole(files: DaemonFiles) -> None:
    """The one that tells each second, and the one whose state changes: they have one temporary file."""
    files.lock.make_directories()
    frame = _Frame(files, {}, None, [])
    long, failures = {"said": "x" * 5000}, []

    def tell(facts: dict[str, Any]) -> None:
        for _ in range(300):
            frame._write(replace(frame._picture(), facts=facts), time.monotonic_ns())

    threads = [threading.Thread(target=tell, args=(facts,)) for facts in ({}, long)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        try:
            assert json.loads(files.status.path.read_text())["facts"] in ({}, long)
        except FileNotFoundError:
            pass  # not yet
        except ValueError as error:
            failures.append(error)
    assert not failures
    assert not frame._status_failed


def test_what_a_late_thread_has_replaces_nothing_newer(files: DaemonFiles) -> None:
    """A thread that was given no processor writes after the daemon serves what was true before."""
    files.lock.make_directories()
    frame = _Frame(files, {}, None, [])
    taken_ns, starting = time.monotonic_ns(), frame._picture()
    frame._context.ready("serving")
    frame._write(starting, taken_ns)
    found = files.status.read()
    assert found is not None
    assert (found.state, found.text) == (SERVING, "serving")
