"""Several suppliers as every world finds them: all level, each with a table of its own, and one that all write; or in
each of two regions such tables, of the same names.

The first one makes the tables, gives each of the others its own, and has them share the last; the others have what it
has, as after a seed. Made once for each number of suppliers, by the product's own code: journal, records of who writes.
Guarantees: what is made is all on the disk, and the same in every process.
Leaves to others: what happens then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import replicate.instance.instance
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.instance.file import InstanceFile, PeerEntry, encode
from replicate.model.transaction import SHARED, WRITTEN, Column, Op, TableDefinition
from replicate.model.writers import REST
from replicate.region.protocol import CapturedChanges
from replicate.roles.partition_writers import held_session, say
from tests.simulation.content import UNIQUE, Content
from tests.simulation.host import DIRECTORIES, REGIONS, entry_of
from tests.simulation.regions import Region
from tests.simulation.template import (
    NAMES,
    NETWORK,
    Call,
    JournalEnd,
    address_of,
    begin_seeded,
    change,
    seed_content,
    uuid_of,
    written,
)

SHARED_PARTITION: Final = 1
ROWS: Final = 3
"""Of each table, at the beginning."""


def partition_of(name: str) -> int:
    """Of the table that only that supplier writes."""
    return SHARED_PARTITION + 1 + NAMES.index(name)


def table_of(name: str, region: str = "main") -> TableDefinition:
    """The table of a region that only that supplier writes: identity, transaction, anything."""
    columns = tuple(Column(one, "ANY", False, "BINARY") for one in ("id", "by", "body"))
    return TableDefinition(region, partition_of(name), "main", f"of_{name}", 1, columns, (0,), False, False, True)


def shared_table(region: str = "main") -> TableDefinition:
    """The table of a region that all write: a key and three values; the last two stand together (merging.py)."""
    columns = tuple(Column(one, "ANY", False, "BINARY") for one in ("key", "one", "two", "three"))
    return TableDefinition(region, SHARED_PARTITION, "main", "shared", 1, columns, (0,), False, False, True)


def named_table(region: str = "main") -> TableDefinition:
    """The other table of a region that all write: a key, a name that no two rows have, and who wrote it."""
    columns = tuple(Column(one, "ANY", False, "BINARY") for one in ("key", "name", "by"))
    return TableDefinition(region, SHARED_PARTITION, "main", "named", 1, columns, (0,), False, False, True)


def instance_file(name: str, peers: Sequence[str], regions: int = 1) -> bytes:
    """Of a supplier with so many regions that sends to those peers."""
    content = InstanceFile(
        network=NETWORK,
        uuid=uuid_of(name),
        name=name,
        incarnation=1,
        role="primary",
        created_wall_ns=1,
        journal_inode=f"7:{2 + 1 + DIRECTORIES.index('journal')}",
        regions=tuple(entry_of(name, number) for number in range(regions)),
        peers=tuple(PeerEntry(peer, address_of(peer), 7430) for peer in peers),
        next_region_id=regions,
        home=f"/{name}",
        is_supplier=True,
    )
    return encode(content)


def fill(
    names: Sequence[str],
    regions: Sequence[Sequence[Region]],
    calls: Sequence[Call],
    *,
    is_shared: bool,
    others: Sequence[str] = (),
) -> None:
    """First transactions at the first one, and the seeds. `regions`, `calls`: each host's, and as a process of it.
    `others`: suppliers that are yet to come, whose tables are there."""
    found: list[JournalEnd] = []

    def write() -> None:
        door = open_door(replicate.instance.instance.Instance.open(f"/{names[0]}"))
        for region in REGIONS[: len(regions[0])]:
            session = RegionSession(door, region, adding=True)
            tables = [
                *(table_of(name, region) for name in (*names, *others)),
                *([shared_table(region), named_table(region)] if is_shared else []),
            ]
            for table in tables:
                _define(session, table, uuid_of(names[0]))
            session.close()
        for name in names[1:]:
            _say(door, partition_of(name), [WRITTEN, uuid_of(name)])
        if is_shared:
            _say(door, SHARED_PARTITION, [WRITTEN, uuid_of(names[0])])
            for place, name in enumerate(names[1:]):
                _say(door, SHARED_PARTITION, [SHARED, uuid_of(name), place + 1])
        found.append(written(door))

    calls[0](write)
    (there,) = found
    last_seqno = there.position.last_seqno
    for name, its_own, call in zip(names[1:], regions[1:], calls[1:], strict=True):
        call(partial(begin_seeded, f"/{name}", there))
        for first, region in zip(regions[0], its_own, strict=True):
            seed_content(first, region, there)
            if is_shared:
                assert region.content is not None
                region.content.absorbed = last_seqno
            region.slots = {last_seqno % region.ring_slots: (last_seqno, None)}


def _define(session: RegionSession, table: TableDefinition, writer: bytes) -> None:
    """One transaction that makes a table with its first rows; the first one says who writes all there is."""
    pieces = [change(Op.DEFINE, table.table_id, table.version, table.pack())]
    session.begin(timeout_s=0)
    content: Content = session.connection.working()
    if not content.writers.by:
        content.told_of_writers(REST, [WRITTEN, writer], 1)
        pieces.append(change(Op.REGION, REST, table.region, [WRITTEN, writer]))
    for number in range(1, ROWS + 1):
        image: list[Any] = [number, *[0] * (len(table.columns) - 1)]
        if table.table in UNIQUE:
            image[UNIQUE[table.table]] = None
        pieces.append(change(Op.INSERT, table.table_id, 0, image))
        content.change(table, Op.INSERT, 0, image)
    session.connection.open().schema += 1
    session.commit(CapturedChanges(b"".join(pieces), 4 * len(pieces), (table.partition,), True, None, True))


def _say(door: Any, number: int, values: list[object]) -> None:
    with held_session(door, 0) as session:
        say(door, session, number, values)
