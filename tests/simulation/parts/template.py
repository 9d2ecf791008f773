"""The two hosts as a world with partitions finds them: tables in partitions, and a secondary that was seeded with what
it subscribes to. As ../template.py has it.

Guarantees: the same tables and subscription give the same hosts, in every process.
Leaves to others: what happens then.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import replicate.instance.instance
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.limits import PARTITION_NONE, PARTITION_STREAM
from replicate.model.transaction import Column, Op, TableDefinition
from replicate.region.protocol import CapturedChanges, ScrRow
from tests.simulation import template
from tests.simulation.host import REGIONS, RING_SLOTS, Host, config_of
from tests.simulation.parts.climate import Chosen, Placed
from tests.simulation.regions import Region
from tests.simulation.template import Call, JournalEnd, Made, begin_seeded, change, instance_file, new_disk, written
from tests.simulation.world import World

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
    placed: tuple[Placed, ...], wanted: tuple[int, ...] | None, chosen: tuple[tuple[int, Chosen], ...] = ()
) -> list[Made]:
    """Both hosts, the primary first."""
    rows = {(REGIONS[placed[number][0]], name_of(number)): one.text for number, one in chosen}
    count = 1 + max(region for region, _ in placed)
    config = config_of(random.Random(1), "durable")
    files = {
        "paris": instance_file("paris", "primary", count),
        "oslo": instance_file("oslo", "secondary", count, held=wanted, rows=rows),
    }
    hosts = [
        Host(name, new_disk(name, file), [Region(RING_SLOTS, number) for number in range(count)], config)
        for name, file in files.items()
    ]
    return template.made(
        World(0, "safety"), hosts, partial(_fill, placed, wanted, dict(chosen), [host.regions for host in hosts])
    )


def _fill(
    placed: tuple[Placed, ...],
    wanted: tuple[int, ...] | None,
    chosen: Mapping[int, Chosen],
    regions: Sequence[Sequence[Region]],
    calls: Sequence[Call],
) -> None:
    found: list[JournalEnd] = []
    calls[0](lambda: found.append(_write(placed)))
    (there,) = found
    calls[1](lambda: begin_seeded("/oslo", there))
    position = there.position
    here_of = {
        row: _is_here(placed[number][1], wanted) and (number not in chosen or chosen[number].keeps(row))
        for number in range(len(placed))
        for row in (first_row(number, place) for place in range(ROWS))
    }
    for here, other in zip(*regions, strict=True):
        other.rows = [row for row in here.rows if here_of[row]]
        other.present = set(other.rows)
        other.schema = other.stored_schema = here.schema
        other.state |= here.state
        for (origin, _), last in position.vector.items():
            for partition in (PARTITION_STREAM, *sorted({one for _, one in placed if _is_here(one, wanted)})):
                scr = ScrRow(origin, partition, last, position.chains[origin][1], 1, position.last_seqno)
                other.scr[origin, partition] = scr  # as a seed has them
        other.seqno = position.last_seqno


def _is_here(partition: int, wanted: tuple[int, ...] | None) -> bool:
    return partition != PARTITION_NONE and (wanted is None or partition in wanted)


def _write(placed: tuple[Placed, ...]) -> JournalEnd:
    """All tables' first rows."""
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
    return written(door)
