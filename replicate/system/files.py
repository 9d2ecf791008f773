"""Files and directories: written whole, replaced durably, read with care, synced.

Guarantees: a small file is replaced whole or not at all, and stays so after a power loss; what is read as private is no
link and no device; every failure of the system is an error of ours by name. Leaves to others: what is in the files, and
who may touch an instance's (instance/private_files.py).
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from pathlib import Path
from typing import IO, Final

from replicate.errors import JournalIOError, PermissionRefusedError
from replicate.system.failpoint import hit
from replicate.system.os_errors import io_error, refuse_os_error

BYTES_MAX: Final = 16 * 1024 * 1024
_ZEROS: Final = bytes(1024 * 1024)


def replace_file(path: Path, data: bytes, *, like: os.stat_result | None = None) -> None:
    """Replace a small file whole and durably: for our user alone, or with the owner, group and mode of `like`. Raises
    JournalIOError, DiskFullError, PermissionRefusedError; after a failure the old content stands."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    directory = -1
    try:
        # First: after the rename nothing may fail but the sync itself.
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, data, 0)
            if like is not None:
                os.fchown(fd, like.st_uid, like.st_gid)
                os.fchmod(fd, stat.S_IMODE(like.st_mode))  # after it: a change of the owner takes bits away
            os.fsync(fd)
        finally:
            os.close(fd)
        hit("replace.before_rename")
        os.rename(aside, path)
        hit("replace.renamed")
        os.fsync(directory)
    except OSError as error:
        try:
            os.unlink(aside)
        except OSError:
            pass
        raise io_error(error, f"could not write {path.name}", str(path)) from error
    finally:
        if directory >= 0:
            os.close(directory)


def replace_unsynced(path: Path, data: bytes) -> None:
    """Replace a small file whole, by one process and thread at a time, for readers on a running machine: after a power
    loss it may be an old one, or empty. Raises as `replace_file`; after a failure the old content stands."""
    aside = path.with_name(f".{path.name}.tmp")
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, data, 0)
        finally:
            os.close(fd)
        os.rename(aside, path)
    except OSError as error:
        try:
            os.unlink(aside)
        except OSError:
            pass
        raise io_error(error, f"could not write {path.name}", str(path)) from error


def remove_file(path: Path, failed: str) -> None:
    """Remove a file durably. Raises what `io_error` makes of `failed`, which says what was not done: it may be there
    still."""
    try:
        path.unlink()
    except OSError as error:
        raise io_error(error, failed, str(path)) from error
    sync_directory(os.fspath(path.parent))


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
            raise link_error(path) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            text = f"not allowed: {error.strerror}"
            raise PermissionRefusedError(text, where=str(path), do="Run as the instance's owner") from error
        raise JournalIOError(f"cannot be read: {error.strerror}", where=str(path)) from error
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > BYTES_MAX:
            text = f"this is no regular file, or larger than {BYTES_MAX} bytes"
            raise PermissionRefusedError(text, where=str(path), do="Remove it")
        with open(fd, "rb", closefd=False) as file:
            return file.read(BYTES_MAX)
    except OSError as error:
        raise JournalIOError(f"cannot be read: {error.strerror}", where=str(path)) from error
    finally:
        os.close(fd)


def open_to_read(path: str | os.PathLike[str]) -> IO[bytes]:
    """A file of ours, however large: no link is followed, and nothing is waited for at a pipe. OSError; nothing stays
    open then."""
    return open(path, "rb", opener=_no_link)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)


def check_writable(path: str | os.PathLike[str]) -> None:
    """PermissionRefusedError unless this user may write the file, or make files in the directory, that is at `path`."""
    is_directory = os.path.isdir(path)
    if not os.access(path, os.W_OK | os.X_OK if is_directory else os.W_OK):
        raise PermissionRefusedError(
            f"the {'directory' if is_directory else 'file'} is read-only for this user",
            where=os.fspath(path),
            do="Grant write permission, or mount it read-write",
        )


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, through short writes (EINTR is Python's). OSError; `data` may be half there."""
    written = os.pwrite(fd, data, offset)
    if written == len(data):
        return
    with memoryview(data) as view:  # let go of whatever happens: `data` may be of a pool, which is to be closed then
        while written < len(view):
            with view[written:] as rest:
                more = os.pwrite(fd, rest, offset + written)
            if not more:
                raise OSError(errno.EIO, "a write wrote nothing")
            written += more


def write_zeros(fd: int, offset: int, end: int) -> None:
    """Write zeros from `offset` to `end`. OSError."""
    while offset < end:
        count = min(len(_ZEROS), end - offset)
        write_all(fd, memoryview(_ZEROS)[:count], offset)
        offset += count


def sync_file(path: str | os.PathLike[str]) -> None:
    """fsync a file by its name: not one that SQLite has open in this process, whose locks would go. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: str) -> None:
    """fsync a directory, so that a name made, renamed or removed in it stays so. JournalIOError; then it may not.

    Where nothing may fail but the sync, since a name has changed already: `Directory`."""
    with Directory(path) as directory:
        directory.sync()


class Directory:
    """A directory opened to be synced after a change that is still to come. ExhaustedError or JournalIOError: it is
    not open, and nothing has changed."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            refuse_os_error(error, "a directory cannot be opened to be synced", path)

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    def sync(self) -> None:
        """fsync. JournalIOError: what was made, renamed or removed in it may not stay so."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise JournalIOError(
                f"fsync of a directory failed: {error.strerror}", where=self._path, errno=error.errno
            ) from error


def link_error(path: Path) -> PermissionRefusedError:
    return PermissionRefusedError(
        "this is a symbolic link, and none is followed inside an instance",
        where=str(path),
        do="Put the file or directory itself there (another disk can be mounted there)",
    )
