"""Two runs of `replicate archive` at once where nobody locks: nothing is written over, and one is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicate import failpoint
from replicate.errors import BusyError
from replicate.journal.chain import Chain
from tests.harness.backlog import Backlog
from update_process.replay.archive import Archive
from update_process.replay.archive_files import HadoopFiles

KINDS = ("changes", "transactions", "segments")


@pytest.fixture
def elsewhere(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that is written to as any file system of Hadoop's is."""
    monkeypatch.setattr("update_process.replay.archive.open_files", lambda uri, *_: HadoopFiles(spark, uri))
    monkeypatch.setattr("update_process.replay.archive.local_path", lambda _uri: None, raising=False)
    yield tmp_path / "archive"
    failpoint.disarm()


def folders(archive: Path) -> list[set[str]]:
    return [{path.name for path in (archive / kind).iterdir()} for kind in KINDS]


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


def test_what_failed_leaves_nothing_behind(backlog: Backlog, spark: Any, elsewhere: Path) -> None:
    chain = Chain(backlog.pair.primary.journal_directory)
    archive = Archive(spark, elsewhere.as_uri(), range_segments=2)
    failpoint.arm("archive.copied:1:raise")
    with pytest.raises(failpoint.FailpointError):
        archive.add(chain)
    assert folders(elsewhere) == [set()] * len(KINDS)
    assert archive.ranges() == []
