"""Whole worlds of several suppliers that one more joins, under load and any fault. See joining.py and ../slices.py.

Faults 1 to 10, 15 to 18, 25 to 38, 42, 44, 51 to 56, 61 to 64, 68, 70 to 74; I1 to I4, I6 and I7.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import campaign
from tests.simulation.campaign import hunt, sweep
from tests.simulation.slices import JOINING, live, live_of_commit
from tests.simulation.suppliers.join_plants import PLANTS


@pytest.mark.slow
@pytest.mark.turns(2)
def test_in_worlds_of_this_commit_one_joins_and_all_come_to_the_same(tmp_path: Path) -> None:
    live_of_commit(JOINING, tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(JOINING.slices))
def test_whatever_fails_one_joins_and_all_come_to_the_same(number: int, tmp_path: Path) -> None:
    live(JOINING, tmp_path, number)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_by_a_few_worlds(name: str) -> None:
    swept = hunt(campaign.JOINING, name, 12)
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


@pytest.mark.slow
def test_who_joins_under_load_writes_afterwards() -> None:
    """Also where its host loses power before it has its copy. So these worlds are no idle ones."""
    swept = sweep(1, 6, campaign.JOINING.modes)
    assert swept.violations == []
    figures = swept.figures
    assert figures["suppliers joined"] >= 6
    assert figures["new suppliers that lost power before they were seeded"]
    assert figures["commits of suppliers that joined"] > 10
