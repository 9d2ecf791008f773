"""The worlds of suppliers proved on planted bugs: a few of them find each. See plants.py."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.campaign import SUPPLIERS, hunt, sweep
from tests.simulation.suppliers.plants import PLANTS

FEW: Final = 10
"""Seeds; two are enough today."""


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_by_a_few_worlds(name: str) -> None:
    swept = hunt(SUPPLIERS, name, FEW)
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


def test_without_a_bug_these_worlds_are_well() -> None:
    assert sweep(1, 2, SUPPLIERS.modes).violations == []
