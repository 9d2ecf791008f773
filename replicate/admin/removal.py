"""Removing an instance: its pools in shared memory, then its directory. What holds data of the user stays.

Guarantees: refused while a daemon or an application uses the instance, while a region is registered (its file would
keep our guards), and while the directory holds anything that is not ours alone; the directory gets another name first,
so what an interruption leaves is no instance any more. Where the instance file is damaged, which regions there are is
not known: then it takes a word of its own, and what the file still tells of a region is believed.
Refuses to know: how a region is released (admin/release.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from replicate.admin.release import check_nothing_runs
from replicate.admin.stale_pools import is_used, is_used_from
from replicate.config import FILE_NAME as SETTINGS_NAME
from replicate.database.bookkeeping import is_region, read_identity
from replicate.database.sqlite import open_region
from replicate.door.opening import SEEDING_MARKER
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    DamagedError,
    FormatUnknownError,
    JournalIOError,
    NotFoundError,
    RegionDamagedError,
    UsageError,
)
from replicate.instance.file import read_file
from replicate.instance.instance import (
    DIRECTORIES,
    FILE_NAME,
    REBUILDING_MARKER,
    STAGE_DIRECTORY,
    Instance,
    check_whole,
    resolve_instance,
)
from replicate.instance.private_files import read_private
from replicate.pool.shared_memory import PoolKind, retire
from replicate.seed.incoming import DIRECTORY as SEED_DIRECTORY

OURS: Final = (
    *(*DIRECTORIES, SEED_DIRECTORY, STAGE_DIRECTORY),
    *(FILE_NAME, SETTINGS_NAME, SEEDING_MARKER, REBUILDING_MARKER),
)
KEPT: Final = ("regions", "conflict")
"""Directories of ours in which data of the user stands: a released region, images of rows in conflict."""
_PATH: Final = re.compile(r'"path"\s*:\s*("(?:[^"\\]|\\.)*")')
_UUID: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def remove_instance(instance: Instance) -> Path:
    """Remove it; returns the directory that is gone. Raises AlreadyRunningError, AlreadyExistsError (something is still
    in it), JournalIOError. Nothing is removed after the first two."""
    check_nothing_runs(instance.path, instance.named)
    if instance.regions:
        names = ", ".join(entry.name for entry in instance.regions)
        do = f"Release it first: replicate -i {instance.named} region release {instance.regions[0].name}"
        raise AlreadyExistsError(f"the instance still has regions: {names}", where=str(instance.path), do=do)
    if is_used(instance.content.uuid):
        raise _in_use(instance.path)
    _refuse_what_stays(instance.path)
    for kind in PoolKind:
        retire(kind, instance.content.uuid)
    _remove(instance.path, instance.content.uuid.hex()[:8])
    return instance.path


def remove_damaged_instance(name_or_path: str) -> Path:
    """Remove an instance whose instance file is damaged, by an operator's word that its databases are plain again;
    returns the directory that is gone. Its pools are the next `remove_stale_pools` to take.

    Raises UsageError (the file is well), FormatUnknownError (a newer release's), NotFoundError, PermissionRefusedError
    (a part of an instance is missing, or is somebody else's: it may be none), AlreadyRunningError, AlreadyExistsError
    (a database that the file still names is a region of it, or something of the user's is in the directory),
    JournalIOError, and what the look at such a database raises. Nothing is removed after any but JournalIOError.
    """
    path, named = resolve_instance(name_or_path), shlex.quote(name_or_path)
    try:
        read_file(path / FILE_NAME)
    except FormatUnknownError:
        raise
    except DamagedError:
        pass
    else:
        raise UsageError("the instance file is well", where=str(path), do=f"Run: replicate instance remove {named}")
    check_whole(path)
    check_nothing_runs(path, named)
    if is_used_from(path):
        raise _in_use(path)
    _refuse_what_stays(path)
    _refuse_directories_inside(path)
    _refuse_regions(read_private(path / FILE_NAME).decode(errors="replace"), path, named)
    _remove(path, uuid.uuid4().hex[:8])
    return path


def _in_use(path: Path) -> AlreadyRunningError:
    do = f"End the applications that have it open; fuser -v {path / 'locks'}/* names them"
    return AlreadyRunningError("a process uses the instance", where=str(path), do=do)


def _refuse_what_stays(path: Path) -> None:
    kept = [name for name in sorted(os.listdir(path)) if name not in OURS]
    kept += [f"{name}/{file}" for name in KEPT for file in sorted(os.listdir(path / name))]
    if kept:
        raise _still_holds(path, kept)


def _refuse_directories_inside(path: Path) -> None:
    """No release makes directories in those of an instance."""
    inside = (path / name / file for name in DIRECTORIES for file in sorted(os.listdir(path / name)))
    if found := [str(one.relative_to(path)) for one in inside if stat.S_ISDIR(os.lstat(one).st_mode)]:
        raise _still_holds(path, found)


def _still_holds(path: Path, kept: list[str]) -> AlreadyExistsError:
    text = f"the directory still holds {', '.join(kept)}"
    return AlreadyExistsError(text, where=str(path), do="Move that away first")


def _refuse_regions(text: str, path: Path, named: str) -> None:
    """AlreadyExistsError where a database that the damaged file names is a region, by a UUID that the file has too."""
    uuids = {uuid.UUID(found).bytes for found in _UUID.findall(text)}
    for found in _PATH.findall(text):
        with suppress(ValueError, NotFoundError, RegionDamagedError):  # not a path, or no database (any more)
            file = json.loads(found)
            connection = open_region(file, plain=True, readonly=True, bare=True)
            try:
                identity = read_identity(connection, where=file) if is_region(connection) else None
            finally:
                connection.close(True)
            if identity is not None and {identity.instance, identity.region} & uuids:
                raise AlreadyExistsError(
                    f"{file} still is a region of this instance",
                    where=str(path),
                    do=f"When nobody uses it: replicate region plain {shlex.quote(file)}, then again replicate "
                    f"instance remove {named} --force",
                )


def _remove(path: Path, mark: str) -> None:
    leaving = path.with_name(f".{path.name}.removed-{mark}")
    try:
        os.rename(path, leaving)
        shutil.rmtree(leaving)
    except OSError as error:
        text = f"the instance was not removed whole: {error.strerror}"
        raise JournalIOError(text, where=str(error.filename), do="Remove what is left by hand") from error
