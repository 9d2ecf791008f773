"""What tests of replays share: a seeded pair, and no failpoint left armed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate import failpoint
from tests.harness.pair import Pair
from tests.harness.replaying import SCHEMA


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    made.seed()
    yield made
    failpoint.disarm()
