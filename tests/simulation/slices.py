"""The worlds that every run of the tests lives, cut into pieces: test_worlds_one.py and test_worlds_two.py, a file for
each process of the tests.

Guarantees: a seed that is bad leaves its transcript, and the error says where. Refuses to know: what is in a world.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.simulation import world as worlds
from tests.simulation.campaign import sweep

SLICES: Final = 20
SEEDS_IN_SLICE: Final = 60
"""Each seed is a world in either mode."""
SEEDS: Final = SLICES * SEEDS_IN_SLICE


def live(number: int, directory: Path) -> None:
    """Live the worlds of one slice, counted from 0. AssertionError: what is bad, and the directory of the stories."""
    swept = sweep(1 + number * SEEDS_IN_SLICE, SEEDS_IN_SLICE, keep=directory)
    assert swept.violations == [], f"their stories are in {directory}; put each seed into kept/seeds.txt"
    figures = swept.figures
    assert figures["worlds"] == len(worlds.MODES) * SEEDS_IN_SLICE
    assert figures["levelled in ms, most"] < 1000 * worlds.LEVEL_WITHIN_S
    # The worlds are not idle ones.
    for name in ("applied", "acknowledged", "power losses", "kills", "died at a failpoint", "recoveries judged"):
        assert figures[name] > SEEDS_IN_SLICE / 10, name
