"""Adding a region on a primary: an existing SQLite database becomes replicated, in place.

Guarantees: each of the three steps is atomic and may be repeated, so an interrupted `add_region` is finished by
running it again: the bookkeeping in the file (one SQLite transaction), the entry in the instance file, and one
journalled transaction that tells every reader the region and its table definitions. Refuses to know: how a secondary
gets the rows that were there before (seed/direct.py).
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from replicate.commit.session import RegionSession
from replicate.database.capture import CapturedChanges
from replicate.database.schema import recorded_definitions
from replicate.database.sqlite import install, is_region, open_region, read_identity, region_seqno, schema_version
from replicate.door.door import Door
from replicate.door.opening import open_door
from replicate.errors import AlreadyExistsError, NotFoundError, PermissionRefusedError
from replicate.instance.file import RegionEntry, check_name
from replicate.instance.instance import Instance
from replicate.journal.record import pack_elements
from replicate.limits import FRAME_BYTES_MAX
from replicate.pool import control as word
from replicate.recovery.stale_wal import refuse_stale
from replicate.region_functions import set_init
from replicate.transaction import Op

LOCK_TIMEOUT_S = 30.0


def add_region(instance: Instance, path: str | os.PathLike[str], *, name: str = "main") -> RegionEntry:
    """Make the SQLite database at `path` the region `name` of a primary; returns its entry.

    Raises PermissionRefusedError (a secondary: it gets its regions by the seed), AlreadyExistsError, NotSupportedError
    (something in it can not be replicated exactly), RegionDamagedError, BusyError, DiskFullError and what the door
    raises. After a failure the database is plain SQLite still, or the same call finishes the work.
    """
    check_name(name, "region")
    if instance.role != "primary":
        raise PermissionRefusedError(
            f"instance {instance.name} is secondary: it gets its regions from the primary",
            where=str(instance.path),
            do="Add it on the primary, then run here: replicate -i INSTANCE seed",
        )
    file = Path(os.path.abspath(path))
    set_init(file, instance.config.region.init, name)
    door = open_door(instance)
    try:
        region_uuid = _install(instance, file, name)
        entry = _register(instance, file, name, region_uuid)
        door.instance.reload()  # it may be another one than ours, which whoever opened the door before has made
        _journal(door, entry)
    finally:
        door.close()
    return entry


def _install(instance: Instance, file: Path, name: str) -> bytes:
    """The bookkeeping, unless an interrupted `add_region` of ours has made it already. The region's UUID."""
    connection = open_region(file, plain=True)
    try:
        if is_region(connection):
            found = read_identity(connection, where=str(file))
            for entry in instance.regions:
                if entry.uuid == found.region:
                    refuse_stale(instance, entry, connection)
            if found.instance == instance.content.uuid and found.name == name:
                return found.region
        for entry in instance.regions:
            if entry.name == name:
                raise _taken(name, entry)
        region_uuid = uuid.uuid4().bytes
        content = instance.content
        install(connection, network=content.network, instance=content.uuid, region=region_uuid, name=name)
        return region_uuid
    finally:
        connection.close(True)


def _register(instance: Instance, file: Path, name: str, region_uuid: bytes) -> RegionEntry:
    try:
        entry = instance.region(name)
    except NotFoundError:
        return instance.register_region(name, region_uuid, file)
    if entry.uuid != region_uuid or entry.path != file:
        raise _taken(name, entry)
    return entry


def _taken(name: str, entry: RegionEntry) -> AlreadyExistsError:
    do = f"Give this one another --name; or, if it is that one, moved: replicate -i INSTANCE region move {name} PATH"
    return AlreadyExistsError(f"there is a region {name!r} already", where=str(entry.path), do=do)


def _journal(door: Door, entry: RegionEntry) -> None:
    """Tell the journal of the region and its tables, in one transaction that the region commits too."""
    session = RegionSession(door, entry.name, adding=True)
    try:
        with door.locked():
            if not door.words[word.REGION_APPENDED + entry.region_id]:
                door.words[word.REGION_SCHEMA + entry.region_id] = schema_version(session.connection)
        session.begin(timeout_s=LOCK_TIMEOUT_S)
        if region_seqno(session.connection):
            raise AlreadyExistsError(
                f"region {entry.name!r} is replicated already",
                where=str(entry.path),
                do="Nothing need be done; `replicate -i INSTANCE region list` shows it",
            )
        definitions = recorded_definitions(session.connection)
        elements: list[object] = [int(Op.REGION), 0, entry.name, ["added", entry.uuid]]
        for definition in definitions:
            elements += [int(Op.DEFINE), definition.table_id, definition.version, definition.pack()]
        payload, count = pack_elements(*elements)
        if len(payload) > FRAME_BYTES_MAX - 4096:
            session.rollback()
            raise PermissionRefusedError(
                f"the {len(definitions)} table definitions of {entry.name} are too large for one transaction",
                where=str(entry.path),
                do="Split the database into several regions",
            )
        partitions = tuple(sorted({definition.partition for definition in definitions}))
        session.commit(CapturedChanges(payload, count, partitions, bool(definitions), None, True))
    finally:
        session.close()
