"""`replicate seed`: which way it goes, what makes no sense, and its progress bar on a terminal only."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from replicate.cli.progress import seeding
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return Pair.create(tmp_path)


def run(instance: Path, *arguments: str | Path, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "replicate.cli.main", "-i", str(instance), "seed", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_by_a_file_from_one_to_the_other(pair: Pair, tmp_path: Path) -> None:
    made = run(pair.primary.path, "--json", "--to-file", tmp_path / "f", "--for", "west")
    assert made.returncode == 0, made.stderr
    assert made.stderr == ""
    found = json.loads(made.stdout)
    assert (found["consumer"], found["bytes"]) == ("west", (tmp_path / "f").stat().st_size)
    assert run(pair.primary.path, "--to-file", tmp_path / "f", "--for", "west").returncode == 73
    loaded = run(pair.secondary.path, "--from-file", tmp_path / "f")
    assert loaded.returncode == 0, loaded.stderr
    assert f"seeded at seqno {found['seqno']}: main" in loaded.stdout
    assert f"where no line leads here: replicate -i {pair.secondary.named} packet import DIR" in loaded.stdout
    assert "the seed at seqno" in run(pair.primary.path, "--forget", "west").stdout
    assert "no seed is on its way" in run(pair.primary.path, "--forget", "west").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("--from", "a", "--from-file", "b"),
        ("--to-file", "a"),
        ("--for", "west"),
        ("--forget", "west", "--to-file", "f", "--for", "west"),
    ],
)
def test_what_makes_no_sense_together(pair: Pair, arguments: tuple[str, ...]) -> None:
    done = run(pair.primary.path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("USAGE")


@pytest.mark.slow
def test_a_path_is_an_instance_here_and_a_name_may_be_a_remote_one(pair: Pair) -> None:
    path = run(pair.secondary.path, "--from", pair.directory / "nowhere")
    assert path.returncode == 69
    assert "no such instance directory" in path.stderr
    for remote in (("--from", "paris"), ()):
        name = run(pair.secondary.path, *remote)
        assert name.returncode == 69
        assert "the Receiver Server of west does not run" in name.stderr


def everything(reader: int) -> str:
    """What was written to a terminal whose other end is closed: it arrives in as many pieces as the kernel likes."""
    pieces = []
    with contextlib.suppress(OSError):  # EIO is a terminal's end of file
        while piece := os.read(reader, 65536):
            pieces.append(piece)
    return b"".join(pieces).decode()


def test_a_terminal_sees_how_much_and_how_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first line on: it said "0%  None" there."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    try:
        with os.fdopen(terminal, "w") as screen:
            monkeypatch.setattr(sys, "stderr", screen)
            with seeding("writers go on") as told:
                told("waiting for the source", 0, 0)
                told("the source makes the seed", 3, 9)
                told("receiving", 0, 2**21)
                told("receiving", 2**21, 2**21)
        lines = everything(reader).split("\r\033[K")
    finally:
        os.close(reader)
    assert lines[:4] == [
        "",
        "0 s, waiting for the source, writers go on",
        "0 s, the source makes the seed, 3 of 9 pages, writers go on",
        "0 s, receiving, 0.0 of 2.0 MiB, writers go on",
    ]
    assert lines[4].startswith("0 s, receiving, 2.0 of 2.0 MiB, ")
    assert len(lines[4]) == 59  # what is longer than the terminal is wide would stay on it
    assert lines[5] == ""
