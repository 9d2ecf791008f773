"""One world of several suppliers in which any of them changes the schema now and then, while they write and anything
fails.

    FenceWorld(seed, "safety").run()     any fault at any time; at the end all hosts lose power, and are judged
    FenceWorld(seed, "liveness").run()   the faults end; within LEVEL_WITHIN_S all have the same, and all may write

An operator at each of some hosts has the others stand aside, waits for them, and changes the schema, in one transaction
or in several; or gives it up before. What else happens is in world.py. Guarantees: as there; and a change of the schema
stands beside nothing: of it and each other transaction of rows, one was known to the other one's writer.
Refuses to know: how many worlds there are (../campaign.py), what is planted (fence_plants.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from replicate.errors import (
    BusyError,
    ConfigurationError,
    NotPrimaryError,
    NotWriterError,
    TryAgainError,
)
from replicate.journal.record import changes_of
from replicate.model.transaction import Op
from replicate.region.protocol import CapturedChanges
from replicate.roles.schema_fence import fence, unfence
from tests.simulation.base import Main
from tests.simulation.frames import read
from tests.simulation.host import REGIONS, Host, SimulatedInstance
from tests.simulation.oracle import ViolationError
from tests.simulation.regions import Region
from tests.simulation.suppliers.actors import opened
from tests.simulation.suppliers.climate import SupplierClimate
from tests.simulation.suppliers.oracle import SupplierOracle, SupplierTransaction
from tests.simulation.suppliers.world import SupplierWorld
from tests.simulation.template import change

LOOK_S: Final = 0.2
"""How often an operator looks whether all stand aside."""
FENCES_MAX: Final = 4
"""Of each operator."""


class FenceClimate(SupplierClimate):
    """`fencers`: the hosts with an operator who changes the schema."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_shared = True
        self.fencers = [name for name in self.names if self.dice.random() < 0.5] or [self.names[0]]
        self.gives_up: float = self.dice.choice([0.0, 0.0, 0.05])
        """How likely an operator is to give up while others are waited for."""


class FenceOracle(SupplierOracle):
    """Knows besides which transactions change the schema."""

    def __init__(self, regions: Mapping[str, Sequence[Region]]) -> None:
        super().__init__(regions)
        self.of_schema: set[tuple[int, int, int]] = set()
        """Origin, its number, chain."""

    def read(self, frame: bytes) -> SupplierTransaction:
        """As there."""
        written, (body, _) = super().read(frame), read(frame)
        if Op.SCHEMA in changes_of(body)[0::4]:
            self.of_schema.add((written.origin, written.origin_seqno, written.chain))
        return written

    def check_schema(self, alive: Collection[str]) -> None:
        """A change of the schema stands beside nothing that one of those `alive` has: what one that is gone for good
        has alone is lost."""
        places = [self.sites[name].places for name in alive]

        def is_somewhere(origin: int, number: int) -> bool:
            return any(one.get(origin, (0, 0))[0] >= number for one in places)

        for origin, number, chain in self.of_schema:
            known = self.truth.get((origin, number))
            if known is None or known.chain != chain or (origin, number) not in self.pasts:
                continue  # it was lost before anybody had it
            if not is_somewhere(origin, number):
                continue
            past = self.pasts[origin, number]
            for (other, other_number), one in self.truth.items():
                if not is_somewhere(other, other_number):
                    continue
                if other == origin or not (one.changes or (other, other_number, one.chain) in self.of_schema):
                    continue
                is_known = past.get(other, 0) >= other_number
                if not is_known and self.pasts.get((other, other_number), {origin: number}).get(origin, 0) < number:
                    told = f"the schema changes in {number} of {known.writer}, beside {other_number} of {one.writer}"
                    raise ViolationError("fence", told)


class FenceWorld(SupplierWorld):
    """Suppliers that change the schema."""

    climate: FenceClimate
    oracle: FenceOracle

    @staticmethod
    def dice_name(seed: int, mode: str) -> str:
        """As there."""
        return f"fencing/{seed}/{mode}"

    def make_climate(self) -> FenceClimate:
        """As there."""
        return FenceClimate(self.dice)

    oracle_kind = FenceOracle

    def actors_of(self, host: Host) -> list[tuple[str, Main]]:
        """As there, and operators."""
        found = super().actors_of(host)
        own = [(f"fences@{host.name}", fencing)] if host.name in self.climate.fencers else []
        return [*own, *found]

    def is_level(self) -> bool:
        """As there, and nobody stands aside."""
        if not super().is_level():
            return False
        self.oracle.check_schema([one.name for one in self._alive()])
        regions = [region for host in self._alive() for region in host.regions]
        writers = [region.content.writers for region in regions if region.content is not None]
        return not any(one.fences.open(one.retired) for one in writers)

    def look(self, host: Host, door: Any, last_seqno: int) -> None:
        """As there, and no change of the schema stands beside anything."""
        super().look(host, door, last_seqno)
        self.oracle.check_schema([one.name for one in self._alive()])

    def count_figures(self) -> None:
        """As there."""
        super().count_figures()
        self.figures["changes of the schema"] += len(self.oracle.of_schema)


async def fencing(world: Any) -> None:
    """At a host: has the others stand aside, again and again, and changes the schema. What was left open by one that
    was killed is ended."""
    host, dice = world.kernel.process.host, world.dice
    for _ in range(FENCES_MAX):
        await world.kernel.sleep(dice.random() * world.climate.ends_s / 4)
        is_once = dice.random() < 0.5
        while not (world.is_healed and not _is_fencing(host)):
            gives_up = 0.02 if world.is_healed else world.climate.gives_up  # one that is gone may not be known here
            try:
                instance = SimulatedInstance.open(host.path)
                fence(instance, timeout_s=0, is_once=is_once)
                for _ in range(1 if is_once else dice.randrange(3)):
                    change_schema(world, host)
                unfence(instance, timeout_s=0)
                break
            except (NotWriterError, ConfigurationError):
                break  # another one fences, or it was ended
            except TryAgainError as error:
                if not isinstance(error, BusyError) and dice.random() < gives_up:
                    with contextlib.suppress(BusyError):
                        unfence(instance, timeout_s=0)
                        break
            except NotPrimaryError:
                pass  # it was restored, and waits
            await world.kernel.sleep(LOOK_S)
    while True:  # one that was restored may get back that it fences
        with contextlib.suppress(BusyError, NotPrimaryError):
            if _is_fencing(host):
                unfence(SimulatedInstance.open(host.path), timeout_s=0)
        await world.kernel.sleep(1.0)


def _is_fencing(host: Host) -> bool:
    instance, content = SimulatedInstance.open(host.path), host.regions[0].content
    return content is not None and content.writers.fences.is_fencing(instance.content.uuid)


def change_schema(world: Any, host: Host) -> None:
    """One transaction that does, of one region. It mostly has the others, too: so the fence can end with it."""
    names, dice = REGIONS[: len(host.regions)], world.dice
    first = names[0] if len(names) == 1 else dice.choice(names)
    others = [one for one in names if one != first]
    session = opened(host, first, others if others and dice.random() < 0.7 else ())
    door = session.door
    try:
        session.begin(timeout_s=0)
        payload = change(Op.SCHEMA, 0, first, ["of the schema"])
        touched = {"main": True} if len(session.parts) > 1 else None
        session.commit(CapturedChanges(payload, 4, (1,), False, None, True, touched))
    finally:
        session.close()
        door.close()
