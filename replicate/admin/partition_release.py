"""Partitions that were removed from a secondary's subscription are given to the applications of its site.

    removed: nothing more is applied to them · a copy of each region aside · plain, with their tables alone · named

Tables of a region cannot be anybody's but the stream's: schema changes of the primary reach them, a seed replaces the
file, and the commit door is the only writer that recovery knows. So they leave it: into databases of their own.
Guarantees: the databases have the rows as of the last transaction that is applied (of what was removed before, as
they stayed then). The directory has its name only when all of it is whole and on the disk; killed before that, the same
command begins again. Here the rows stay, frozen.
Leaves to others: deleting them here (dropping_rows.py), and replicating them elsewhere (regions.py).
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from replicate.door.snapshot import door_of, finish_regions
from replicate.errors import AlreadyExistsError, InternalError, NotFoundError, UsageError
from replicate.instance.instance import Instance
from replicate.model.subscription import FROZEN, HERE
from replicate.region.sqlite.functions import set_init
from replicate.region.sqlite.plain_tables import PlainTables, make_plain
from replicate.region.sqlite.snapshot import OpenRegions, copy_pages
from replicate.system.failpoint import hit
from replicate.system.files import sync_directory
from replicate.system.os_errors import io_error
from replicate.transfer.seed.file import require_free
from replicate.transfer.seed.install import seed_lock, silent
from replicate.transfer.seed.rows import tables_by_partition
from replicate.transfer.seed.some_regions import LOCK_TIMEOUT_S, Told, update_aside


class ReleasedTables(Struct, frozen=True):
    """`path`: a plain database with these tables of `region`."""

    region: str
    path: Path
    has: PlainTables


def release_partitions(
    secondary: Instance,
    numbers: Collection[int],
    directory: Path,
    remove: Callable[[], None],
    *,
    told: Told = silent,
) -> list[ReleasedTables]:
    """Copy the tables of these partitions into `directory`, which is made: REGION.db each, after `remove`, which takes
    them out of the subscription. `told`: of each region, pages done, and all of them.

    Raises UsageError (the rows of one are not here, or not all of them), NotFoundError (no table is in them; no place
    for the directory), AlreadyExistsError (it is there), DiskFullError, what `remove` raises and what the Update
    Process's standing aside raises. The directory is not there then.
    """
    gone = frozenset(numbers)
    with seed_lock(secondary):
        secondary.reload()
        regions = _check(secondary, gone, directory)
        aside = directory.with_name(f".{directory.name}.released")
        opened = OpenRegions.open({one: (secondary.region(one).path, secondary.region(one).uuid) for one in regions})
        try:
            with update_aside(secondary):  # it knows what is held when it begins
                with door_of(secondary) as door:
                    finish_regions(door, LOCK_TIMEOUT_S)  # one that was killed leaves regions at different transactions
                remove()
                opened.begin()
            secondary.reload()
            if any(secondary.content.choice.wants(one) or secondary.content.choice.holds(one) for one in gone):
                raise InternalError(f"partitions {sorted(gone)} are not all removed", where=str(secondary.path))
            return _copy(secondary, opened, gone, directory, aside, told)
        finally:
            opened.close()


def _check(secondary: Instance, gone: frozenset[int], directory: Path) -> list[str]:
    """The regions that have tables of them."""
    choice, name = secondary.content.choice, secondary.partitions_now().name
    for one in sorted(gone):
        if (state := choice.state(one)) not in (HERE, FROZEN):
            raise UsageError(
                f"partition {name(one)}: {state}; only what is here whole can be released",
                where=str(secondary.path),
                do=f"Load it first, or remove it alone: replicate -i {secondary.named} subscription remove {name(one)}",
            )
    tables = tables_by_partition(secondary)
    regions = sorted({region for one in gone for region, _ in tables.get(one, ())})
    if not regions:
        raise NotFoundError(
            f"no table is in partition {', '.join(map(name, sorted(gone)))}",
            where=str(secondary.path),
            do=f"See which are: replicate -i {secondary.named} subscription show {name(min(gone))}",
        )
    if os.path.lexists(directory):
        raise AlreadyExistsError(
            "something is at the place of the released tables",
            where=str(directory),
            do="Name another directory. One that an earlier release has made is whole: to delete the rows here, too: "
            f"replicate -i {secondary.named} subscription remove {' '.join(map(name, sorted(gone)))} --drop-rows",
        )
    if not directory.parent.is_dir():
        raise NotFoundError(
            "there is no directory for it",
            where=str(directory.parent),
            do=f"mkdir -p {shlex.quote(str(directory.parent))}",
        )
    return regions


def _copy(
    secondary: Instance, opened: OpenRegions, gone: frozenset[int], directory: Path, aside: Path, told: Told
) -> list[ReleasedTables]:
    shutil.rmtree(aside, ignore_errors=True)
    try:
        sizes = [os.stat(secondary.region(name).path).st_size for name in opened.connections]
        require_free(directory.parent, sum(sizes) + max(sizes), "the released tables")
        aside.mkdir(mode=0o700)
        made = []
        for name, connection in opened.connections.items():
            path = aside / f"{name}.db"
            copy_pages(connection, path, lambda done, whole, name=name: told(name, done, whole))  # type: ignore[misc]
            set_init(path, secondary.config.region.init, name)
            made.append(ReleasedTables(name, directory / path.name, make_plain(path, gone.__contains__)))
            set_init(path, "", name)
        sync_directory(str(aside))
        hit("partition.released")
        os.rename(aside, directory)
        sync_directory(str(directory.parent))
    except OSError as error:
        raise io_error(error, "the tables were not released", str(directory)) from error
    finally:
        with suppress(OSError):
            shutil.rmtree(aside, ignore_errors=True)
    return made
