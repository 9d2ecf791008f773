"""Who may touch an instance's files: owner, modes, no symbolic links. Checked when an instance is opened, and at start.

Guarantees: nothing is followed or opened: facts come from `lstat`, and what is read here is opened with O_NOFOLLOW;
whatever is too open or belongs to somebody else is refused by name, with the command that mends it; nothing is changed.
Refuses to know: what is in the files. Keys and certificates have rules of their own (security/guarded_file.py), pools
too (pool/shared_memory.py).
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from pathlib import Path
from typing import Final

from replicate.errors import JournalIOError, PermissionRefusedError

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
BYTES_MAX: Final = 16 * 1024 * 1024
_NOBODY_ELSE: Final = 0o022


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
            raise PermissionRefusedError(f"no access: {error.strerror}", where=str(instance / name)) from error
        for path in (instance / name / entry for entry in names):
            _check_one(path, forbidden, owners)


def check_writable(path: str | os.PathLike[str]) -> None:
    """PermissionRefusedError unless this user may write the file, or make files in the directory, that is at `path`."""
    is_directory = os.path.isdir(path)
    if not os.access(path, os.W_OK | os.X_OK if is_directory else os.W_OK):
        raise PermissionRefusedError(
            f"the {'directory' if is_directory else 'file'} is read-only for this user",
            where=os.fspath(path),
            do="Grant write permission, or mount it read-write",
        )


def read_private(path: Path) -> bytes:
    """The content of a small file of an instance. FileNotFoundError when it is not there; PermissionRefusedError for a
    symbolic link, for what is no regular file or larger than BYTES_MAX, and where the system refuses; JournalIOError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link(path) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            text = f"not allowed: {error.strerror}"
            raise PermissionRefusedError(text, where=str(path), do="Run as the instance's owner") from error
        raise JournalIOError(f"can not be read: {error.strerror}", where=str(path)) from error
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > BYTES_MAX:
            text = f"this is no regular file, or larger than {BYTES_MAX} bytes"
            raise PermissionRefusedError(text, where=str(path), do="Remove it")
        with open(fd, "rb", closefd=False) as file:
            return file.read(BYTES_MAX)
    except OSError as error:
        raise JournalIOError(f"can not be read: {error.strerror}", where=str(path)) from error
    finally:
        os.close(fd)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PermissionRefusedError(f"no access: {error.strerror}", where=str(path)) from error


def _check_one(path: Path, forbidden: int, owners: set[int]) -> None:
    found = _lstat(path)
    if found is not None:  # else it is not there, or not any more
        _check(found, path, forbidden, owners)


def _check(facts: os.stat_result, path: Path, forbidden: int, owners: set[int]) -> None:
    if stat.S_ISLNK(facts.st_mode):
        raise _link(path)
    quoted = shlex.quote(str(path))
    if facts.st_uid not in owners:
        named = " or ".join(str(uid) for uid in sorted(owners, reverse=True))
        raise PermissionRefusedError(
            f"this belongs to user {facts.st_uid}, not to user {named}",
            where=str(path),
            do=f"Run as user {facts.st_uid}, or, if it is yours: chown {max(owners)} {quoted}",
        )
    mode = stat.S_IMODE(facts.st_mode)
    if mode & forbidden:
        what = "written" if mode & forbidden & 0o022 else "read or entered"
        wanted = mode & ~forbidden & 0o777
        raise PermissionRefusedError(
            f"this may be {what} by others (mode {mode:04o})", where=str(path), do=f"chmod {wanted:o} {quoted}"
        )


def _link(path: Path) -> PermissionRefusedError:
    return PermissionRefusedError(
        "this is a symbolic link, and none is followed inside an instance",
        where=str(path),
        do="Put the file or directory itself there (another disk can be mounted there)",
    )
