"""One world in which the secondary removes partitions and releases them: world.py, with an operator who does that.

    ReleaseWorld(seed, "safety").run()     as there
    ReleaseWorld(seed, "liveness").run()   as there; what was to be released has come to its place by then

Guarantees: as there. Leaves to others: how it is released (releasing.py), what must be true (release_oracle.py), what
is planted (release_plants.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from replicate.instance.file import decode, encode
from replicate.limits import PARTITION_NONE
from replicate.model.partitions import DEFAULT, Partitions
from replicate.system.failpoint import hit
from tests.simulation import template
from tests.simulation.base import Main
from tests.simulation.climate import Climate
from tests.simulation.faults import Fuse
from tests.simulation.host import Host, SimulatedInstance
from tests.simulation.parts.climate import PARTITIONS, PartsClimate, draw_chosen
from tests.simulation.parts.release_oracle import ReleaseOracle
from tests.simulation.parts.releasing import changes, releaser, tables_of
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
        self.drops = not self.move_share and dice.random() < 0.5
        """The rows here are deleted then."""
        self.dies_at = dice.choice(["", "", "partition.released", "partition.dropped"])
        """Where the command does, or its host."""
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

    def drop_some(self, keeps: Callable[[int], bool], rows_max: int) -> int:
        tables = [one.table for one in tables_of(self.region) if keeps(one.partition)]
        oracle = SimulatedInstance.world.oracle
        gone = [row for table in tables for row in oracle.rows_of(self.region, table)][:rows_max]
        self.connection.open().deleted += gone
        return len(gone)


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
        assert self.faults is not None
        fuses = self.faults._fuses
        if self.climate.awaits_death:
            fuse = Fuse(BETWEEN, "oslo", 1 + self.dice.randrange(3), False)
            self.kernel.at(self.climate.gives_up_s, lambda: fuses.append(fuse))
        if self.climate.dies_at:
            fuses.append(Fuse(self.climate.dies_at, "oslo", 1, self.dice.random() < 0.4))
        template.rewrite_file(self.secondary.disk, "oslo", encode(replace(file, partitions=NAMES)))

    @property
    def sizes(self) -> Mapping[str, Mapping[str, Any]]:
        """Rows are deleted in several steps."""
        return {"replicate.admin.dropping_rows": {"ROWS_MAX": 2}}

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
        is_dropped = self.oracle.has_dropped or not self.climate.drops
        return super().is_level() and self.oracle.has_released and is_dropped

    def told_places(self) -> str:
        """As there; and whether something is to be released."""
        return f"{super().told_places()}{'' if self.oracle.has_released else '; what was to be released is not'}"

    def count_figures(self) -> None:
        """As there; and what was released."""
        super().count_figures()
        self.figures["worlds that released"] += self.oracle.has_released
        self.figures["worlds that dropped rows"] += self.oracle.has_dropped
        self.figures["rows released"] += sum(map(len, self.oracle.frozen.values())) if self.oracle.has_released else 0
