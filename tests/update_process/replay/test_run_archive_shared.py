"""An archive that two runs at once have written, as readers see it: each number once, and nothing written over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.errors import BusyError, DamagedError, GapError, UsageError
from tests.harness.pair import Pair, run
from tests.harness.replaying import archive_segments, assert_equal
from update_process.replay.archive.files import LocalFiles
from update_process.replay.archive.manifest import (
    FOLDER,
    FORMAT,
    FORMAT_APART,
    Range,
    SegmentCopy,
    gapless,
    range_name,
    read_ranges,
    require_alone,
    write_range,
)
from update_process.replay.command import replay


class Elsewhere(LocalFiles):
    """Files where nobody is kept out."""

    keeps_out = False


def made(first: int, last: int, *, run: str = "") -> Range:
    copy = SegmentCopy(f"{first:020d}.journal", first, last, 1, "00")
    folder = f"{range_name(first, last)}-{run}" if run else ""
    kind = FORMAT_APART if run else FORMAT
    return Range("00" * 16, "11" * 16, first, last, last - first + 1, 0, 1, {}, (copy,), {}, kind, folder)


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([], []),
        ([(1, 4)], [(1, 4)]),
        ([(1, 4), (5, 9)], [(1, 4), (5, 9)]),
        ([(1, 4), (1, 6), (5, 9)], [(1, 4), (5, 9)]),  # 1–6 leads nowhere
        ([(1, 4), (1, 6), (5, 6), (7, 9)], [(1, 6), (7, 9)]),  # the fewest ranges
        ([(1, 4), (1, 6), (5, 9), (7, 12)], [(1, 6), (7, 12)]),  # as far as any do
        ([(1, 4), (5, 9), (12, 14)], [(1, 4), (5, 9)]),
        ([(5, 9), (7, 12)], [(5, 9)]),
    ],
)
def test_ranges_that_follow_one_another_are_chosen(found: list[tuple[int, int]], chosen: list[tuple[int, int]]) -> None:
    picked = gapless([made(*bounds) for bounds in found])
    assert [(one.first_seqno, one.last_seqno) for one in picked] == chosen


def test_a_manifest_that_is_there_stays_and_who_comes_late_is_told(tmp_path: Path) -> None:
    files = Elsewhere(tmp_path)
    write_range(files, made(1, 4, run="aa"))
    with pytest.raises(BusyError, match="another `replicate archive` has archived 1–4 meanwhile"):
        write_range(files, made(1, 4, run="bb"))
    (found,) = read_ranges(files)
    assert found == made(1, 4, run="aa")
    assert found.packed_name(found.segments[0]).startswith(f"segments/{range_name(1, 4)}-aa/")
    write_range(files, found)  # ours, though we were told that it failed
    require_alone(files, found)
    write_range(files, made(1, 6, run="bb"))
    write_range(files, made(5, 9, run="aa"))
    for one in (made(1, 6, run="bb"), made(5, 9, run="aa")):
        with pytest.raises(BusyError, match="meanwhile"):
            require_alone(files, one)
    assert [one.last_seqno for one in read_ranges(files)] == [4, 9]


def test_a_hole_is_one_though_ranges_overlap(tmp_path: Path) -> None:
    files = Elsewhere(tmp_path)
    for first, last in ((1, 4), (1, 6), (7, 9), (12, 14)):
        write_range(files, made(first, last, run="aa"))
    with pytest.raises(GapError, match="the archive's range 7–9 is followed by 12"):
        read_ranges(files)


@pytest.mark.parametrize("folder", ["", "x", "../x", f"{range_name(1, 4)}-", f"{range_name(1, 4)}-../x", "a/b", None])
def test_a_folder_is_the_ranges_own_and_no_path(tmp_path: Path, folder: str | None) -> None:
    files = LocalFiles(tmp_path)
    write_range(files, made(1, 4, run="aa"))
    path = tmp_path / FOLDER / f"{range_name(1, 4)}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "folder": folder}))
    with pytest.raises(DamagedError, match="this is no manifest"):
        read_ranges(files)


def test_a_directorys_manifest_is_as_before(tmp_path: Path) -> None:
    """What older releases read, and have written."""
    files = LocalFiles(tmp_path)
    write_range(files, made(1, 4))
    facts = json.loads((tmp_path / FOLDER / f"{range_name(1, 4)}.json").read_text())
    assert facts["format"] == FORMAT
    assert "folder" not in facts
    assert read_ranges(files) == [made(1, 4)]
    assert read_ranges(files)[0].place == range_name(1, 4)


def test_a_replay_takes_each_number_once(pair: Pair, tmp_path: Path) -> None:
    for _ in range(3):
        run(pair, *(f"UPDATE account SET balance = {number}" for number in range(5)))
        with pair.connect() as connection:
            connection.executemany("INSERT INTO entry VALUES (?, 1.0, ?)", [(str(n), b"x" * 1000) for n in range(1100)])
        connection.close()
    run(pair, "UPDATE account SET balance = 77")
    first = archive_segments(pair.primary, tmp_path / "archive", range_segments=1)
    archive_segments(pair.primary, first, range_segments=2)
    assert len(list((first / FOLDER).iterdir())) > len(read_ranges(LocalFiles(first)))
    last = pair.last_seqno()
    assert replay(pair.secondary, [first, pair.primary.path]).seqno == last
    assert_equal(pair)


def test_a_range_is_named_by_its_numbers() -> None:
    assert replace(made(1, 4), folder="x").name == made(1, 4).name == f"{1:020d}-{4:020d}"


def test_an_archive_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(UsageError, match="this is a file"), LocalFiles(tmp_path / "file").locked():
        pass
    assert (tmp_path / "file").read_bytes() == b"mine"
