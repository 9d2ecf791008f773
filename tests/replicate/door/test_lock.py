"""The commit lock: one thread of one process at a time; a wait ends by name; an interrupt leaves nothing held."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from replicate.door.lock import CommitLock
from replicate.errors import BusyError
from replicate.system.locks import FileLock


def is_free(path: Path) -> bool:
    """For others, as another process finds it: by a descriptor of its own."""
    other = FileLock(path)
    try:
        if not other.try_acquire():
            return False
        other.release()
        return True
    finally:
        other.close()


def in_a_thread(call: Any) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return found[0]


def test_it_is_held_against_threads_and_processes(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = CommitLock(path)
    lock.enter(1)
    assert not is_free(path)
    told = in_a_thread(lambda: lock.enter(0.01))
    assert isinstance(told, BusyError)
    assert "another thread for 0.01 s" in str(told)
    assert not is_free(path)  # the one that has waited in vain frees nothing of ours
    lock.leave()
    assert is_free(path)
    assert in_a_thread(lambda: (lock.enter(1), lock.leave())) == (None, None)
    lock.close()


def test_another_process_that_holds_it_is_waited_for_and_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other, lock = FileLock(path), CommitLock(path)
    other.acquire(1, what="the lock")
    with pytest.raises(BusyError, match="the commit lock"):
        lock.enter(0.01)
    other.release()
    assert in_a_thread(lambda: (lock.enter(1), lock.leave())) == (None, None)  # no thread of ours holds its half
    other.close()
    lock.close()


class _Interrupt(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("where", ["enter", "leave"])
def test_an_interrupt_anywhere_leaves_it_to_be_given_up(tmp_path: Path, where: str, step: int) -> None:
    """At each line of it that is run: after `give_up` it is free, and can be entered."""
    path = tmp_path / "lock"
    lock = CommitLock(path)
    left = step

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_name != where or Path(frame.f_code.co_filename).name != "lock.py":
            return None
        if event == "line":
            if not left:
                raise _Interrupt
            left -= 1
        return trace

    if where == "leave":
        lock.enter(1)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        lock.enter(1) if where == "enter" else lock.leave()
    except _Interrupt:
        pass
    finally:
        sys.settrace(before)
    lock.give_up()
    lock.give_up()  # nothing happens when nothing is held
    assert is_free(path)
    assert in_a_thread(lambda: (lock.enter(1), lock.leave())) == (None, None)
    lock.close()
