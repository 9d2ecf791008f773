"""Segment files by themselves, directories of them, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from replicate.audit.query import Query
from replicate.audit.read import Match
from replicate.audit.sources import find_in_directory, find_in_files
from replicate.errors import (
    GapError,
    JournalDamagedError,
    JournalMissingError,
    NotFoundError,
    UsageError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.journal.chain import Chain
from tests.harness import journals
from tests.harness.journals import ToyJournal, flip, frame_places


@pytest.fixture
def segments(tmp_path: Path) -> list[Path]:
    """Four segments: 1 to 3, 4 to 6, 7 to 9, 10 to 12."""
    toy = ToyJournal(tmp_path / "journal")
    for last in (3, 6, 9, 12):
        toy.write(3)
        if last < 12:
            toy.switch()
    toy.sidecar.write(12)
    toy.close()
    return sorted((tmp_path / "journal").glob("*.journal"))


def numbers_of(found: Iterable[Match]) -> Iterator[int]:
    return (one.seqno for one in found)


def numbers(found: Iterable[Match]) -> list[int]:
    return list(numbers_of(found))


def test_one_file_whatever_it_is_called(segments: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "what was saved.bin"
    shutil.copy(segments[1], other)
    assert numbers(find_in_files([other], Query())) == [4, 5, 6]
    assert numbers(find_in_files([segments[2], other], Query(5, 8))) == [5, 6, 7, 8]
    assert numbers(find_in_files([segments[0]], Query(last_count=1))) == [3]


def test_a_directory_with_a_hole_is_read_on_one_side_of_it(segments: list[Path]) -> None:
    directory = segments[0].parent
    assert numbers(find_in_directory(directory, Query())) == list(range(1, 13))
    segments[1].unlink()
    assert numbers(find_in_directory(directory, Query(7))) == [7, 8, 9, 10, 11, 12]
    assert numbers(find_in_directory(directory, Query(2, 3))) == [2, 3]
    for query in (Query(), Query(2, 8), Query(2, 4)):
        with pytest.raises(GapError, match="transactions 4 to 6 are missing") as caught:
            find_in_directory(directory, query)
        assert caught.value.do == "Ask for what lies on one side: --to 3, or --from 7"
    with pytest.raises(GapError):
        find_in_files([segments[0], segments[2]], Query())
    assert numbers(find_in_files([segments[0], segments[2]], Query(8))) == [8, 9]


@pytest.mark.parametrize("hole", [False, True])
def test_a_last_frame_that_the_mark_beside_it_knows_is_damage_and_no_torn_tail(
    segments: list[Path], hole: bool
) -> None:
    """A copy that was cut short, or whose last frame was hit, is not a shorter journal."""
    directory = segments[0].parent
    if hole:
        segments[1].unlink()
    flip(segments[3], frame_places(Chain(directory), 10)[12] + 70)
    given: list[int] = []
    with pytest.raises(JournalDamagedError, match="up to transaction 11"):
        given.extend(numbers_of(find_in_directory(directory, Query(7))))
    assert given == [7, 8, 9, 10, 11]


def test_what_is_not_one_journal_is_refused(
    segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="two files begin with transaction 1"):
        find_in_files([segments[0], segments[0]], Query())
    for name, kind in (("NETWORK", WrongNetworkError), ("INSTANCE", WrongInstanceError)):
        monkeypatch.setattr(journals, name, bytes(16))
        other = ToyJournal(tmp_path / name, journals.FrameMaker(next_seqno=13))
        other.write(1)
        other.close()
        monkeypatch.undo()
        path = next((tmp_path / name).glob("*.journal"))
        with pytest.raises(kind, match="two"):
            find_in_files([segments[3], path], Query())
        shutil.copy(path, segments[0].parent)
        with pytest.raises(kind, match="two"):
            find_in_directory(segments[0].parent, Query())
        (segments[0].parent / path.name).unlink()


def test_a_pruned_beginning(segments: list[Path]) -> None:
    """What is left is answered from; what is asked for by its number and is gone is an error, and not a shorter
    answer."""
    directory = segments[0].parent
    for pruned in segments[:2]:
        pruned.unlink()
    assert numbers(find_in_directory(directory, Query())) == [7, 8, 9, 10, 11, 12]
    assert numbers(find_in_directory(directory, Query(last_count=2))) == [11, 12]
    assert numbers(find_in_files(segments[2:], Query(8, 10))) == [8, 9, 10]
    for query in (Query(1), Query(6, 8), Query(1, tables=())):
        with pytest.raises(JournalMissingError, match="7") as caught:
            numbers(find_in_directory(directory, query))
        assert caught.value.do.startswith("Give --from 7")
    with pytest.raises(UsageError, match="holds transactions 7 to 12"):
        find_in_directory(directory, Query(1, 6))


def test_numbers_that_are_not_there(segments: list[Path]) -> None:
    with pytest.raises(UsageError, match="holds transactions 7 to 9"):
        find_in_files([segments[2]], Query(20, 30))
    with pytest.raises(NotFoundError):
        find_in_files([segments[2]], Query(tables=("none",)))
