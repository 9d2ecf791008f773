"""The two hosts as every world finds them: a primary with some transactions, a secondary that was seeded from it.

Made once in each process, by the product's own code: journal, instance files, definitions, position.
Guarantees: what is made is all on the disk, and the same in every process.
Refuses to know: what happens then.
"""

from __future__ import annotations

import msgpack

import replicate.instance.instance
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import begin_journal, open_door
from replicate.instance.file import InstanceFile, PeerEntry, encode
from replicate.model.transaction import Column, Op, TableDefinition
from replicate.region.protocol import CapturedChanges, ScrRow
from tests.simulation import regions as model
from tests.simulation.disk import Disk, Inode
from tests.simulation.host import DIRECTORIES, REGIONS, directories, entry_of

NETWORK = bytes(range(16))
DURABLE_NAME = "durable"


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


def instance_file(name: str, role: str, regions: int, held: tuple[int, ...] | None = None) -> bytes:
    """Of an instance that was just made. `held`: the partitions that it has."""
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
    )
    return encode(content)


def new_disk(name: str, role: str, regions: int) -> Disk:
    """A disk with an instance that was just made."""
    disk = Disk(directories(name))
    inode: Inode = disk.make()
    inode.write(0, instance_file(name, role, regions))
    inode.sync()
    disk.names[f"/{name}/{replicate.instance.instance.FILE_NAME}"] = inode
    disk.certain = dict(disk.names)
    return disk


def fill(
    primary: list[model.Region], run_on_primary: object, secondary: list[model.Region], run_on_secondary: object
) -> None:
    """First transactions, and the seed. `run_on_…(call)` makes a call as a process of that host."""
    position = catalogue = None

    def write() -> None:
        nonlocal position, catalogue
        instance = replicate.instance.instance.Instance.open("/paris")
        door = open_door(instance)
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
        with door.locked():
            door.sync_to_end()
            position, catalogue = door.position(), door.catalogue()
        door.close()

    def seed() -> None:
        assert position is not None
        assert catalogue is not None
        begin_journal(replicate.instance.instance.Instance.open("/oslo"), position, catalogue)

    run_on_primary(write)  # type: ignore[operator]
    run_on_secondary(seed)  # type: ignore[operator]
    assert position is not None
    for here, there in zip(primary, secondary, strict=True):
        there.rows = list(here.rows)
        there.schema = there.stored_schema = here.schema
        for (origin, partition), last in position.vector.items():
            row = ScrRow(origin, partition, last, position.chains[origin][1], 1, position.last_seqno)
            there.scr[origin, partition] = row
        there.seqno = position.last_seqno
