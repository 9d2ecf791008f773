"""What kind of world a seed draws: how much is written, by whom and how fast, how wide the line is, which faults come.

Swarm testing: a world in which everything may fail at once mostly fails in the same few ways, each of which hides what
would have come after it. So each world has some kinds of faults only, some of them ten times as often as others, and
some worlds are made for one thing: a source that is away while much is committed, a reader that is lapped.

Guarantees: everything follows from the dice. Leaves to others: what a fault does (faults.py).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

KINDS: Final[dict[str, int]] = {
    "kill": 3, "kill_in_commit": 6, "light_fuse": 10, "away": 3,
    "power": 4, "power_in_commit": 8, "checkpoint": 2,
    "sync_fails": 3, "write_fails": 1, "commit_fails": 2, "full": 1, "short": 1, "slow": 1,
    "cut": 3, "part": 2, "stall": 3, "harm": 4, "freeze": 2, "clock": 1,
}  # fmt: skip
"""Each kind of fault, and how often it comes where all of them are on."""
ON: Final = 0.55
"""How likely a kind is on in a world of its own kinds."""
BIASES: Final[tuple[dict[str, int], ...]] = (
    {"away": 3, "power_in_commit": 4, "checkpoint": 2, "power": 1},
    {"kill_in_commit": 6, "kill": 1, "freeze": 1},
    {"stall": 4, "freeze": 3, "away": 2, "slow": 1},
    {"harm": 6, "cut": 1, "part": 1},
    {"power_in_commit": 6, "power": 2, "checkpoint": 2},
)
"""Worlds made for one thing: frames that nobody syncs, and power that goes twice; writers that die on their way;
readers that are left behind; damaged bytes; and the first again with two regions, one of which may keep what comes
after what the other has lost."""


@dataclass
class Climate:
    """`weights`: kind of fault -> how often, of those that are on. `count`: faults in all, within `ends_s` seconds."""

    dice: random.Random
    weights: dict[str, int] = field(default_factory=dict)
    bias: int = -1
    """Which of BIASES; -1: none."""
    is_source_away: bool = False
    """From the first moment on: nobody syncs what is committed."""
    is_update_away: bool = False
    """The same of Update Processes, which sync it on a supplier."""

    def __post_init__(self) -> None:
        dice = self.dice
        self.durability: str = dice.choice(["durable", "durable", "interval", "off"])
        self.ends_s = 1.0 + dice.random() * 5.0
        self.regions: int = dice.choice([1, 1, 2])
        self.writers: int = dice.choice([1, 2, 2, 3])
        self.left_to_write: int = dice.choice([8, 20, 40, 60])
        self.sizes: tuple[int, ...] = dice.choice([(8, 40), (8, 40, 300, 700, 1300), (700, 1300)])
        self.is_even: bool = dice.random() < 0.35
        """All frames are of one length: what is left of an old one may stand exactly where a new one ends."""
        self.large_share: float = dice.choice([0.0, 0.0, 0.05, 0.3])
        self.nested_share: float = dice.choice([0.0, 0.3])
        self.pace_s = self._pace_s()
        self.window_bytes: int = dice.choice([12, 12, 2, 0.5]) * 1024
        self.count: int = dice.choice([0, 2, 3, 5, 8, 12])
        self._draw_weights()
        self.is_partial: bool = self.regions > 1 and dice.random() < 0.4
        """The secondary has the partition of the first region's table only."""

    def _pace_s(self) -> float:
        """A writer's pause: quick ones are done before much has failed; others write as long as things fail."""
        dice = self.dice
        if dice.random() < 0.5:
            return float(dice.choice([0.02, 0.1, 0.4]))
        return self.ends_s * self.writers / self.left_to_write * dice.choice([0.3, 1.0])

    def _draw_weights(self) -> None:
        dice = self.dice
        kind = dice.random()
        if kind < 0.2:
            self.weights = dict(KINDS)
            return
        if kind < 0.7:
            on = [name for name in KINDS if dice.random() < ON]
            self.weights = {name: KINDS[name] * dice.choice([1, 1, 3, 10]) for name in on} or {"kill": 1}
            self.is_source_away = "away" in on and dice.random() < 0.3
            return
        self.bias = dice.choice([0, 0, 1, 2, 3, 4, 4])
        self.weights = dict(BIASES[self.bias])
        self.count = max(self.count, 3)
        if self.bias in (0, 4):
            self.durability = dice.choice(["interval", "off", "off"])
            self.regions = 1 if self.bias == 0 else 2
            self.is_even = dice.random() < 0.6
            self.large_share = 0.0
            self.is_source_away = dice.random() < 0.8
        elif self.bias == 2:
            self.sizes, self.is_even, self.large_share = (8, 40), False, 0.0
            self.window_bytes = 512
            self.left_to_write = 60
