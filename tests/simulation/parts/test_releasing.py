"""Whole worlds of a secondary that removes partitions and releases them. See release_world.py and ../slices.py.

Faults 1 to 10, 15 to 18, 25 to 38, 42, 51 to 56, 61 to 64, 68, 70, 73 and 74; I1 to I7, of what the secondary gets.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.campaign import hunt, sweep
from tests.simulation.parts.release_plants import PLANTS
from tests.simulation.slices import RELEASING, live, live_of_commit


@pytest.mark.slow
@pytest.mark.turns(2)
def test_in_worlds_of_this_commit_what_is_released_is_whole_and_stays(tmp_path: Path) -> None:
    live_of_commit(RELEASING, tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(RELEASING.slices))
def test_whatever_fails_what_is_released_is_whole_and_stays(number: int, tmp_path: Path) -> None:
    live(RELEASING, tmp_path, number)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_by_a_few_worlds(name: str) -> None:
    swept = hunt(RELEASING.kind, name, RELEASING.seeds)
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


def test_without_a_bug_these_worlds_are_well_and_not_idle() -> None:
    swept = sweep(1, 12, RELEASING.kind.modes)
    assert swept.violations == []
    for figure in (
        "worlds that released",
        "rows released",
        "worlds with a part",
        "releases begun again",
        "worlds that dropped rows",
        "died: sqlite.between_files",
    ):
        assert swept.figures[figure], figure
