"""The worlds that the tests live, cut into slices: test_worlds_one.py and test_worlds_two.py, a file for each process;
of several suppliers suppliers/test_worlds.py, of sites that change their roles roles/test_worlds.py, of a secondary
with some partitions parts/test_worlds.py. Every run lives seeds that its commit chooses; `--full` also those from 1 on,
in which the planted bugs are found (test_plants.py).

Guarantees: a commit has the same seeds in every process and on every machine, and another commit has others. The error
has the end of the transcript of the first seed that is bad, and says where all of it is.
Refuses to know: what is in a world.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from tests.harness.checkout import ROOT, commit_of
from tests.simulation import world as worlds
from tests.simulation.campaign import PART_MODES, ROLE_MODES, SUPPLIER_MODES, Swept, sweep
from tests.simulation.roles.world import LEVEL_S as ROLES_LEVEL_S

SLICES: Final = 20
SEEDS_IN_SLICE: Final = 60
"""Each seed is a world in either mode. They are no two views of one: the mode is a part of what the dice of a world are
made from (world.py), so a seed draws another world in the other mode."""
SEEDS: Final = SLICES * SEEDS_IN_SLICE
SLICES_OF_COMMIT: Final = 4
SUPPLIER_SLICES: Final = 12
SUPPLIER_SEEDS_IN_SLICE: Final = 25
SUPPLIER_SEEDS_OF_COMMIT: Final = 10
ROLE_SLICES: Final = 12
ROLE_SEEDS_IN_SLICE: Final = 25
ROLE_SEEDS_OF_COMMIT: Final = 15
PART_SLICES: Final = 12
PART_SEEDS_IN_SLICE: Final = 40
PART_SEEDS_OF_COMMIT: Final = 20
SEEDS_OF_COMMITS: Final = range(1_000_000, 1_000_000_000)
TAIL_LINES: Final = 60
"""Of a transcript: what the error itself says, since where CI runs the directory is gone afterwards."""


def first_seed_of(commit: str) -> int:
    """Where the seeds of a commit begin."""
    drawn = int.from_bytes(hashlib.sha256(commit.encode()).digest()[:8], "little")
    return SEEDS_OF_COMMITS[drawn % (len(SEEDS_OF_COMMITS) - SLICES_OF_COMMIT * SEEDS_IN_SLICE)]


def live_of_commit(number: int, directory: Path) -> None:
    """Live the worlds of one of the commit's slices."""
    live(number, directory, first_seed=first_seed_of(commit_of(ROOT)))


def live(number: int, directory: Path, *, first_seed: int = 1) -> None:
    """Live the worlds of one slice, counted from 0. AssertionError: what is bad, and the directory of the stories."""
    _live(first_seed + number * SEEDS_IN_SLICE, SEEDS_IN_SLICE, worlds.MODES, directory)


def live_suppliers_of_commit(directory: Path) -> None:
    """Live the commit's worlds of several suppliers."""
    _live(first_seed_of(commit_of(ROOT)), SUPPLIER_SEEDS_OF_COMMIT, SUPPLIER_MODES, directory)


def live_suppliers(number: int, directory: Path) -> None:
    """Live the worlds of one of their slices, counted from 0. Raises as `live`."""
    _live(1 + number * SUPPLIER_SEEDS_IN_SLICE, SUPPLIER_SEEDS_IN_SLICE, SUPPLIER_MODES, directory)


def live_roles_of_commit(directory: Path) -> None:
    """Live the commit's worlds of sites that change their roles."""
    _live(first_seed_of(commit_of(ROOT)), ROLE_SEEDS_OF_COMMIT, ROLE_MODES, directory, ROLES_LEVEL_S)


def live_roles(number: int, directory: Path) -> None:
    """Live the worlds of one of their slices, counted from 0. Raises as `live`."""
    _live(1 + number * ROLE_SEEDS_IN_SLICE, ROLE_SEEDS_IN_SLICE, ROLE_MODES, directory, ROLES_LEVEL_S)


def live_parts_of_commit(directory: Path) -> None:
    """Live the commit's worlds of a secondary with some partitions."""
    _live(first_seed_of(commit_of(ROOT)), PART_SEEDS_OF_COMMIT, PART_MODES, directory)


def live_parts(number: int, directory: Path) -> None:
    """Live the worlds of one of their slices, counted from 0. Raises as `live`."""
    _live(1 + number * PART_SEEDS_IN_SLICE, PART_SEEDS_IN_SLICE, PART_MODES, directory)


def _live(
    first_seed: int, count: int, modes: tuple[str, ...], directory: Path, level_s: float = worlds.LEVEL_WITHIN_S
) -> None:
    swept = sweep(first_seed, count, modes, keep=directory)
    assert swept.violations == [], told(swept, directory)
    figures = swept.figures
    assert figures["worlds"] == len(modes) * count
    assert figures["levelled in ms, most"] < 1000 * level_s
    # The worlds are not idle ones.
    for name in ("applied", "acknowledged", "power losses", "kills", "died at a failpoint", "recoveries judged"):
        assert figures[name] > count / 10, name


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
