"""Where a replay reads from, where several journals hold the same numbers: as planned, frames and rows alike."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.errors import GapError, JournalMissingError, TryAgainError
from replicate.journal.chain import Chain
from replicate.journal.record import FrameBatch
from replicate.system import failpoint
from tests.harness.journals import mounted_read_only
from tests.harness.pair import Pair, run
from tests.harness.replaying import archive_segments, assert_equal
from update_process.replay.backlog import Journals, holes
from update_process.replay.command import replay, sources_of
from update_process.replay.run import Source


class Scene:
    """A journal of two sealed segments and one that is written to, an archive of the two, and a copy of all."""

    def __init__(self, pair: Pair, directory: Path) -> None:
        self.pair = pair
        self.directory = directory
        run(pair, *(f"UPDATE account SET balance = {number}" for number in range(20)))
        connection = pair.connect()
        connection.executemany("INSERT INTO entry VALUES (?, 1.0, ?)", [(str(n), b"x" * 1000) for n in range(1500)])
        connection.commit()
        connection.close()
        self.last_seqno = run(pair, *(f"UPDATE account SET balance = {number}" for number in range(20, 30)))
        self.archive = archive_segments(pair.primary, directory / "archive")
        self.journal = directory / "journal"
        shutil.copytree(pair.primary.journal_directory, self.journal)
        self.stage = directory / "stage"
        self.stage.mkdir()
        self.sealed = Chain(self.journal).first_seqnos()[-1] - 1
        self.unpacked = 0

    def another_course(self) -> None:
        """The copy's sealed segments are other files, though their frames are whole."""
        for path in sorted(self.journal.glob("*.journal"))[:-1]:
            with open(path, "ab") as file:
                file.write(b"\0")

    def journals(self) -> Journals:
        network = self.pair.primary.content.network
        return Journals([self.journal, self.archive], network, stage=self.stage)

    def read(self, journals: Journals, first: int, last: int) -> list[int]:
        """The numbers that were read, and in `unpacked` how many segments of the archive it took."""
        self.unpacked = 0
        for number in range(1, 9):
            failpoint.watch("replay.unpacked", number, self._count)
        found: list[int] = []
        for one in journals.read(first, last):
            numbers = range(one.first_seqno, one.last_seqno + 1) if isinstance(one, FrameBatch) else [one.seqno]
            found.extend(numbers)
        failpoint.disarm()
        return found

    def without(self, *places: int) -> list[tuple[int, int]]:
        """Take segments out of the copy; which numbers they held."""
        firsts = [*Chain(self.journal).first_seqnos(), self.last_seqno + 1]
        for place in places:
            Path(Chain(self.journal).path_of(firsts[place])).unlink()
        return [(firsts[place], firsts[place + 1] - 1) for place in places]

    def _count(self) -> None:
        self.unpacked += 1


@pytest.fixture
def scene(pair: Pair, tmp_path: Path) -> Iterator[Scene]:
    yield Scene(pair, tmp_path)
    failpoint.disarm()


