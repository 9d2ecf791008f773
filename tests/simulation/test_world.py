"""The simulation itself: kept worlds, one world for a seed, stories of bad ones, and the disk that it has.

The worlds that are lived each time are in test_worlds_one.py and test_worlds_two.py.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.base import MODES
from tests.simulation.campaign import KEPT, run, sweep
from tests.simulation.disk import Disk, SimulatedOs
from tests.simulation.host import DIRECTORIES

ROOT = Path(__file__).parent.parent.parent


def kept_seeds() -> list[tuple[str, int]]:
    lines = [line.partition("#")[0].split() for line in (KEPT / "seeds.txt").read_text(encoding="utf-8").splitlines()]
    return [(line[0], int(line[1])) for line in lines if line]


@pytest.mark.parametrize(("mode", "seed"), kept_seeds())
def test_a_kept_seed_is_well_now(mode: str, seed: int) -> None:
    lived = run(seed, mode, recording=True)
    assert lived.violation is None, "\n".join(lived.transcript or [])


WORLDS = [
    *((mode, seed) for seed in (7, 42, 75) for mode in MODES),
    ("suppliers-safety", 9),
    ("roles-liveness", 9),
    ("parts-liveness", 9),
    ("releasing-safety", 3),
]
DIGEST = """
import hashlib
from tests.simulation.campaign import run
from tests.simulation.test_world import WORLDS
texts = [run(seed, mode, recording=True).transcript for mode, seed in WORLDS]
print(hashlib.sha256("\\n".join("\\n".join(text) for text in texts).encode()).hexdigest())
"""


def test_a_seed_gives_the_same_world_in_every_process() -> None:
    """No clock, no thread, no hash order."""
    texts = [run(seed, mode, recording=True).transcript for mode, seed in WORLDS]
    here = hashlib.sha256("\n".join("\n".join(text or []) for text in texts).encode()).hexdigest()
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", DIGEST], capture_output=True, text=True, env=environment, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == here
    assert sum(len(text or []) for text in texts) > 100


@pytest.mark.slow
def test_a_bad_world_leaves_its_story(tmp_path: Path) -> None:
    """Written where it was asked for, with all that happened and what was violated; the same each time."""
    for directory in (tmp_path / "a", tmp_path / "b"):
        swept = sweep(1, 3, ("safety",), keep=directory, plant="start point off by one")
        assert swept.violations
    for mode, seed, text in swept.violations:
        story = (tmp_path / "a" / f"{mode}-{seed}.txt").read_text(encoding="utf-8")
        assert story == (tmp_path / "b" / f"{mode}-{seed}.txt").read_text(encoding="utf-8")
        assert story.splitlines()[-1] == text
        assert "VIOLATION" in story
        assert len(story.splitlines()) > 10
    assert sweep(1, 3, ("safety",), keep=tmp_path / "c").violations == []
    assert not (tmp_path / "c").exists()


def test_recording_changes_nothing() -> None:
    plain, recorded = run(42, "liveness"), run(42, "liveness", recording=True)
    assert plain.figures == recorded.figures
    assert plain.transcript is None


class Idle:
    """A process that lives, for the simulated os."""

    pid = 1
    is_dead = False

    def __init__(self, disk: Disk) -> None:
        self.host = self
        self.disk = disk

    def check(self) -> None:
        pass


def machine(seed: int) -> tuple[Disk, SimulatedOs]:
    disk = Disk(("/a", *(f"/a/{name}" for name in DIRECTORIES)))
    return disk, SimulatedOs(lambda: Idle(disk), random.Random(seed))


def test_the_simulated_disk_keeps_what_was_synced_and_nothing_else_for_certain() -> None:
    seen = set()
    for seed in range(60):
        disk, system = machine(seed)
        fd = system.open("/a/journal/x", os.O_RDWR | os.O_CREAT)
        system.pwrite(fd, b"s" * 1024, 0)
        system.fsync(fd)
        system.fsync(system.open("/a/journal", os.O_RDONLY))
        system.pwrite(fd, b"n" * 1024, 0)
        new = system.open("/a/journal/y", os.O_RDWR | os.O_CREAT)
        system.fsync(new)
        disk.power_loss(random.Random(seed))
        content = bytes(disk.names["/a/journal/x"].seen)
        assert set(content) <= set(b"sn")
        assert len(content) == 1024
        seen.add((content[:512], content[512:], "/a/journal/y" in disk.names))
    halves = {half for first, second, _ in seen for half in (first, second)}
    assert {b"s" * 512, b"n" * 512} <= halves
    assert {is_there for *_, is_there in seen} == {True, False}


def test_after_a_failed_fsync_a_second_one_succeeds_and_proves_nothing() -> None:
    """Facts §5."""
    lost = 0
    for seed in range(30):
        disk, system = machine(seed)
        fd = system.open("/a/journal/x", os.O_RDWR | os.O_CREAT)
        system.fsync(system.open("/a/journal", os.O_RDONLY))
        system.pwrite(fd, b"n" * 512, 0)
        disk.failures["fsync"] = 1
        with pytest.raises(OSError, match="Input/output"):
            system.fsync(fd)
        system.fsync(fd)
        disk.power_loss(random.Random(seed))
        lost += bytes(disk.names["/a/journal/x"].seen) != b"n" * 512
    assert 0 < lost < 30
