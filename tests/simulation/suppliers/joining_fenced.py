"""One world of several suppliers that one more joins while any of them changes the schema now and then.

    JoinFenceWorld(seed, "safety").run()     any fault at any time; at the end all hosts lose power, and are judged
    JoinFenceWorld(seed, "liveness").run()   the faults end; within LEVEL_WITHIN_S all have the same, the new one, too

The copy for the new one may be made while others stand aside, and the new one be heard of before, within, or after a
fence; once it is there its own operator may change the schema, too. What else happens is in fencing.py and joining.py.
Guarantees: as there. Leaves to others: how many worlds there are (../campaign.py); and that a new supplier removes no
rows before anybody knows it, beside a change of the schema: two writers that clash just then are too rare to meet in
500 of these worlds, tests/replicate/roles/test_schema_fence_join.py has them.
"""

from __future__ import annotations

from tests.simulation.base import Main
from tests.simulation.host import Host
from tests.simulation.suppliers.fencing import FenceClimate, FenceWorld, fencing
from tests.simulation.suppliers.joining import JoinClimate, JoinWorld


class JoinFenceClimate(FenceClimate, JoinClimate):
    """`joiner_fences`: the new one has an operator who changes the schema."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.joiner_fences = self.dice.random() < 0.3


class JoinFenceWorld(FenceWorld, JoinWorld):
    """One supplier joins others that change the schema."""

    climate: JoinFenceClimate

    @staticmethod
    def dice_name(seed: int, mode: str) -> str:
        """As there."""
        return f"joining-fenced/{seed}/{mode}"

    def make_climate(self) -> JoinFenceClimate:
        """As there."""
        return JoinFenceClimate(self.dice)

    def actors_of(self, host: Host) -> list[tuple[str, Main]]:
        """As there, and the new one's operator, once it is there."""
        found = super().actors_of(host)
        fences = host is self.joiner and self.is_joined and self.climate.joiner_fences
        return [(f"fences@{host.name}", fencing), *found] if fences else found
