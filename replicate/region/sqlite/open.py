"""Opening a region: an existing SQLite file in WAL mode, and what can be wrong with it.

Guarantees: `open_region` never creates a file, and never hands out a connection to something that is not a database,
not writable (where writing was asked for) or not in WAL mode; each refusal is one named error. `install` and `remove`
are one transaction each: bookkeeping and guards are all there or not at all; what the user made stays as it was.
Leaves to others: journals, transactions, and what the tables mean (bookkeeping.py, schema.py).

Measured trap: POSIX locks belong to the process, so opening and closing a live region file by any other means than this
library drops the locks of all its connections. Nothing here opens the file itself; facts come from `os.lstat`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import apsw

from replicate.errors import (
    AlreadyExistsError,
    BusyError,
    DiskFullError,
    InternalError,
    JournalIOError,
    NotFoundError,
    NotSupportedError,
    PermissionRefusedError,
    RegionDamagedError,
    RegionReplacedError,
    ReplicateError,
)
from replicate.limits import FORMAT_VERSION, OPENING_S, PARTITION_DEFAULT
from replicate.region.protocol import FileFacts
from replicate.region.sqlite import schema
from replicate.region.sqlite.bookkeeping import (
    FIND_IT,
    PUT_BACK,
    RegionIdentity,
    check_region_identity,
    clear_ring,
    drop_tables,
    is_region,
    make_tables,
    read_identity,
    region_seqno,
    store_schema_version,
    write_identity,
)
from replicate.region.sqlite.functions import bring
from replicate.region.sqlite.guards import install_guards, register_guard, remove_guards
from replicate.region.sqlite.idle_region import write_held
from replicate.region.sqlite.read_progress import Reading
from replicate.system.files import check_writable
from replicate.system.os_errors import exhausted, lacking_descriptors

Told = Callable[[str, int, int], None]
"""Called with what is done, how many bytes of it, and how many there are."""
CHECK_PASSES: Final = 2
CHECK_STEPS: Final = 1000
"""Steps of SQLite's machine (or pages) after which a check says how far it is."""
BUSY_TIMEOUT_MS: Final = 250
"""Only foreign clients and checkpoints are waited for by SQLite itself: our own writers queue at the region lock."""

WAL_AUTOCHECKPOINT_PAGES: Final = 1000
"""SQLite's own. Never fewer, however large the pages are."""
WAL_WRITER_BYTES: Final = 16 * 1024 * 1024
"""What an application's connection leaves in the WAL. Our row in the ring makes two pages of a commit that had one, so
at SQLite's 4 MiB it would wait for a checkpoint, inside of COMMIT, twice as often as without us: single rows a second
at 4, 8 and 16 MiB: 18.2, 19.3 and 20.3 thousand (measured)."""
WAL_APPLIER_BYTES: Final = 64 * 1024 * 1024
"""An applier writes that much WAL between two checkpoints. Each takes three syncs, which everything waits for, and
copies every page that was changed in between, however often it was: with 4 MiB random updates cost half as much again
in the kernel, and a backlog of inserts waits for the disk sixteen times as often (measured)."""
STATEMENTS_CACHED: Final = 128
"""At each execution, and for each row of an `executemany`, APSW looks through them one by one, from the first, and puts
the statement back after the one before: of 512 each row of an applier's updates takes a sixth longer (measured)."""


