"""The worlds with partitions proved on planted bugs: a few of them find each. See plants.py."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.campaign import PART_MODES, sweep
from tests.simulation.parts.plants import FOUND, PLANTS
from tests.simulation.slices import PART_SEEDS_IN_SLICE

FEW: Final = 2 * PART_SEEDS_IN_SLICE


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_by_a_few_worlds(name: str) -> None:
    mode, seed = FOUND[name]
    swept = sweep(seed, 1, (f"parts-{mode}",), plant=name)
    if not swept.violations:  # with other dice
        swept = sweep(1, FEW, PART_MODES, plant=name, stop=lambda swept: bool(swept.violations))
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


def test_without_a_bug_these_worlds_are_well_and_not_idle() -> None:
    swept = sweep(1, 6, PART_MODES)
    assert swept.violations == []
    for figure in (
        "rows kept back",
        "transactions over several partitions",
        "tables moved",
        "worlds with a part",
        "subscriptions given up in part",
    ):
        assert swept.figures[figure], figure
