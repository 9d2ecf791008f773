"""What kind of world of roles a seed draws: how many sites, what is written, what fails, and what operators do.

Some worlds have planned changes only: there nothing at all may be lost. In others sites die, or the line is cut, and
somebody takes over.
Guarantees: everything follows from the dice. Leaves to others: what a move or a fault does (operators.py, faults.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.simulation.climate import Climate
from tests.simulation.template import NAMES

PLANNED: Final = ("switch", "switch", "switch", "step_by_step")
UNPLANNED: Final = ("switch", "step_by_step", "disaster", "disaster", "split", "split", "take_back", "turn_round")


@dataclass
class RoleClimate(Climate):
    """`moves`: when, and what operators do then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        dice = self.dice
        self.names: tuple[str, ...] = NAMES[: dice.choice([2, 2, 2, 2, 3])]
        self.regions = 1
        self.is_partial = False
        self.ends_s += dice.choice([4.0, 8.0, 14.0])
        self.durabilities = {name: dice.choice(["durable", "durable", "interval", "off"]) for name in self.names}
        if self.bias in (0, 4):
            self.durabilities = dict.fromkeys(self.names, self.durability)
        self.writers_at = {name: dice.choice([1, 1, 2]) for name in self.names}
        self.left_to_write = dice.choice([20, 40, 60])
        writers = sum(self.writers_at.values()) / len(self.names)
        spread_s = self.ends_s * writers / self.left_to_write
        self.pace_s = dice.choice([0.05, 0.2, 0.5 * spread_s, 0.5 * spread_s, spread_s])
        self.is_planned: bool = dice.random() < 0.3
        """Nobody takes over without a word of the other one."""
        self.auto_rollback: bool = dice.random() < 0.5
        self.fuses: int = dice.choice([0, 0, 1, 2, 4])
        """Failpoints of the roles' own code at which somebody dies."""
        count = dice.choice([1, 2, 2, 3, 5])
        moves = PLANNED if self.is_planned else UNPLANNED
        self.moves = sorted((dice.random() * self.ends_s, dice.choice(moves)) for _ in range(count))
