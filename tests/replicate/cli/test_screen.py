"""cli/screen.py: what the keys do, and a real terminal, which is afterwards as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicate.cli.screen import WINDOWS_S, Watching, footer
from tests.harness import fork_server
from tests.harness.pair import Pair
from tests.harness.waiting import PATIENCE_S


def pressed(watching: Watching, *names: str) -> Watching:
    for name in names:
        watching.key(name, 10)
    return watching


def test_keys_choose() -> None:
    assert pressed(Watching(1, 60), "q").is_over
    assert pressed(Watching(1, 60), "f").is_frozen
    assert not pressed(Watching(1, 60), "f", " ").is_frozen
    assert pressed(Watching(1, 60), "?").is_asking
    assert pressed(Watching(1, 60), "x", "KEY_RESIZE", "KEY_F(1)") == Watching(1, 60)


def test_the_time_of_the_curves_is_longer_and_shorter_within_bounds() -> None:
    assert pressed(Watching(1, 900), "+").past_s == 3600
    assert pressed(Watching(1, 1000), "-").past_s == 900
    assert pressed(Watching(1, 60), "-").past_s == WINDOWS_S[0]
    assert pressed(Watching(1, 60), *("+" * 20)).past_s == WINDOWS_S[-1]


def test_one_instance_after_another() -> None:
    watching = Watching(2, 60)
    assert [pressed(watching, "\t").only for _ in range(4)] == [0, 1, None, 0]
    assert pressed(Watching(1, 60), "\t").only is None


def test_scrolling_ends_at_the_top() -> None:
    watching = Watching(1, 60)
    assert pressed(watching, "KEY_DOWN", "j", "KEY_NPAGE").scrolled == 12
    assert pressed(watching, "k", "KEY_PPAGE").scrolled == 1
    assert pressed(watching, "KEY_UP", "KEY_UP").scrolled == 0
    assert pressed(watching, "KEY_NPAGE", "KEY_HOME").scrolled == 0


def test_the_last_line_says_what_was_chosen() -> None:
    assert footer(Watching(1, 60), 5, 10).text == "q quit  f freeze  +/- time  tab instance  ? help"
    frozen = footer(Watching(1, 60, is_frozen=True, scrolled=3), 50, 10)
    assert frozen.text == "FROZEN  q quit  f go on  +/- time  tab instance  ? help  lines 4-13 of 50"
    assert frozen.meaning == "warning"


def is_unicode(environment: Mapping[str, str]) -> bool:
    """Whether a program takes the terminal for one of UTF-8."""
    wanted = [environment[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(name)]
    return "UTF-8" in "".join(wanted[:1]).upper()


class Typed:
    """`replicate watch` on a terminal of its own."""

    def __init__(self, arguments: list[str], *, columns: int, rows: int, **environment: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._slave = slave
        self.before = termios.tcgetattr(slave)
        command = [sys.executable, "-m", "replicate.cli.main", "watch", *arguments]
        # Its locale is the tests' own, if that has Unicode: then it is forked, and need not import the product.
        own = {} if is_unicode(os.environ) else {"LC_ALL": "C.UTF-8"}
        self.process = fork_server.popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", **own, **environment},
        )
        self.raw = b""

    def sees(self, pattern: str) -> None:
        """Wait until this was written since the last time."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.raw.decode("utf-8", "replace")):
            assert time.monotonic() < deadline, f"never {pattern!r}; {self.raw!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.raw += os.read(self.master, 65536)
            assert self.process.poll() is None or select.select([self.master], [], [], 0)[0], self.raw
        self.raw = b""

    def types(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def ends(self) -> int:
        """Its exit code; the terminal is as it was."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self.master], [], [], 0.1)[0]:
                self.raw += os.read(self.master, 65536)
        while select.select([self.master], [], [], 0)[0]:
            self.raw += os.read(self.master, 65536)
        assert termios.tcgetattr(self._slave) == self.before
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.master)
        os.close(self._slave)


@contextmanager
def typed(*arguments: str, columns: int = 120, rows: int = 40, **environment: str) -> Iterator[Typed]:
    terminal = Typed(list(arguments), columns=columns, rows=rows, **environment)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path)
    made.write(7)
    return made


@pytest.mark.slow
def test_a_terminal_is_drawn_on_and_put_back(pair: Pair) -> None:
    with typed("-i", str(pair.primary.path), "-i", str(pair.secondary.path)) as terminal:
        terminal.sees("primary east.*last the last|primary east")
        terminal.types(b"f")
        terminal.sees("FROZEN")
        terminal.types(b"f")
        terminal.sees("freeze|f f")
        terminal.types(b"?")
        terminal.sees("one instance after another")
        terminal.types(b"?\t\t")
        terminal.sees("west")
        terminal.types(b"q")
        assert terminal.ends() == 0
        assert b"\x1b[?1049l" in terminal.raw  # the screen of before


@pytest.mark.slow
def test_a_signal_puts_the_terminal_back_too(pair: Pair) -> None:
    with typed("-i", str(pair.primary.path)) as terminal:
        terminal.sees("primary east")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ends() == 0
        assert b"\x1b[?1049l" in terminal.raw


@pytest.mark.slow
def test_ctrl_c_ends_it(pair: Pair) -> None:
    with typed("-i", str(pair.primary.path)) as terminal:
        terminal.sees("primary east")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ends() == 130


@pytest.mark.slow
def test_a_terminal_that_is_made_narrow_is_drawn_again(pair: Pair) -> None:
    with typed("-i", str(pair.primary.path), columns=150) as terminal:
        terminal.sees("┌")
        fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 50, 0, 0))
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.sees("▼ ")
        terminal.types(b"q")
        assert terminal.ends() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", [{"TERM": "vt100"}, {"NO_COLOR": "1"}, {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_terminal_without_colours_or_unicode_shows_the_same(pair: Pair, environment: dict[str, str]) -> None:
    with typed("-i", str(pair.primary.path), **environment) as terminal:
        terminal.sees("primary east")
        terminal.types(b"q")
        assert terminal.ends() == 0


@pytest.mark.slow
def test_a_terminal_that_nobody_knows_is_refused_by_name(pair: Pair) -> None:
    with typed("-i", str(pair.primary.path), TERM="no-such-terminal") as terminal:
        assert terminal.ends() == 2
        assert terminal.process.stderr is not None
        assert b"TERM is no-such-terminal" in terminal.process.stderr.read()
