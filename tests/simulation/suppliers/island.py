"""One world of several suppliers one of which is an island for an hour, while all of them write.

    IslandWorld(seed, "safety").run()     any fault at any time; at the end all hosts lose power, and are judged
    IslandWorld(seed, "liveness").run()   the faults end; within LEVEL_WITHIN_S all have the same

No line leads to it for nearly all of the hour: each timeout passes many times, nobody tells what it has, journals and
stamps are kept for it. Other faults happen meanwhile, as in world.py. Guarantees: as there.
Refuses to know: how many worlds there are (../campaign.py).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from replicate.settings.load import Config
from tests.simulation.base import STEPS_MAX
from tests.simulation.suppliers.climate import SupplierClimate
from tests.simulation.suppliers.world import SupplierWorld

HOUR_S: Final = 3600.0
BEGINS_S: Final = 30.0
"""When the island does, and how long before the end it is none any more."""


class IslandClimate(SupplierClimate):
    """`island`: who is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gone = self.turned_back = None
        self.is_shared = True
        self.pace_s *= HOUR_S / self.ends_s
        self.ends_s = HOUR_S
        self.island = self.dice.choice(self.names)
        self.writers_at[self.island] = 1


class IslandWorld(SupplierWorld):
    """One of them is an island."""

    climate: IslandClimate
    steps_max = 30 * STEPS_MAX
    level_within_s = 600.0

    @staticmethod
    def dice_name(seed: int, mode: str) -> str:
        """As there."""
        return f"islands/{seed}/{mode}"

    def make_climate(self) -> IslandClimate:
        """As there."""
        return IslandClimate(self.dice)

    def config_at(self, name: str) -> Config:
        """As there, with timeouts of a minute, and without lines of statistics, which have their time in an hour."""
        config = super().config_at(name)
        slow = {"statistics": False, "heartbeat_period_s": 20.0, "dead_after_s": 60.0}
        return replace(
            config,
            source=replace(config.source, **slow, soft_period_s=10.0, connect_timeout_s=10.0),
            receiver=replace(config.receiver, **slow),
            update=replace(config.update, statistics=False),
        )

    def begin(self) -> None:
        """As there; and the lines are parted in a while."""
        super().begin()
        self.kernel.at(BEGINS_S, self._is_cut_off)
        self.kernel.at(HOUR_S - 2 * BEGINS_S, self._is_counted)

    def _is_cut_off(self) -> None:
        lines = [line for line in self.network.lines.values() if self.climate.island in line.ends]
        self.log("is an island", self.climate.island)
        self.network.part(HOUR_S - BEGINS_S, lines=lines)

    def _is_counted(self) -> None:
        """What is remembered for it, and what it lacks."""
        for host in self.hosts:
            stamps = [region.content.stamps for region in host.regions if region.content is not None]
            self.figures["rows with stamps towards the end of islands"] += sum(map(len, stamps))
        places = [self.oracle.sites[host.name].places for host in self.hosts]
        self.figures["worlds in which islands lacked something"] += any(one != places[0] for one in places)
