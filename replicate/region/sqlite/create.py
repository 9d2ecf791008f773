"""Making an empty database, as SQLite itself makes one, but in WAL mode.

Guarantees: nothing that is there is touched; the file's name is durable; after a failure there is no file.
Leaves to others: what the database is for.
"""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import apsw

from replicate.errors import AlreadyExistsError, NotFoundError
from replicate.region.sqlite.open import COMPANIONS, to_wal, translate
from replicate.system.files import sync_directory
from replicate.system.os_errors import io_error


def plain_connection(path: Path) -> apsw.Connection:
    """SQLite without us, at the file `path`: what benchmarks compare us with."""
    return apsw.Connection(str(path))


def versions() -> dict[str, str]:
    """Of the library, and of the SQLite in it."""
    return {"apsw": apsw.apsw_version(), "sqlite": apsw.sqlite_lib_version()}


def create_database(path: Path) -> None:
    """Make an empty database in WAL mode, as SQLite itself makes one, where nothing is; its name is durable.

    AlreadyExistsError (something is there, or a part of a database that was), NotFoundError (no such directory),
    PermissionRefusedError, DiskFullError, JournalIOError. Nothing is there after any but the first.
    """
    name, is_made = os.fspath(path), False
    try:
        for ending in COMPANIONS:
            if os.path.lexists(name + ending):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name + ending)
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        is_made = True
        connection = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            to_wal(connection, where=name)
        finally:
            connection.close(True)
        sync_directory(os.path.dirname(name))
    except FileExistsError as error:
        raise AlreadyExistsError("something is there already", where=str(error.filename)) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        parent = os.path.dirname(name)
        do = f"Make it: mkdir -p {shlex.quote(parent)}"
        raise NotFoundError("there is no such directory", where=parent, do=do) from error
    except BaseException as error:
        if is_made:
            os.unlink(name)
        if isinstance(error, apsw.Error):
            raise translate(error, where=name) from error
        if isinstance(error, OSError):
            raise io_error(error, "the database could not be made", name) from error
        raise
