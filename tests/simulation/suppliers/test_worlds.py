"""Whole worlds of several suppliers: any fault at any time. See world.py, climate.py and ../slices.py.

Faults 1 to 10, 15 to 18, 25 to 38, 42, 44, 51 to 56, 61 to 64, 68, 70 to 74; I1 to I4, I6 and I7.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.slices import SUPPLIERS, live, live_of_commit


@pytest.mark.slow
@pytest.mark.turns(1)
def test_in_worlds_of_this_commit_suppliers_come_to_the_same(tmp_path: Path) -> None:
    live_of_commit(SUPPLIERS, tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(SUPPLIERS.slices))
def test_whatever_fails_each_supplier_has_a_prefix_of_each_other_one_and_all_come_to_the_same(
    number: int, tmp_path: Path
) -> None:
    live(SUPPLIERS, tmp_path, number)
