"""The simulation proved on planted bugs: each is found, within the seeds that CI lives anyway. See plants.py."""

from __future__ import annotations

import pytest

from tests.simulation import campaign
from tests.simulation.campaign import PAIR, hunt, run, sweep
from tests.simulation.plants import EQUIVALENT, PLANTS, planted
from tests.simulation.slices import SEEDS


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_within_the_seeds_of_ci(name: str) -> None:
    swept = hunt(PAIR, name, SEEDS)
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUIVALENT)
def test_a_change_that_makes_no_difference_is_not_called_a_bug(name: str) -> None:
    swept = sweep(1, 30, plant=name)
    assert swept.violations == []


def test_each_planted_bug_of_each_kind_of_world_still_finds_its_place() -> None:
    for name in campaign.PLANTS:
        with planted(name, campaign.PLANTS):
            pass


def test_a_plant_is_taken_out_again() -> None:
    before = run(2, "safety").figures
    with planted("start point off by one"):
        assert run(2, "safety").violation is not None
    after = run(2, "safety")
    assert after.violation is None
    assert after.figures == before
