"""What somebody removes under a running daemon: run/, locks/, one file of them. There is one daemon of a name after it.

Guarantees: the daemons are real processes (the toy). Leaves to others: what a daemon does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicate.daemon import control
from replicate.daemon.files import DaemonFiles
from replicate.daemon.lock_file import Running, daemon_names
from replicate.daemon.status_file import SERVING, STARTING, STOPPED
from replicate.errors import AlreadyRunningError
from tests.harness.waiting import wait_until
from tests.replicate.daemon.test_daemon import events, start


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DaemonFiles]:
    (tmp_path / "east").mkdir()
    made = DaemonFiles(tmp_path / "east", "toy")
    yield made
    running = made.lock.probe()
    if running is not None and running.pid:
        os.kill(running.pid, signal.SIGKILL)


def remove(files: DaemonFiles, *names: str) -> None:
    for name in names:
        aside = files.instance_path.with_name(f"{name} aside")
        (files.instance_path / name).rename(aside)  # else the daemon may put something in while it is emptied
        shutil.rmtree(aside)


def is_named_twice(files: DaemonFiles) -> bool:
    return (
        files.lock.path.exists()
        and files.lock.second_path.exists()
        and files.lock.path.samefile(files.lock.second_path)
    )


def is_serving(files: DaemonFiles, pid: int) -> bool:
    said = files.read_status()
    return said is not None and (said.state, said.pid) == (SERVING, pid)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "locks"])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_no_second_daemon_starts_where_a_directory_was_removed(
    files: DaemonFiles, name: str, is_made_again: bool
) -> None:
    started = start(files)
    remove(files, name)
    if is_made_again:
        (files.instance_path / name).mkdir(mode=0o700, exist_ok=True)
    assert files.lock.probe() == Running(started.pid)
    with pytest.raises(AlreadyRunningError, match=f"as process {started.pid}"):
        start(files)
    with pytest.raises(AlreadyRunningError, match=f"as process {started.pid}"):
        files.lock.acquire()
    assert daemon_names(files.instance_path) == ("toy",)
    # It says again how it stands, has both names again, and is stopped in order.
    wait_until(lambda: is_serving(files, started.pid))
    wait_until(lambda: is_named_twice(files))
    assert control.stop(files, timeout_s=7.0) == control.Stopped(was_running=True, drained=True)
    os.close(files.lock.acquire())


def test_two_files_and_the_older_release_has_the_one_in_run(files: DaemonFiles) -> None:
    """It knows no other, and made it again after run/ had been removed."""
    os.close(files.lock.acquire())
    remove(files, "run")
    files.lock.make_directories()
    files.lock.second_path.touch(mode=0o600)
    other = files.lock.second_path.open("r+b")
    fcntl.fcntl(other, getattr(fcntl, "F_OFD_SETLK", 37), struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    assert files.lock.probe() == Running(0)
    with pytest.raises(AlreadyRunningError):
        files.lock.acquire()
    assert not is_named_twice(files)
    other.close()
    os.close(files.lock.acquire())
    assert is_named_twice(files)


def test_one_after_the_other_is_no_way_either(files: DaemonFiles) -> None:
    started = start(files)
    for name in ("run", "locks", "run"):
        remove(files, name)
        wait_until(lambda: is_named_twice(files))
        assert files.lock.probe() == Running(started.pid)
    with pytest.raises(AlreadyRunningError):
        files.lock.acquire()


def test_who_has_lost_every_name_of_its_lock_takes_it_again(files: DaemonFiles) -> None:
    started = start(files)
    remove(files, "run", "locks")
    wait_until(lambda: files.lock.probe() == Running(started.pid))
    wait_until(lambda: is_serving(files, started.pid))
    # It has the lock a moment before it says so.
    wait_until(lambda: "lock made again: its file was removed" in [event["event"] for event in events(files)])
    with pytest.raises(AlreadyRunningError):
        files.lock.acquire()
    assert control.stop(files, timeout_s=7.0).drained


def test_of_two_the_one_without_a_lock_ends_and_leaves_the_other_its_status(files: DaemonFiles) -> None:
    first = start(files)
    os.kill(first.pid, signal.SIGSTOP)  # else it may be quicker than we are
    remove(files, "run", "locks")
    second = start(files)
    os.kill(first.pid, signal.SIGCONT)
    wait_until(lambda: "daemon failed" in [event["event"] for event in events(files)])
    (failed,) = [event for event in events(files) if event["event"] == "daemon failed"]
    assert failed["code"] == "ALREADY_RUNNING"
    assert "were removed, and another one was started: this one ends" in failed["error"]
    wait_until(lambda: events(files)[-1]["event"] == "daemon ended")
    wait_until(lambda: is_serving(files, second.pid))  # the first may have told of itself before it noticed
    assert files.lock.probe() == Running(second.pid)


def test_a_file_system_without_hard_links_has_one_name(files: DaemonFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    fd = files.lock.acquire()
    assert not files.lock.second_path.exists()
    assert files.lock.probe() == Running(os.getpid())
    with pytest.raises(AlreadyRunningError):
        files.lock.acquire()
    assert files.lock.keep(fd) is None
    os.close(fd)
    assert files.lock.probe() is None


def test_a_daemon_of_a_release_that_knew_one_name_is_met(files: DaemonFiles) -> None:
    fd = files.lock.acquire()
    files.lock.path.unlink()
    assert files.lock.probe() == Running(os.getpid())
    with pytest.raises(AlreadyRunningError):
        files.lock.acquire()
    # Its file is another one than that of the first name.
    files.lock.path.write_bytes(b"")
    with pytest.raises(AlreadyRunningError):
        files.lock.acquire()
    os.close(fd)
    # What is left of it keeps nobody out.
    fd = files.lock.acquire()
    assert files.lock.path.samefile(files.lock.second_path)
    os.close(fd)


def test_what_cannot_be_known_is_said(files: DaemonFiles) -> None:
    assert files.read_status() is None
    start(files)
    control.stop(files, timeout_s=7.0)
    shutil.rmtree(files.run_directory)
    said = files.read_status()
    assert said is not None
    assert (said.state, said.is_running) == (STOPPED, False)
    assert "its status file is gone" in said.text
    assert str(files.log) in said.text
    fd = files.lock.acquire()
    said = files.read_status()
    assert said is not None
    assert (said.state, said.pid) == (STARTING, os.getpid())
    assert "has not said how it stands" in said.text
    os.close(fd)


def test_who_takes_it_again_has_said_who_it_is_at_each_moment(files: DaemonFiles) -> None:
    """Else a stop took it for somebody else's, signalled nobody, and said that it was stopped."""
    os.close(files.lock.acquire())
    ended = threading.Event()
    told = set()

    def look() -> None:
        while not ended.is_set():
            told.add(files.lock.probe())

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(2000):
        os.close(files.lock.acquire())
    ended.set()
    looking.join()
    assert told - {None} == {Running(os.getpid())}


def test_who_was_there_instead_is_not_taken_for_the_next_holder(files: DaemonFiles) -> None:
    with files.lock.kept_down("rollback"):
        assert files.lock.probe() == Running(os.getpid(), "rollback")
    assert files.lock.path.read_bytes() == b""
