"""Who may touch an instance's files: owner, modes, no symbolic links. Checked when an instance is opened, and at start.

Guarantees: nothing is followed or opened: facts come from `lstat`, and what is read here is opened with O_NOFOLLOW;
whatever is too open or belongs to somebody else is refused by name, with the command that mends it; nothing is changed.
Leaves to others: what is in the files. Keys and certificates have rules of their own (security/guarded_file.py), pools
too (pool/shared_memory.py).
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import Final

from replicate.errors import NotFoundError, PermissionRefusedError
from replicate.system.asking_user import user_name
from replicate.system.files import link_error
from replicate.system.os_errors import mend

DIRECTORY_MODES: Final = {
    "journal": 0o077,
    "locks": 0o077,
    "run": 0o077,
    "log": 0o027,
    "regions": 0o022,
    "consumers": 0o077,
    "conflict": 0o077,
}
"""The directories of an instance, and which permissions nobody may have there: rows are in journals and conflicts; a
group may read logs, in which there are none; who may read a database is its owner's to say, by the file's own mode."""
SETTINGS: Final = "replicate.toml"
FILE_MODES: Final = {"instance.json": 0o022, SETTINGS: 0o022}
_NOBODY_ELSE: Final = 0o022


def is_left_of_a_creation(path: Path, settings: str) -> bool:
    """Whether the creation of an instance that was killed has left it: a directory in which nothing is, the `settings`
    as they are first written, or a file that was being written."""
    if path.is_symlink():
        return False
    if path.name in DIRECTORY_MODES and path.is_dir():
        return not any(path.iterdir())
    is_aside = path.name.startswith(tuple(f".{name}." for name in FILE_MODES))
    return path.is_file() and (is_aside or (path.name == SETTINGS and path.read_bytes() == settings.encode()))


def check_directories(instance: Path) -> None:
    """The instance's directory (which is there), those in it, and its file: about ten `lstat`. What is missing is
    somebody else's to say. Its settings are `check_settings`'.

    PermissionRefusedError (exit code 77) when one is a link, belongs to another user, or is too open.
    """
    facts = os.stat(instance)  # its own name may be a link: that is the operator's
    _check(facts, instance, _NOBODY_ELSE, {os.geteuid(), 0})
    owners = {facts.st_uid, 0}
    for name, forbidden in {**DIRECTORY_MODES, **FILE_MODES}.items():
        if name != SETTINGS:
            _check_one(instance / name, forbidden, owners)


def _missing(sub: str) -> str:
    """What to do about a directory of an instance that is gone."""
    if sub == "journal":
        return (
            "Put it back, or restore it from a backup; an empty one in its place does not do. If it is gone for good: "
            "mkdir -m 700 that directory, then take the databases back, as plain SQLite: replicate -i INSTANCE region "
            "release NAME --force"
        )
    if sub == "regions":
        return "Put it back with the databases in it; if there were none: mkdir -m 700 that directory"
    return "Stop every process of this instance, mkdir -m 700 that directory, then start again"


def check_whole(directory: Path) -> None:
    """That all directories of the instance are there, and nobody else's. NotFoundError, PermissionRefusedError."""
    for sub in DIRECTORY_MODES:
        if not (directory / sub).is_dir():
            raise NotFoundError(
                f"the directory {sub!r} of the instance is missing", where=str(directory / sub), do=_missing(sub)
            )
    check_directories(directory)


def check_settings(instance: Path) -> None:
    """The same for the file of settings, without which one may still look at the instance."""
    _check_one(instance / SETTINGS, FILE_MODES[SETTINGS], {os.stat(instance).st_uid, 0})


def check_contents(instance: Path) -> None:
    """All files in the instance's directories; for the start of a daemon. PermissionRefusedError names the first one
    that is a link, belongs to another user, or is too open. What is missing is somebody else's to say."""
    if _lstat(instance) is None:
        return
    owners = {os.stat(instance).st_uid, 0}
    for name, forbidden in DIRECTORY_MODES.items():
        try:
            names = sorted(os.listdir(instance / name))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise PermissionRefusedError(
                f"no access: {error.strerror}", where=str(instance / name), do=mend(error)
            ) from error
        for path in (instance / name / entry for entry in names):
            _check_one(path, forbidden, owners)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PermissionRefusedError(f"no access: {error.strerror}", where=str(path), do=mend(error)) from error


def _check_one(path: Path, forbidden: int, owners: set[int]) -> None:
    found = _lstat(path)
    if found is not None:  # else it is not there, or not any more
        _check(found, path, forbidden, owners)


def _check(facts: os.stat_result, path: Path, forbidden: int, owners: set[int]) -> None:
    if stat.S_ISLNK(facts.st_mode):
        raise link_error(path)
    quoted = shlex.quote(str(path))
    if facts.st_uid not in owners:
        named = " or ".join(user_name(uid) for uid in sorted(owners, reverse=True))
        owner = user_name(facts.st_uid)
        raise PermissionRefusedError(
            f"this belongs to user {owner}, not to user {named}",
            where=str(path),
            do=f"Run as user {owner}, or, if it is yours: chown {user_name(max(owners))} {quoted}",
        )
    mode = stat.S_IMODE(facts.st_mode)
    if mode & forbidden:
        what = "written" if mode & forbidden & 0o022 else "read or entered"
        wanted = mode & ~forbidden & 0o777
        raise PermissionRefusedError(
            f"this may be {what} by others (mode {mode:04o})", where=str(path), do=f"chmod {wanted:o} {quoted}"
        )
