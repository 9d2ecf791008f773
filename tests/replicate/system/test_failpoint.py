"""Failpoints: inert, then exactly at the named hit."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from replicate.errors import ConfigurationError
from replicate.system import failpoint


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint.disarm()


def test_inert() -> None:
    failpoint.hit("nowhere")


def test_raises_at_the_hit_named_and_only_once() -> None:
    failpoint.arm("a:2:raise, b:1:errno=ENOSPC")
    failpoint.hit("a")
    failpoint.hit("other")
    with pytest.raises(failpoint.FailpointError, match="FAILPOINT"):
        failpoint.hit("a")
    failpoint.hit("a")
    with pytest.raises(OSError) as caught:
        failpoint.hit("b")
    assert caught.value.errno == errno.ENOSPC


def test_watch_calls() -> None:
    reached = []
    failpoint.watch("a", 1, lambda: reached.append("a"))
    failpoint.hit("a")
    assert reached == ["a"]


@pytest.mark.parametrize(
    "text", ["a", "a:b:kill", "a:0:kill", ":1:kill", "a:1:explode", "a:1:errno=NOSUCH", "a:1:errno="]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        failpoint.arm(text)


@pytest.mark.parametrize(("action", "code"), [("kill", -signal.SIGKILL), ("exit", 70)])
def test_armed_by_the_environment(action: str, code: int) -> None:
    program = (
        "from replicate.system.failpoint import hit\nhit('a')\nprint('between', flush=True)\nhit('a')\nprint('never')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "REPLICATE_FAILPOINT": f"a:2:{action}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "between\n")


def test_stop_and_continue() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "from replicate.system.failpoint import hit\nhit('a')"],
        env={**os.environ, "REPLICATE_FAILPOINT": "a:1:stop"},
    ) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0
