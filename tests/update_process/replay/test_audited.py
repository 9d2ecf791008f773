"""An archive, alone and beside a journal, answers an audit as the journal did."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.audit.query import Query
from replicate.audit.sources import find_in_instance
from replicate.errors import UsageError, WrongNetworkError
from replicate.instance.instance import Instance
from tests.harness import instances
from tests.harness.replaying import archive_segments
from update_process.replay.audited import find_in_journals


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = instances.make_primary(tmp_path / "alpha", segment_bytes=1024 * 1024)
    with instances.session_of(made) as session:
        for row in range(12):
            instances.insert(session, row, "x" * 300_000)
    return made


def test_an_archive_answers_as_the_journal_did(primary: Instance, tmp_path: Path) -> None:
    archive, stage = archive_segments(primary, tmp_path / "archive"), tmp_path / "stage"
    stage.mkdir()
    whole = [one.body for one in find_in_instance(primary, Query())]
    found = find_in_journals([str(archive)], Query(), stage)
    archived = [one.body for one in found]
    assert 4 < len(archived) < len(whole)
    assert archived == whole[: len(archived)]
    assert [one.body for one in found.backwards()] == archived[::-1]
    assert not list(stage.iterdir())  # one segment at a time, and none is left
    (one,) = find_in_journals([str(archive)], Query(tables=("t",), key=("3",)), stage)
    assert one.body in whole
    both = find_in_journals([str(archive), str(primary.path)], Query(), stage)
    assert [one.body for one in both] == whole
    with pytest.raises(UsageError, match=f"holds transactions 1 to {len(archived)}"):
        find_in_journals([str(archive)], Query(1000), stage)


def test_journals_of_two_networks_are_refused(primary: Instance, tmp_path: Path) -> None:
    archive = archive_segments(primary, tmp_path / "archive")
    other = instances.make_primary(tmp_path / "beta")
    with pytest.raises(WrongNetworkError):
        find_in_journals([str(archive), str(other.path)], Query(), tmp_path)
