"""The demonstration itself: to the end, twice at once, and interrupted at several moments of its story.

It is started as deploy/demo does when the environment stands. Shared memory is a directory of the test's own, so that
whatever is left in it is the demonstration's.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo.py"
SHORT = ("--duration", "2.5")
DONE = "both databases are equal, and nothing is left running."


class Demonstration:
    """One run, in a session of its own, with a directory whose name has a space."""

    def __init__(self, home: Path, *options: str) -> None:
        self.directory = home / "the demo"
        self.shared_memory = home / "shm"
        self.shared_memory.mkdir(parents=True)
        self.lines: list[str] = []
        self.mark = f"REPLICATE_SHM_DIR={self.shared_memory}"
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        self.process = subprocess.Popen(
            [sys.executable, str(DEMO), "--duration", "5", "--directory", str(self.directory), *options],
            env={**environment, "REPLICATE_SHM_DIR": str(self.shared_memory), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            start_new_session=True,
        )

    def read_until(self, text: str) -> None:
        """Read what it says up to the first line that has the text in it (an empty text: to its end)."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text and text in line:
                return
        assert not text, f"{text!r} was never said:\n{self.said}"

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    def finish(self) -> int:
        self.read_until("")
        return self.process.wait(120)

    def left_running(self) -> list[str]:
        """The command lines of the processes that work in our shared memory."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def assert_nothing_is_left(self) -> None:
        assert self.left_running() == []
        assert list(self.shared_memory.iterdir()) == []


def test_it_comes_to_its_end_and_what_it_keeps_can_be_gone_on_with(tmp_path: Path) -> None:
    kept = Demonstration(tmp_path, "--keep", *SHORT)
    _ends_well(kept)
    assert {path.name for path in kept.directory.iterdir()} >= {"primary", "secondary", "shop.db"}
    _go_on_with_what_was_kept(kept)


@pytest.mark.long
def test_two_at_once_come_to_their_end(tmp_path: Path) -> None:
    both = [Demonstration(tmp_path / name, *SHORT) for name in ("1", "2")]
    for one in both:
        _ends_well(one)
        assert not one.directory.exists()


def _ends_well(one: Demonstration) -> None:
    assert one.finish() == 0, one.said
    assert DONE in one.lines[-1]
    one.assert_nothing_is_left()


def _go_on_with_what_was_kept(kept: Demonstration) -> None:
    """The commands that a kept demonstration ends with must work as they stand there."""
    where_next = kept.lines[kept.lines.index("Where to look next") :]
    printed = [line.strip() for line in where_next if re.match(" {6}[a-z]", line)]
    script = "\n".join(["set -e", *printed])
    stop = "replicate -i primary source stop; replicate -i secondary receiver stop; replicate -i secondary update stop"
    done = subprocess.run(
        ["sh", "-c", f"trap '{stop}' EXIT\n{script}"],
        env={**os.environ, "REPLICATE_SHM_DIR": str(kept.shared_memory)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal" in done.stdout
    assert kept.left_running() == []


def test_a_site_is_lost_and_comes_back(tmp_path: Path) -> None:
    demo = Demonstration(tmp_path, "--failover", "--keep")
    assert demo.finish() == 0, demo.said
    assert DONE in demo.lines[-1]
    for text in (
        "processes are dead",
        r"south is primary, with all transactions up to \d+",
        r"north is back at \d+, from \d+; the rest stands in north-lost-",
        r"[1-9]\d* applied, \d+ skipped",
        r"north is primary, after transaction \d+; south is secondary",
        r"north and south at seqno \d+: equal",
        r"[1-9]\d* rows, all equal",
    ):
        assert re.search(text, demo.said), text
    demo.assert_nothing_is_left()
    where_next = demo.lines[demo.lines.index("Where to look next") :]
    script = "\n".join(["set -e", *(line.strip() for line in where_next if re.match(" {6}[a-z]", line))])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "role changed: south is primary, it was secondary" in done.stdout


@pytest.mark.parametrize(
    ("moment", "number", "by_terminal"),
    [
        ("instance create primary", signal.SIGINT, True),
        pytest.param("receiver start", signal.SIGINT, True, marks=pytest.mark.long),
        ("seed --from", signal.SIGTERM, False),
        pytest.param("The network fails", signal.SIGTERM, False, marks=pytest.mark.long),
        pytest.param("The Update Process dies", signal.SIGINT, True, marks=pytest.mark.long),
        pytest.param("What an operator sees", signal.SIGINT, False, marks=pytest.mark.long),
    ],
)
def test_an_interrupted_demonstration_leaves_nothing(
    tmp_path: Path, moment: str, number: signal.Signals, by_terminal: bool
) -> None:
    demo = Demonstration(tmp_path)
    demo.read_until(moment)
    if by_terminal:
        os.killpg(demo.process.pid, number)  # as Ctrl-C does: to everything in the foreground
    else:
        demo.process.send_signal(number)
    began = time.monotonic()
    assert demo.finish() == 128 + number, demo.said
    assert time.monotonic() - began < 120
    assert re.search("interrupted .SIG(INT|TERM).", demo.lines[-2])
    assert "Traceback" not in demo.said
    demo.assert_nothing_is_left()
    assert not demo.directory.exists()


@pytest.mark.parametrize(
    "moment",
    [
        "South takes over",
        pytest.param("What was lost is put back", marks=pytest.mark.long),
    ],
)
def test_an_interrupted_failover_leaves_nothing(tmp_path: Path, moment: str) -> None:
    demo = Demonstration(tmp_path, "--failover")
    demo.read_until(moment)
    demo.process.send_signal(signal.SIGTERM)
    assert demo.finish() == 128 + signal.SIGTERM, demo.said
    demo.assert_nothing_is_left()
    assert not demo.directory.exists()