@pytest.mark.parametrize("archived_first", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_frames_are_read_from_where_the_rows_are(scene: Scene, archived_first: bool, other: bool) -> None:
    """Two courses of one journal: one that takes the archive's rows verifies the archive's frames, not the copy's."""
    if other:
        scene.another_course()
    journals = scene.journals()
    plan = journals.plan(1, scene.last_seqno, archived_first=archived_first)
    archived = Source(1, scene.sealed, scene.archive.as_uri())
    copied = Source(scene.sealed + 1, scene.last_seqno, str(scene.journal))
    whole = Source(1, scene.last_seqno, str(scene.journal))
    assert sources_of(plan) == ((archived, copied) if archived_first else (whole,))
    assert scene.read(journals, 1, scene.last_seqno) == list(range(1, scene.last_seqno + 1))
    assert scene.unpacked == (2 if archived_first and other else 0)  # the very same file is as good
    assert not list(scene.stage.iterdir())


def test_a_part_of_the_plan_is_read_as_planned(scene: Scene) -> None:
    scene.another_course()
    journals = scene.journals()
    journals.plan(1, scene.last_seqno, archived_first=True)
    for first, last in ((5, 9), (scene.sealed, scene.sealed + 1), (scene.sealed + 2, scene.last_seqno)):
        spans = journals.spans(first, last)
        assert (spans[0].first_seqno, spans[-1].last_seqno) == (first, last)
        assert [span.archive is not None for span in spans] == sorted(
            {span.archive is not None for span in spans}, reverse=True
        )
        assert scene.read(journals, first, last) == list(range(first, last + 1))
        assert scene.unpacked == (first <= scene.sealed)


def test_what_is_in_none_of_them_is_refused_before_anything_is_read(scene: Scene) -> None:
    newest = max(scene.journal.glob("*.journal"))
    for path in scene.journal.glob("*.journal"):
        if path != newest:
            path.unlink()
    shutil.rmtree(scene.archive / "manifests")
    (scene.archive / "manifests").mkdir()
    archive_segments(scene.pair.primary, scene.archive, range_segments=1)
    sorted((scene.archive / "manifests").iterdir())[1].unlink()
    for archived_first in (False, True):
        with pytest.raises(GapError, match=f"transaction {scene.sealed} is in none of these journals"):
            scene.journals().plan(1, scene.last_seqno, archived_first=archived_first)
    before = scene.pair.last_seqno(scene.pair.secondary)
    with pytest.raises(GapError):
        replay(scene.pair.secondary, [scene.journal, scene.archive])
    assert scene.pair.last_seqno(scene.pair.secondary) == before


@pytest.mark.parametrize("archived_first", [False, True])
def test_what_a_directory_lacks_in_its_middle_is_read_from_the_archive(scene: Scene, archived_first: bool) -> None:
    ((first, last),) = scene.without(1)
    journals = scene.journals()
    plan = journals.plan(1, scene.last_seqno, archived_first=archived_first)
    if not archived_first:
        uri, path = scene.archive.as_uri(), str(scene.journal)
        assert sources_of(plan) == (
            Source(1, first - 1, path),
            Source(first, last, uri),
            Source(last + 1, scene.last_seqno, path),
        )
    assert scene.read(journals, 1, scene.last_seqno) == list(range(1, scene.last_seqno + 1))
    assert scene.unpacked == 1
    assert replay(scene.pair.secondary, [scene.journal, scene.archive]).seqno == scene.last_seqno
    assert_equal(scene.pair)


def test_the_archive_is_read_over_a_directory_that_lacks_some_of_it(pair: Pair, tmp_path: Path) -> None:
    """The very same file is as good as the archive's copy, on either side of the hole."""
    for number in range(3):
        run(pair, f"UPDATE account SET balance = {number}")
        with pair.connect() as connection:
            connection.executemany("INSERT INTO entry VALUES (?, 1.0, ?)", [(str(n), b"x" * 1000) for n in range(1500)])
        connection.close()
    last = run(pair, "UPDATE account SET balance = 77")
    archive = archive_segments(pair.primary, tmp_path / "archive")
    copy = tmp_path / "copy"
    shutil.copytree(pair.primary.journal_directory, copy)
    firsts = Chain(copy).first_seqnos()
    for place in (1, 3):
        Path(Chain(copy).path_of(firsts[place])).unlink()
    (tmp_path / "stage").mkdir()
    journals = Journals([copy, archive], pair.primary.content.network, stage=tmp_path / "stage")
    journals.plan(1, last, archived_first=True)
    found: list[int] = []
    for one in journals.read(1, last):
        found.extend(range(one.first_seqno, one.last_seqno + 1) if isinstance(one, FrameBatch) else [one.seqno])
    assert found == list(range(1, last + 1))


def test_two_directories_that_lack_different_segments_make_a_whole(scene: Scene) -> None:
    other = scene.directory / "other"
    shutil.copytree(scene.journal, other)
    ((first, last),) = scene.without(1)
    for path in (min(other.glob("*.journal")), max(other.glob("*.journal"))):
        path.unlink()
    assert replay(scene.pair.secondary, [scene.journal, other]).seqno == scene.last_seqno
    assert_equal(scene.pair)
    network = scene.pair.primary.content.network
    plan = Journals([other, scene.journal], network).plan(1, scene.last_seqno, archived_first=False)
    assert [(one.first_seqno, one.last_seqno) for one in sources_of(plan)] == [
        (1, first - 1),
        (first, last),
        (last + 1, scene.last_seqno),
    ]


def test_all_that_is_missing_is_named_and_where_it_was_looked_for(scene: Scene) -> None:
    ((first, last),) = scene.without(1)
    before = scene.pair.last_seqno(scene.pair.secondary)
    with pytest.raises(GapError) as caught:
        replay(scene.pair.secondary, [scene.journal])
    told = f"transaction{'' if first == last else 's'} {first if first == last else f'{first} to {last}'} "
    assert told in str(caught.value)
    assert caught.value.where == f"{scene.journal} (1 to {first - 1}, {last + 1} to {scene.last_seqno})"
    assert caught.value.facts["expected"] == first
    scene.without(0)
    with pytest.raises(JournalMissingError, match=f"transaction {before + 1} is needed first"):
        replay(scene.pair.secondary, [scene.journal])
    assert scene.pair.last_seqno(scene.pair.secondary) == before


def test_holes() -> None:
    assert holes([(1, 4), (3, 9)], 2, 9) == []
    assert holes([(20, 30), (5, 9), (12, 12)], 1, 25) == [(1, 4), (10, 11), (13, 19)]
    assert holes([(5, 9)], 6, 12) == [(10, 12)]
    assert holes([], 3, 3) == [(3, 3)]
    assert holes([(5, 9)], 1, 3) == [(1, 3)]


def test_a_journal_mounted_read_only_is_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The primary's disk, as anybody who brings its secondary up to date mounts it."""
    mounted_read_only(monkeypatch, scene.journal)
    journals = Journals([scene.journal], scene.pair.primary.content.network, stage=scene.stage)
    journals.plan(1, scene.last_seqno, archived_first=False)
    assert scene.read(journals, 1, scene.last_seqno) == list(range(1, scene.last_seqno + 1))


def test_a_journal_that_ends_before_it_did_was_taken_back(scene: Scene) -> None:
    """One that is damaged, or grows, was not."""
    error = GapError("something is wrong")
    journals = Journals([scene.journal], scene.pair.primary.content.network)
    journals.refuse_taken_back(error)
    last = sorted(scene.journal.glob("*.journal"))[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    journals.refuse_taken_back(error)
    last.unlink()
    with pytest.raises(TryAgainError, match=f"taken back to transaction {scene.sealed} while it was read") as caught:
        journals.refuse_taken_back(error)
    assert f"went up to {scene.last_seqno} before" in caught.value.what
    assert caught.value.__cause__ is error
