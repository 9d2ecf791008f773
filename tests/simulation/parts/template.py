"""The two hosts as a world with partitions finds them: tables in partitions, and a secondary that was seeded with what
it subscribes to. As ../template.py has it.

Guarantees: the same tables and subscription give the same hosts, in every process.
Refuses to know: what happens then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import replicate.instance.instance
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import begin_journal, open_door
from replicate.instance.instance import FILE_NAME
from replicate.limits import PARTITION_NONE, PARTITION_STREAM
from replicate.model.transaction import Column, Op, TableDefinition
from replicate.region.protocol import CapturedChanges, ScrRow
from tests.simulation import template
from tests.simulation import world as worlds
from tests.simulation.disk import Disk
from tests.simulation.host import REGIONS, RING_SLOTS, Host, config_of
from tests.simulation.kernel import Process
from tests.simulation.parts.climate import Placed
from tests.simulation.regions import Region
from tests.simulation.stage import installed
from tests.simulation.template import change

ROWS: Final = 2
"""That each table has at the beginning."""


def name_of(number: int) -> str:
    """Of a world's n-th table."""
    return f"t{number}"


def definition_of(number: int, region: int, partition: int, version: int) -> TableDefinition:
    """The n-th table, in its n-th form and in that partition."""
    columns = tuple(Column(f"c{place}", "BLOB", False, "BINARY") for place in range(2 + version % 3))
    return TableDefinition(
        REGIONS[region], partition, "main", name_of(number), version, columns, (0,), False, False, False
    )


def define(definition: TableDefinition) -> bytes:
    """The change that takes it into force."""
    return change(Op.DEFINE, definition.table_id, definition.version, definition.pack())


def first_row(number: int, place: int) -> int:
    """The identity of the n-th table's row at the beginning."""
    return 100 * number + place + 1


@cache
def made(
    placed: tuple[Placed, ...], wanted: tuple[int, ...] | None
) -> tuple[tuple[Disk, list[Region]], tuple[Disk, list[Region]]]:
    """Of each host, the primary first: its disk and its regions."""
    count = 1 + max(region for region, _ in placed)
    world = worlds.World(0, "safety")
    config = config_of(random.Random(1), "durable")
    disks = [template.new_disk("paris", "primary", count), template.new_disk("oslo", "secondary", count)]
    regions = [[Region(RING_SLOTS, number) for number in range(count)] for _ in disks]
    file = disks[1].names[f"/oslo/{FILE_NAME}"]
    file.truncate(0)
    file.write(0, template.instance_file("oslo", "secondary", count, held=wanted))
    file.sync()
    processes = [
        Process(world.kernel, "template", Host(name, disk, there, config), lambda _error: None)
        for name, disk, there in zip(("paris", "oslo"), disks, regions, strict=True)
    ]

    def as_of(place: int, call: Callable[[], Any]) -> Any:
        with world.kernel.running(processes[place]):
            return call()

    with installed(world):
        position, catalogue = as_of(0, lambda: _filled(placed))
        as_of(1, lambda: begin_journal(replicate.instance.instance.Instance.open("/oslo"), position, catalogue))
    partition_of = {
        first_row(number, place): placed[number][1] for number in range(len(placed)) for place in range(ROWS)
    }
    for here, there in zip(*regions, strict=True):
        there.rows = [row for row in here.rows if _is_here(partition_of[row], wanted)]
        there.present = set(there.rows)
        there.schema = there.stored_schema = here.schema
        for (origin, _), last in position.vector.items():
            for partition in (PARTITION_STREAM, *sorted({one for _, one in placed if _is_here(one, wanted)})):
                scr = ScrRow(origin, partition, last, position.chains[origin][1], 1, position.last_seqno)
                there.scr[origin, partition] = scr  # as a seed has them
        there.seqno = position.last_seqno
    for region in (*regions[0], *regions[1]):
        region.sync()
    world.close()
    return (disks[0].copy(), regions[0]), (disks[1].copy(), regions[1])


def _is_here(partition: int, wanted: tuple[int, ...] | None) -> bool:
    return partition != PARTITION_NONE and (wanted is None or partition in wanted)


def _filled(placed: tuple[Placed, ...]) -> tuple[Any, Any]:
    """Write all tables' first rows; the journal's position, and its catalogue."""
    door = open_door(replicate.instance.instance.Instance.open("/paris"))
    for region in range(1 + max(region for region, _ in placed)):
        session = RegionSession(door, REGIONS[region], adding=True)
        connection: Any = session.connection
        for number, (place, partition) in enumerate(placed):
            if place != region:
                continue
            definition = definition_of(number, region, partition, 1)
            for row in range(ROWS):
                is_first = row == 0
                payload = define(definition) if is_first else b""
                payload += change(Op.INSERT, definition.table_id, 0, [first_row(number, row), b"first"])
                session.begin(timeout_s=0)
                connection.run([first_row(number, row)], version=int(is_first))
                connection.open().state[definition.table] = definition
                session.commit(CapturedChanges(payload, 8 if is_first else 4, (partition,), is_first, None, is_first))
        session.close()
    with door.locked():
        door.sync_to_end()
        found = door.position(), door.catalogue()
    door.close()
    return found
