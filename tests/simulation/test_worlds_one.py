"""Whole worlds, the first half: any fault at any time. See world.py, climate.py and slices.py.

Faults 1 to 10, 15 to 18, 25 to 38, 42, 51 to 56, 61 to 64, 68, 70, 73 and 74; I1 to I7.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.slices import PAIR, live, live_of_commit


@pytest.mark.slow
@pytest.mark.turns(1)
@pytest.mark.parametrize("number", range(PAIR.slices_of_commit // 2))
def test_in_worlds_of_this_commit_nothing_is_lost_either(number: int, tmp_path: Path) -> None:
    live_of_commit(PAIR, tmp_path, number)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(PAIR.slices // 2))
def test_whatever_fails_the_secondary_holds_a_prefix_and_nothing_acknowledged_is_lost(
    number: int, tmp_path: Path
) -> None:
    live(PAIR, tmp_path, number)
