"""Locks between processes, and the commit lock between threads too."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from replicate.door.lock import CommitLock
from replicate.errors import BusyError, ForkedError, InternalError, ReplicateError
from replicate.system.locks import WATCH_EVERY, FileLock
from tests.harness.waiting import wait_until

HOLDER = (
    "import fcntl, os, sys, time; fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), 2); "
    "print(1, flush=True); time.sleep(60)"
)


def test_one_holder_at_a_time_also_in_one_process(tmp_path: Path) -> None:
    one, two = FileLock(tmp_path / "a"), FileLock(tmp_path / "a")
    one.acquire(0)
    assert not two.try_acquire()
    with pytest.raises(BusyError, match=r"held by another connection or thread of this process.*roll back"):
        two.acquire(0.05)
    one.release()
    one.release()
    two.acquire(0)
    with pytest.raises(InternalError, match="twice"):
        two.try_acquire()
    two.close()
    two.close()
    one.acquire(0)
    one.close()
    with pytest.raises(InternalError):
        one.acquire(0)


def test_fault_1_a_killed_holder_gives_the_lock_up_at_once_and_a_stopped_one_is_not_robbed(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "a")
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock.path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(BusyError, match=r"the lock was held by another process.*fuser"):
            lock.acquire(0.1)
        holder.kill()
        lock.acquire(5)
    lock.close()


def test_an_interrupt_after_the_kernels_word_leaves_nothing_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = FileLock(tmp_path / "a"), FileLock(tmp_path / "a")

    def interrupted(fd: int, operation: int) -> None:
        fcntl.flock(fd, operation)
        if operation != fcntl.LOCK_UN:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("replicate.system.locks.flock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.try_acquire()
    assert not one.held
    assert two.try_acquire()
    one.close()
    two.close()


def test_a_removed_lock_file_is_noticed(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "a")
    lock.path.unlink()
    with pytest.raises(InternalError, match="removed"):
        lock.acquire(0)
    lock = FileLock(tmp_path / "a")
    for _ in range(3):
        lock.acquire(0)
        lock.release()
    lock.path.rename(tmp_path / "b")
    FileLock(tmp_path / "a").close()
    (tmp_path / "b").unlink()

    def use() -> None:
        for _ in range(WATCH_EVERY + 1):
            lock.acquire(0)
            lock.release()

    with pytest.raises(InternalError, match="removed"):
        use()


def test_fault_21_a_forked_child_holds_no_lock_and_can_take_none(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "a")
    lock.acquire(0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            lock.release()  # must not free the parent's
            lock.acquire(0)
        except ForkedError:
            code = 0
        except InternalError:
            code = 3
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    other = FileLock(tmp_path / "a")
    assert not other.try_acquire()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    lock.release()
    assert other.try_acquire()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_waiter_goes_without_the_lock_when_there_is_nothing_to_wait_for_any_more(tmp_path: Path) -> None:
    holder, waiter = FileLock(tmp_path / "a"), FileLock(tmp_path / "a")
    assert holder.acquire(0)
    answers = iter((False, False, True))
    assert not waiter.acquire(60, unless=lambda: next(answers))
    assert not waiter.held
    holder.release()
    assert waiter.acquire(0, unless=lambda: True)  # free: taken without a question
    waiter.close()
    holder.close()


def test_the_commit_lock_serves_threads_one_by_one(tmp_path: Path) -> None:
    lock = CommitLock(tmp_path / "commit")
    inside, most, total = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, total
        for _ in range(200):
            lock.enter(30)
            inside += 1
            most = max(most, inside)
            total += 1
            inside -= 1
            lock.leave()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, total) == (1, 1200)
    lock.close()


def test_the_commit_lock_of_another_thread_is_busy_and_stays_its_own(tmp_path: Path) -> None:
    lock = CommitLock(tmp_path / "commit")
    lock.enter(1)
    found: list[str] = []

    def work() -> None:
        try:
            lock.enter(0.05)
        except ReplicateError as error:
            found.append(error.code)
        lock.give_up()  # nothing of ours

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["BUSY"]
    other = FileLock(tmp_path / "commit")
    assert not other.try_acquire()
    lock.leave()
    assert other.try_acquire()
    with pytest.raises(BusyError):
        lock.enter(0.05)
    other.release()
    lock.enter(0)
    lock.give_up()
    lock.give_up()
    thread = threading.Thread(target=lambda: (lock.enter(1), lock.leave()))
    thread.start()
    thread.join(60)
    wait_until(lambda: not thread.is_alive())
    lock.close()
