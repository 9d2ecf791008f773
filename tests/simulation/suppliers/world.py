"""One world of several suppliers: each writes, sends to those it is linked with, and applies what they send.

    SupplierWorld(seed, "safety").run()     any fault at any time; at the end all hosts lose power, and are judged
    SupplierWorld(seed, "liveness").run()   the faults end; within LEVEL_WITHIN_S all have the same

In worlds whose seed ends with 1 or 5 each has two regions, and transactions change one of them or both.
What every world has is in ../base.py. Guarantees: as there.
Leaves to others: how many worlds there are (../campaign.py), what is planted (plants.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from replicate.door.recovery.opening import make_chain
from replicate.settings.load import Config
from tests.simulation import actors as daemons
from tests.simulation.base import STEPS_MAX, BaseWorld, Main, acknowledged_by, journal_end
from tests.simulation.content import Content
from tests.simulation.disk import Disk
from tests.simulation.faults import SiteFaults
from tests.simulation.host import RING_SLOTS, Host, config_of
from tests.simulation.recovered import bring_forward, chain_hashes
from tests.simulation.regions import Region
from tests.simulation.suppliers import actors, template
from tests.simulation.suppliers.climate import SupplierClimate, peers_of
from tests.simulation.suppliers.oracle import Pasts, SupplierOracle, SupplierTransaction
from tests.simulation.template import NAMES, Made, made, new_disk, rewrite_file, uuid_of

LOST: Final = "JOURNAL_MISSING"
"""What one lacks that was restored, its peers have pruned: it had told them that it has it."""
DISK_FAULTS: Final = frozenset({"sync_fails", "write_fails", "commit_fails", "full", "short"})
"""Where a Receiver Server recovers a journal and cannot, it says so to its source by a code of its own."""

WITH_TWO_REGIONS: Final = (1, 5)
"""Last digits of seeds."""

_templates: dict[tuple[int, bool, int, int], list[Made]] = {}
"""By the number of suppliers, whether they share a table, how many are yet to come, and the number of regions."""

POOL_BYTES: Final = {12 * 1024: 12 * 1024, 16 * 1024: 32 * 1024, 24 * 1024: 72 * 1024}
"""Of a receive pool, by what `config_of` has drawn: one lane, two or four."""


@dataclass
class Backup:
    """Of a host at some moment. `frames`: what its journal had; `pasts`: what was known of all transactions."""

    disk: Disk
    regions: list[Any]
    frames: dict[int, SupplierTransaction]
    pasts: Pasts
    is_wanted: bool = False


class SupplierWorld(BaseWorld):
    """Several suppliers."""

    oracle: SupplierOracle
    climate: SupplierClimate
    steps_max = 4 * STEPS_MAX
    oracle_kind: type[SupplierOracle] = SupplierOracle
    joining = 0
    """How many suppliers are yet to come."""

    def __init__(self, seed: int, mode: str, *, recording: bool = False) -> None:
        super().__init__(seed, mode, recording=recording)
        if seed % 10 in WITH_TWO_REGIONS:
            self.climate.have_two_regions()
            self.left_to_write = self.climate.left_to_write

    @staticmethod
    def dice_name(seed: int, mode: str) -> str:
        """A seed means another world than that of a primary and a secondary."""
        return f"suppliers/{seed}/{mode}"

    def make_climate(self) -> SupplierClimate:
        """As climate.py draws it."""
        return SupplierClimate(self.dice)

    @property
    def sizes(self) -> Mapping[str, Mapping[str, Any]]:
        """Where there is room for few, a segment is left as soon as others have moved in it."""
        return {"replicate.pool.control": {"FOREIGN_MAX": self.climate.foreign_max}}

    def begin(self) -> None:
        """All hosts as the template has them, linked, and nobody running."""
        climate = self.climate
        hosts = []
        for name, (disk, regions) in zip(climate.names, _templates[self._kind], strict=True):
            host = Host(name, disk.copy(), [region.copy() for region in regions], self.config_at(name))
            host.wall_offset_ns = climate.clocks[name] * 1_000_000_000
            rewrite_file(host.disk, name, self.instance_file(name, peers_of(name, climate.links)))
            hosts.append(host)
        self.hosts = hosts
        self.network.join(hosts)
        self.oracle = self.oracle_kind({host.name: host.regions for host in hosts})
        self.faults = SiteFaults(self, climate)
        self._plan_losses()
        self.figures[f"worlds of {len(hosts)} in a {climate.shape}"] += 1
        self.figures["worlds with two regions"] += climate.regions > 1
        self.log("world", climate.names, climate.shape, climate.durabilities, climate.writers_at, climate.weights)

    def config_at(self, name: str) -> Config:
        """That host's settings."""
        config = config_of(self.dice, self.climate.durabilities[name])
        receiver = replace(config.receiver, pool_bytes=POOL_BYTES[config.receiver.pool_bytes])
        return replace(config, receiver=receiver, update=replace(config.update, tell_seen_s=self.climate.tell_seen_s))

    @property
    def _kind(self) -> tuple[int, bool, int, int]:
        return len(self.climate.names), self.climate.is_shared, self.joining, self.climate.regions

    def instance_file(self, name: str, peers: Sequence[str]) -> bytes:
        """Of a supplier that sends to those peers."""
        return template.instance_file(name, peers, self.climate.regions)

    def _plan_losses(self) -> None:
        """What may become of a site, but for what its machine does."""
        if not DISK_FAULTS.isdisjoint(self.climate.weights):
            self.refusals = self.refusals | {"INTERNAL"}
        self.is_gone = False
        self._backup: Backup | None = None
        if self.climate.gone is not None:
            self.kernel.at(self.climate.gone[1], self._goes)
            self.refusals = self.refusals | {"RETIRED"}
        if self.climate.turned_back is not None:
            _, made_s, restored_s = self.climate.turned_back
            self.kernel.at(made_s, self._make_backup)
            self.kernel.at(restored_s, self._restore)
            self.refusals = self.refusals | {"TURNED_BACK", LOST}

    def watched(self) -> AbstractContextManager[None]:
        """As actors.py has it."""
        return actors.watched(self)

    def actors_of(self, host: Host) -> list[tuple[str, Main]]:
        """Writers, a Source Server for each peer, and the other two daemons."""
        name = host.name
        writers = [(f"writer-{number + 1}@{name}", actors.writer) for number in range(self.climate.writers_at[name])]
        sources = [(f"source-{peer}@{name}", daemons.source(peer)) for peer in peers_of(name, self.climate.links)]
        operator = [(f"operator@{name}", actors.operator)] if self.is_gone and host is self._alive()[0] else []
        others = [(f"receiver@{name}", daemons.receiver), (f"update@{name}", daemons.update)]
        return [*writers, *sources, *others, *operator]

    def _alive(self) -> list[Host]:
        """Those that are not gone for good."""
        gone = self.climate.gone[0] if self.climate.gone is not None and self.is_gone else ""
        return [host for host in self.hosts if host.name != gone]

    @property
    def judged(self) -> Iterable[Host]:
        """Those that are there."""
        return self._alive()

    # One that is gone for good.

    def _goes(self) -> None:
        assert self.climate.gone is not None
        if self.is_healed:
            return
        (gone,) = (host for host in self.hosts if host.name == self.climate.gone[0])
        self.log("is gone for good", gone.name)
        self.figures["suppliers gone"] += 1
        self.is_gone = True
        self.power_loss(gone, 0.0)
        host = self._alive()[0]
        name, main = self.actors_of(host)[-1]
        self.restart_later(host, name, main)

    def _boots(self, host: Host) -> None:
        if host in self._alive():
            super()._boots(host)

    def is_retired(self) -> bool:
        """Whether who is gone is retired everywhere, if anybody has ever heard of it."""
        assert self.climate.gone is not None
        gone = self.climate.gone[0]
        known = any(self.oracle.writers[origin] == gone for origin in self.oracle.sites[self._alive()[0].name].places)
        contents = [region.content for host in self._alive() for region in host.regions]
        return not known or all(one is not None and uuid_of(gone) in one.writers.retired for one in contents)

    # One that is restored.

    def _make_backup(self) -> None:
        assert self.climate.turned_back is not None
        (host,) = (host for host in self.hosts if host.name == self.climate.turned_back[0])
        if host.is_up and not self.is_healed:
            self.log("a backup is made of", host.name)
            frames, pasts = dict(self.oracle.sites[host.name].frames), dict(self.oracle.pasts)
            self._backup = Backup(host.disk.copy(), [region._state() for region in host.regions], frames, pasts)

    def _restore(self) -> None:
        assert self.climate.turned_back is not None
        (host,) = (host for host in self.hosts if host.name == self.climate.turned_back[0])
        if self._backup is None or not host.is_up or self.is_healed:
            self._backup = None
            return
        self.log("is restored", host.name)
        self.figures["suppliers restored"] += 1
        self._backup.is_wanted = True
        self.power_loss(host, 0.5)

    # Judging.

    def lost_power(self, host: Host) -> None:
        """What it has lost, nobody was promised."""
        backup, turned_back = self._backup, self.climate.turned_back
        if backup is not None and backup.is_wanted and turned_back is not None and turned_back[0] == host.name:
            self._backup = None
            host.disk = backup.disk
            journal = f"/{host.name}/journal"
            host.disk.directories[journal] = 1 + max(host.disk.directories.values())  # it is another directory
            for region, state in zip(host.regions, backup.regions, strict=True):
                region._set(state)
                region.sync()
            self.oracle.turned_back(host.name, backup.frames, backup.pasts)
            return
        is_durable = self.climate.durabilities[host.name] == "durable"
        self.oracle.lost_power(host.name, is_durable=is_durable)

    def look(self, host: Host, door: Any, last_seqno: int) -> None:
        """The host has recovered: its journal is mended, its region rolled forward."""
        last_seqno = bring_forward(door)
        self.oracle.check(host.name, last_seqno, chain_hashes(make_chain(door.instance), last_seqno))

    def is_level(self) -> bool:
        """All have the same, and each source has stored that its peer has all of its journal."""
        alive = [host.name for host in self._alive()]
        if not self.oracle.have_alike(alive) or (self.is_gone and not self.is_retired()):
            return False
        for host in self._alive():
            last = journal_end(host)
            if last is None:
                return False
            for peer in peers_of(host.name, self.climate.links):
                if peer in alive and acknowledged_by(peer, host) != last:
                    return False
        self.oracle.check_alike(alive)
        return True

    def must_be_level(self) -> bool:
        """Not where one that was restored has to be seeded."""
        return not self.figures[f"refused: {LOST}"]

    def told_places(self) -> str:
        """What each has of whom."""
        return self.oracle.told_places()

    def count_figures(self) -> None:
        """What the oracle has counted."""
        self.figures["commits"] += len(self.oracle.truth)
        self.figures["applied"] += self.oracle.applied
        self.figures["taken back beyond a hole"] += self.oracle.taken_back
        for fold in (fold for site in self.oracle.sites.values() for fold in site.folds):
            merges = fold.content.merges
            gave_way = sum(one.merged.lost.what == "unique" for one in merges)
            self.figures["values lost in merges"] += len(merges) - gave_way
            self.figures["rows that gave way"] += gave_way
            self.figures["commits after which rows waited"] += fold.waited

    def make_template(self) -> None:
        """For so many suppliers, with and without what all write."""
        if self._kind not in _templates:
            _templates[self._kind] = _made(*self._kind)


def _made(count: int, is_shared: bool, joining: int, regions: int) -> list[Made]:
    names, others = NAMES[:count], NAMES[count : count + joining]
    config = config_of(random.Random(1), "durable")
    hosts = [
        Host(name, new_disk(name, template.instance_file(name, (), regions)), new_regions(regions), config)
        for name in names
    ]
    every = [host.regions for host in hosts]
    return made(
        SupplierWorld(0, "safety"), hosts, partial(template.fill, names, every, is_shared=is_shared, others=others)
    )


def new_regions(count: int) -> list[Region]:
    """Of a supplier, with nothing in them."""
    return [Region(RING_SLOTS, number, content=Content()) for number in range(count)]
