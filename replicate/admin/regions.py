"""Adding a region on a primary: an existing SQLite database becomes replicated, in place.

Guarantees: each of the three steps is atomic and may be repeated, so an interrupted `add_region` is finished by
running it again: the bookkeeping in the file (one SQLite transaction), the entry in the instance file, and one
journalled transaction that tells every reader the region and its table definitions (region_record.py). Leaves to
others: how a secondary gets the rows that were there before (transfer/seed/direct.py).
"""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from replicate.door.door import Door
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.door.recovery.stale_wal import refuse_stale
from replicate.door.snapshot import door_of
from replicate.errors import AlreadyExistsError, NotFoundError, NotSupportedError, PermissionRefusedError
from replicate.instance.file import RegionEntry, check_name
from replicate.instance.instance import Instance
from replicate.journal.record import pack_elements
from replicate.limits import FRAME_BYTES_MAX, FRAME_CHANGES_MAX, PARTITION_NONE
from replicate.model.partitions import Partitions
from replicate.model.region_record import Making, RegionAdded, pack
from replicate.model.transaction import TableDefinition
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges
from replicate.region.sqlite.bookkeeping import is_region, read_identity, region_seqno, schema_version
from replicate.region.sqlite.functions import set_init
from replicate.region.sqlite.open import Told, file_facts, install, open_region
from replicate.region.sqlite.open_region import OpenedFile
from replicate.region.sqlite.schema import recorded_definitions
from replicate.region.sqlite.schema_copy import count_rows, making_of, reading

LOCK_TIMEOUT_S = 30.0


def add_region(
    instance: Instance,
    path: str | os.PathLike[str],
    *,
    name: str = "main",
    told: Told | None = None,
    partition: str | None = None,
) -> RegionEntry:
    """Make the SQLite database at `path` the region `name` of a primary; returns its entry. `told`: how far it is.
    `partition`: of its tables, by name or number; None: that of new tables.

    Raises NotFoundError (no such partition), PermissionRefusedError (a secondary: it gets its regions by the seed),
    AlreadyExistsError, NotSupportedError (something in it cannot be replicated exactly), RegionDamagedError, BusyError,
    DiskFullError and what the door raises. After a failure the database is plain SQLite still, or the same call
    finishes the work.
    """
    check_name(name, "region")
    instance.refuse_supplier(
        "it has the regions that its network's first supplier had as it became one",
        "Put the tables into one of them, by a change of the schema; or make an instance of its own",
    )
    if instance.role != "primary":
        raise PermissionRefusedError(
            f"instance {instance.name} is secondary: it gets its regions from the primary",
            where=str(instance.path),
            do="Add it on the primary, then run here: replicate -i INSTANCE seed",
        )
    known = instance.partitions_now()
    number = known.default if partition is None else known.number(partition)
    if number == PARTITION_NONE:
        instance.change_partitions(Partitions.keeping_back)  # Source Servers know before the first row comes
    file = Path(os.path.abspath(path))
    _check_file(file, name)
    set_init(file, instance.config.region.init, name)
    door = open_door(instance)
    try:
        region_uuid = _install(instance, file, name, told, number)
        entry = _register(instance, file, name, region_uuid)
        door.instance.reload()  # it may be another one than ours: that of an earlier opener of the door
        _journal(door, entry)
    finally:
        door.close()
    return entry


class Addition(Struct, frozen=True):
    """How a database would come to the secondaries that have begun: made in the stream, or (`why` is not empty) by a
    seed. `rows`: those of all its tables. `stops`: a secondary that still has one of this name, and no other region,
    applies nothing more until then."""

    rows: int
    why: str
    stops: bool = False


