"""A page-by-page copy of another instance's region becomes a region of this one.

Guarantees: identity, ring and checkpoint records are this instance's, at the position of the copy; the file is whole,
checkpointed and synced when this returns, with no WAL beside it.
Refuses to know: where the copy came from.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from replicate.database.bookkeeping import ScrRow, replace_scr
from replicate.database.sqlite import adopt_copy, open_region, translate
from replicate.errors import RegionDamagedError
from replicate.instance.file import io_error
from replicate.limits import PARTITION_STREAM
from replicate.vector import Position


def scr_rows(position: Position, csn: int) -> list[ScrRow]:
    """The checkpoint records that say `position`: one for each origin's whole stream and for each partition."""
    rows = [
        ScrRow(origin, PARTITION_STREAM, last, chain, csn, position.last_seqno)
        for origin, (last, chain) in position.chains.items()
    ]
    rows += [
        ScrRow(origin, partition, last, position.chains[origin][1], csn, position.last_seqno)
        for (origin, partition), last in position.vector.items()
        if partition != PARTITION_STREAM and origin in position.chains
    ]
    return rows


def adopt_at(
    path: Path, *, network: bytes, instance: bytes, region: bytes, name: str, position: Position, csn: int
) -> None:
    """Make the copy at `path` the region `name` of `instance`, holding everything up to `position`.

    Raises RegionDamagedError, DiskFullError and what SQLite says; the copy must be thrown away then.
    """
    connection = open_region(path, applier=True)
    try:
        adopt_copy(connection, network=network, instance=instance, region=region, name=name)
        connection.execute("BEGIN IMMEDIATE")
        replace_scr(connection, scr_rows(position, csn))
        connection.execute("COMMIT")
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        if busy:
            raise RegionDamagedError("somebody else has the copy open", where=str(path))
    except apsw.Error as error:
        raise translate(error, where=str(path)) from error
    finally:
        connection.close(True)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise io_error(error, "the copy could not be synced", str(path)) from error
