"""A page-by-page copy of another instance's region becomes a region of this one.

Guarantees: identity, ring and checkpoint records are this instance's, at the position of the copy; the file is whole,
checkpointed and synced when this returns, with no WAL beside it.
Leaves to others: where the copy came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import apsw

from replicate.errors import RegionDamagedError
from replicate.model.vector import Position
from replicate.region.protocol import scr_rows
from replicate.region.sqlite.bookkeeping import replace_scr
from replicate.region.sqlite.open import adopt_copy, open_region, translate
from replicate.system.files import sync_file
from replicate.system.os_errors import io_error


def adopt_at(
    path: Path,
    *,
    network: bytes,
    instance: bytes,
    region: bytes,
    name: str,
    position: Position,
    csn: int,
    ends: Mapping[int, int],
) -> None:
    """Make the copy at `path` the region `name` of `instance`, holding everything up to `position`. `ends`: where its
    origins have ended, as `scr_rows` takes it.

    Raises RegionDamagedError, DiskFullError and what SQLite says; the copy must be thrown away then.
    """
    with becoming_whole(path) as connection:
        adopt_copy(connection, network=network, instance=instance, region=region, name=name)
        connection.execute("BEGIN IMMEDIATE")
        replace_scr(connection, scr_rows(position, csn, ends))
        connection.execute("COMMIT")


@contextmanager
def becoming_whole(path: Path, *, plain: bool = False) -> Iterator[apsw.Connection]:
    """A connection to a file that nobody else knows yet (`plain`: no region yet). At the end of the block all that was
    committed is in the file itself, and on the disk.

    Raises RegionDamagedError when somebody else has it open, and what SQLite says.
    """
    connection = open_region(path, applier=True, plain=plain)
    try:
        yield connection
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        if busy:
            raise RegionDamagedError("somebody else has the copy open", where=str(path))
    except apsw.Error as error:
        raise translate(error, where=str(path)) from error
    finally:
        connection.close(True)
    try:
        sync_file(path)
    except OSError as error:
        raise io_error(error, "the copy could not be synced", str(path)) from error
