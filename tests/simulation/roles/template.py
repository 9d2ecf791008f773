"""Two sites, or three, as every world of roles finds them: one primary with some transactions, the others seeded from
it, each of which knows the others as peers.

Made once for each number of sites, by the product's own code: journal, instance files, positions.
Guarantees: what is made is all on the disk, and the same in every process.
Leaves to others: what happens then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import replicate.instance.instance
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.instance.file import InstanceFile, PeerEntry, encode
from replicate.model.transaction import Column, Op, TableDefinition
from replicate.region.protocol import CapturedChanges
from tests.simulation import template
from tests.simulation.content import Content
from tests.simulation.disk import Disk
from tests.simulation.host import DIRECTORIES, entry_of
from tests.simulation.regions import Region
from tests.simulation.template import (
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

ROWS: Final = 3
"""At the beginning."""
PARTITION: Final = 1


def table() -> TableDefinition:
    """The one table: a key, the transaction that wrote the row, anything."""
    columns = tuple(Column(one, "ANY", False, "BINARY") for one in ("id", "by", "body"))
    return TableDefinition("main", PARTITION, "main", "t", 1, columns, (0,), False, False, True)


def instance_file(name: str, names: Sequence[str]) -> bytes:
    """Of one of the sites, of which the first is primary."""
    is_primary = name == names[0]
    content = InstanceFile(
        network=NETWORK,
        uuid=uuid_of(name),
        name=name,
        incarnation=1,
        role="primary" if is_primary else "secondary",
        created_wall_ns=1,
        journal_inode=f"7:{2 + 1 + 1 + DIRECTORIES.index('journal')}",
        regions=(entry_of(name, 0),),
        peers=tuple(PeerEntry(one, address_of(one), 7430, passive=not is_primary) for one in names if one != name),
        next_region_id=1,
        home=f"/{name}",
    )
    return encode(content)


def new_disk(name: str, names: Sequence[str]) -> Disk:
    """A disk with an instance that was just made. Lost files are written beside it, at the root."""
    return template.new_disk(name, instance_file(name, names), above=("/",))


def fill(names: Sequence[str], regions: Sequence[Region], calls: Sequence[Call]) -> None:
    """First transactions at the first one, and the seeds. `calls`: as a process of each host."""
    found: list[JournalEnd] = []

    def write() -> None:
        door = open_door(replicate.instance.instance.Instance.open(f"/{names[0]}"))
        session = RegionSession(door, "main", adding=True)
        session.begin(timeout_s=0)
        content: Content = session.connection.working()
        pieces = [change(Op.DEFINE, table().table_id, table().version, table().pack())]
        for number in range(1, ROWS + 1):
            image = [number, 0, b""]
            pieces.append(change(Op.INSERT, table().table_id, 0, image))
            content.change(table(), Op.INSERT, 0, image)
        session.connection.open().schema += 1
        session.commit(CapturedChanges(b"".join(pieces), 4 * len(pieces), (table().partition,), True, None, True))
        session.close()
        found.append(written(door))

    calls[0](write)
    (there,) = found
    for name, region, call in zip(names[1:], regions[1:], calls[1:], strict=True):
        call(partial(begin_seeded, f"/{name}", there))
        seed_content(regions[0], region, there)
