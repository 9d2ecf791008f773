"""The worlds that every run of the tests lives, cut into pieces: test_worlds_one.py and test_worlds_two.py, a file for
each process of the tests.

Guarantees: the error has the end of the transcript of the first seed that is bad, and says where all of it is.
Refuses to know: what is in a world.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.simulation import world as worlds
from tests.simulation.campaign import Swept, sweep

SLICES: Final = 20
SEEDS_IN_SLICE: Final = 60
"""Each seed is a world in either mode. They are no two views of one: the mode is a part of what the dice of a world are
made from (world.py), so a seed draws another world in the other mode."""
SEEDS: Final = SLICES * SEEDS_IN_SLICE
TAIL_LINES: Final = 60
"""Of a transcript: what the error itself says, since where CI runs the directory is gone afterwards."""


def live(number: int, directory: Path) -> None:
    """Live the worlds of one slice, counted from 0. AssertionError: what is bad, and the directory of the stories."""
    swept = sweep(1 + number * SEEDS_IN_SLICE, SEEDS_IN_SLICE, keep=directory)
    assert swept.violations == [], told(swept, directory)
    figures = swept.figures
    assert figures["worlds"] == len(worlds.MODES) * SEEDS_IN_SLICE
    assert figures["levelled in ms, most"] < 1000 * worlds.LEVEL_WITHIN_S
    # The worlds are not idle ones.
    for name in ("applied", "acknowledged", "power losses", "kills", "died at a failpoint", "recoveries judged"):
        assert figures[name] > SEEDS_IN_SLICE / 10, name


def told(swept: Swept, directory: Path) -> str:
    """What the error says of worlds that are bad; "" without one."""
    if not swept.violations:
        return ""
    mode, seed, text = swept.violations[0]
    story = (directory / f"{mode}-{seed}.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join([
        f"{mode} {seed}: {text}",
        f"put each seed into kept/seeds.txt; the whole stories are in {directory}; the end of the first one:",
        *story[-TAIL_LINES:],
    ])  # fmt: skip
