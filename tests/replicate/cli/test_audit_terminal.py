"""`replicate audit` at a terminal: coloured and cut to its width, read in part, and ended by Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pytest

import replicate
from replicate.instance.instance import Instance
from tests.harness import instances
from tests.harness.waiting import wait_until

ROOT: Final = Path(replicate.__file__).resolve().parent.parent
COMMAND: Final = (sys.executable, "-P", "-m", "replicate.cli.main", "audit")


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """Row 1 of t, with a long text, becomes another."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    made = instances.make_primary(tmp_path / "alpha")
    monkeypatch.setenv("REPLICATE_INSTANCE", str(made.path))
    write(made, "INSERT INTO t VALUES (1, 'é" + "long " * 100 + "')", "UPDATE t SET v = 'b' WHERE id = 1")
    return made


def write(primary: Instance, *statements: str) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        for statement in statements:
            with connection:
                connection.execute(statement)


def at_a_terminal(*words: str, meanwhile: Callable[[Callable[[], str], int], None] | None = None) -> tuple[str, int]:
    """What the terminal shows, and the exit code. `meanwhile` is given what it shows so far, and the process."""
    shown = bytearray()
    pid, terminal = pty.fork()
    if not pid:
        os.environ["COLUMNS"] = "70"
        os.execv(sys.executable, [*COMMAND, *words])
    os.set_blocking(terminal, False)

    def look() -> str:
        with suppress(OSError):  # BlockingIOError, and EIO when it has ended
            while more := os.read(terminal, 65536):
                shown.extend(more)
        return shown.decode("utf-8", "replace")

    ended: list[int] = []

    def is_over() -> bool:
        look()
        found, status = os.waitpid(pid, os.WNOHANG)
        ended.extend([os.waitstatus_to_exitcode(status)] * bool(found))
        return bool(ended)

    try:
        if meanwhile is not None:
            meanwhile(look, terminal)
        wait_until(is_over, what="it ends")
        return look().replace("\r\n", "\n"), ended[0]
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


@pytest.mark.slow
def test_lines_are_coloured_and_cut_to_the_width(primary: Instance) -> None:
    shown, code = at_a_terminal("show", "--last", "2")
    assert code == 0
    assert "\x1b[32m    INSERT" in shown
    assert "\x1b[33m    UPDATE" in shown
    assert shown.count("\x1b[0m") == len(shown.splitlines()) == 4
    plain = re.sub(r"\x1b\[\d*m", "", shown).splitlines()
    assert max(map(len, plain)) == 70
    assert plain[1].endswith("…")
    assert "v: 'é" in plain[3]


@pytest.mark.slow
def test_what_is_no_terminal_gets_whole_values_without_colour(primary: Instance) -> None:
    done = subprocess.run([*COMMAND, "show", "--last", "2"], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout
    assert "long " * 100 in done.stdout


@pytest.mark.slow
def test_a_reader_of_the_first_lines_is_enough(primary: Instance) -> None:
    write(primary, *(f"INSERT INTO t VALUES ({n}, '{'x' * 500}')" for n in range(2, 400)))
    with subprocess.Popen([*COMMAND, "show"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline().startswith(b"1  ")
        running.stdout.close()  # much more is to come than a pipe holds
        assert running.stderr.read() == b""
        assert running.wait(60) == 0


@pytest.mark.slow
def test_following_ends_with_its_reader_though_nothing_comes(primary: Instance) -> None:
    command = [*COMMAND, "follow", "--from", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert any(b"UPDATE" in line for line in running.stdout)
        running.stdout.close()
        try:
            assert running.wait(60) == 0
        finally:
            running.kill()
        assert running.stderr.read() == b""


@pytest.mark.slow
def test_it_follows_until_ctrl_c(primary: Instance) -> None:
    def meanwhile(look: Callable[[], str], terminal: int) -> None:
        wait_until(lambda: "b" in look(), what="it follows")
        write(primary, "INSERT INTO t VALUES (7, 'followed')")
        wait_until(lambda: "followed" in look(), what="it is shown")
        os.write(terminal, b"\x03")

    shown, code = at_a_terminal("follow", "--from", "1", meanwhile=meanwhile)
    assert code == 130
    assert shown.count("followed") == 1
    assert "Traceback" not in shown
    assert shown.splitlines()[-1] == "^CINTERRUPTED: stopped by the keyboard"
