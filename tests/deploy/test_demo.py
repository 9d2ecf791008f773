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
        self.process = subprocess.Popen(
            [sys.executable, str(DEMO), "--duration", "5", "--directory", str(self.directory), *options],
            env={**os.environ, "REPLICATE_SHM_DIR": str(self.shared_memory), "LC_ALL": "C"},
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


def test_two_at_once_come_to_their_end(tmp_path: Path) -> None:
    both = [Demonstration(tmp_path / "1", *SHORT), Demonstration(tmp_path / "2", "--keep", *SHORT)]
    for one in both:
        assert one.finish() == 0, one.said
        assert DONE in one.lines[-1]
        one.assert_nothing_is_left()
    removed, kept = both
    assert not removed.directory.exists()
    assert {path.name for path in kept.directory.iterdir()} >= {"primary", "secondary", "shop.db"}
    _go_on_with_what_was_kept(kept)


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


@pytest.mark.parametrize(
    ("moment", "number", "by_terminal"),
    [
        ("instance create primary", signal.SIGINT, True),
        ("receiver start", signal.SIGINT, True),
        ("seed --from", signal.SIGTERM, False),
        ("The network fails", signal.SIGTERM, False),
        ("The Update Process dies", signal.SIGINT, True),
        ("What an operator sees", signal.SIGINT, False),
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
