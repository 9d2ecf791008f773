"""log.py: lines are whole, logging never fails, and rows stay out of it."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from replicate.daemon.log import LogFile, make_logger, terminal


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def logger(file: LogFile, *, row_values: bool = False) -> Any:
    return make_logger(daemon="d", instance="i", level="info", row_values=row_values, file=file)


def test_json_lines_with_bound_facts(tmp_path: Path) -> None:
    path = tmp_path / "d.log"
    file = LogFile(path)
    log = make_logger(daemon="source-west", instance="i", level="info", row_values=False, file=file)
    log.debug("not written")
    log.info("connected", peer="west\nline", address=Path("/x"), raw=b"\xff", odd="\udcff")
    log.bind(more=1).warning("slow")
    try:
        raise ValueError("x")
    except ValueError:
        log.exception("failed")
    first, second, third = lines(path)
    assert first["event"] == "connected"
    assert (first["daemon"], first["instance"], first["level"], first["pid"]) == (
        "source-west",
        "i",
        "info",
        os.getpid(),
    )
    assert first["peer"] == "west\nline"
    assert first["timestamp"].endswith("Z")
    assert (second["more"], second["level"]) == (1, "warning")
    assert "Traceback" in third["exception"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_values_of_rows_are_left_out_unless_wanted(tmp_path: Path) -> None:
    path = tmp_path / "d.log"
    file = LogFile(path)
    logger(file).error("conflict", table="t", before=["secret"], after=["secret"])
    logger(file, row_values=True).error("conflict", before=["secret"])
    logger(file).error("rows differ", keys="up to secret", key="secret")
    first, second, third = lines(path)
    assert "secret" not in json.dumps([first, third])
    assert first["table"] == "t"
    assert second["before"] == ["secret"]


def test_reopen_follows_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "d.log"
    file = LogFile(path)
    file.write_line("one")
    path.rename(tmp_path / "d.log.1")
    file.write_line("two")
    file.reopen()
    file.write_line("three")
    assert (tmp_path / "d.log.1").read_text() == "one\ntwo\n"
    assert path.read_text() == "three\n"


def test_reopen_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "d.log"
    file = LogFile(path)
    path.rename(tmp_path / "d.log.1")
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        file.reopen()
    file.write_line("still")
    assert (tmp_path / "d.log.1").read_text() == "still\n"


def test_a_full_disk_loses_lines_and_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "d.log"
    file = LogFile(path)
    real = os.write
    room = [5]

    def write(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken, room[0] = min(room[0], len(data)), room[0] - min(room[0], len(data))
        return real(fd, data[:taken])

    monkeypatch.setattr(os, "write", write)
    file.write_line("first line")  # torn after five bytes
    file.write_line("second")
    file.write_line("third")
    assert file.lost_lines >= 3
    lost = file.lost_lines
    monkeypatch.setattr(os, "write", real)
    file.write_line("here again")
    torn, last = path.read_text().splitlines()
    assert torn.startswith("first")
    note, sep, rest = torn[5:].partition("}")
    assert json.loads(note + sep)["lost_lines"] == lost
    assert (rest, last) == ("", "here again")
    file.close()
    file.write_line("after close")
    assert file.lost_lines == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_it_readable_and_may_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    file = LogFile(tmp_path / "d.log")
    log = make_logger(daemon="d", instance="i", level="info", row_values=False, file=file, console=screen)
    log.info("hello", seqno=7)
    assert "hello" in screen.getvalue()
    assert "seqno" in screen.getvalue()
    screen.close()
    log.info("gone")
    assert [e["event"] for e in lines(tmp_path / "d.log")] == ["hello", "gone"]
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert terminal() is sys.stderr
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert terminal() is None


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "d.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        LogFile(tmp_path / "d.log")
