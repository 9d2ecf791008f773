"""What tests of the Update Process begin with: a primary, and a secondary seeded from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    return made
