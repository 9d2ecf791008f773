"""Whether a process lives, ends or has ended: a child that is killed, and its number before and after it is fetched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from replicate.system.processes import is_ended, is_ending
from tests.harness.waiting import wait_until


def test_a_child_from_its_life_to_its_end() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print('here', flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        assert (is_ending(child.pid), is_ended(child.pid)) == (False, False)
        os.kill(child.pid, signal.SIGSTOP)
        assert (is_ending(child.pid), is_ended(child.pid)) == (False, False)
        os.kill(child.pid, signal.SIGKILL)
        assert is_ending(child.pid)  # at once, whether or not the kernel is done with it
        wait_until(lambda: is_ended(child.pid), what="nobody has fetched it, and it has ended all the same")
    finally:
        child.kill()
        child.communicate()
    assert (is_ending(child.pid), is_ended(child.pid)) == (True, True)
    assert (is_ending(os.getpid()), is_ended(os.getpid())) == (False, False)
