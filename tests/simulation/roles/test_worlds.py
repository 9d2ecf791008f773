"""Whole worlds of sites that change their roles, with any fault at any time. See world.py, climate.py and ../slices.py.

Faults 1 to 13, 16, 33 to 36, 42, 51 to 56, 65, 73 to 77, 79 and 80; I1 to I7 and I11.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.slices import ROLES, live, live_of_commit


@pytest.mark.slow
@pytest.mark.turns(1)
def test_in_worlds_of_this_commit_roles_change_and_nothing_is_lost(tmp_path: Path) -> None:
    live_of_commit(ROLES, tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(ROLES.slices))
def test_whatever_fails_there_is_one_history_in_the_end_and_what_is_not_in_it_is_in_a_file(
    number: int, tmp_path: Path
) -> None:
    live(ROLES, tmp_path, number)
