"""Whole worlds of a secondary with some partitions, with any fault at any time. See world.py and ../slices.py.

Faults 1 to 10, 15 to 18, 25 to 38, 42, 51 to 56, 61 to 64, 68, 70, 73 and 74; I1 to I7, of what the secondary gets.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.slices import PARTS, live, live_of_commit


@pytest.mark.slow
@pytest.mark.turns(1)
def test_in_worlds_of_this_commit_the_secondary_is_the_primary_restricted(tmp_path: Path) -> None:
    live_of_commit(PARTS, tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(PARTS.slices))
def test_whatever_fails_the_secondary_has_what_it_subscribes_to_and_nothing_else(number: int, tmp_path: Path) -> None:
    live(PARTS, tmp_path, number)
