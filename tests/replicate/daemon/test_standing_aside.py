"""Standing aside: a daemon ends its work while somebody asks for that, and goes on in the same process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.daemon import control
from replicate.daemon.files import DaemonFiles
from replicate.daemon.lock_file import daemon_names
from replicate.daemon.standing_aside import asked_aside, is_asked_aside
from replicate.errors import AlreadyRunningError, BusyError
from replicate.system.processes import is_ending
from tests.harness.waiting import wait_until
from tests.replicate.daemon.test_daemon import PROGRAM, events, start

ASKS = """
import sys, time
from pathlib import Path
from replicate.daemon.standing_aside import asked_aside
with asked_aside(Path(sys.argv[1]), 10):
    print("asks", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DaemonFiles]:
    (tmp_path / "locks").mkdir()
    made = DaemonFiles(tmp_path, "toy")
    yield made
    running = made.lock.probe()
    if running is not None and running.pid:
        os.kill(running.pid, signal.SIGKILL)


def test_only_one_asks_and_a_look_is_in_nobodys_way(files: DaemonFiles) -> None:
    path = files.instance_path
    assert not is_asked_aside(path / "nowhere", "update")
    assert not is_asked_aside(path, "update")
    with asked_aside(path, 1.0):
        assert is_asked_aside(path, "update")
        assert is_asked_aside(path, "update")
        with pytest.raises(BusyError), asked_aside(path, 0.0):
            raise AssertionError
    assert not is_asked_aside(path, "update")
    assert daemon_names(path) == (), "the lock that it asks by is no daemon's"


def test_it_ends_its_work_and_goes_on_in_the_same_process(files: DaemonFiles) -> None:
    pid = start(files).pid
    with asked_aside(files.instance_path, 1.0):
        wait_until(lambda: files.lock.probe() is None, what="it has given up its lock")
        with files.lock.kept_down("rollback"):
            assert "stands aside" in [line["event"] for line in events(files)]
    wait_until(lambda: (running := files.lock.probe()) is not None and running.pid == pid, what="it is back")
    told = lambda: [line["event"] for line in events(files)]  # noqa: E731
    wait_until(lambda: "goes on after standing aside" in told(), what="and says so")
    wait_until(lambda: (said := files.read_status()) is not None and said.text == "counting", what="it works")
    with asked_aside(files.instance_path, 1.0):  # and once more
        wait_until(lambda: files.lock.probe() is None, what="it has given up its lock")
    wait_until(lambda: told().count("goes on after standing aside") == 2, what="it is back again")
    assert control.stop(files, timeout_s=10.0) == control.Stopped(was_running=True, drained=True)
    assert told().count("daemon started") == told().count("daemon ended") == 1


def test_the_last_word_of_an_end_that_was_none_is_not_told_at_the_stop(files: DaemonFiles) -> None:
    """An Update Process that stands by told what it had applied before its role was changed."""
    start(files, "first-word")
    with asked_aside(files.instance_path, 1.0):
        wait_until(lambda: files.lock.probe() is None, what="it has given up its lock")
    wait_until(lambda: "goes on after standing aside" in [line["event"] for line in events(files)], what="it goes on")
    wait_until(lambda: (said := files.read_status()) is not None and said.text == "counting", what="it works")
    assert control.stop(files, timeout_s=10.0).last_word == ""


def test_who_asks_is_killed_and_it_comes_back(files: DaemonFiles) -> None:
    pid = start(files).pid
    asking = subprocess.Popen(
        [sys.executable, "-c", ASKS, str(files.instance_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert asking.stdout is not None
    assert asking.stdout.readline() == b"asks\n"
    wait_until(lambda: files.lock.probe() is None, what="it has given up its lock")
    asking.kill()
    asking.communicate()
    wait_until(lambda: (running := files.lock.probe()) is not None and running.pid == pid, what="it is back")


def test_a_stop_meanwhile_ends_it(files: DaemonFiles) -> None:
    pid = start(files).pid
    with asked_aside(files.instance_path, 1.0):
        wait_until(lambda: files.lock.probe() is None, what="it has given up its lock")
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: events(files)[-1]["event"] == "daemon ended", what="it ends")
    assert events(files)[-1]["state"] == "stopped"
    assert files.lock.probe() is None


def test_a_stop_right_after_it_finds_the_daemon(files: DaemonFiles) -> None:
    """Before it has its lock again: it would come back after it was said that it does not run."""
    pid = start(files).pid
    with asked_aside(files.instance_path, 1.0):
        wait_until(lambda: files.lock.probe() is None, what="it has given up its lock")
    done = control.stop(files, timeout_s=10)
    assert done.was_running
    assert not Path(f"/proc/{pid}").exists() or is_ending(pid)


def test_a_start_right_after_it_finds_the_daemon(files: DaemonFiles) -> None:
    """Else a second one met it, and the error was no longer one that a caller knows."""
    pid = start(files).pid
    for ask in (control.is_running, control.reopen_log):
        with asked_aside(files.instance_path, 1.0):
            wait_until(lambda: files.lock.probe() is None, what="it has given up its lock")
        assert ask(files)
    with asked_aside(files.instance_path, 1.0):
        wait_until(lambda: files.lock.probe() is None, what="it has given up its lock")
    with pytest.raises(AlreadyRunningError, match=f"toy runs already as process {pid}"):
        start(files)


def test_what_was_killed_while_it_stood_aside_is_not_waited_for(files: DaemonFiles) -> None:
    pid = start(files).pid
    with asked_aside(files.instance_path, 1.0):
        wait_until(lambda: files.lock.probe() is None, what="it has given up its lock")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_ending(pid), what="it is gone")
    assert not control.stop(files, timeout_s=10).was_running


def test_work_that_does_not_end_is_cut_short_by_a_second_stop(files: DaemonFiles) -> None:
    pid = start(files, "slow-drain").pid
    with asked_aside(files.instance_path, 1.0):
        wait_until(lambda: "stands aside" in [line["event"] for line in events(files)], what="it is to stand aside")
        assert files.lock.probe() is not None, "it has not ended"
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: events(files)[-1]["event"] == "stop requested", what="it hears that")
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: events(files)[-1]["event"] == "daemon ended", what="it ends")
    assert events(files)[-1]["state"] == "stopped"


def test_a_start_meanwhile_waits_for_the_end_of_it(files: DaemonFiles) -> None:
    command = [sys.executable, *PROGRAM, str(files.instance_path), "end"]
    with asked_aside(files.instance_path, 1.0):
        with files.lock.kept_down("rollback"):
            process = subprocess.Popen(command)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1.0)
        assert process.wait(60) == 0
    with files.lock.kept_down("replay"):  # nobody is asked to stand aside for that
        assert subprocess.run(command, check=False, capture_output=True).returncode == 73


def test_another_one_was_started_meanwhile_and_it_ends(files: DaemonFiles) -> None:
    pid = start(files).pid
    with asked_aside(files.instance_path, 1.0):
        wait_until(lambda: files.lock.probe() is None, what="it has given up its lock")
        other = start(files).pid
    wait_until(lambda: "daemon failed" in [line["event"] for line in events(files)], what="the first one ends")
    running = files.lock.probe()
    assert running is not None
    assert running.pid == other != pid
    said = files.read_status()
    assert said is not None
    assert said.pid == other
