"""What tests of replays share: a seeded pair, a backlog in an archive and a journal, and no failpoint left armed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.system import failpoint
from tests.harness.backlog import Backlog
from tests.harness.pair import Pair
from tests.harness.replaying import SCHEMA, archive_segments


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    made.seed()
    yield made
    failpoint.disarm()


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Backlog:
    """Its primary's journal is in the directory `archive`, but for the end."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("backlog")
        patch.setenv("REPLICATE_SHM_DIR", str(directory / "shm"))
        made = Backlog.create(directory)
        archive_segments(made.pair.primary, directory / "archive")
        made.write_tail()
    return made


@pytest.fixture
def backlog(archived: Backlog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backlog]:
    """The module's; each test takes secondaries of its own."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(archived.pair.directory / "shm"))
    yield archived
    failpoint.disarm()
