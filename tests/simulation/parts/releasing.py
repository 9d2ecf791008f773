"""Who removes partitions from the secondary of a world and gives them to its site, as `subscription remove … --release`
does, and perhaps deletes their rows, as `--drop-rows` does.

Real: the command's checks and its order, its lock, the subscription, and that the door finishes the regions before.
A model: which tables there are; the copy, which is of the regions as they are at its moment and comes at once, in one
file for its directory; and that the Update Process stands aside, which is killed here.
Guarantees: killed anywhere it is done again, as the command is. Leaves to others: faults, and what must be true
(oracle.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from replicate.admin import dropping_rows, partition_release
from replicate.admin.dropping_rows import drop_rows
from replicate.admin.partition_release import release_partitions
from replicate.admin.subscriptions import set_
from replicate.errors import BusyError, NotFoundError
from replicate.model.subscription import Table
from replicate.model.transaction import TableDefinition
from replicate.system.failpoint import hit
from replicate.system.os_errors import io_error
from tests.simulation.host import REGIONS, SimulatedInstance, SimulatedPath
from tests.simulation.regions import Region
from tests.simulation.replaced import Change

LOOK_S: Final = 0.2
DEAD_LOOK_S: Final = 0.01
"""Less than a process that was killed takes to start again."""


class Place(SimulatedPath):
    """Where the released tables come to be, on the disk of the one that asks."""

    def is_dir(self) -> bool:
        return os.fspath(self) in SimulatedInstance.world.kernel.process.host.disk.directories


PLACE: Final = Place("/oslo/released")


class Moment:
    """OpenRegions: the regions as they are when it begins. `connections`: name -> table -> its rows."""

    def __init__(self, names: Collection[str]) -> None:
        self.connections: dict[str, Any] = dict.fromkeys(names)

    @classmethod
    def open(cls, paths: Mapping[str, Any]) -> Moment:
        return cls(paths)

    def begin(self) -> None:
        world = SimulatedInstance.world
        for name in self.connections:
            region = world.kernel.process.host.regions[REGIONS.index(name)]
            self.connections[name] = [(one, world.oracle.rows_of(region, one.table)) for one in tables_of(region)]

    def close(self) -> None:
        """It is a copy already."""


def tables_of(region: Region) -> list[TableDefinition]:
    """As they are there now."""
    return [region.state[name] for name in sorted(region.state) if isinstance(region.state[name], TableDefinition)]


def tables_by_partition(_instance: Any) -> dict[int, list[Table]]:
    """As transfer/seed/rows.py has it."""
    found: dict[int, list[Table]] = {}
    for region in SimulatedInstance.world.kernel.process.host.regions:
        for one in tables_of(region):
            found.setdefault(one.partition, []).append((one.region, one.table))
    return found


@contextlib.contextmanager
def update_aside(_instance: Any) -> Iterator[None]:
    """It does not run in the block, in which no time passes."""
    world = SimulatedInstance.world
    for process in world.kernel.process.host.processes:
        if process.name == "update" and not process.is_dead:
            world.kill(process)
    yield


def copy(_secondary: Any, opened: Moment, gone: frozenset[int], directory: Any, aside: Any, _told: Any) -> list[Any]:
    """The model of `_copy`: the same order of things on the disk."""
    tables = [found for there in opened.connections.values() for found in there]
    released = {one.table: rows for one, rows in tables if one.partition in gone}
    try:
        _name(json.dumps(released).encode(), aside, directory)
    except OSError as error:
        raise io_error(error, "the tables were not released", str(directory)) from error
    return []


def _name(data: bytes, aside: Any, directory: Any) -> None:
    simulated = SimulatedInstance.world.os
    fd = simulated.open(aside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    while data:
        data = data[simulated.write(fd, data) :]
    simulated.fsync(fd)
    simulated.close(fd)
    hit("partition.released")
    simulated.rename(aside, directory)
    parent = simulated.open(directory.parent, os.O_RDONLY)
    simulated.fsync(parent)
    simulated.close(parent)


def changes() -> list[Change]:
    """What stands in the command for the time of a world."""
    return [
        (partition_release, "OpenRegions", Moment),
        (partition_release, "tables_by_partition", tables_by_partition),
        (partition_release, "update_aside", update_aside),
        (partition_release, "_copy", copy),
        (dropping_rows, "update_aside", update_aside),
    ]


async def releaser(world: Any) -> None:
    """Until it is released; then nothing more."""
    await world.kernel.sleep(max(0.0, world.climate.gives_up_s - world.kernel.now))
    instance = SimulatedInstance.open("/oslo")
    while world.climate.awaits_death and world.kernel.now < world.climate.ends_s and _is_applied(world):
        await world.kernel.sleep(DEAD_LOOK_S)
    while not _is_done(world, instance):
        try:
            _release(world, instance)
        except BusyError:
            await world.kernel.sleep(LOOK_S)
        instance.reload()
    while world.climate.drops and not world.oracle.has_dropped:
        try:
            _drop(world, instance)
        except BusyError:
            await world.kernel.sleep(LOOK_S)
    await world.kernel.suspend()


def _drop(world: Any, instance: SimulatedInstance) -> None:
    oracle = world.oracle
    oracle.dropped |= {int(table[1:]) for table in oracle.frozen}
    left = list(map(str, world.climate.left))
    drop_rows(instance, world.climate.gone, lambda: set_(instance, left))
    oracle.has_dropped = True


def _is_applied(world: Any) -> bool:
    return any(process.name == "update" for process in world.kernel.process.host.processes)


def _is_done(world: Any, instance: SimulatedInstance) -> bool:
    """Whether there is nothing left to do. What was released is looked at."""
    oracle, choice = world.oracle, instance.content.choice
    if any(map(choice.holds, world.climate.gone)):
        oracle.frozen.clear()  # what was about to be has not come to the disk
        return False
    oracle.is_frozen = True
    if oracle.dropped:
        return True
    found = world.kernel.process.host.disk.names.get(os.fspath(PLACE))
    if found is None:
        return bool(oracle.has_released)
    oracle.on_released(json.loads(bytes(found.seen)))
    return True


def _release(world: Any, instance: SimulatedInstance) -> None:
    oracle, gone = world.oracle, world.climate.gone

    def remove() -> None:
        if any(map(instance.content.choice.holds, gone)):
            here = tables_by_partition(instance)
            oracle.on_freezing([table for number in gone for _, table in here.get(number, ())])
        else:
            world.figures["releases begun again"] += 1
        set_(instance, list(map(str, world.climate.left)))
        oracle.is_frozen = True

    try:
        release_partitions(instance, gone, PLACE, remove)
    except NotFoundError:  # no table is in them any more
        set_(instance, list(map(str, world.climate.left)))
        oracle.on_released({})
