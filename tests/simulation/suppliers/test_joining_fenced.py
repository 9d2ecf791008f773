"""Whole worlds of several suppliers that one more joins while the schema changes. See joining_fenced.py, ../slices.py.

Faults 1 to 10, 15 to 18, 25 to 38, 42, 44, 51 to 56, 61 to 64, 68, 70 to 74; I1 to I4, I6 and I7.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import campaign
from tests.simulation.campaign import hunt, sweep
from tests.simulation.slices import JOINING_FENCED, live, live_of_commit
from tests.simulation.suppliers.join_fence_plants import PLANTS


@pytest.mark.slow
@pytest.mark.turns(2)
def test_in_worlds_of_this_commit_one_joins_beside_fences(tmp_path: Path) -> None:
    live_of_commit(JOINING_FENCED, tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(JOINING_FENCED.slices))
def test_whatever_fails_one_joins_beside_fences(number: int, tmp_path: Path) -> None:
    live(JOINING_FENCED, tmp_path, number)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_by_a_few_worlds(name: str) -> None:
    swept = hunt(campaign.JOINING_FENCED, name, 40)
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


@pytest.mark.slow
def test_schemas_change_and_suppliers_join() -> None:
    """So these worlds are no idle ones."""
    swept = sweep(1, 4, campaign.JOINING_FENCED.modes)
    assert swept.violations == []
    assert swept.figures["changes of the schema"] >= 3
    assert swept.figures["suppliers joined"] >= 6
