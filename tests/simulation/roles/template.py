"""Two sites, or three, as every world of roles finds them: one primary with some transactions, the others seeded from
it, each of which knows the others as peers.

Made once for each number of sites, by the product's own code: journal, instance files, positions.
Guarantees: what is made is all on the disk, and the same in every process.
Refuses to know: what happens then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import replicate.instance.instance
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import begin_journal, open_door
from replicate.instance.file import InstanceFile, PeerEntry, encode
from replicate.model.transaction import Catalogue, Column, Op, TableDefinition
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges, ScrRow, scr_rows
from tests.simulation import regions as model
from tests.simulation.disk import Disk, Inode
from tests.simulation.host import DIRECTORIES, directories, entry_of
from tests.simulation.suppliers.content import Content
from tests.simulation.template import NETWORK, change

NAMES: Final = ("paris", "oslo", "rome")
ROWS: Final = 3
"""At the beginning."""
PARTITION: Final = 1

Call = Callable[[Callable[[], None]], None]
"""Makes a call as a process of some host."""


def uuid_of(name: str) -> bytes:
    """The instance's."""
    return name[:1].encode() * 16


def address_of(name: str) -> str:
    """The host's, as network.py gives them out."""
    return f"10.0.0.{1 + NAMES.index(name)}"


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
    disk = Disk(("/", *directories(name)))
    inode: Inode = disk.make()
    inode.write(0, instance_file(name, names))
    inode.sync()
    disk.names[f"/{name}/{replicate.instance.instance.FILE_NAME}"] = inode
    disk.certain = dict(disk.names)
    return disk


def fill(names: Sequence[str], regions: Sequence[model.Region], calls: Sequence[Call]) -> None:
    """First transactions at the first one, and the seeds. `calls`: as a process of each host."""
    position: Any = None
    catalogue: Any = None
    csn = 0

    def write() -> None:
        nonlocal position, catalogue, csn
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
        with door.locked():
            door.sync_to_end()
            position, catalogue, csn = door.position(), door.catalogue(), int(door.words[word.LAST_CSN])
        door.close()

    calls[0](write)
    first = regions[0]
    assert first.content is not None
    for name, region, call in zip(names[1:], regions[1:], calls[1:], strict=True):
        call(partial(_begin, name, position, catalogue))
        region.content = first.content.copy()
        region.schema = region.stored_schema = first.schema
        rows: list[ScrRow] = scr_rows(position, csn)
        region.scr = {(row.origin, row.partition): row for row in rows}
        region.seqno = position.last_seqno


def _begin(name: str, position: Position, catalogue: Catalogue) -> None:
    begin_journal(replicate.instance.instance.Instance.open(f"/{name}"), position, catalogue)
