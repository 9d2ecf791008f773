"""The hosts as every world finds them: how they are made, and the two of a primary and its secondary.

Made once in each process, by the product's own code: journal, instance files, definitions, position. A kind of world
says what its first transactions are.
Guarantees: what is made is all on the disk, and the same in every process.
Leaves to others: what happens then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgpack

import replicate.instance.instance
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import begin_journal, open_door
from replicate.instance.file import InstanceFile, PeerEntry, encode
from replicate.instance.instance import FILE_NAME
from replicate.model.subscription import Rows
from replicate.model.transaction import Catalogue, Column, Op, TableDefinition
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges, ScrRow, scr_rows
from tests.simulation.disk import Disk, Inode
from tests.simulation.host import DIRECTORIES, REGIONS, Host, directories, entry_of
from tests.simulation.kernel import Process
from tests.simulation.regions import Region

NETWORK = bytes(range(16))
NAMES = ("paris", "oslo", "rome", "bern")
"""Of sites that are alike, where there are so many."""

Call = Callable[[Callable[[], None]], None]
"""Makes a call as a process of some host."""
Made = tuple[Disk, list[Region]]
"""A host: its disk and its regions."""


def uuid_of(name: str) -> bytes:
    """The instance's, of such a site."""
    return name[:1].encode() * 16


def address_of(name: str) -> str:
    """The host's, as network.py gives them out."""
    return f"10.0.0.{1 + NAMES.index(name)}"


def definition_of(version: int, region: int = 0) -> TableDefinition:
    """The one table of a region, in its n-th form."""
    columns = tuple(Column(f"c{number}", "BLOB", False, "BINARY") for number in range(2 + version % 3))
    return TableDefinition(REGIONS[region], 1 + region, "main", "t", version, columns, (0,), False, False, False)


def change(op: int, table_id: int, argument: object, values: object) -> bytes:
    """One change as it stands in a frame."""
    return b"".join(map(msgpack.packb, (int(op), table_id, argument, values)))


def define(version: int, region: int = 0) -> bytes:
    """The change that takes a form of a region's table into force."""
    definition = definition_of(version, region)
    return change(Op.DEFINE, definition.table_id, version, definition.pack())


def instance_file(
    name: str, role: str, regions: int, held: tuple[int, ...] | None = None, rows: Rows | None = None
) -> bytes:
    """Of an instance that was just made. `held`: the partitions that it has. `rows`: what it has of tables."""
    content = InstanceFile(
        network=NETWORK,
        uuid=(b"p" if role == "primary" else b"s") * 16,
        name=name,
        incarnation=1,
        role=role,  # type: ignore[arg-type]
        created_wall_ns=1,
        journal_inode=f"7:{2 + 1 + DIRECTORIES.index('journal')}",
        regions=tuple(entry_of(name, number) for number in range(regions)),
        peers=(PeerEntry("oslo", "10.0.0.2", 7430),) if role == "primary" else (),
        next_region_id=regions,
        home=f"/{name}",
        subscription=held,
        held=held,
        rows=rows or {},
        held_rows=rows or {},
    )
    return encode(content)


def new_disk(name: str, file: bytes, *, above: tuple[str, ...] = ()) -> Disk:
    """A disk with an instance that was just made. `file`: its instance file. `above`: directories before its own."""
    disk = Disk((*above, *directories(name)))
    inode: Inode = disk.make()
    inode.write(0, file)
    inode.sync()
    disk.names[f"/{name}/{FILE_NAME}"] = inode
    disk.certain = dict(disk.names)
    return disk


def rewrite_file(disk: Disk, name: str, file: bytes) -> None:
    """The host's instance file is another one, and durable."""
    inode = disk.names[f"/{name}/{FILE_NAME}"]
    inode.truncate(0)
    inode.write(0, file)
    inode.sync()


def made(world: Any, hosts: Sequence[Host], fill: Callable[[Sequence[Call]], None]) -> list[Made]:
    """What `fill` makes of new hosts; it is given a way to make calls as a process of each. All of it is durable."""

    def caller(process: Process) -> Call:
        def call(what: Callable[[], None]) -> None:
            with world.kernel.running(process):
                what()

        return call

    calls = [caller(Process(world.kernel, "template", host, lambda _error: None)) for host in hosts]
    with world.installed():
        fill(calls)
    for host in hosts:
        for region in host.regions:
            region.sync()
    world.close()
    return [(host.disk.copy(), host.regions) for host in hosts]


class JournalEnd(NamedTuple):
    """What a journal has come to."""

    position: Position
    catalogue: Catalogue
    csn: int


def written(door: Any) -> JournalEnd:
    """All that the open journal has is synced; the door is closed."""
    with door.locked():
        door.sync_to_end()
        found = JournalEnd(door.position(), door.catalogue(), int(door.words[word.LAST_CSN]))
    door.close()
    return found


def begin_seeded(path: str, there: JournalEnd) -> None:
    """The journal of an instance that was seeded from there."""
    begin_journal(replicate.instance.instance.Instance.open(path), there.position, there.catalogue)


def seed_content(first: Region, region: Region, there: JournalEnd) -> None:
    """A region has what the first one has, as after a seed."""
    assert first.content is not None
    region.content = first.content.copy()
    region.schema = region.stored_schema = first.schema
    region.scr = {(row.origin, row.partition): row for row in scr_rows(there.position, there.csn)}
    region.seqno = there.position.last_seqno


def fill(primary: Sequence[Region], secondary: Sequence[Region], calls: Sequence[Call]) -> None:
    """First transactions, and the seed. `calls`: as a process of each host."""
    found: list[JournalEnd] = []

    def write() -> None:
        door = open_door(replicate.instance.instance.Instance.open("/paris"))
        for region in range(len(primary)):
            session = RegionSession(door, REGIONS[region], adding=True)
            table_id = definition_of(1, region).table_id
            for number in range(3):
                row = 100 * region + number + 1
                payload = define(1, region) if number == 0 else b""
                payload += change(Op.INSERT, table_id, 0, [row, b"first"])
                session.begin(timeout_s=0)
                session.connection.run([row], version=int(number == 0))  # type: ignore[attr-defined]
                is_first = number == 0
                captured = CapturedChanges(payload, 8 if is_first else 4, (1 + region,), is_first, None, is_first)
                session.commit(captured)
            session.close()
        found.append(written(door))

    calls[0](write)
    (there,) = found
    calls[1](lambda: begin_seeded("/oslo", there))
    position = there.position
    for here, other in zip(primary, secondary, strict=True):
        other.rows = list(here.rows)
        other.schema = other.stored_schema = here.schema
        for (origin, partition), last in position.vector.items():
            row = ScrRow(origin, partition, last, position.chains[origin][1], 1, position.last_seqno)
            other.scr[origin, partition] = row
        other.seqno = position.last_seqno