COMPANIONS: Final = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, by name."""


def file_facts(
    path: str | os.PathLike[str], *, do: str = "Name an existing SQLite database; none is created here"
) -> FileFacts:
    """Device and inode of the file at `path`, without opening it. `do`: what to do if it is not there.

    Raises NotFoundError (nothing there) and PermissionRefusedError (a symbolic link, no regular file, not to be seen).
    """
    name = os.fspath(path)
    try:
        found = os.lstat(name)
    except FileNotFoundError:
        raise NotFoundError("there is no such database file", where=name, do=do) from None
    except NotADirectoryError:
        raise NotFoundError("a part of the path is not a directory", where=name, do=do) from None
    except PermissionError as error:
        raise PermissionRefusedError(f"the file cannot be looked at: {error.strerror}", where=name) from None
    if stat.S_ISLNK(found.st_mode):
        raise PermissionRefusedError(
            "the path is a symbolic link", where=name, do=f"Name the file itself: {os.path.realpath(name)}"
        )
    if not stat.S_ISREG(found.st_mode):
        raise PermissionRefusedError("the path is not a regular file", where=name, do=do)
    return FileFacts(found.st_dev, found.st_ino)


def region_facts(path: str | os.PathLike[str]) -> FileFacts:
    """`file_facts` of a region's file. Taken before it is opened, they are never those of one that came later."""
    return file_facts(path, do=FIND_IT)


def check_same_file(path: str, opened: FileFacts, *, region: str, way_out: str) -> None:
    """RegionReplacedError unless the file at `path` is still the one that `opened` are the facts of. `way_out`: what to
    do if the right one cannot be put back (Instance.way_out).

    -wal and -shm are found by name, the database by our descriptor: another file under the name is its ruin.
    """
    how = "was replaced while it was open"
    try:
        found = os.stat(path)
        if found.st_ino == opened.inode and found.st_dev == opened.device:
            return
    except OSError as error:
        how = f"is gone ({error.strerror})"
    raise RegionReplacedError(
        f"the file of region {region} {how}",
        where=path,
        do="Stop every process of this instance, and put the right file, with its -wal, back; or begin again: "
        + way_out,
    )


def translate(error: apsw.Error, *, where: str) -> ReplicateError:
    """Our error for one of SQLite's; what has no class of its own becomes JournalIOError, which stops the process."""
    text = str(error) or type(error).__name__
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return BusyError(f"the database is locked by another client: {text}", where=where, do="Close it, or try again")
    if isinstance(error, apsw.FullError):
        return DiskFullError(f"the database cannot grow: {text}", where=where, do="Free space on its file system")
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError):
        return PermissionRefusedError(f"the database cannot be written: {text}", where=where)
    extended = getattr(error, "extendedresult", 0)
    if isinstance(error, apsw.NoMemError) or extended == apsw.SQLITE_IOERR_NOMEM:
        return exhausted(OSError(), "SQLite has given up", where)  # without a number it is memory
    if extended == apsw.SQLITE_IOERR_SHMMAP:  # mmap has failed: no room in the address space, or too many maps
        return exhausted(OSError(), "the -shm beside the database cannot be mapped", where)
    if isinstance(error, apsw.NotADBError):
        return RegionDamagedError("the file is not an SQLite database", where=where, do="Name an SQLite database file")
    if isinstance(error, apsw.CorruptError):
        return RegionDamagedError(
            f"the database is damaged: {text}", where=where, do="Restore it, or seed it from the other site"
        )
    if isinstance(error, apsw.CantOpenError):
        if lacking := lacking_descriptors():
            return exhausted(lacking, "the database cannot be opened", where)
        do = "The file, its -wal and -shm companions and their directory must be readable and writable"
        return PermissionRefusedError(f"the database cannot be opened: {text}", where=where, do=do)
    if extended == apsw.SQLITE_IOERR_SHMSIZE:  # ENOSPC, as a rule; SQLite says "disk I/O error"
        text = f"{text}: the -shm beside the database cannot grow"
        return JournalIOError(f"SQLite failed: {text}", where=where, do="Free space on its file system, then try again")
    return JournalIOError(f"SQLite failed: {text}", where=where)


def errno_of(connection: apsw.Connection, error: apsw.Error) -> int:
    """The errno of an error of SQLite's that `connection` has just met; EIO where there is none."""
    if isinstance(error, apsw.FullError):
        return errno.ENOSPC
    if isinstance(error, apsw.IOError | apsw.CantOpenError):
        return connection.system_errno or errno.EIO
    return errno.EIO


