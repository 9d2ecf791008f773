"""What several of these modules begin with: small windows, and two sites with the same rows.

Guarantees: nothing is set for who does not ask. Leaves to others: what the tests test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.pair import Pair, run
from update_process import applier as applying

ROWS = 60


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has many windows, and is not ended by the clock of a machine that has much to do."""
    monkeypatch.setattr(applying, "WINDOW_BYTES", 4000)
    monkeypatch.setattr(applying, "BATCH_S", 60.0)


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Both sites have the same ROWS accounts."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    run(made, *(f"INSERT INTO account VALUES ({number}, 'o{number}', 0, NULL)" for number in range(1, 1 + ROWS)))
    made.seed()
    return made
