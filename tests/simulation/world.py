"""One world: a primary and a secondary with all their processes, a network, two disks, and the faults of one seed.

    run(seed, "safety")     any fault at any time; at the end both hosts lose power, and are judged
    run(seed, "liveness")   the faults end; within LEVEL_WITHIN_S the secondary has everything and the source knows it

What every world has is in base.py. Guarantees: as there.
Refuses to know: how many worlds there are (campaign.py), what is planted (plants.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from replicate.door.recovery.opening import make_chain
from replicate.instance.instance import FILE_NAME
from replicate.journal.reader import ChainReader
from replicate.journal.walk import walk
from replicate.pool import control as word
from tests.simulation import actors, template
from tests.simulation.base import LEVEL_WITHIN_S, MODES, BaseWorld, Main, journal_end
from tests.simulation.climate import Climate
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.host import REGIONS, RING_SLOTS, Host, config_of
from tests.simulation.kernel import Process
from tests.simulation.oracle import Oracle
from tests.simulation.regions import Region
from tests.simulation.stage import installed

__all__ = ["LEVEL_WITHIN_S", "MODES", "World", "make_template", "run"]

_templates: dict[int, Any] = {}
"""Number of regions -> of each host: its disk and its regions."""


class World(BaseWorld):
    """A primary, paris, and its secondary, oslo."""

    oracle: Oracle

    def __init__(self, seed: int, mode: str, *, recording: bool = False) -> None:
        super().__init__(seed, mode, recording=recording)
        self._durability = self.climate.durability
        self.versions = [1, 1]
        """The newest form of each region's table."""

    def make_climate(self) -> Climate:
        """As climate.py draws it."""
        return Climate(self.dice)

    def begin(self) -> None:
        """Both hosts as the template has them, and nobody running."""
        config = config_of(self.dice, self._durability)
        (disk, regions), (disk_there, regions_there) = _templates[self.climate.regions]
        self.primary = Host("paris", disk.copy(), [region.copy() for region in regions], config)
        self.secondary = Host("oslo", disk_there.copy(), [region.copy() for region in regions_there], config)
        self.hosts = (self.primary, self.secondary)
        self.network.join(self.hosts)
        self.oracle = Oracle(self.primary.regions, self.secondary.regions, is_partial=self.climate.is_partial)
        if self.climate.is_partial:
            file = self.secondary.disk.names[f"/oslo/{FILE_NAME}"]
            file.truncate(0)
            file.write(0, template.instance_file("oslo", "secondary", self.climate.regions, held=(1,)))
            file.sync()
            self.figures["worlds with a part"] += 1
        self.faults = Faults(self, self.climate)

    def watched(self) -> AbstractContextManager[None]:
        """As actors.py has it."""
        return actors.watched(self)

    def actors_of(self, host: Host) -> list[tuple[str, Main]]:
        """Writers and a Source Server on the primary, the other two daemons on the secondary."""
        writers = [(f"writer-{number + 1}", actors.writer) for number in range(self.climate.writers)]
        return [*(writers if host is self.primary else []), *actors.OF_HOST[host.name]]

    def committing(self, weight: int) -> list[str]:
        """The primary so many times, the secondary once."""
        return [*["paris"] * weight, "oslo"]

    @property
    def mended(self) -> Iterable[Host]:
        """A secondary's journal is mended by its Update Process."""
        return (self.primary,)

    # Judging.

    def lost_power(self, host: Host) -> None:
        """What the primary has lost, nobody was promised."""
        if host is self.primary:
            self.oracle.on_primary_power_loss(is_durable=self._durability == "durable")

    def look(self, host: Host, door: Any, last_seqno: int) -> None:
        """The host has recovered."""
        if host is self.secondary:
            self.oracle.check_secondary(last_seqno)
        else:
            self._look_at_primary(door, last_seqno)

    def _look_at_primary(self, door: Any, last_seqno: int) -> None:
        from replicate.door.recovery.redo_region import redo_region

        with door.locked():
            pass  # mends the journal's end
        for entry in door.instance.regions:
            if door.words[word.REGION_APPENDED + entry.region_id] != door.words[word.REGION_DONE + entry.region_id]:
                redo_region(door, entry)
        chain = make_chain(door.instance)
        oldest_seqno = chain.oldest_seqno()
        chains: dict[int, int] = {}
        reader = ChainReader(chain, oldest_seqno)
        try:
            while (found := reader.read(1 << 20, last_seqno)) is not None:
                data = found.commit_frame if hasattr(found, "commit_frame") else found.data
                for _, head in walk(data):
                    chains[head.seqno] = head.chain
        finally:
            reader.close()
        kept = [inode.seen for path, inode in self.primary.disk.names.items() if path.startswith("/paris/conflict/")]
        self.oracle.check_primary(chains, oldest_seqno, [bytes(data) for data in kept])

    def is_level(self) -> bool:
        """The secondary has everything, and the source has stored that."""
        last = journal_end(self.primary)
        if last is None or any(region.seqno != last for region in self.secondary.regions):
            return False
        stored = self.primary.disk.names.get("/paris/consumers/oslo.json")
        return stored is not None and json.loads(bytes(stored.seen))["acknowledged_seqno"] == last

    def told_places(self) -> str:
        """The last numbers of both sites' regions."""
        return (
            f"the secondary is at {[region.seqno for region in self.secondary.regions]}, the primary at "
            f"{[region.seqno for region in self.primary.regions]}"
        )

    def count_figures(self) -> None:
        """Commits, and what became of them."""
        self.figures["commits"] += sum(len(region.rows) for region in self.primary.regions)
        self.figures["rows taken back"] += len(self.oracle.taken_back)
        self.figures["applied"] += self.oracle.applied
        self.figures["streams that began below the durable seqno"] += self.oracle.starts_below


def make_template() -> None:
    """Once in a process."""
    if _templates:
        return
    for count in range(1, 1 + len(REGIONS)):
        _templates[count] = _made(count)


def _made(count: int) -> tuple[tuple[Disk, list[Region]], ...]:
    """Both hosts, with that many regions."""
    world = World(0, "safety")
    config = config_of(random.Random(1), "durable")
    disks = [template.new_disk("paris", "primary", count), template.new_disk("oslo", "secondary", count)]
    regions = [[Region(RING_SLOTS, number) for number in range(count)] for _ in disks]
    processes = []
    for place, name in enumerate(("paris", "oslo")):
        host = Host(name, disks[place], regions[place], config)
        processes.append(Process(world.kernel, "template", host, lambda _error: None))

    def caller(place: int) -> Callable[[Callable[[], None]], None]:
        def call(what: Callable[[], None]) -> None:
            with world.kernel.running(processes[place]):
                what()

        return call

    with installed(world):
        template.fill(regions[0], caller(0), regions[1], caller(1))
    for region in (*regions[0], *regions[1]):
        region.sync()
    world.close()
    return tuple((disk.copy(), there) for disk, there in zip(disks, regions, strict=True))


def run(seed: int, mode: str, *, recording: bool = False) -> World:
    """One world, whole. Look at its `violation` and `figures`."""
    make_template()
    world = World(seed, mode, recording=recording)
    with installed(world):
        try:
            world.begin()
            with world.watched():
                world.live()
        finally:
            world.close()
    return world
