"""Faults 1 to 6 on the pool: writers killed at every step of an append; no gap, no repetition, no bad byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.pool_storm import PLANTS, READERS, STEPS

ROOT = Path(__file__).parents[3]


def storm(directory: Path, seed: int, kills: int, transactions: int, *bugs: str) -> dict[str, Any]:
    directory.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.harness.pool_storm",
            str(directory),
            str(seed),
            str(kills),
            str(transactions),
            *bugs,
        ],
        cwd=ROOT,
        env={**os.environ, "REPLICATE_SHM_DIR": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps(result))
    return result


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_storm(tmp_path: Path, seed: int) -> None:
    result = storm(tmp_path / "storm", seed, kills=80, transactions=100_000)
    assert not result["failed"], result["log"]
    assert result["finished"]
    assert {step for step, count in result["killed"].items() if count >= 2} == set(STEPS)
    assert sum(result["killed"].values()) + result["killed_outside"] >= 80
    assert len(result["readers"]) == READERS
    for reader in result["readers"]:
        assert reader["last_seqno"] == result["transactions"] >= 100_000
        assert reader["damaged_records"] == 0
        assert reader["from_pool"] > 0
    assert sum(reader["laps"] for reader in result["readers"]) > 0
    assert sum(reader["from_files"] for reader in result["readers"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTS)
def test_the_storm_finds_planted_bugs(tmp_path: Path, bug: str) -> None:
    result = storm(tmp_path / "storm", 3, 80, 20_000, bug)
    assert result["failed"] or any(reader["damaged_records"] for reader in result["readers"])
