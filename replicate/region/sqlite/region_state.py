"""One look at a region for a status: how far it is, and what its WAL waits for.

Guarantees: read-only, waits for no lock, takes none that a writer waits for (a reader's in the WAL, for an instant);
whatever is wrong with the file is one named error.
Leaves to others: what a status makes of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import apsw
from msgspec import Struct

from replicate.errors import ReplicateError
from replicate.region.protocol import ReadRegion
from replicate.region.sqlite.bookkeeping import check_region_identity, check_schema_version, region_seqno
from replicate.region.sqlite.data_feed import check_schema
from replicate.region.sqlite.forensics.wal_index import Reader, find_hindrances
from replicate.region.sqlite.open import open_region, translate
from replicate.region.sqlite.open_region import OpenedFile


class Look(Struct, frozen=True):
    """`wal_bytes` is the size of the WAL file, `pending_bytes` what of it is not checkpointed, `hindrances` who keeps
    it so."""

    last_seqno: int
    wal_bytes: int
    pending_bytes: int
    hindrances: tuple[Reader, ...]


def look_at(
    path: str | os.PathLike[str],
    *,
    region: bytes,
    network: bytes,
    check: Callable[[ReadRegion], None],
    changed_do: str,
) -> Look:
    """The region of that UUID and network at `path`. `check`: is given the region as it was just opened, and may raise.
    `changed_do`: what mends a schema that somebody else has changed.

    Raises BusyError (locked as a whole at this moment), SchemaChangedError, and what opening a region raises, and
    RegionDamagedError.
    """
    where = os.fspath(path)
    connection = open_region(where, readonly=True, bare=True, busy_timeout_ms=0, opening_s=0)
    try:
        check(OpenedFile(connection, where, region))
        connection.execute("BEGIN")  # one state for both versions of the schema
        check_region_identity(connection, region=region, network=network, where=where)
        check_schema(connection, do=changed_do)
        last_seqno = region_seqno(connection)
        wal, hindrances = find_hindrances(where)
    except apsw.Error as error:
        raise translate(error, where=where) from error
    finally:
        connection.close()
    pending_bytes = wal.pending_bytes if wal is not None else 0
    return Look(last_seqno, _file_bytes(f"{where}-wal"), pending_bytes, hindrances)


def refuse_changed(path: str | os.PathLike[str], *, region: bytes, changed_do: str) -> None:
    """SchemaChangedError where somebody else has changed the schema of the region of that UUID at `path`; and what
    opening a region raises. `changed_do`: what mends it."""
    where = os.fspath(path)
    connection = open_region(where, region=region, readonly=True, bare=True)
    try:
        connection.execute("BEGIN")
        check_schema_version(connection, do=changed_do)
    except apsw.Error as error:
        raise translate(error, where=where) from error
    finally:
        connection.close()


def last_seqno_of(path: str | os.PathLike[str], *, region: bytes) -> int | None:
    """The last number that the region of that UUID at `path` holds; None where no such region can be read."""
    where = os.fspath(path)
    try:
        connection = open_region(where, readonly=True, bare=True)
        try:
            check_region_identity(connection, region=region, where=where)
            return region_seqno(connection)
        finally:
            connection.close(True)
    except (ReplicateError, apsw.Error):
        return None


def _file_bytes(path: str) -> int:
    """Looked at, not opened: to close it would drop the locks of this process's connections."""
    with suppress(OSError):
        return os.stat(path, follow_symlinks=False).st_size
    return 0
