"""One world: a primary and a secondary with all their processes, a network, two disks, and the faults of one seed.

    World(seed, "safety").run()     any fault at any time; at the end both hosts lose power, and are judged
    World(seed, "liveness").run()   the faults end; within LEVEL_WITHIN_S the secondary has all, and the source knows it

What every world has is in base.py. Guarantees: as there.
Leaves to others: how many worlds there are (campaign.py), what is planted (plants.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from replicate.door.recovery.opening import make_chain
from tests.simulation import actors, template
from tests.simulation.base import BaseWorld, Main, acknowledged_by, journal_end
from tests.simulation.climate import Climate
from tests.simulation.faults import Faults
from tests.simulation.host import RING_SLOTS, Host, config_of
from tests.simulation.oracle import Oracle
from tests.simulation.recovered import bring_forward, chain_hashes
from tests.simulation.regions import Region

_templates: dict[int, list[template.Made]] = {}
"""By the number of regions."""


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
            file = template.instance_file("oslo", "secondary", self.climate.regions, held=(1,))
            template.rewrite_file(self.secondary.disk, "oslo", file)
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
        bring_forward(door)
        chain = make_chain(door.instance)
        kept = [inode.seen for path, inode in self.primary.disk.names.items() if path.startswith("/paris/conflict/")]
        self.oracle.check_primary(chain_hashes(chain, last_seqno), chain.oldest_seqno(), [bytes(data) for data in kept])

    def is_level(self) -> bool:
        """The secondary has everything, and the source has stored that."""
        last = journal_end(self.primary)
        if last is None or any(region.seqno != last for region in self.secondary.regions):
            return False
        return acknowledged_by("oslo", self.primary) == last

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

    def make_template(self) -> None:
        """With that many regions."""
        count = self.climate.regions
        if count not in _templates:
            _templates[count] = _made(count)


def _made(count: int) -> list[template.Made]:
    """Both hosts, with that many regions."""
    config = config_of(random.Random(1), "durable")
    hosts = [
        Host(
            name,
            template.new_disk(name, template.instance_file(name, role, count)),
            [Region(RING_SLOTS, number) for number in range(count)],
            config,
        )
        for name, role in (("paris", "primary"), ("oslo", "secondary"))
    ]
    return template.made(World(0, "safety"), hosts, partial(template.fill, hosts[0].regions, hosts[1].regions))
