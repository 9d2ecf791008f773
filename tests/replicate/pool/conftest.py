"""Pools of the tests lie in the test's own directory, not in /dev/shm."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.system import failpoint


@pytest.fixture(autouse=True)
def shm_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "shm"
    directory.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(directory))
    return directory


@pytest.fixture(autouse=True)
def no_failpoints() -> object:
    yield
    failpoint.disarm()
