"""A region whose file has a new path: the instance learns it.

Guarantees: the path is changed only while no daemon and no application of the instance runs, and stays changed only if
the file there is the region itself, with all that it held before: neither an older copy, nor one beside the original.
The change is one replacement of the instance file; after any refusal the old path stands.
Leaves to others: how the file got there. Nothing is copied or moved here.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from replicate.admin.region_release import check_nothing_runs
from replicate.admin.stale_pools import is_used
from replicate.door.primary import RegionSession
from replicate.door.recovery.stale_wal import refuse_stale
from replicate.door.snapshot import door_of
from replicate.errors import AlreadyExistsError, AlreadyRunningError, PermissionRefusedError
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.region.kind import KIND


def move_region(instance: Instance, name: str, path: str | os.PathLike[str]) -> RegionEntry:
    """Register `path`, to which the file of the primary's region `name` was moved (with its -wal); returns the entry.

    Raises NotFoundError (no such region or file), PermissionRefusedError (a secondary), AlreadyRunningError (a daemon
    or an application has the instance open), AlreadyExistsError (something is still at the old path, or the path is
    another region's), RegionReplacedError (not that region, or an old copy), and what opening the instance raises.
    """
    entry = instance.region(name)
    moved = replace(entry, path=Path(os.path.abspath(path)))
    if moved == entry:
        return entry
    if instance.role != "primary":
        raise PermissionRefusedError(
            f"instance {instance.name} is secondary: its regions stand where a seed has put them",
            where=str(entry.path),
            do="Put the file back; where it should lie on another disk, mount that at the directory",
        )
    check_nothing_runs(instance.path, instance.named)
    if is_used(instance.content.uuid):
        do = f"End the applications that have it open; fuser -v {instance.locks_directory}/* names them"
        raise AlreadyRunningError("a process uses the instance", where=str(instance.path), do=do)
    for left in (str(entry.path), f"{entry.path}-wal"):
        if os.path.lexists(left):
            do = "Two copies of a region would part: move the file, with its -wal, instead of copying it"
            raise AlreadyExistsError(f"there is still a file at the old path of region {name}", where=left, do=do)
    _check(instance, moved)
    instance.move_region(name, moved.path)
    try:
        with door_of(instance) as door:
            RegionSession(door, name).close()  # it refuses an older copy, and what a killed writer left is finished
    except BaseException:
        instance.move_region(name, entry.path)
        raise
    return moved


def _check(instance: Instance, entry: RegionEntry) -> None:
    """RegionReplacedError unless the file is the region, and fits the -wal beside it."""
    with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
        refuse_stale(instance, entry, opened)
        opened.check_identity(network=instance.content.network, instance=instance.content.uuid)
