"""The worlds that the tests live, cut into slices: test_worlds_one.py and test_worlds_two.py, a file for each process;
of several suppliers suppliers/test_worlds.py and the other files there, of sites that
change their roles roles/test_worlds.py, of a secondary with some partitions parts/test_worlds.py, of one that releases
some parts/test_releasing.py. Every run lives seeds that its commit chooses; `--full` also those from 1 on, in which the
planted bugs are found (test_plants.py).

Guarantees: a commit has the same seeds in every process and on every machine, and another commit has others. The error
has the end of the transcript of the first seed that is bad, and says where all of it is.
Leaves to others: what is in a world.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from tests.harness.checkout import ROOT, commit_of
from tests.simulation import campaign
from tests.simulation.campaign import Kind, Swept, sweep


class Share(NamedTuple):
    """How many worlds of a kind are lived: `slices` of `seeds` each at full length, `slices_of_commit` of
    `seeds_of_commit` in every run.

    Each seed is a world in either mode. They are no two views of one: the mode is a part of what the dice of a world
    are made from (base.py), so a seed draws another world in the other mode."""

    kind: Kind
    slices: int
    seeds: int
    seeds_of_commit: int
    slices_of_commit: int = 1


PAIR: Final = Share(campaign.PAIR, 20, 60, 60, 4)
SUPPLIERS: Final = Share(campaign.SUPPLIERS, 12, 25, 10)
JOINING: Final = Share(campaign.JOINING, 8, 25, 5)
POSTING: Final = Share(campaign.POSTING, 8, 25, 5)
FENCING: Final = Share(campaign.FENCING, 8, 25, 5)
JOINING_FENCED: Final = Share(campaign.JOINING_FENCED, 4, 25, 3)
ROLES: Final = Share(campaign.ROLES, 12, 25, 15)
PARTS: Final = Share(campaign.PARTS, 12, 40, 20)
RELEASING: Final = Share(campaign.RELEASING, 8, 30, 8)
SEEDS: Final = PAIR.slices * PAIR.seeds
SEEDS_OF_COMMITS: Final = range(1_000_000, 1_000_000_000)
TAIL_LINES: Final = 60
"""Of a transcript: what the error itself says, since where CI runs the directory is gone afterwards."""


def first_seed_of(commit: str) -> int:
    """Where the seeds of a commit begin."""
    drawn = int.from_bytes(hashlib.sha256(commit.encode()).digest()[:8], "little")
    return SEEDS_OF_COMMITS[drawn % (len(SEEDS_OF_COMMITS) - PAIR.slices_of_commit * PAIR.seeds_of_commit)]


def live_of_commit(share: Share, directory: Path, number: int = 0) -> None:
    """Live the worlds of one of the commit's slices, counted from 0. Raises as `live`."""
    count = share.seeds_of_commit
    _live(share, first_seed_of(commit_of(ROOT)) + number * count, count, directory)


def live(share: Share, directory: Path, number: int) -> None:
    """Live the worlds of one slice, counted from 0. AssertionError: what is bad, and the directory of the stories."""
    _live(share, 1 + number * share.seeds, share.seeds, directory)


def _live(share: Share, first_seed: int, count: int, directory: Path) -> None:
    modes = share.kind.modes
    swept = sweep(first_seed, count, modes, keep=directory)
    assert swept.violations == [], told(swept, directory)
    figures = swept.figures
    assert figures["worlds"] == len(modes) * count
    assert figures["levelled in ms, most"] < 1000 * share.kind.world.level_within_s
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
