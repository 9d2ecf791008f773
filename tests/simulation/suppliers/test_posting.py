"""Whole worlds of several suppliers that send packets beside their lines, or in the place of some, and any fault. See
posting.py and ../slices.py.

Faults 1 to 10, 15 to 18, 25 to 38, 42, 44, 51 to 56, 61 to 64, 68, 70 to 74; I1 to I4, I6 and I7.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import campaign
from tests.simulation.campaign import hunt, sweep
from tests.simulation.slices import POSTING, live, live_of_commit
from tests.simulation.suppliers.post_plants import PLANTS


@pytest.mark.slow
@pytest.mark.turns(2)
def test_in_worlds_of_this_commit_packets_bring_what_lines_do_not(tmp_path: Path) -> None:
    live_of_commit(POSTING, tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(POSTING.slices))
def test_whatever_fails_and_whatever_packets_come_all_come_to_the_same(number: int, tmp_path: Path) -> None:
    live(POSTING, tmp_path, number)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_by_a_few_worlds(name: str) -> None:
    swept = hunt(campaign.POSTING, name, 12)
    assert swept.violations, f"{name}: not found in {swept.figures['worlds']} worlds"


@pytest.mark.slow
def test_packets_are_lost_come_twice_and_wait_for_others() -> None:
    """So these worlds are no idle ones."""
    swept = sweep(1, 4, campaign.POSTING.modes)
    assert swept.violations == []
    for name in ("worlds in which one has no line", "packets lost", "packets that waited", "packets taken", "imports"):
        assert swept.figures[name] > 3, name
