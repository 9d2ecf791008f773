"""Where a replay reads from, where several journals hold the same numbers: as planned, frames and rows alike."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate import failpoint
from replicate.errors import GapError
from replicate.journal.chain import Chain
from replicate.journal.record import FrameBatch
from tests.harness.pair import Pair
from tests.harness.replaying import archive_segments, run
from update_process.replay.command import replay, sources_of
from update_process.replay.journals import Journals
from update_process.replay.run import Source


class Scene:
    """A journal of two sealed segments and one that is written to, an archive of the two, and a copy of all."""

    def __init__(self, pair: Pair, directory: Path) -> None:
        self.pair = pair
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

    def _count(self) -> None:
        self.unpacked += 1


@pytest.fixture
def scene(pair: Pair, tmp_path: Path) -> Iterator[Scene]:
    yield Scene(pair, tmp_path)
    failpoint.disarm()


@pytest.mark.parametrize("archived_first", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_frames_are_read_from_where_the_rows_are(scene: Scene, archived_first: bool, other: bool) -> None:
    """Two courses of one journal: whoever takes the archive's rows verifies the archive's frames, not the copy's."""
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
