"""Whole worlds of several suppliers one of which is an island for an hour. See island.py and ../slices.py.

Faults 1 to 10, 15 to 18, 25 to 38, 42, 44, 51 to 56, 61 to 64, 68, 70 to 74; I1 to I4, I6 and I7.
"""

from __future__ import annotations

import pytest

from tests.harness.checkout import ROOT, commit_of
from tests.simulation.campaign import ISLANDS, sweep
from tests.simulation.slices import first_seed_of


@pytest.mark.slow
@pytest.mark.turns(16)  # 16 s of processor time each
@pytest.mark.parametrize("mode", ISLANDS.modes)
def test_after_an_hour_as_an_island_all_come_to_the_same(mode: str) -> None:
    swept = sweep(first_seed_of(commit_of(ROOT)), 1, (mode,))
    assert swept.violations == []
    assert swept.figures["virtual seconds"] >= 3600


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
def test_after_an_hour_as_an_island_all_come_to_the_same_in_many_worlds(number: int) -> None:
    swept = sweep(1 + 5 * number, 5, ISLANDS.modes)
    assert swept.violations == []
    assert swept.figures["worlds in which islands lacked something"] > 0
