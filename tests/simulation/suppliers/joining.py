"""One world of several suppliers that one more joins, while they write and anything fails.

    JoinWorld(seed, "safety").run()     any fault at any time; at the end all hosts lose power, and are judged
    JoinWorld(seed, "liveness").run()   the faults end; within LEVEL_WITHIN_S all have the same, the new one, too

One of them copies its region for the new one, by the product's own way to have all stamps in it; the copy takes its
time, and is made again where the source or the new host dies meanwhile. Then the new one sends and receives as the
others do, and writes as soon as the first supplier's word on that has come.
What else happens is in world.py. Guarantees: as there. What `replica join` asks of
an operator is no part of it, nor is how a copy goes over the wire.
Leaves to others: how many worlds there are (../campaign.py), what is planted (join_plants.py).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import replicate.door.absorb_stamps
from replicate.door.recovery.opening import open_door
from replicate.errors import BusyError, DiskFullError
from replicate.model.transaction import SHARED, WRITTEN
from replicate.roles.partition_writers import held_session, say
from tests.simulation.base import BaseWorld, Main
from tests.simulation.host import Host, SimulatedInstance
from tests.simulation.regions import Region
from tests.simulation.suppliers import actors, template
from tests.simulation.suppliers.climate import SupplierClimate, peers_of
from tests.simulation.suppliers.oracle import Begin
from tests.simulation.suppliers.world import SupplierWorld, new_regions
from tests.simulation.template import NAMES, JournalEnd, begin_seeded, new_disk, seed_content, uuid_of, written

LOOK_S = 0.05
"""How often somebody looks whether it is his turn."""


class JoinClimate(SupplierClimate):
    """`joiner`: who joins; `joins_from`: from whom; `joins_at_s`: when."""

    def __post_init__(self) -> None:
        super().__post_init__()
        dice = self.dice
        self.keep_only(NAMES[: min(3, len(self.names))])
        self.gone = self.turned_back = None
        self.joiner = NAMES[len(self.names)]
        self.joins_from = dice.choice(self.names)
        self.joins_at_s = self.ends_s * dice.choice([0.0, 0.1, 0.3])
        self.dies_after_s = dice.choice([None, None, 0.2, 0.5, 1.5])
        """How long after that the new one's host loses power."""
        self.links = (*self.links, (self.joins_from, self.joiner))
        self.durabilities[self.joiner] = dice.choice(["durable", "durable", "interval", "off"])
        self.clocks[self.joiner] = dice.choice([0, 0, -7200, 10800])
        self.writers_at[self.joiner] = dice.choice([1, 2])


@dataclass
class Copy:
    """What the new one begins with. `begin`: the same as the oracle has it."""

    written: JournalEnd
    regions: list[Region]
    begin: Begin