def look_at_addition(instance: Instance, path: Path | None, name: str) -> Addition:
    """What adding the database at `path` (None: an empty one that is not there yet) would mean, before anything is
    done. Of one that is a region here already it says nothing. Raises what opening it and the journal raises."""
    was_here = "a region of this name was replicated before"
    if path is None:
        return Addition(0, was_here, stops=True) if _was_here(instance, name) else Addition(0, "")
    _check_file(Path(os.path.abspath(path)), name)
    set_init(path, instance.config.region.init, name)
    with reading(path) as connection:
        if is_region(connection):
            found = read_identity(connection, where=str(path))
            if any(entry.uuid == found.region for entry in instance.regions):
                return Addition(0, "")
        if _was_here(instance, name):
            return Addition(count_rows(connection), was_here, stops=True)
        try:
            making_of(connection, str(path))
        except NotSupportedError as error:
            return Addition(count_rows(connection), error.what)
    return Addition(0, "")


def _check_file(file: Path, name: str) -> None:
    """NotFoundError and its kin where there is no file that could become the region `name`."""
    empty = f"replicate -i INSTANCE region add {shlex.quote(str(file))} --name {name} --create"
    file_facts(file, do=f"Name an existing SQLite database; or, to make an empty one there: {empty}")


def _was_here(instance: Instance, name: str) -> bool:
    """Whether the journal has known tables of a region of this name."""
    with door_of(instance) as door:
        return any(definition.region == name for definition in door.catalogue_now().definitions.values())


def _install(instance: Instance, file: Path, name: str, told: Told | None, partition: int) -> bytes:
    """The bookkeeping, unless an interrupted `add_region` of ours has made it already. The region's UUID."""
    connection = open_region(file, plain=True)
    try:
        if is_region(connection):
            found = read_identity(connection, where=str(file))
            for entry in instance.regions:
                if entry.uuid == found.region:
                    refuse_stale(instance, entry, OpenedFile(connection, file, entry.uuid))
                    if entry.name != name:
                        raise _is_one(entry)
            if found.instance == instance.content.uuid and found.name == name:
                return found.region
        for entry in instance.regions:
            if entry.name == name:
                raise _taken(name, entry)
        region_uuid = uuid.uuid4().bytes
        content = instance.content
        install(
            connection,
            network=content.network,
            instance=content.uuid,
            region=region_uuid,
            name=name,
            told=told,
            partition=partition,
        )
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


def _is_one(entry: RegionEntry) -> AlreadyExistsError:
    do = f"Use it as that; for another name: replicate -i INSTANCE region release {entry.name}, then add it again"
    return AlreadyExistsError(f"the database is region {entry.name!r} of this instance", where=str(entry.path), do=do)


def _taken(name: str, entry: RegionEntry) -> AlreadyExistsError:
    do = f"Give this one another --name; or, if it is that one, moved: replicate -i INSTANCE region move {name} PATH"
    return AlreadyExistsError(f"there is a region {name!r} already", where=str(entry.path), do=do)


def _journal(door: Door, entry: RegionEntry) -> None:
    """Tell the journal of the region, its tables and, while it has no rows, what makes it again, in one transaction
    that the region commits too."""
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
        try:
            making: Making | None = making_of(session.connection, str(entry.path))
        except NotSupportedError:
            making = None
        packed = _packed(entry, making, definitions) or _packed(entry, None, definitions)
        if packed is None:
            session.rollback()
            raise PermissionRefusedError(
                f"the {len(definitions)} table definitions of {entry.name} are too large for one transaction",
                where=str(entry.path),
                do="Split the database into several regions",
            )
        partitions = tuple(sorted({definition.partition for definition in definitions}))
        session.commit(CapturedChanges(*packed, partitions, bool(definitions), None, True))
    finally:
        session.close()


def _packed(
    entry: RegionEntry, making: Making | None, definitions: Sequence[TableDefinition]
) -> tuple[bytes, int] | None:
    """The transaction's payload; None when it is too large for one frame."""
    elements = pack(RegionAdded(entry.name, entry.uuid, making), definitions)
    if len(elements) > 4 * FRAME_CHANGES_MAX:
        return None
    payload, count = pack_elements(*elements)
    return (payload, count) if len(payload) <= FRAME_BYTES_MAX - 4096 else None
