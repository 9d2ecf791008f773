"""logs/files.py: rotated, compressed, torn, empty and strange files, of several daemons and hosts."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicate.errors import NotFoundError, UsageError
from replicate.logs.files import LINE_BYTES_MAX, LogFiles, logs_of, read_logs
from replicate.logs.story import LogStory
from tests.harness.logs import COMPRESSED, RECEIVER, SOURCE, UPDATE, raw, statistics, write


def read(*paths: Path) -> tuple[LogStory, LogFiles]:
    story = LogStory()
    return story, read_logs(paths, story)


def total(story: LogStory) -> int:
    return sum(row.transactions for track in story.tracks.values() for row in track.periods.rows.values())


def test_rotated_and_compressed_logs_are_read_in_their_order_in_time(tmp_path: Path) -> None:
    log = tmp_path / "west" / "log"
    for number, suffix in enumerate([".4.zst", ".3.bz2", ".2.xz", "-20300317.gz", ".1", ""]):
        lines = [statistics(100 * number + step, UPDATE, pid=number) for step in range(3)]
        write(log / f"update.log{suffix}", [raw(100 * number, UPDATE, "daemon started", pid=number), *lines])
    write(log / "command.log", [b"not a daemon's\n"])
    write(log / "update.err", [b"nor this\n"])
    story, files = read(tmp_path / "west")
    assert [path.name[10:] for path in files.paths] == [".4.zst", ".3.bz2", ".2.xz", "-20300317.gz", ".1", ""]
    assert (total(story), files.notes, story.tracks[UPDATE].set_back) == (180, (), 0)
    assert read(log)[1].paths == files.paths
    assert sorted(logs_of(log)) == sorted(files.paths)


def test_several_daemons_of_several_hosts(tmp_path: Path) -> None:
    story, _ = read(
        write(tmp_path / "a.log", [statistics(1, SOURCE), statistics(5, RECEIVER)]),
        write(tmp_path / "b.log", [statistics(2, UPDATE), statistics(3, UPDATE)]),
    )
    assert {teller: track.lines for teller, track in story.tracks.items()} == {SOURCE: 1, RECEIVER: 1, UPDATE: 2}


def test_what_is_odd_is_said_and_the_rest_is_read(tmp_path: Path) -> None:
    torn = write(tmp_path / "torn.log", [statistics(1, UPDATE), statistics(2, UPDATE)[:-9]])
    other = write(tmp_path / "other.log", [b"Mar 17 host cron[1]: x\n", b"\n", b'{"a": 1}\n', statistics(3, UPDATE)])
    empty = write(tmp_path / "empty.log", [])
    long = write(tmp_path / "long.log", [b"x" * (2 * LINE_BYTES_MAX + 5) + b"\n", statistics(4, UPDATE)])
    whole = write(tmp_path / "no_newline.log", [statistics(5, UPDATE).rstrip()])
    cut = write(tmp_path / "cut.log.gz", [statistics(number, SOURCE) for number in range(2000)])
    cut.write_bytes(cut.read_bytes()[:-2000])
    noise = tmp_path / "noise.gz"
    noise.write_bytes(b"\x1f\x8b" + random.Random(1).randbytes(500))
    story, files = read(torn, other, empty, long, whole, cut, noise)
    assert story.tracks[UPDATE].lines == 4
    assert 0 < story.tracks[SOURCE].lines < 2000
    notes = "\n".join(files.notes)
    for text in (
        f"{torn} ends within a line",
        f"{other} has 2 lines that no daemon has written",
        f"{empty} is empty",
        f"{long} has 1 line that no daemon",
        f"{cut} is damaged, or not yet written to its end, after ",
        f"{noise} is damaged",
    ):
        assert text in notes
    assert len(files.notes) == 6


def test_a_file_named_twice_and_a_copy_of_one_count_once(tmp_path: Path) -> None:
    one = write(tmp_path / "update.log.1", [statistics(1, UPDATE), statistics(2, UPDATE)])
    copy = write(tmp_path / "update.log.1.gz", [statistics(1, UPDATE), statistics(2, UPDATE)])
    (tmp_path / "linked.log").symlink_to(one)
    story, files = read(one, one, copy, tmp_path / "linked.log")
    assert (total(story), files.paths) == (20, (one,))
    assert files.notes == (
        f"{copy} is {one} again, and left out",
        f"{tmp_path / 'linked.log'} is {one} again, and left out",
    )


def test_what_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such log"):
        read(tmp_path / "nothing.log")
    with pytest.raises(NotFoundError, match="no log of a daemon"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe.log")
    with pytest.raises(UsageError, match="this is no file"):
        read(tmp_path / "pipe.log")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    cuts=st.lists(st.integers(0, 30), max_size=4),
    kinds=st.lists(st.sampled_from(sorted(COMPRESSED)), min_size=6, max_size=6),
    order=st.permutations(range(6)),
)
def test_however_a_log_is_rotated_and_named_it_tells_the_same(
    tmp_path: Path, cuts: list[int], kinds: list[str], order: list[int]
) -> None:
    lines = [
        raw(0, UPDATE, "daemon started", role="secondary"),
        *(statistics(10 * step + 1, UPDATE, step) for step in range(28)),
        raw(300, UPDATE, "daemon ended", state="stopped"),
    ]
    whole, _ = read(write(tmp_path / "whole.log", lines))
    places = [0, *sorted({cut for cut in cuts if 0 < cut < 30}), 30]
    parts = [
        write(tmp_path / f"part{number}.log{kinds[number]}", lines[first:last])
        for number, (first, last) in enumerate(pairwise(places))
    ]
    story, files = read(*(parts[place] for place in order if place < len(parts)))
    assert list(files.paths) == parts
    assert not files.notes
    assert story.tracks[UPDATE].periods.rows == whole.tracks[UPDATE].periods.rows
    assert story.tracks[UPDATE].spans == whole.tracks[UPDATE].spans
    assert story.marks == whole.marks