class JoinWorld(SupplierWorld):
    """One supplier joins others."""

    climate: JoinClimate

    @staticmethod
    def dice_name(seed: int, mode: str) -> str:
        """As there."""
        return f"joining/{seed}/{mode}"

    def make_climate(self) -> JoinClimate:
        """As there."""
        return JoinClimate(self.dice)

    joining = 1

    def begin(self) -> None:
        """All hosts but the one that is to come, which is an empty machine."""
        super().begin()
        climate, name = self.climate, self.climate.joiner
        host = Host(name, new_disk(name, b""), new_regions(climate.regions), self.config_at(name))
        host.wall_offset_ns = climate.clocks[name] * 1_000_000_000
        self.joiner = host
        self.network.join([*self.hosts, host])
        self.is_joining = self.is_joined = False
        self.copy: Copy | None = None
        self.left_to_joiner = 20
        self.kernel.at(climate.joins_at_s, self._joins)

    # Who does what.

    def actors_of(self, host: Host) -> list[tuple[str, Main]]:
        """As there, and who has the new one join."""
        name = host.name
        if host is self.joiner and not self.is_joined:
            return [(f"seed@{name}", seeding)]
        found = super().actors_of(host)
        if host is self.joiner:
            found = [(one, joined_writer if one.startswith("writer") else main) for one, main in found]
        if self.is_joining and host is self.hosts[0]:
            found.append((f"grants@{name}", granting))
        if self.is_joining and name == self.climate.joins_from:
            found.append((f"copies@{name}", copying))
        return found

    def _joins(self) -> None:
        self.is_joining = True
        self.log("joins", self.climate.joiner, "from", self.climate.joins_from)
        for host in [*self.hosts, self.joiner]:
            for name, main in self.actors_of(host):
                if name.startswith(("grants", "copies", "seed")):
                    self.restart_later(host, name, main)
        if self.climate.dies_after_s is not None:
            self.kernel.at(self.kernel.now + self.climate.dies_after_s, self._dies)

    def _dies(self) -> None:
        if not self.is_healed and not self.is_joined:
            self.figures["new suppliers that lost power before they were seeded"] += 1
            self.power_loss(self.joiner, 0.5)

    def may_write(self, name: str) -> bool:
        """Whether the new one may write, by what is known on that host."""
        (host,) = (one for one in self.hosts if one.name == name)
        partitions = [template.partition_of(self.climate.joiner)]
        partitions += [template.SHARED_PARTITION] if self.climate.is_shared else []
        writers = [region.content.writers for region in host.regions if region.content is not None]
        return not any(one.not_of(uuid_of(self.climate.joiner), tuple(partitions)) for one in writers)

    # What is carried.

    def take_copy(self) -> None:
        """As a process of the source: what its regions and its journal come to. Raises BusyError."""
        source = self._process().host
        door = open_door(SimulatedInstance.open(source.path))
        with replicate.door.absorb_stamps.held_absorbed(door, timeout_s=0):
            there = written(door)
            last_seqno = there.position.last_seqno
            is_whole = self.oracle.sites[source.name].is_whole
            if not is_whole or max(region.seqno for region in source.regions) != last_seqno:
                return  # somebody was killed within a commit: it is done first
            copies = new_regions(len(source.regions))
            for region, copy in zip(source.regions, copies, strict=True):
                seed_content(region, copy, there)
        for copy in copies:
            assert copy.content is not None
            copy.content.merges.clear()
            copy.content.absorbed = max(copy.content.absorbed, copy.seqno)
            copy.slots = {copy.seqno % copy.ring_slots: (copy.seqno, None)}
        self.copy = Copy(there, copies, self.oracle.seeded_from(source.name))
        self.log("is copied at", last_seqno)

    def empty(self) -> None:
        """The new one begins with nothing."""
        name = self.joiner.name
        self.joiner.disk = new_disk(name, self.instance_file(name, peers_of(name, self.climate.links)))
        self.copy = None

    def joined(self, copy: Copy) -> None:
        """It is a supplier."""
        for region, its_copy in zip(self.joiner.regions, copy.regions, strict=True):
            region._set(its_copy._state())
            region.sync()
        self.oracle.joins(self.joiner.name, self.joiner.regions, copy.begin)
        self.is_joined = True
        self.hosts = [*self.hosts, self.joiner]
        self.log("has joined", self.joiner.name, copy.begin.seqno)
        self.figures["suppliers joined"] += 1
        for name, main in self.actors_of(self.joiner):
            self.restart_later(self.joiner, name, main)

    def _boots(self, host: Host) -> None:
        if host is self.joiner and not self.is_joined:
            BaseWorld._boots(self, host)
        else:
            super()._boots(host)

    # Judging.

    def look_at(self, host: Host) -> None:
        """As there, where there is something."""
        if host is not self.joiner or self.is_joined:
            super().look_at(host)

    def lost_power(self, host: Host) -> None:
        """As there."""
        if host is not self.joiner or self.is_joined:
            super().lost_power(host)

    def is_level(self) -> bool:
        """As there, and the new one is one of them."""
        return self.is_joined and self.may_write(self.joiner.name) and super().is_level()

    def count_figures(self) -> None:
        """As there, and what the new one has written."""
        super().count_figures()
        wrote = (one for one in self.oracle.truth.values() if one.by and one.writer == self.joiner.name)
        self.figures["commits of suppliers that joined"] += sum(1 for _ in wrote)


async def copying(world: Any) -> None:
    """At the source: makes a copy as often as the new one has none."""
    while not world.is_joined:
        if world.copy is None:
            with contextlib.suppress(BusyError, DiskFullError):
                world.take_copy()
        await world.kernel.sleep(LOOK_S)
    await world.kernel.suspend()


async def seeding(world: Any) -> None:
    """At the new one: begins with nothing, gets a copy, and is a supplier then."""
    if world.is_joined:
        await world.kernel.suspend()
    world.empty()
    while (copy := world.copy) is None:
        await world.kernel.sleep(LOOK_S)
    await world.kernel.sleep(world.dice.random() * world.dice.random())  # it is on its way
    begin_seeded(str(world.joiner.path), copy.written)
    await world.kernel.sleep(world.dice.random() * world.dice.random())
    world.joined(copy)
    await world.kernel.suspend()


async def granting(world: Any) -> None:
    """At the first supplier: lets the new one write."""
    name = world.climate.joiner
    host = world.kernel.process.host
    while not world.may_write(host.name):
        with contextlib.suppress(BusyError):
            door = open_door(SimulatedInstance.open(host.path))
            content = host.regions[0].content
            if content.writers.not_of(uuid_of(name), (template.partition_of(name),)):
                _say(door, template.partition_of(name), [WRITTEN, uuid_of(name)])
            elif world.climate.is_shared:
                _say(door, template.SHARED_PARTITION, [SHARED, uuid_of(name), len(world.climate.names)])
            door.close()
        await world.kernel.sleep(LOOK_S)
    await world.kernel.suspend()


def _say(door: Any, partition: int, values: list[object]) -> None:
    with held_session(door, 0) as session:
        writers = session.parts[0].region.writers()
        if not writers.fences.open(writers.retired):  # as roles/writing.py refuses it
            say(door, session, partition, values)


async def joined_writer(world: Any) -> None:
    """As any writer, once it may."""
    while not world.may_write(world.joiner.name):
        await world.kernel.sleep(LOOK_S)
    world.left_to_write, world.left_to_joiner = world.left_to_write + world.left_to_joiner, 0
    await actors.writer(world)
