"""The worlds with partitions proved on planted bugs: a few of them find each. See plants.py."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation import slices
from tests.simulation.campaign import hunt, sweep
from tests.simulation.parts.plants import PLANTS

FEW: Final = 2 * slices.PARTS.seeds


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_by_a_few_worlds(name: str) -> None:
    swept = hunt(slices.PARTS.kind, name, FEW)
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


def test_without_a_bug_these_worlds_are_well_and_not_idle() -> None:
    swept = sweep(1, 9, slices.PARTS.kind.modes)
    assert swept.violations == []
    for figure in (
        "rows kept back",
        "transactions over several partitions",
        "tables moved",
        "worlds with a part",
        "subscriptions given up in part",
        "rows beyond a condition",
        "worlds with some columns",
        "partitions loaded",
    ):
        assert swept.figures[figure], figure
