"""seeing/follow.py: each line of a log once, whole, and over a rotation."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from replicate.logs.files import LINE_BYTES_MAX
from replicate.seeing.follow import FollowedLogs
from tests.harness.logs import RECEIVER, SOURCE, raw, write


def numbers(logs: FollowedLogs) -> list[int]:
    return [line.count("n") for line in logs.new_lines()]


def add(path: Path, *made: bytes) -> None:
    with open(path, "ab") as file:
        file.write(b"".join(made))


def test_what_is_there_then_what_comes(tmp_path: Path) -> None:
    path = write(tmp_path / "source-west.log", [raw(1, SOURCE, "x", n=1), raw(2, SOURCE, "x", n=2)])
    (tmp_path / "command.log").write_text("{}")
    logs = FollowedLogs(tmp_path)
    assert numbers(logs) == [1, 2]
    assert numbers(logs) == []
    line = raw(3, SOURCE, "x", n=3)
    add(path, line[:20])
    assert numbers(logs) == []
    add(path, line[20:], b"not ours\n", raw(4, SOURCE, "x", n=4))
    assert numbers(logs) == [3, 4]
    write(tmp_path / "receiver.log", [raw(5, RECEIVER, "x", n=5)])
    assert numbers(logs) == [5]


def test_a_log_that_is_rotated_is_read_to_its_end_and_its_compressed_copy_not_again(tmp_path: Path) -> None:
    path = write(tmp_path / "source-west.log", [raw(1, SOURCE, "x", n=1)])
    logs = FollowedLogs(tmp_path)
    assert numbers(logs) == [1]
    add(path, raw(2, SOURCE, "x", n=2))
    rotated = path.rename(tmp_path / "source-west.log.1")
    os.utime(rotated, (1, 1))
    write(path, [raw(3, SOURCE, "x", n=3)])
    assert numbers(logs) == [2, 3]
    (tmp_path / "source-west.log.2.gz").write_bytes(gzip.compress(rotated.read_bytes()))
    rotated.unlink()
    assert numbers(logs) == []
    add(path, raw(4, SOURCE, "x", n=4))
    assert numbers(logs) == [4]


def test_older_logs_come_first_and_compressed_ones_too(tmp_path: Path) -> None:
    write(tmp_path / "update.log", [raw(9, SOURCE, "x", n=9)])
    for number, suffix in ((1, ".gz"), (2, ".xz"), (3, ".bz2"), (4, ".zst")):
        path = write(tmp_path / f"update.log.{9 - number}{suffix}", [raw(number, SOURCE, "x", n=number)])
        os.utime(path, (number, number))
    assert numbers(FollowedLogs(tmp_path)) == [1, 2, 3, 4, 9]
    assert numbers(FollowedLogs(tmp_path, since_us=3_000_000)) == [3, 4, 9]


def test_a_log_that_was_cut_begins_again_and_a_damaged_one_hurts_no_other(tmp_path: Path) -> None:
    path = write(tmp_path / "source-west.log", [raw(1, SOURCE, "x", n=1), raw(2, SOURCE, "x", n=2)])
    (tmp_path / "receiver.log.1.gz").write_bytes(gzip.compress(raw(7, RECEIVER, "x", n=7))[:-9])
    (tmp_path / "update.log").mkdir()
    logs = FollowedLogs(tmp_path)
    assert 1 in numbers(logs)
    path.write_bytes(raw(3, SOURCE, "x", n=3))
    assert numbers(logs) == [3]


def test_a_line_without_an_end_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    path = tmp_path / "source-west.log"
    path.write_bytes(b"x" * (LINE_BYTES_MAX + 5))
    logs = FollowedLogs(tmp_path)
    assert numbers(logs) == []
    add(path, b"\n", raw(3, SOURCE, "x", n=3))
    assert numbers(logs) == [3]


def test_no_directory_is_no_line(tmp_path: Path) -> None:
    assert numbers(FollowedLogs(tmp_path / "log")) == []
