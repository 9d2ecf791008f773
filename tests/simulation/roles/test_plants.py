"""The worlds of roles proved on planted bugs: each is found by a world known for it, or by a few. See plants.py."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.campaign import ROLES, hunt, sweep
from tests.simulation.roles.plants import FOUND, PLANTS

FEW: Final = 40
"""Seeds that are lived where the known one does not find it any more, as with other dice."""


@pytest.mark.slow
@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_by_a_few_worlds(name: str) -> None:
    swept = hunt(ROLES, name, FEW)
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


def test_without_a_bug_these_worlds_are_well() -> None:
    for mode, seed in sorted(set(FOUND.values())):
        assert sweep(seed, 1, (mode,)).violations == []
