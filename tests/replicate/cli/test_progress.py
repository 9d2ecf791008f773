"""The line that tells how far long work is: rates, time left, and nothing where nobody looks."""

from __future__ import annotations

import io
import os
import pty

import pytest

from replicate.cli.progress import (
    Line,
    archiving,
    comparing,
    reading,
    replaying,
    seeding,
    tell_archive,
    tell_compare,
    tell_replay,
    tell_seed,
)
from replicate.compare.compare import CompareProgress as CompareStep
from replicate.transfer.seed.partition import PUTTING_IN, ROLLING
from replicate.transfer.seed.some_regions import WAITING
from update_process.replay.apply import Progress
from update_process.replay.archive.archive import Step


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def shown(stream: io.StringIO) -> list[str]:
    return [line for line in stream.getvalue().split("\r\033[K") if line]


def test_one_line_with_rate_and_time_left_at_most_twice_a_second() -> None:
    stream, clock = io.StringIO(), Clock()
    line = Line(stream, clock)
    tell_replay(line, Progress("reading", 0, 1000, 7))
    for done in range(1, 4):
        clock.now_s += 0.2
        tell_replay(line, Progress("reading", done * 100, 1000, 7 + done * 100, changes=done * 500, keys=40))
    clock.now_s += 0.4
    tell_replay(line, Progress("inserting", 10, 10, 307, changes=1500, keys=50, written=30))
    line.close()
    assert shown(stream) == [
        "0 s, reading, 0 of 1000 transactions, at transaction 7: 0 changes, 0 written",
        "1 s, reading, 300 of 1000 transactions, 500 transactions a second, about 1 s left, "
        "at transaction 307: 1500 changes, 40 rows touched, 0 written",
        "1 s, inserting, 10 of 10 rows, at transaction 307: 1500 changes, 50 rows touched, 30 written",
    ]
    assert stream.getvalue().endswith("\r\033[K")


def test_what_spark_does() -> None:
    """Tasks have no rate, since more of them come; rows that are staged have one, and a time that is left."""
    stream, clock = io.StringIO(), Clock()
    line = Line(stream, clock)
    tell_replay(line, Progress("starting Spark", 0))
    tell_replay(line, Progress("collapsing", 0, 0, 9, changes=70))
    for done in (1, 3):
        clock.now_s += 1
        tell_replay(line, Progress("collapsing", done, 4, 9, changes=70))
    tell_replay(line, Progress("inserting", 0, 600, 9, changes=70, keys=600))
    clock.now_s += 1
    tell_replay(line, Progress("inserting", 200, 600, 9, changes=70, keys=600, written=200))
    assert shown(stream) == [
        "0 s, starting Spark",
        "0 s, collapsing, at transaction 9: 70 changes, 0 written",
        "1 s, collapsing, Spark: 1 of 4 tasks, at transaction 9: 70 changes, 0 written",
        "2 s, collapsing, Spark: 3 of 4 tasks, at transaction 9: 70 changes, 0 written",
        "2 s, inserting, 0 of 600 rows, at transaction 9: 70 changes, 600 rows touched, 0 written",
        "3 s, inserting, 200 of 600 rows, 200 rows a second, about 2 s left, at transaction 9: 70 changes, "
        "600 rows touched, 200 written",
    ]


def test_segments_of_an_archive() -> None:
    stream, clock = io.StringIO(), Clock()
    line = Line(stream, clock)
    tell_archive(line, Step(100, 16, 48, 100, 700))
    clock.now_s += 8
    tell_archive(line, Step(200, 32, 48, 200, 1400))
    assert shown(stream)[1] == (
        "8 s, archiving, 32 of 48 segments, 2 segments a second, about 8 s left, "
        "up to transaction 200: 200 transactions, 1400 changes"
    )
    clock.now_s += 56
    tell_archive(line, Step(200, 32, 48, 200, 1400, 2, 7))
    assert shown(stream)[2] == (
        "64 s, archiving, 32 of 48 segments, 4 s each of the segments, about 64 s left, "
        "up to transaction 200: 200 transactions, 1400 changes; Spark: 2 of 7 tasks"
    )


def test_bytes_are_told_in_mebibytes_and_long_times_in_minutes() -> None:
    stream, clock = io.StringIO(), Clock()
    line = Line(stream, clock)
    tell_compare(line, CompareStep("waiting until both are at one transaction", "the Update Process stands still"))
    tell_compare(line, CompareStep("comparing", "main.item: 500 rows; writers go on", 0, 3 << 30))
    clock.now_s += 200
    tell_compare(line, CompareStep("comparing", "t: 900 rows", 1 << 30, 3 << 30))
    clock.now_s += 20_000
    tell_compare(line, CompareStep("comparing", "t: 901 rows", 3 << 29, 3 << 30))
    assert shown(stream) == [
        "0 s, waiting until both are at one transaction, the Update Process stands still",
        "0 s, comparing, 0.0 of 3072.0 MiB, main.item: 500 rows; writers go on",
        "3 min, comparing, 1024.0 of 3072.0 MiB, 5.1 MiB/s, about 7 min left, t: 900 rows",
        "5.6 h, comparing, 1536.0 of 3072.0 MiB, 0.1 MiB/s, about 5.6 h left, t: 901 rows",
    ]


def test_each_step_of_a_seed_in_its_own_unit() -> None:
    stream, clock = io.StringIO(), Clock()
    line = Line(stream, clock)
    for label, done in (("receiving", 1 << 20), (WAITING, 7), (ROLLING, 1), (PUTTING_IN, 2), ("main", 3)):
        tell_seed(line, label, done, 3 << 20 if label == "receiving" else 9, "writers go on")
    assert shown(stream) == [
        "0 s, receiving, 1.0 of 3.0 MiB, writers go on",
        "0 s, waiting until that transaction is applied, 7 of 9 transactions, writers go on",
        "0 s, bringing the copy forward, 1 of 9 regions, writers go on",
        "0 s, putting rows in, 2 of 9 tables, writers go on",
        "0 s, main, 3 of 9 pages, writers go on",
    ]


def test_nothing_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with replaying() as told:
        told(Progress("reading", 1))
    with archiving() as told_archive:
        told_archive(Step(1, 1, 1, 1, 1))
    with seeding("") as told_seed:
        told_seed("receiving", 1, 2)
    with comparing() as told_compare, reading() as told_reading:
        assert told_compare is told_reading is None  # so that nothing is even asked
    assert capsys.readouterr().err == ""


def test_a_terminal_that_goes_away_ends_the_line_and_not_the_work() -> None:
    reader, terminal = pty.openpty()
    clock = Clock()
    with os.fdopen(terminal, "w") as stream:
        line = Line(stream, clock)
        tell_replay(line, Progress("reading", 1, 10, 7))
        os.close(reader)
        for done in (2, 3):
            clock.now_s += 1
            tell_replay(line, Progress("reading", done, 10, 7))
        line.close()
        assert line._is_gone
        line._stream = io.StringIO()  # what Python keeps of the line can never be written
        with pytest.raises(OSError, match="Input/output error"):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
