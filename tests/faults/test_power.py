"""Power loss for real, a few rounds for each policy and file system. Faults 33 and 36, on either side.

Run as root; skipped by name elsewhere, and where a file system cannot be made.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.faults.power import INTERVAL_S, LONG_LOST, POLICIES, POWER_ZERO, run
from tests.faults.rounds import FLOWING
from tests.harness.machine_tools import can_make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/loop-control"), reason="mounts file systems"),
]


TRIES = 4


def is_disturbed(figures: Counter[str], durability: str) -> bool:
    """Whether it may have been the machine: one that stands still is late with the interval's sync, and anybody's
    `sync` of all file systems keeps what nobody synced for the journal."""
    if durability == "interval":
        return bool(figures["acknowledged but missing"]) or figures["lost ms, most: interval"] > 1000 * INTERVAL_S
    return durability == "off" and not figures[LONG_LOST + "off"]


@pytest.mark.parametrize(
    ("durability", "filesystem"),
    [
        *((durability, "ext4") for durability in POLICIES),
        (POLICIES[0], "xfs"),
        *(pytest.param(durability, "xfs", marks=pytest.mark.long) for durability in POLICIES[1:]),
    ],
)
def test_power_loss(durability: str, filesystem: str) -> None:
    if not can_make(filesystem):
        pytest.skip(f"mkfs.{filesystem} is not installed, or the kernel does not know {filesystem}")
    figures = run(durability, filesystem, rounds=2, seed=7)
    for again in range(1, TRIES):  # what others do on this machine disturbs a round, but not each time
        if not is_disturbed(figures, durability):
            break
        figures = run(durability, filesystem, rounds=2, seed=7 + again)
    assert {name: figures[name] for name in POWER_ZERO} == dict.fromkeys(POWER_ZERO, 0), figures
    assert figures["acknowledged"] >= FLOWING
    if durability == "durable":
        assert figures["acknowledged and lost: durable"] == 0
    if durability == "interval":
        assert figures["lost ms, most: interval"] <= 1000 * INTERVAL_S
    if durability == "off":
        assert figures[LONG_LOST + "off"], "the load has its journal synced: it shows nothing of the interval"