def check_region_writable(path: str | os.PathLike[str]) -> None:
    """PermissionRefusedError unless this user may write the file, and make its -wal and -shm beside it."""
    check_writable(path)
    check_writable(os.path.dirname(os.path.abspath(path)))


def open_region(
    path: str | os.PathLike[str],
    *,
    readonly: bool = False,
    applier: bool = False,
    plain: bool = False,
    bare: bool = False,
    region: bytes | None = None,
    busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    opening_s: float = OPENING_S,
) -> apsw.Connection:
    """A connection to the region's file, set up the one way that regions are.

    `readonly` connections never write. A writer may pass the guards and runs synchronous=NORMAL. `applier` is for rows
    that already happened elsewhere: triggers and foreign keys off, defensive mode on, a larger statement cache.
    `plain` also takes a database that is not in WAL mode (for `install`, which converts it). `bare`: without the
    application's functions, for what reads nothing but our bookkeeping. `region`: the UUID of the region registered at
    this path, for what an error says. `busy_timeout_ms`: how long statements wait for locks; opening waits `opening_s`.

    Raises NotFoundError, PermissionRefusedError, RegionDamagedError (no database, or a region that is not in WAL mode),
    RegionReplacedError (not in WAL mode, and another region or none), BusyError, ConfigurationError (`region.init`).
    No connection stays open after a failure.
    """
    name = os.fspath(path)
    if plain:
        file_facts(name)
    else:
        region_facts(name)
    if readonly:
        if not os.access(name, os.R_OK):
            raise PermissionRefusedError("the file is not readable for this user", where=name)
    else:
        check_region_writable(name)
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
    flags |= apsw.SQLITE_OPEN_NOFOLLOW if _without_links(name) else 0
    flags |= 0 if name.startswith("file:") else apsw.SQLITE_OPEN_URI  # for what is attached (dbapi/attachments.py)
    connection: apsw.Connection | None = None
    try:
        connection = apsw.Connection(name, flags=flags, statementcachesize=STATEMENTS_CACHED)
        connection.set_busy_timeout(int(1000 * opening_s))
        # What is refused is left as it is: the last one out would take the WAL over.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        _configure(connection, name, readonly=readonly, applier=applier, plain=plain, region=region)
        if not bare:
            bring(connection, name)
        connection.set_busy_timeout(busy_timeout_ms)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except BaseException as error:
        if connection is not None:
            connection.close(True)
        if isinstance(error, apsw.Error):
            raise translate(error, where=name) from error
        raise
    return connection


def _without_links(name: str) -> bool:
    """SQLite's own no-follow flag refuses links anywhere in the path; we refuse only the last component's."""
    return os.path.realpath(name) == os.path.abspath(name)


