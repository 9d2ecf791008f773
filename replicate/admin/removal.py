"""Removing an instance: its pools in shared memory, then its directory. What holds data of the user stays.

Guarantees: refused while a daemon or an application uses the instance, while a region is registered (its file would
keep our guards), and while the directory holds anything that is not ours alone; the directory gets another name first,
so what an interruption leaves is no instance any more.
Refuses to know: how a region is released (admin/release.py).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from replicate.admin.release import check_nothing_runs
from replicate.admin.stale_pools import is_used
from replicate.config import FILE_NAME as SETTINGS_NAME
from replicate.door.opening import SEEDING_MARKER
from replicate.errors import AlreadyExistsError, AlreadyRunningError, JournalIOError
from replicate.instance.instance import DIRECTORIES, FILE_NAME, REBUILDING_MARKER, STAGE_DIRECTORY, Instance
from replicate.pool.shared_memory import PoolKind, retire
from replicate.seed.incoming import DIRECTORY as SEED_DIRECTORY

OURS: Final = (
    *(*DIRECTORIES, SEED_DIRECTORY, STAGE_DIRECTORY),
    *(FILE_NAME, SETTINGS_NAME, SEEDING_MARKER, REBUILDING_MARKER),
)
KEPT: Final = ("regions", "conflict")
"""Directories of ours in which data of the user stands: a released region, images of rows in conflict."""


def remove_instance(instance: Instance) -> Path:
    """Remove it; returns the directory that is gone. Raises AlreadyRunningError, AlreadyExistsError (something is still
    in it), JournalIOError. Nothing is removed after the first two."""
    where = str(instance.path)
    check_nothing_runs(instance)
    if instance.regions:
        names = ", ".join(entry.name for entry in instance.regions)
        do = f"Release it first: replicate -i {instance.named} region release {instance.regions[0].name}"
        raise AlreadyExistsError(f"the instance still has regions: {names}", where=where, do=do)
    if is_used(instance.content.uuid):
        do = f"End the applications that have it open; fuser -v {instance.locks_directory}/* names them"
        raise AlreadyRunningError("a process uses the instance", where=where, do=do)
    kept = [name for name in sorted(os.listdir(instance.path)) if name not in OURS]
    kept += [f"{name}/{file}" for name in KEPT for file in sorted(os.listdir(instance.path / name))]
    if kept:
        raise AlreadyExistsError(f"the directory still holds {', '.join(kept)}", where=where, do="Move that away first")
    for kind in PoolKind:
        retire(kind, instance.content.uuid)
    leaving = instance.path.with_name(f".{instance.path.name}.removed-{instance.content.uuid.hex()[:8]}")
    try:
        os.rename(instance.path, leaving)
        shutil.rmtree(leaving)
    except OSError as error:
        text = f"the instance was not removed whole: {error.strerror}"
        raise JournalIOError(text, where=str(error.filename), do="Remove what is left by hand") from error
    return instance.path
