"""A region as it stands at one moment: a read transaction that is held, and page-by-page copies made from it.

Guarantees: everything read through a snapshot is of one moment, however long it takes and whatever is written
meanwhile; a copy has the same pages (so hidden rowids are the same too: never VACUUM INTO, which renumbers), synced.
Leaves to others: which sequence number the moment has (replicate/door/snapshot.py), and what the copy is for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw
from msgspec import Struct

from replicate.errors import AlreadyExistsError, BusyError
from replicate.region.sqlite.bookkeeping import is_region
from replicate.region.sqlite.open import open_region, translate
from replicate.region.sqlite.open_region import OpenedFile
from replicate.region.sqlite.schema import recorded_definitions
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.virtual_tables import MODULES, shadow_tables, virtual_tables
from replicate.system.files import sync_directory, sync_file
from replicate.system.os_errors import io_error

PAGES_PER_STEP: Final = 1024
"""Pages copied between two calls of the progress function: about 4 MiB."""
SCHEMA_PAGE_READ: Final = "SELECT count(*) FROM main.sqlite_schema"

Progress = Callable[[int, int], None]
"""Called with pages done and pages in all; whatever it raises ends the copy."""


def begin_read(connection: apsw.Connection) -> None:
    """Open a read transaction now (BEGIN alone waits for the first SELECT). Raises BusyError, RegionDamagedError."""
    try:
        connection.execute("BEGIN")
        connection.execute(SCHEMA_PAGE_READ).fetchall()
    except apsw.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise translate(error, where=connection.filename) from error


def end_read(connection: apsw.Connection) -> None:
    """Give the moment up, so that checkpoints can pass it."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


class OpenRegions(Struct):
    """Read-only connections, one for each region by name, that begin and end their read transactions together."""

    connections: dict[str, apsw.Connection]
    opened: dict[str, OpenedFile]

    @classmethod
    def open(cls, paths: Mapping[str, tuple[str | os.PathLike[str], bytes]]) -> OpenRegions:
        """Connections to every region, of (path, UUID); none stays open when one of them cannot be had."""
        made = cls({}, {})
        try:
            for name, (path, region) in paths.items():
                made.connections[name] = connection = open_region(path, readonly=True)
                made.opened[name] = OpenedFile(connection, path, region)
        except BaseException:
            made.close()
            raise
        return made

    def begin(self) -> None:
        """Hold the present moment of every region."""
        try:
            for connection in self.connections.values():
                begin_read(connection)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Let the moment go; the connections stay."""
        for connection in self.connections.values():
            end_read(connection)

    def close(self) -> None:
        """Let the moment go and close. May be called twice."""
        for connection in self.connections.values():
            connection.close(True)
        self.connections.clear()


def size_of(source: apsw.Connection) -> tuple[int, int]:
    """Bytes in a page and number of pages of the moment that `source` holds. Raises what SQLite says, translated."""
    try:
        return int(source.pragma("page_size")), int(source.pragma("page_count"))
    except apsw.Error as error:
        raise translate(error, where=source.filename) from error


def copy_pages(source: apsw.Connection, destination: Path, progress: Progress | None = None) -> int:
    """Copy the moment that `source` holds into a new file at `destination`, synced; returns the number of pages.

    Raises AlreadyExistsError when something is there, BusyError when the source is locked exclusively, DiskFullError
    and what else SQLite says. After a failure no file is left at `destination`.
    """
    if destination.exists():
        raise AlreadyExistsError("a file is at the place of the copy", where=str(destination))
    target: apsw.Connection | None = None
    try:
        target = apsw.Connection(str(destination))
        os.chmod(destination, 0o600)
        target.pragma("synchronous", "FULL")
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                try:
                    backup.step(PAGES_PER_STEP)
                except (apsw.BusyError, apsw.LockedError) as error:
                    raise BusyError("the region is locked", where=source.filename, do="Try again") from error
                if progress is not None:
                    progress(backup.page_count - backup.remaining, backup.page_count)
            pages = int(backup.page_count)
        target.close()
        target = None
        _sync(destination)
    except BaseException as error:
        if target is not None:
            target.close(True)
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{destination}{suffix}").unlink(missing_ok=True)
        if isinstance(error, apsw.Error):
            raise translate(error, where=str(destination)) from error
        raise
    return pages


def _sync(path: Path) -> None:
    """The file and its directory entry. Nobody has the copy open yet, so a descriptor of our own hurts no lock."""
    try:
        sync_file(path)
    except OSError as error:
        raise io_error(error, "the copy could not be synced", str(path)) from error
    sync_directory(os.fspath(path.parent))


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[apsw.Connection]:
    """A connection in a read transaction, for a moment, without the application's functions. Raises what opening a
    region, and reading it, raises."""
    connection = open_region(path, readonly=True, bare=True)
    try:
        begin_read(connection)
        yield connection
    except apsw.Error as error:
        raise translate(error, where=os.fspath(path)) from error
    finally:
        connection.close(True)


def table_with_rows(connection: apsw.Connection) -> str:
    """The first replicated table that has a row; "" for none. A virtual table has those that its user gave it."""
    if not is_region(connection):
        return ""
    shadows = shadow_tables(connection)  # they have rows where their virtual table has none
    written = [name for name, module in virtual_tables(connection).items() if module in MODULES]
    names = [one.table for one in recorded_definitions(connection) if one.table not in shadows]
    for name in [*names, *written]:
        if connection.execute(f"SELECT 1 FROM {quote(name)} LIMIT 1").get is not None:
            return name
    return ""
