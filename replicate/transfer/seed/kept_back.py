"""What a seed would take away for good is kept aside: the tables in NONE of an instance that was primary.

No other site has had their rows. A seed replaces the regions that lie in the instance by files that have none of them.

Guarantees: before anything of such a region is given up, these tables are in a plain database, whole and on the disk:
`kept-back/REGION-TIME.db` below the instance. Only for one that has put something into NONE itself. Of a region that
cannot be read there is nothing to keep.
Leaves to others: what becomes of the file, and databases outside of the instance, which no seed touches.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from replicate.errors import ReplicateError
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.limits import PARTITION_NONE
from replicate.region.sqlite.functions import set_init
from replicate.region.sqlite.plain_tables import make_plain
from replicate.region.sqlite.schema import recorded_definitions
from replicate.region.sqlite.snapshot import OpenRegions, copy_pages
from replicate.region.sqlite.sql.names import quote
from replicate.system.files import sync_directory
from replicate.system.os_errors import io_error
from replicate.transfer.seed.file import require_free

DIRECTORY: Final = "kept-back"


def keep_aside(secondary: Instance, entries: Iterable[RegionEntry]) -> tuple[str, ...]:
    """Keep what only these regions have; the files that were made. DiskFullError, and what else copying raises: nothing
    was given up then."""
    if not secondary.partitions_now().keeps_back:
        return ()
    inside = secondary.path / "regions"
    made = [_keep(secondary, entry) for entry in entries if entry.path.parent == inside]
    return tuple(os.fspath(path) for path in made if path is not None)


def _keep(secondary: Instance, entry: RegionEntry) -> Path | None:
    opened: OpenRegions | None = None
    has_rows = False
    with suppress(ReplicateError):  # what cannot be read is not lost by a seed
        opened = OpenRegions.open({entry.name: (entry.path, entry.uuid)})
    if opened is None:
        return None
    try:
        with suppress(ReplicateError):
            opened.begin()
            connection = opened.connections[entry.name]
            has_rows = any(
                connection.execute(f"SELECT EXISTS (SELECT 1 FROM main.{quote(one.table)})").get
                for one in recorded_definitions(connection)
                if one.partition == PARTITION_NONE
            )
        return _copy(secondary, entry, opened) if has_rows else None
    finally:
        opened.close()


def _copy(secondary: Instance, entry: RegionEntry, opened: OpenRegions) -> Path:
    directory = secondary.path / DIRECTORY
    place = directory / f"{entry.name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.db"
    aside = directory / f".{entry.name}.db"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        require_free(directory, 2 * os.stat(entry.path).st_size, "what only this site has")
        aside.unlink(missing_ok=True)
        copy_pages(opened.connections[entry.name], aside)
        set_init(aside, secondary.config.region.init, entry.name)
        make_plain(aside, lambda number: number == PARTITION_NONE)
        set_init(aside, "", entry.name)
        os.rename(aside, place)
        sync_directory(os.fspath(directory))
        sync_directory(os.fspath(secondary.path))
    except OSError as error:
        raise io_error(error, "what only this site has was not kept", str(place)) from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return place
