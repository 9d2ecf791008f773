"""An interrupt that comes while a part of the campaign makes a child: it is met, once, by the part alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from tests.faults.places import ROOT
from tests.harness.forking import fork

_at_fork: dict[str, Callable[[], None]] = {}
"""What the next fork of this process does, once; hooks themselves cannot be taken off."""

os.register_at_fork(before=lambda: _take("before"), after_in_parent=lambda: _take("after_in_parent"))


def _take(when: str) -> None:
    action = _at_fork.pop(when, None)
    if action is not None:
        action()


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        yield
    finally:
        _at_fork.clear()
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("when", ["before", "after_in_parent"])
def test_an_interrupt_at_a_fork_is_not_lost_and_comes_when_the_child_is_known(when: str) -> None:
    number = threading.get_ident()  # the timer of pytest-timeout is a thread, too
    _at_fork[when] = lambda: signal.pthread_kill(number, signal.SIGTERM)
    made: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        fork(lambda: 0, made.append)
    assert not _at_fork
    assert os.waitstatus_to_exitcode(os.waitpid(made[0], 0)[1]) == 0
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 3), (signal.SIGTERM, -signal.SIGTERM)])
def test_an_interrupt_of_a_child_does_not_run_through_its_parents_code(number: signal.Signals, code: int) -> None:
    def body() -> int:
        os.kill(os.getpid(), number)
        return 3

    made: list[int] = []
    fork(body, made.append)
    assert os.waitstatus_to_exitcode(os.waitpid(made[0], 0)[1]) == code


def test_a_child_whose_body_raises_ends_there() -> None:
    def body() -> int:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        raise ValueError

    made: list[int] = []
    fork(body, made.append)
    assert os.waitstatus_to_exitcode(os.waitpid(made[0], 0)[1]) == 70


def test_sigterm_ends_a_storm_of_the_pool_also_when_it_comes_at_a_fork() -> None:
    program = (
        "import os, signal, sys\n"
        "from tests.faults import pool_storm\n"
        "left = [signal.SIGTERM]\n"
        "def once():\n"
        "    if left: os.kill(os.getpid(), left.pop())\n"
        "os.register_at_fork(before=once)\n"
        "sys.argv[1:] = ['--seconds', '0']\n"
        "sys.exit(pool_storm.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 130, done.stdout + done.stderr
