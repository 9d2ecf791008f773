"""Worlds of suppliers with two regions: that they are no idle ones, and what is planted for them to find. See world.py
and region_plants.py.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.campaign import FENCING, SUPPLIERS, Kind, hunt, sweep
from tests.simulation.suppliers.region_plants import FENCE_PLANTS, PLANTS

FEW: Final = 40
"""Seeds, a fifth of which has two regions."""
EACH: Final = [*((SUPPLIERS, name) for name in PLANTS), *((FENCING, name) for name in FENCE_PLANTS)]


@pytest.mark.turns(3)
@pytest.mark.parametrize(("kind", "name"), EACH, ids=[name for _, name in EACH])
def test_a_planted_bug_is_found_by_a_few_worlds(kind: Kind, name: str) -> None:
    swept = hunt(kind, name, FEW)
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


@pytest.mark.slow
def test_transactions_change_both_regions_and_somebody_dies_between() -> None:
    figures = sum((sweep(seed, 1, SUPPLIERS.modes).figures for seed in (21, 25, 31, 35)), start=sweep(11, 1).figures)
    assert figures["violations"] == 0
    assert figures["worlds with two regions"] == 8
    for name in ("commits in two regions", "died: sqlite.between_files", "values lost in merges"):
        assert figures[name] > 3, name
