"""replay/archive/manifest.py: ranges are read as they were written; of a set of them one whole is found, or refused."""

from __future__ import annotations

import json
from itertools import combinations, pairwise, permutations
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.errors import BusyError, DamagedError, FormatUnknownError, GapError, WrongInstanceError
from update_process.replay.archive.files import LocalFiles
from update_process.replay.archive.manifest import (
    FOLDER,
    Range,
    SegmentCopy,
    gapless,
    is_place,
    named_places,
    range_name,
    read_ranges,
    require_alone,
    write_range,
)


def made(first: int, last: int, **changes: object) -> Range:
    segment = SegmentCopy(f"{first:020d}.journal", first, last, 4096, "ab" * 32)
    one = Range("11" * 16, "22" * 16, first, last, last - first + 1, 9, 77, {"changes": "0"}, (segment,))
    return replace(one, **changes)  # type: ignore[arg-type]


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "archive")


def test_ranges_are_read_as_they_were_written_in_the_order_of_their_numbers(files: LocalFiles) -> None:
    ranges = [made(1, 9), made(10, 10), made(11, 3000)]
    for one in reversed(ranges):
        write_range(files, one)
    assert read_ranges(files) == ranges
    assert named_places(files) == {one.name for one in ranges}
    assert ranges[0].packed_name(ranges[0].segments[0]).endswith(f"{range_name(1, 9)}/{1:020d}.journal.zst")


def test_a_hole_is_named(files: LocalFiles) -> None:
    for one in (made(1, 9), made(11, 20)):
        write_range(files, one)
    with pytest.raises(GapError, match=r"1–9 is followed by 11"):
        read_ranges(files)


def test_two_journals_make_no_archive(files: LocalFiles) -> None:
    write_range(files, made(1, 9))
    write_range(files, made(10, 20, instance="33" * 16))
    with pytest.raises(WrongInstanceError, match="two journals"):
        read_ranges(files)


def reach(found: list[Range]) -> int:
    """By trying all: the highest number that an unbroken row from the first one on reaches."""
    best = 0
    for count in range(1, len(found) + 1):
        for some in permutations(found, count):
            follows = all(a.last_seqno + 1 == b.first_seqno for a, b in pairwise(some))
            if follows and some[0].first_seqno == found[0].first_seqno:
                best = max(best, some[-1].last_seqno)
    return best


def test_of_ranges_that_overlap_one_whole_is_chosen_that_reaches_as_far_as_any() -> None:
    all_ranges = [made(1, 3), made(1, 5), made(4, 5), made(4, 8), made(6, 8), made(6, 9), made(10, 11)]
    for count in range(1, 5):
        for some in combinations(all_ranges, count):
            chosen = gapless(some)
            assert [one.first_seqno for one in chosen[1:]] == [one.last_seqno + 1 for one in chosen[:-1]]
            assert (chosen[0].first_seqno, chosen[-1].last_seqno) == (some[0].first_seqno, reach(list(some)))
    assert gapless([]) == []


def test_another_run_that_archived_a_part_is_noticed(files: LocalFiles) -> None:
    write_range(files, made(1, 9))
    require_alone(files, made(1, 9))  # that is ours
    require_alone(files, made(10, 12))
    for one in (made(9, 12), made(1, 4), made(3, 5)):
        with pytest.raises(BusyError, match="1–9 meanwhile"):
            require_alone(files, one)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": 4}, FormatUnknownError), ({"format": "x"}, DamagedError), ({"first_seqno": 2}, DamagedError),
        ({"segments": 7}, DamagedError), ({"network": "zz"}, DamagedError), ({"digests": None}, DamagedError),
        ({"segments": [{"name": "../x", "first_seqno": 1, "last_seqno": 9, "bytes": 1, "sha256": ""}]}, DamagedError),
    ],
)  # fmt: skip
def test_a_manifest_that_makes_no_sense_is_refused(
    files: LocalFiles, change: dict[str, object], error: type[Exception]
) -> None:
    write_range(files, made(1, 9))
    name = f"{FOLDER}/{range_name(1, 9)}.json"
    facts = json.loads(files.read(name))
    files.write(name, json.dumps({**facts, **change}).encode())
    with pytest.raises(error):
        read_ranges(files)
    files.write(name, b"[]")
    with pytest.raises(DamagedError):
        read_ranges(files)


def test_the_names_of_folders() -> None:
    assert is_place(range_name(1, 2))
    assert is_place(range_name(1, 2) + "-a7")
    assert not [one for one in ("x", "1-2", range_name(1, 2) + "-", range_name(1, 2) + "/x") if is_place(one)]