def _configure(
    connection: apsw.Connection, name: str, *, readonly: bool, applier: bool, plain: bool, region: bytes | None
) -> None:
    mode = str(connection.pragma("journal_mode"))
    connection.pragma("schema_version")  # the first read: a non-database shows itself here
    if not readonly and connection.readonly("main"):
        raise PermissionRefusedError("the database opened read-only", where=name)
    if mode != "wal" and not plain:
        if region is not None:
            check_region_identity(connection, region=region, where=name)
        else:
            read_identity(connection, where=name)
        raise RegionDamagedError(
            f"the database is in journal mode {mode}; a region runs in WAL mode, so another client has changed it",
            where=name,
            do="Close all clients and run: PRAGMA journal_mode=WAL",
        )
    register_guard(connection)  # for readers too: a write should say "read-only", not that connect() is required
    if readonly:
        connection.pragma("query_only", True)
        return
    connection.pragma("synchronous", "NORMAL")
    wal_bytes = WAL_APPLIER_BYTES if applier else WAL_WRITER_BYTES
    connection.wal_autocheckpoint(max(WAL_AUTOCHECKPOINT_PAGES, wal_bytes // int(connection.pragma("page_size"))))
    if applier:
        make_applier(connection)


def make_applier(connection: apsw.Connection) -> None:
    """Set a connection up for rows that already happened elsewhere: no triggers, foreign keys or CHECKs."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 0)
    connection.pragma("ignore_check_constraints", True)  # they were checked where the rows were made


def check_encoding(connection: apsw.Connection, *, where: str) -> None:
    """NotSupportedError unless the database stores text as UTF-8."""
    encoding = str(connection.pragma("encoding"))
    if encoding != "UTF-8":
        raise NotSupportedError(
            f"the database's text encoding is {encoding}; only UTF-8 can be replicated",
            where=where,
            do="Dump it and load the dump into a new database with PRAGMA encoding='UTF-8'",
            encoding=encoding,
        )


def to_wal(connection: apsw.Connection, *, where: str) -> str:
    """Convert to WAL mode; returns the journal mode before.

    Raises BusyError while another client has the database open in rollback-journal mode, NotSupportedError where the
    file system cannot share memory. Nothing has changed after a failure.
    """
    before = str(connection.pragma("journal_mode"))
    try:
        after = str(connection.pragma("journal_mode", "wal"))
    except (apsw.BusyError, apsw.LockedError):
        raise BusyError(
            f"another client uses the database in journal mode {before}; it cannot be converted to WAL now",
            where=where,
            do="Close the other client and try again",
        ) from None
    if after != "wal":
        raise NotSupportedError(
            f"the database stays in journal mode {after}: WAL mode is not possible here",
            where=where,
            do="Put the file on a local file system",
        )
    return before


def install(
    connection: apsw.Connection,
    *,
    network: bytes,
    instance: bytes,
    region: bytes,
    name: str,
    check: bool = True,
    told: Told | None = None,
    partition: int = PARTITION_DEFAULT,
) -> None:
    """Make the database of a `plain` connection a region, in place and in one transaction.

    Converts to WAL mode, creates the bookkeeping tables, records the table definitions and puts guards on every user
    table. `partition`: of its tables. With `check` SQLite first reads through the whole file (quick_check), so that
    damage is not replicated, and `told` is told how far it is.

    Raises AlreadyExistsError (a region already), NotSupportedError (something that cannot be replicated exactly, by
    name), RegionDamagedError, BusyError, DiskFullError. After a failure the schema and the journal mode are as before.
    """
    where = connection.filename
    if connection.in_transaction:
        raise InternalError("install needs a connection without an open transaction", where=where)
    if is_region(connection):
        identity = read_identity(connection, where=where)
        raise AlreadyExistsError(
            f"the database is a region already: {identity.name} of instance {identity.instance.hex()}",
            where=where,
            do="Release it there: replicate -i THAT_ONE region release NAME; or, if that instance is gone: "
            "replicate region plain PATH",
        )
    check_encoding(connection, where=where)
    schema.check_supported(connection, where=where)
    if check:
        check_undamaged(connection, where=where, told=told)
    facts = file_facts(where)
    before = to_wal(connection, where=where)
    identity = RegionIdentity(FORMAT_VERSION, network, instance, region, name, facts.device, facts.inode, before)
    try:
        with write_transaction(connection, where):
            make_tables(connection)
            write_identity(connection, identity)
            schema.record_definitions(connection, region=name, default=partition)
            install_guards(connection, schema.guarded_tables(connection))
            store_schema_version(connection)
    except BaseException:
        _restore_journal_mode(connection, before)
        raise


def remove(connection: apsw.Connection) -> None:
    """Make a region plain SQLite again, in one transaction: drops guards and bookkeeping, nothing of the user's.

    The journal mode from before `install` comes back if no other client has the file open. Raises BusyError and what
    SQLite says; after a failure the region is as it was.
    """
    where = connection.filename
    identity = read_identity(connection, where=where)
    with write_transaction(connection, where):
        remove_guards(connection)
        drop_tables(connection)
    _restore_journal_mode(connection, identity.journal_mode)


def adopt_copy(connection: apsw.Connection, *, network: bytes, instance: bytes, region: bytes, name: str) -> None:
    """Make a page-by-page copy of another instance's region the region of this one, in one transaction.

    The copy keeps its tables, guards and versions; identity and ring become this instance's, checkpoint records are
    left for the caller, who alone knows the position of the copy (`replace_scr`). Raises as `install` does.
    """
    where = connection.filename
    before = read_identity(connection, where=where)
    facts = file_facts(where)
    to_wal(connection, where=where)
    identity = RegionIdentity(
        FORMAT_VERSION, network, instance, region, name, facts.device, facts.inode, before.journal_mode
    )
    with write_transaction(connection, where):
        write_identity(connection, identity)
        clear_ring(connection)
        schema.record_definitions(connection, region=name)
        install_guards(connection, schema.guarded_tables(connection))
        store_schema_version(connection)


def note_held(path: str | os.PathLike[str], *, region: bytes, last_seqno: int, below: int) -> None:
    """Have a region say itself that it lacks nothing of the journal below `below`. The caller holds its lock, and knows
    that the region held transactions up to `last_seqno`.

    Raises RegionReplacedError when it does not hold these any more (an old copy would be passed off as complete),
    BusyError and what opening a region raises; nothing has changed then.
    """
    name = os.fspath(path)
    connection = open_region(name, region=region)
    try:
        with write_transaction(connection, name):
            check_region_identity(connection, region=region, where=name)
            held = region_seqno(connection)
            if held < last_seqno:
                raise RegionReplacedError(
                    f"the region holds transactions up to {held}, it held {last_seqno} before: this is an old copy",
                    where=name,
                    do=PUT_BACK,
                )
            write_held(connection, below)
    finally:
        connection.close(True)


def check_undamaged(connection: apsw.Connection, *, where: str, told: Told | None = None) -> None:
    """SQLite's quick_check over the whole file; RegionDamagedError with its first finding. Slow in large files: `told`
    is told how far it is.

    NotSupportedError where it needs a function or collation of the application that is not there (in a CHECK, say).
    """
    try:
        with _checking(connection, told):
            finding = connection.execute("PRAGMA main.quick_check(1)").get
    except apsw.SQLError as error:
        raise NotSupportedError(
            f"the database cannot be checked without the application's own functions or collations: {error}",
            where=where,
            do=schema.SET_INIT,
        ) from error
    if finding != "ok":
        raise RegionDamagedError(
            f"the database is damaged: {finding}", where=where, do="Restore it from a backup, or mend it with .recover"
        )


@contextmanager
def _checking(connection: apsw.Connection, told: Told | None) -> Iterator[None]:
    """Tell how far a quick_check is, which reads a file twice: its pages, then its rows."""
    if told is None:
        yield
        return
    reading = Reading(connection, passes=CHECK_PASSES)
    # The check is a read transaction. Without a WAL nobody can commit beside one.
    held = "writers go on" if str(connection.pragma("journal_mode")) == "wal" else "writers wait"

    def tell() -> bool:
        told(f"checking ({held})", reading.done_bytes, reading.whole_bytes)
        return False

    connection.set_progress_handler(tell, CHECK_STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None)


@contextmanager
def write_transaction(connection: apsw.Connection, where: str) -> Iterator[None]:
    """One write transaction: rolled back on any exception, SQLite's errors translated."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except apsw.Error as error:
        raise translate(error, where=where) from error


def _restore_journal_mode(connection: apsw.Connection, mode: str) -> None:
    if mode not in ("delete", "truncate", "persist"):
        return
    with suppress(apsw.BusyError, apsw.LockedError):  # others have it open: WAL mode is plain SQLite too
        connection.pragma("journal_mode", mode)
