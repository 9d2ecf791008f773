"""One world in which the secondary removes partitions and releases them: world.py, with an operator who does that.

    ReleaseWorld(seed, "safety").run()     as there
    ReleaseWorld(seed, "liveness").run()   as there; what was to be released has come to its place by then

Guarantees: as there. Leaves to others: how it is released (releasing.py), what must be true (release_oracle.py), what
is planted (release_plants.py).
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Final

from replicate.instance.file import decode, encode
from replicate.limits import PARTITION_NONE
from replicate.model.partitions import DEFAULT, Partitions
from replicate.system.failpoint import hit
from tests.simulation import template
from tests.simulation.base import Main
from tests.simulation.climate import Climate
from tests.simulation.faults import Fuse
from tests.simulation.host import Host
from tests.simulation.parts.climate import PARTITIONS, PartsClimate, draw_chosen
from tests.simulation.parts.release_oracle import ReleaseOracle
from tests.simulation.parts.releasing import changes, releaser
from tests.simulation.parts.world import PartsWorld
from tests.simulation.regions import ModelApplied, ModelKind
from tests.simulation.replaced import replaced
from tests.simulation.stage import BETWEEN

NAMES: Final = Partitions({1: DEFAULT, **{number: f"p{number}" for number in range(2, 1 + PARTITIONS)}})


@dataclass
class ReleaseClimate(PartsClimate):
    """Tables are in what is released, and mostly in what stays, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        dice = self.dice
        self.loads = 0
        gone, places = dice.choice([1, 2, 3]), [1, 2, 3, PARTITION_NONE]
        self.placed = tuple(
            (region, dice.choice([gone, *places]) if others else gone)
            for region in range(self.regions)
            for others in range(dice.choice([2, 3]))
        )
        others = [one for one in range(1, 1 + PARTITIONS) if one != gone]
        self.left = tuple(sorted(dice.sample(others, dice.choice([1, 2, 2, 3]))))
        self.wanted = dice.choice([None, tuple(sorted({gone, *self.left}))])
        self.gives_up_s = self.ends_s * (0.2 + 0.6 * dice.random())
        self.awaits_death = self.regions > 1 and dice.random() < 0.6
        """The operator comes when the Update Process has died between two regions' commits."""
        self.move_share = dice.choice([0.0, 0.0, 0.1])
        self.chosen = draw_chosen(dice, len(self.placed))[:2] if dice.random() < 0.2 else ()  # a hello holds no more

    @property
    def gone(self) -> tuple[int, ...]:
        """What is released."""
        return tuple(one for one in range(1, 1 + PARTITIONS) if self.holds(one) and not self.stays(one))


class _Applied(ModelApplied):
    def commit(self) -> None:
        if self.region.number:
            hit(BETWEEN)
        super().commit()


class _Kind(ModelKind):
    def applied(self, path: str | os.PathLike[str], *, region: bytes) -> ModelApplied:
        return _Applied(self._open(path), str(path))


class ReleaseWorld(PartsWorld):
    """A primary, paris, and its secondary, oslo, which has some partitions, and releases one of them or more."""

    climate: ReleaseClimate
    oracle: ReleaseOracle
    oracle_kind = ReleaseOracle

    @staticmethod
    def dice_name(seed: int, mode: str) -> str:
        """Others than those of other worlds."""
        return f"releasing/{seed}/{mode}"

    def make_climate(self) -> Climate:
        """As it is here."""
        return ReleaseClimate(self.dice)

    def begin(self) -> None:
        """As there; and the partitions have names."""
        super().begin()
        file = decode(bytes(self.secondary.disk.names["/oslo/instance.json"].seen), "oslo")
        if self.climate.awaits_death:
            assert self.faults is not None
            fuse = Fuse(BETWEEN, "oslo", 1 + self.dice.randrange(3), False)
            self.kernel.at(self.climate.gives_up_s, lambda: self.faults._fuses.append(fuse))  # type: ignore[union-attr]
        template.rewrite_file(self.secondary.disk, "oslo", encode(replace(file, partitions=NAMES)))

    def make_kind(self) -> ModelKind:
        """Who applies may die between two regions' commits."""
        return _Kind(self.kernel, lambda: self.hit(BETWEEN))

    def watched(self) -> AbstractContextManager[None]:
        """As there; and the command finds the model."""
        stack = ExitStack()
        stack.enter_context(replaced(*changes()))
        stack.enter_context(super().watched())
        return stack

    def actors_of(self, host: Host) -> list[tuple[str, Main]]:
        """As there, but for what the operator does."""
        return [(name, releaser if name == "operator" else main) for name, main in super().actors_of(host)]

    def is_level(self) -> bool:
        """As there, with what was released."""
        return super().is_level() and self.oracle.has_released

    def told_places(self) -> str:
        """As there; and whether something is to be released."""
        return f"{super().told_places()}{'' if self.oracle.has_released else '; what was to be released is not'}"

    def count_figures(self) -> None:
        """As there; and what was released."""
        super().count_figures()
        self.figures["worlds that released"] += self.oracle.has_released
        self.figures["rows released"] += sum(map(len, self.oracle.frozen.values())) if self.oracle.has_released else 0
