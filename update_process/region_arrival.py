"""A region that was added on the primary arrives: before its transaction it is made here, or entered as waiting.

Guarantees: a region that the stream makes stands in its place, whole and on the disk, at the position of the others,
before it is registered; killed at any step, the same transaction comes again and finds what is done: a file in that
place is taken if it was made for this transaction; any other is refused by name, never replaced. A region that waits
is entered durably before its transaction is journalled here. One that is here from before, and was released and added
again on the primary, waits too, if another region is left to go on with: its file stays as it is until the seed
replaces it.
Leaves to others: what makes a region (region/sqlite/schema_copy.py), and what is done with its changes (routes.py).
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from replicate.daemon.last_run import start_again
from replicate.door.secondary import ApplySession
from replicate.errors import AlreadyExistsError, RegionDamagedError
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.model.region_record import Making, RegionAdded, read_added
from replicate.region.sqlite.bookkeeping import is_region, read_identity, read_scr, read_state
from replicate.region.sqlite.functions import set_init
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.schema_copy import ADDED_AS, make_at
from replicate.system.failpoint import hit
from replicate.system.files import sync_directory
from replicate.system.os_errors import io_error
from replicate.transfer.seed.install import COPIES, copies_directory
from update_process.routes import Routes
from update_process.window.columns import PAYLOAD


def take_added(session: ApplySession, routes: Routes, body: Sequence[Any]) -> RegionAdded | None:
    """Get ready for a decoded, verified transaction that comes alone, before the session begins. Nothing happens for
    one that adds no region, or one that is here: then it gives None, else what has arrived (without `making`, where
    that is not used and the region waits).

    Raises AlreadyExistsError (something else lies in its place), ConflictError and NotSupportedError (its schema
    cannot be made here), JournalDamagedError, DiskFullError and what SQLite says.
    """
    added = read_added(body[PAYLOAD:])
    if added is None or body[1] != session.position.last_seqno + 1:
        return None
    instance, is_here = session.door.instance, added.name in session.rows
    if is_here and not is_added_again(session, added):
        return None
    if is_here or added.making is None or _lies_there(instance, added):
        added = replace(added, making=None)
        instance.note_waiting(added.name)
        hit("arrival.waits")
        if is_here:
            session.leave_region(added.name)
    elif added.making is not None:
        session.take_region(_made(session, instance, added, added.making))
    routes.take_regions()
    return added


def is_added_again(session: ApplySession, added: RegionAdded) -> bool:
    """Whether a region that is here was released on the primary and is added again there: what was written in between
    is in no journal. False where it is all that is here: that secondary stops (routes.py)."""
    return len(session.rows) > 1 and session.added_as(added.name) != added.uuid


def _lies_there(instance: Instance, added: RegionAdded) -> bool:
    """Whether a region that waits has left its file from before in the place where it would be made."""
    place = _place(instance, added)
    if added.name not in instance.waiting or not os.path.lexists(place):
        return False
    try:
        connection = open_region(place, readonly=True, plain=True, bare=True)
    except RegionDamagedError:
        return False
    try:
        if not is_region(connection):
            return False
        is_ours = read_identity(connection, where=str(place)).instance == instance.content.uuid
        return is_ours and read_state(connection, ADDED_AS) != added.uuid
    finally:
        connection.close(True)


def _place(instance: Instance, added: RegionAdded) -> Path:
    return instance.path / "regions" / f"{added.name}.db"


def _made(session: ApplySession, instance: Instance, added: RegionAdded, making: Making) -> RegionEntry:
    place = _place(instance, added)
    set_init(place, instance.config.region.init, added.name)
    region = _made_before(place, session, instance, added)
    if region is None:
        region = uuid.uuid4().bytes
        _make(place, session, instance, added, making, region)
    shutil.rmtree(place.parent / COPIES, ignore_errors=True)
    hit("arrival.placed")
    entry = instance.register_region(added.name, region, place)
    hit("arrival.registered")
    return entry


def _make(
    place: Path, session: ApplySession, instance: Instance, added: RegionAdded, making: Making, region: bytes
) -> None:
    copies = copies_directory(instance)
    aside = copies / place.name
    set_init(aside, instance.config.region.init, added.name)
    make_at(
        aside,
        making,
        network=instance.content.network,
        instance=instance.content.uuid,
        region=region,
        name=added.name,
        added_as=added.uuid,
        position=session.checkpoint(),
        seqno=session.position.last_seqno + 1,
    )
    hit("arrival.made")
    try:
        os.link(aside, place)  # unlike a rename it replaces nothing
        hit("arrival.linked")
        sync_directory(os.fspath(place.parent))
    except FileExistsError:
        raise _taken(instance, "something", added.name, place) from None
    except OSError as error:
        raise io_error(error, "a new region could not be put into its place", str(place)) from error


def _made_before(place: Path, session: ApplySession, instance: Instance, added: RegionAdded) -> bytes | None:
    """The UUID of the region that was made here for this very transaction, and not registered; None when nothing lies
    there. AlreadyExistsError for anything else."""
    for left in (f"{place}-wal", f"{place}-journal"):  # SQLite would read it as the new file's
        if os.path.lexists(left) and not os.path.lexists(place):
            raise _taken(instance, "what another database has left", added.name, Path(left))
    if not os.path.lexists(place):
        return None
    try:
        connection = open_region(place, readonly=True, plain=True, bare=True)
    except RegionDamagedError:
        raise _taken(instance, "a file that is no whole database", added.name, place) from None
    try:
        if not is_region(connection):
            raise _taken(instance, "a database that is no region", added.name, place)
        found = read_identity(connection, where=str(place))
        was_made_so = (found.instance, found.name, read_state(connection, ADDED_AS), read_scr(connection))
        if was_made_so != (instance.content.uuid, added.name, added.uuid, session.checkpoint()):
            raise _taken(instance, "another region", added.name, place)
        return found.region
    finally:
        connection.close(True)


def _taken(instance: Instance, what: str, name: str, place: Path) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{what} is where region {name}, which was added on the primary, is to go",
        where=str(place),
        do=f"Move it away, with its -wal if there is one; then {start_again(instance, 'update')}",
    )
