"""What kind of world of suppliers a seed draws: how many there are, who sends to whom, what they write, what fails.

Guarantees: everything follows from the dice. Leaves to others: what a fault does (faults.py).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from tests.simulation.climate import Climate
from tests.simulation.template import NAMES

SHAPES: Final = ("line", "star", "ring", "mesh")


@dataclass
class SupplierClimate(Climate):
    """`links`: who is linked with whom. `writers_at`: how many writers each has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        dice = self.dice
        self.names: tuple[str, ...] = NAMES[: dice.choice([2, 2, 2, 3, 3, 4])]
        self.shape: str = dice.choice(SHAPES) if len(self.names) > 2 else "line"
        self.links = links_of(self.shape, self.names)
        self.durabilities = {name: dice.choice(["durable", "durable", "interval", "off"]) for name in self.names}
        if self.bias in (0, 4):
            self.durabilities = dict.fromkeys(self.names, self.durability)
        self.writers_at = {name: dice.choice([1, 1, 1, 2, 0]) for name in self.names}
        self.writers_at[dice.choice(self.names)] = 1
        self.regions = 1
        self.is_partial = False
        self.is_shared: bool = dice.random() < 0.7
        self.shared_share: float = dice.choice([0.3, 0.7, 0.95])
        self.tell_seen_s: float = dice.choice([0.5, 2.0, 5.0])
        self.left_to_write = dice.choice([10, 20, 40]) * len(self.names) // 2
        self.foreign_max: int = dice.choice([1, 2, 21])
        """Of how many other origins a segment's end is at hand."""
        self.clocks = {name: dice.choice([0, 0, 0, -7200, 3, 10800]) for name in self.names}
        """By how many seconds each host's clock is off at the beginning."""
        self.gone = self._who_is_gone()
        """A supplier that is lost for good, and when; another one says so."""
        self.turned_back = self._who_is_turned_back()
        """A supplier that is restored from a backup: who, when that was made, when it is restored."""
        self.named_share: float = dice.choice([0.0, 0.3, 0.6] if self.turned_back is None else [0.6, 0.9])
        """Of the changes in what all write: those in the table whose names are unique."""

    def have_two_regions(self) -> None:
        """Each has. In some worlds those die that have committed in one of them; in others what nobody has synced is
        lost in one, and not in the other one."""
        self.regions, dice = 2, self.dice
        lot = dice.random()
        if lot < 0.7:
            self.weights = {**self.weights, "between": max(3, sum(self.weights.values()))}
            self.count = max(self.count, dice.choice([4, 8, 12]))
        if lot > 0.5:
            self.weights = {**self.weights, "hole": 20, "power_in_commit": 4, "away": 4}
            self.count = max(self.count, 5)
            self.durabilities = {name: dice.choice(["interval", "off", "off"]) for name in self.durabilities}
            self.is_source_away = self.is_update_away = dice.random() < 0.8
            self.left_to_write, self.sizes, self.large_share = 2 * self.left_to_write, (8, 40), 0.0
            self.pace_s = self.ends_s * sum(self.writers_at.values()) / self.left_to_write * dice.choice([0.3, 1.0])

    def keep_only(self, names: tuple[str, ...]) -> None:
        """Of those that were drawn these are there."""
        self.names = names
        self.links = links_of(self.shape, names)

    def _who_is_gone(self) -> tuple[str, float] | None:
        """One without which the others are linked still."""
        if len(self.names) < 3 or self.dice.random() > 0.35:
            return None
        name = self.dice.choice(self.names)
        rest = tuple(one for one in self.names if one != name)
        if not is_linked(rest, self.links):
            return None
        return name, self.ends_s * self.dice.choice([0.3, 0.6, 0.9])

    def _who_is_turned_back(self) -> tuple[str, float, float] | None:
        if self.gone is not None or self.dice.random() > 0.25:
            return None
        made_s = self.ends_s * self.dice.choice([0.2, 0.5])
        return self.dice.choice(self.names), made_s, made_s + self.dice.choice([0.2, 0.5, 1.0])


def links_of(shape: str, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The links of a shape over those that are named."""
    links = list(itertools.pairwise(names))
    if shape == "ring" and len(names) > 2:
        links.append((names[-1], names[0]))
    if shape == "star":
        links = [(names[0], other) for other in names[1:]]
    if shape == "mesh":
        links = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
    return tuple(links)


def is_linked(names: tuple[str, ...], links: tuple[tuple[str, str], ...]) -> bool:
    """Whether there is a way between all of them, over them alone."""
    found, waiting = {names[0]}, [names[0]]
    while waiting:
        new = [one for one in peers_of(waiting.pop(), links) if one in names and one not in found]
        found.update(new)
        waiting += new
    return len(found) == len(names)


def peers_of(name: str, links: tuple[tuple[str, str], ...]) -> list[str]:
    """Those that are linked with one, in order."""
    return [other for link in links if name in link for other in link if other != name]
