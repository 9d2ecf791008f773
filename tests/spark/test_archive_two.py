"""Two runs of `replicate archive` at once where nobody locks: nothing is written over, and one is told. What runs that
were killed have left is removed: by the next one in a directory, elsewhere where it is asked for.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicate.errors import BusyError, DamagedError
from replicate.journal.chain import Chain
from replicate.system import failpoint
from tests.harness.backlog import Backlog
from update_process.replay.archive.archive import LEFT_AFTER_S, Archive
from update_process.replay.archive.files import HadoopFiles
from update_process.replay.archive.manifest import range_name

KINDS = ("changes", "transactions", "segments")


@pytest.fixture
def elsewhere(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that is written to as any file system of Hadoop's is."""
    monkeypatch.setattr("update_process.replay.archive.archive.open_files", lambda uri, *_: HadoopFiles(spark, uri))
    monkeypatch.setattr("update_process.replay.archive.archive.local_path", lambda _uri: None, raising=False)
    yield tmp_path / "archive"
    failpoint.disarm()


def folders(archive: Path) -> list[set[str]]:
    return [{path.name for path in (archive / kind).iterdir()} for kind in KINDS]


@pytest.mark.slow
def test_two_runs_at_once(backlog: Backlog, spark: Any, elsewhere: Path) -> None:
    """Ours is told of an overlap, too, and both come to the same end."""
    chain = Chain(backlog.pair.primary.journal_directory)
    uri = elsewhere.as_uri()
    first = Archive(spark, uri, range_segments=2)
    other = Archive(spark, uri, range_segments=1)
    done = []
    # In the midst of ours the other one begins, and comes to its end.
    failpoint.watch("archive.before_manifest", 1, lambda: done.append(other.add(chain)))
    with pytest.raises(BusyError, match="another `replicate archive` has archived 1–"):
        first.add(chain)
    assert done[0].ranges >= 2
    ranges = other.verify()
    assert ranges[-1].last_seqno == done[0].last_seqno
    manifests = {path.stem for path in (elsewhere / "manifests").glob("[0-9]*.json")}
    assert len(manifests) == done[0].ranges + 1
    for found in folders(elsewhere):  # of ours nothing is left without a manifest
        assert {name.rpartition("-")[0] for name in found} == manifests
    assert first.add(chain).ranges == 0
    assert other.rows("transactions", ranges).count() == ranges[-1].last_seqno


@pytest.mark.slow
def test_what_failed_leaves_nothing_behind(backlog: Backlog, spark: Any, elsewhere: Path) -> None:
    chain = Chain(backlog.pair.primary.journal_directory)
    archive = Archive(spark, elsewhere.as_uri(), range_segments=2)
    failpoint.arm("archive.copied:1:raise")
    with pytest.raises(failpoint.FailpointError):
        archive.add(chain)
    assert folders(elsewhere) == [set()] * len(KINDS)
    assert archive.ranges() == []


def leave(archive: Path, place: str, *kinds: str, written_s: float) -> None:
    """What a run that was killed has left."""
    for kind in kinds:
        (archive / kind / place / "_temporary").mkdir(parents=True)
        path = archive / kind / place / "_temporary" / "part"
        path.write_bytes(b"half")
        for one in (path, path.parent, path.parent.parent):
            os.utime(one, (written_s, written_s))


@pytest.mark.slow
def test_what_killed_runs_have_left_elsewhere(backlog: Backlog, spark: Any, elsewhere: Path) -> None:
    """Only where that is asked for, and only where no run can be at work any more: of all its folders one was written
    to just now. What a manifest names, and what is no range's, stays, however old."""
    chain = Chain(backlog.pair.primary.journal_directory)
    archive = Archive(spark, elsewhere.as_uri())
    assert archive.add(chain).cleaned == 0
    named = folders(elsewhere)
    old_s = time.time() - LEFT_AFTER_S - 60
    for folder in elsewhere.glob("*/*"):
        for one in (*folder.rglob("*"), folder):
            os.utime(one, (old_s, old_s))
    for place, kinds in ((range_name(1, 5) + "-aa", KINDS), (range_name(6, 9), KINDS[:1]), ("mine", KINDS[:1])):
        leave(elsewhere, place, *kinds, written_s=old_s)
    young = range_name(1, 7) + "-bb"
    leave(elsewhere, young, "changes", written_s=old_s)
    leave(elsewhere, young, "segments", written_s=time.time())
    before = folders(elsewhere)
    assert archive.add(chain).cleaned == 0
    assert folders(elsewhere) == before
    assert archive.add(chain, clean=True).cleaned == 2
    left = [{"mine", young}, set(), {young}]
    assert folders(elsewhere) == [one | more for one, more in zip(named, left, strict=True)]
    archive.verify()


@pytest.mark.slow
def test_what_is_removed_under_a_run_is_not_archived(backlog: Backlog, spark: Any, elsewhere: Path) -> None:
    """By a clean-up a day after it was stopped, say: no manifest speaks of what is not there."""

    class Beginning(Chain):
        def first_seqnos(self) -> list[int]:
            return super().first_seqnos()[:2]

    chain = Beginning(backlog.pair.primary.journal_directory)
    archive = Archive(spark, elsewhere.as_uri())
    for kind in KINDS:
        failpoint.watch("archive.before_manifest", 1, lambda: shutil.rmtree(elsewhere / kind))  # noqa: B023
        with pytest.raises(DamagedError, match=r"are not the files that were archived|is not there any more"):
            archive.add(chain)
        failpoint.disarm()
        assert archive.ranges() == []


@pytest.mark.slow
def test_what_killed_runs_have_left_in_a_directory(backlog: Backlog, spark: Any, tmp_path: Path) -> None:
    """Nobody else can be at work there."""
    copy = tmp_path / "archive"
    shutil.copytree(backlog.pair.directory / "archive", copy)
    archive = Archive(spark, copy.as_uri())
    archive.add(Chain(backlog.pair.primary.journal_directory))
    before = folders(copy)
    leave(copy, range_name(1, 5), *KINDS, written_s=time.time())
    assert archive.add(Chain(backlog.pair.primary.journal_directory)).cleaned == 1
    assert folders(copy) == before
    archive.verify()
