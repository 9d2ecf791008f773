"""Files that others must not have put there or be able to read: keys, and the certificates that go with them.

Guarantees: what is handed out is a regular file at that very path (a symbolic link is refused, so nobody leads us to
another's file), that belongs to us or to root, that nobody else may write, and, if it is secret, that nobody else may
read; the checks are made on the open descriptor, so the file cannot be exchanged in between.
Leaves to others: what is in the file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from replicate.errors import ConfigurationError, JournalIOError, NotFoundError, PermissionRefusedError

BYTES_MAX: Final = 1024 * 1024
"""A key or a chain of certificates is far smaller."""


def open_guarded(path: Path, *, is_secret: bool, what: str) -> int:
    """A descriptor of the checked file, which the caller closes. `what` names it in errors ("the private key").

    NotFoundError when there is none; PermissionRefusedError for a link, a wrong owner or mode; ConfigurationError when
    it is no regular file, or larger than BYTES_MAX.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFoundError(f"{what} is not there", where=str(path)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PermissionRefusedError(
                f"{what} is a symbolic link, which could lead to another's file",
                where=str(path),
                do="Put the file itself there, or name the file that the link leads to",
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise PermissionRefusedError(
                f"{what} cannot be read: {error.strerror}", where=str(path), do="Run as its owner"
            ) from error
        raise JournalIOError(f"{what} cannot be read: {error.strerror}", where=str(path)) from error
    try:
        _check(os.fstat(fd), path, is_secret, what)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check(facts: os.stat_result, path: Path, is_secret: bool, what: str) -> None:
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > BYTES_MAX:
        raise ConfigurationError(
            f"{what} is no regular file, or larger than {BYTES_MAX} bytes", where=str(path), do="Name the file itself"
        )
    if facts.st_uid not in (os.geteuid(), 0):
        raise PermissionRefusedError(
            f"{what} belongs to user {facts.st_uid}, not to us or root", where=str(path), do="chown it, or copy it"
        )
    if is_secret and facts.st_mode & 0o077:
        raise PermissionRefusedError(
            f"{what} may be read by others (mode {stat.S_IMODE(facts.st_mode):04o})",
            where=str(path),
            do=f"chmod 600 {path}",
        )
    if facts.st_mode & 0o022:
        raise PermissionRefusedError(
            f"{what} may be written by others (mode {stat.S_IMODE(facts.st_mode):04o})",
            where=str(path),
            do=f"chmod 600 {path}",
        )


def read_guarded(path: Path, *, is_secret: bool, what: str) -> bytes:
    """The content of the checked file. Errors as `open_guarded`, and JournalIOError when reading fails."""
    fd = open_guarded(path, is_secret=is_secret, what=what)
    with os.fdopen(fd, "rb") as file:
        try:
            return file.read(BYTES_MAX)
        except OSError as error:
            raise JournalIOError(f"{what} cannot be read: {error.strerror}", where=str(path)) from error


def stamp(path: Path) -> tuple[int, ...]:
    """What changes whenever the file is changed or exchanged; () while there is none."""
    try:
        facts = os.stat(path, follow_symlinks=False)
    except OSError:
        return ()
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_mode)
