"""Removing an instance: its pools in shared memory, then its directory. What holds data of the user stays.

Guarantees: refused while a daemon or an application uses the instance, while a region is registered (its file would
keep our guards), while a peer has not got all (lost/keep.py), and while the directory holds anything that is not ours
alone. A *purge* takes the databases, conflict files and certificates in the directory too, registered or not, and
nothing outside of it. The directory gets another name first, so what an interruption leaves is no instance any more;
the same command finishes it. Where the instance file is damaged, which regions there are is not known: then it takes a
word of its own, and what the file still tells of a region is believed.
Leaves to others: how a region is released (admin/region_release.py), and how an operator is asked.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.admin.region_release import check_nothing_runs, finish_what_can_be
from replicate.admin.stale_pools import is_used, is_used_from
from replicate.door.recovery.opening import ROLLBACK_MARKER, SEEDING_MARKER
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    DamagedError,
    FormatUnknownError,
    JournalIOError,
    NotFoundError,
    RegionDamagedError,
    ReplicateError,
    UsageError,
)
from replicate.instance.file import read_file
from replicate.instance.instance import (
    FILE_NAME,
    REBUILDING_MARKER,
    STAGE_DIRECTORY,
    Instance,
)
from replicate.instance.location import resolve_instance
from replicate.instance.private_files import DIRECTORY_MODES, check_whole
from replicate.instance.writing_locks import regions_locked
from replicate.lost.keep import Kept, keep_lost, keep_lost_of
from replicate.lost.peers_lack import Owner
from replicate.pool.shared_memory import PoolKind, retire
from replicate.region.sqlite.bookkeeping import is_region, read_identity
from replicate.region.sqlite.open import COMPANIONS, open_region
from replicate.security.tls_files import TlsFiles
from replicate.settings.load import FILE_NAME as SETTINGS_NAME
from replicate.settings.table import TlsConfig
from replicate.system.files import read_private, sync_directory
from replicate.system.os_errors import io_error
from replicate.transfer.seed.incoming import DIRECTORY as SEED_DIRECTORY

OURS: Final = (
    *(*DIRECTORY_MODES, SEED_DIRECTORY, STAGE_DIRECTORY),
    *(FILE_NAME, SETTINGS_NAME, SEEDING_MARKER, REBUILDING_MARKER, ROLLBACK_MARKER),
)
KEPT: Final = ("regions", "conflict")
"""Directories of ours in which data of the user stands: a released region, images of rows in conflict."""
DATABASE_HEADER: Final = b"SQLite format 3\0"
_PATH: Final = re.compile(r'"path"\s*:\s*("(?:[^"\\]|\\.)*")')
_UUID: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


LOCK_TIMEOUT_S: Final = 5.0


class Purged(Struct, frozen=True):
    """A file of the user that goes with the instance; `path` as it was."""

    path: Path
    bytes: int


class Removed(Struct, frozen=True):
    """`path`: the directory that is gone. `purged`: what of the user's went with it. `kept`: where the transactions
    stand that no peer has."""

    path: Path
    purged: tuple[Purged, ...] = ()
    kept: Kept | None = None


def _agreed(_purged: Sequence[Purged]) -> None:
    pass


def remove_instance(
    instance: Instance,
    *,
    force: bool = False,
    purge: bool = False,
    agree: Callable[[Sequence[Purged]], None] = _agreed,
) -> Removed:
    """Remove it. `force`: also if a peer has not got all. `purge`: the databases in its directory, too, and its
    certificates; `agree` is told which, and raises where that is not to be.

    Raises AlreadyRunningError, AlreadyExistsError (something is still in it), UndeliveredError and what else
    `keep_lost` raises, BusyError, what `agree` raises, JournalIOError. Nothing is removed after any but the last.
    """
    check_nothing_runs(instance.path, instance.named)
    staying = [entry for entry in instance.regions if not (purge and _is_inside(entry.path, instance.path))]
    if staying:
        names = ", ".join(entry.name for entry in staying)
        where = " outside of its directory" if purge else ""
        do = f"Release it first: replicate -i {instance.named} region release {staying[0].name}"
        raise AlreadyExistsError(f"the instance still has regions{where}: {names}", where=str(instance.path), do=do)
    if is_used(instance.content.uuid):
        raise _in_use(instance.path)
    purged = _purged(instance.path) if purge else ()
    _refuse_what_stays(instance.path, {file.path for file in purged})
    if purge:
        _refuse_directories_inside(instance.path)
    again = f"replicate instance remove {instance.named}{' --purge' if purge else ''} --force"
    with ExitStack() as locks:
        if instance.regions:
            finish_what_can_be(instance, LOCK_TIMEOUT_S)
        locks.enter_context(regions_locked(instance, LOCK_TIMEOUT_S))
        # What would be refused is refused before anybody is asked.
        kept = None if force else keep_lost(instance, cause="instance remove", again=again, force=False)
        agree(purged)
        if force:
            kept = keep_lost(instance, cause="instance remove", again=again, force=True)
        for kind in PoolKind:
            retire(kind, instance.content.uuid)
        _remove(instance.path, instance.content.uuid.hex()[:8])
    return Removed(instance.path, purged, kept)


def finish_removal(name_or_path: str) -> Path | None:
    """End a removal that was interrupted when the instance was none any more; the directory that is gone then, None
    where there was no such. JournalIOError."""
    path = resolve_instance(name_or_path)
    if path.exists():
        return None
    pattern = re.compile(rf"\.{re.escape(path.name)}\.removed-[0-9a-f]{{8}}")
    left = [one for one in path.parent.glob(".*.removed-*") if pattern.fullmatch(one.name)]
    for one in left:
        _remove_tree(one)
    return path if left else None


def remove_damaged_instance(name_or_path: str) -> Removed:
    """Remove an instance whose instance file is damaged, by an operator's word that its databases are plain again. What
    no peer has, as far as can be known, is written to a file first. Its pools are the next `remove_stale_pools` to
    take.

    Raises UsageError (the file is well), FormatUnknownError (a newer release's), NotFoundError, PermissionRefusedError
    (a part of an instance is missing, or is somebody else's: it may be none), AlreadyRunningError, AlreadyExistsError
    (a database that the file still names is a region of it, or something of the user's is in the directory),
    JournalIOError, and what the look at such a database and `keep_lost_of` raise. Nothing is removed after any but
    JournalIOError.
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
    kept = keep_lost_of(Owner.of_directory(path, named), cause="instance remove", again="", force=True)
    _remove(path, uuid.uuid4().hex[:8])
    return Removed(path, kept=kept)


def _in_use(path: Path) -> AlreadyRunningError:
    do = f"End the applications that have it open; fuser -v {path / 'locks'}/* names them"
    return AlreadyRunningError("a process uses the instance", where=str(path), do=do)


def _refuse_what_stays(path: Path, purged: Collection[Path] = ()) -> None:
    looked_into = dict.fromkeys((*KEPT, *(file.parent.name for file in purged if file.parent != path)))
    known = {*OURS, *looked_into}
    kept = [name for name in sorted(os.listdir(path)) if name not in known and path / name not in purged]
    inside = (path / name / file for name in looked_into for file in sorted(os.listdir(path / name)))
    kept += [str(file.relative_to(path)) for file in inside if file not in purged]
    if kept:
        raise _still_holds(path, kept)


def _is_inside(file: Path, directory: Path) -> bool:
    """By where it really is: a link or a `..` leads out of the directory."""
    return file.resolve().is_relative_to(directory.resolve())


def _purged(path: Path) -> tuple[Purged, ...]:
    """The databases in the directory, with their -wal and the like, the conflict files, and what `certificate issue`
    has made there."""
    files = [file for name in KEPT for file in (path / name).iterdir() if not file.is_dir()]
    databases = [file for file in path.iterdir() if file.name not in OURS and _is_database(file)]
    names = {f"{file.name}{ending}" for file in databases for ending in ("", *COMPANIONS)}
    files += [file for file in path.iterdir() if file.name in names]
    files += _certificates(path)
    return tuple(Purged(file, os.lstat(file).st_size) for file in sorted(files))


def _certificates(path: Path) -> list[Path]:
    """Those that `certificate issue` puts where the settings look for them of themselves; none through a link."""
    of = TlsFiles.of(path, TlsConfig())
    return [
        file
        for file in (of.ca, of.certificate, of.key)
        if os.path.lexists(file) and not file.is_dir() and not file.parent.is_symlink()
    ]


def _is_database(file: Path) -> bool:
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):
            return False
        with open(file, "rb") as opened:  # nobody has it open in this process: nobody uses the instance
            return opened.read(len(DATABASE_HEADER)) == DATABASE_HEADER
    except OSError:
        return False


def _refuse_directories_inside(path: Path) -> None:
    """No release makes directories in those of an instance."""
    inside = (path / name / file for name in DIRECTORY_MODES for file in sorted(os.listdir(path / name)))
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
    except OSError as error:
        raise io_error(error, "the instance was not removed", str(path)) from error
    with suppress(ReplicateError):  # a directory that may be changed and not be read
        sync_directory(os.fspath(path.parent))
    _remove_tree(leaving)


def _remove_tree(leaving: Path) -> None:
    try:
        shutil.rmtree(leaving)
    except OSError as error:
        text = f"the instance was not removed whole: {error.strerror}"
        raise JournalIOError(text, where=str(error.filename), do="Mend that, then run it again") from error
