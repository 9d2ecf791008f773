"""Whole worlds of several suppliers that change the schema, under load and any fault. See fencing.py and ../slices.py.

Faults 1 to 10, 15 to 18, 25 to 38, 42, 44, 51 to 56, 61 to 64, 68, 70 to 74; I1 to I4, I6 and I7.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import campaign
from tests.simulation.campaign import hunt, sweep
from tests.simulation.slices import FENCING, live, live_of_commit
from tests.simulation.suppliers.fence_plants import PLANTS


@pytest.mark.slow
@pytest.mark.turns(2)
def test_in_worlds_of_this_commit_the_schema_changes_and_all_come_to_the_same(tmp_path: Path) -> None:
    live_of_commit(FENCING, tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(FENCING.slices))
def test_whatever_fails_the_schema_changes_beside_nothing(number: int, tmp_path: Path) -> None:
    live(FENCING, tmp_path, number)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_by_a_few_worlds(name: str) -> None:
    swept = hunt(campaign.FENCING, name, 12)
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


@pytest.mark.slow
def test_the_schema_changes_under_load() -> None:
    """So these worlds are no idle ones."""
    swept = sweep(1, 6, campaign.FENCING.modes)
    assert swept.violations == []
    assert swept.figures["changes of the schema"] >= 6
