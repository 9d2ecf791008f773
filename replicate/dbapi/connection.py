"""PEP 249 connections to a region, as CPython 3.11's sqlite3 has them.

Guarantees: code written for sqlite3.Connection works; what would break replication is refused by name; a connection
is used by the process that opened it, and by one thread unless `check_same_thread` is off.
Refuses to know: how a transaction is committed (dbapi/transaction.py), how values are converted (dbapi/row.py).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import apsw

from replicate.database.names import fold, is_own
from replicate.database.statements import classify
from replicate.dbapi import errors as pep249
from replicate.dbapi.attach import Neighbours
from replicate.dbapi.cursor import Cursor, cursor_of
from replicate.dbapi.dump import dump
from replicate.dbapi.errors import ProgrammingError, surface
from replicate.dbapi.functions import Callbacks
from replicate.dbapi.pending import prepare
from replicate.dbapi.transaction import Session, Stage, Transactions
from replicate.errors import ForkedError
from replicate.errors import NotSupportedError as NotReplicable

if TYPE_CHECKING:
    from replicate.journal.spool import Spool

_forks = 0
"""How often this process's ancestors forked since the module was loaded: a connection of another count is not ours."""


_living: Final[weakref.WeakValueDictionary[int, Connection]] = weakref.WeakValueDictionary()
"""By identity: a subclass may compare as it likes."""


def _count_fork() -> None:
    global _forks
    _forks += 1
    for connection in list(_living.values()):
        connection._owner = None


os.register_at_fork(after_in_child=_count_fork)

_UNBORN: Final = -1
"""The number of forks before which no connection was opened: that of one whose `__init__` was not called."""
_LEVELS: Final = ("", "DEFERRED", "IMMEDIATE", "EXCLUSIVE")


class Opened(Protocol):
    """What opening gives a connection: a session of the door, and what else it needs of the instance."""

    region: str

    @property
    def session(self) -> Session: ...
    @property
    def busy_timeout_s(self) -> float: ...
    @property
    def neighbours(self) -> Neighbours | None: ...
    def new_spool(self) -> Spool: ...
    def wait_durable(self, seqno: int) -> None: ...
    def close(self) -> None: ...


def _open_region(instance: str | os.PathLike[str], region: str, timeout_s: float | None) -> Opened:
    from replicate.dbapi.open import open_region  # not needed where another opener is given

    return open_region(instance, region, timeout_s)


class Connection(Callbacks):
    """A connection to one region. Made by `replicate.connect()`; may be subclassed and given as `factory`."""

    Warning = pep249.Warning
    Error = pep249.Error
    InterfaceError = pep249.InterfaceError
    DatabaseError = pep249.DatabaseError
    DataError = pep249.DataError
    OperationalError = pep249.OperationalError
    IntegrityError = pep249.IntegrityError
    InternalError = pep249.InternalError
    ProgrammingError = pep249.ProgrammingError
    NotSupportedError = pep249.NotSupportedError

    # Not by a `__getattr__`: with one, CPython 3.11 looks up every attribute of every connection the slow way.
    _opened: Opened | None = None
    _forks = _UNBORN
    _owner: int | None = None
    """The one thread that may use it, in this process, while it is open: whoever is that needs no `_check`. None: ask
    `_check`, which knows."""

    def __init__(
        self,
        instance: str | os.PathLike[str],
        region: str = "main",
        timeout: float | None = None,
        detect_types: int = 0,
        isolation_level: str | None = "",
        check_same_thread: bool = True,
        cached_statements: int = 128,
        uri: bool = False,
        *,
        opener: Callable[[str | os.PathLike[str], str], Opened] | None = None,
    ) -> None:
        """Open the region. `timeout` in seconds (None: as configured). `cached_statements` and `uri` have no effect.

        Raises OperationalError and DatabaseError (each also a ReplicateError that names the cause); nothing is open
        then.
        """
        if self._opened is not None:
            self.close()  # called again: sqlite3 opens anew
        self._opened = self._owner = None
        self._trace = None
        self._forks, self._thread = _forks, get_ident()
        self._check_thread = bool(check_same_thread)
        self._detect_types = detect_types
        self._isolation_level: str | None = None
        self.row_factory: Any = None
        self.text_factory: Any = str
        self.isolation_level = isolation_level
        try:
            opened = opener(instance, region) if opener else _open_region(instance, region, timeout)
        except BaseException as error:
            raise surface(error) from error
        try:
            self._apsw = opened.session.connection
            self._sql_bytes_max = self._apsw.limit(apsw.SQLITE_LIMIT_SQL_LENGTH)
            self._apsw.config(apsw.SQLITE_DBCONFIG_DQS_DML, 1)
            self._apsw.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 1)
            timeout_s = opened.busy_timeout_s if timeout is None else timeout
            self._transactions = Transactions(opened.session, opened.region, opened.new_spool, timeout_s)
            self._transactions.begin_text = f"BEGIN {self._isolation_level}"
            self._transactions.neighbours = opened.neighbours
            self._authorize_by(None)
        except BaseException:
            opened.session.close()
            opened.close()
            raise
        self._opened = opened
        _living[id(self)] = self
        if self._check_thread:
            self._owner = self._thread

    # Transactions.

    def commit(self) -> None:
        """Commit through the door. Without an open transaction nothing happens."""
        if self._owner != get_ident():
            self._check()
        transactions = self._transactions
        try:
            if transactions.tell is None:
                transactions.commit()
            else:
                transactions.commit_told()
        except BaseException as error:
            shown = surface(error)
            if shown is error:
                raise
            raise shown from error

    def rollback(self) -> None:
        """Roll back. Without an open transaction nothing happens."""
        self._check()
        self._run(self._transactions.rollback_told)

    def close(self) -> None:
        """Roll back what is open and close. May be called twice."""
        self._check_place()
        self._owner = None
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                self._run(self._transactions.close)
            finally:  # after an interrupt, too: nobody else knows of it any more
                opened.close()

    def __enter__(self) -> Connection:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if kind is None:
            try:
                self.commit()
            except BaseException:
                self.rollback()
                raise
        else:
            self.rollback()
        return False

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        self._check_open()
        return self._transactions.stage is not Stage.NONE

    @property
    def total_changes(self) -> int:
        """Rows changed by the application since the connection was opened."""
        self._check_open()
        return self._apsw.total_changes() - self._transactions.own_changes

    @property
    def isolation_level(self) -> str | None:
        """None: every statement is its own transaction. Else a data change begins one (always as BEGIN IMMEDIATE
        does)."""
        self._check_open()
        return self._isolation_level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        if level is not None:
            if not isinstance(level, str):
                raise TypeError("isolation_level must be str or None")
            if str.upper(level) not in _LEVELS:
                raise ValueError("isolation_level string must be '', 'DEFERRED', 'IMMEDIATE', or 'EXCLUSIVE'")
            level = str.upper(level)
        elif self._opened is not None:
            self.commit()
        self._isolation_level = level
        if self._opened is not None:
            self._transactions.begin_text = f"BEGIN {level}"

    @isolation_level.deleter
    def isolation_level(self) -> None:
        raise AttributeError("cannot delete attribute")

    # Beyond sqlite3.

    @property
    def last_seqno(self) -> int:
        """The sequence number of this connection's last commit; 0 before the first."""
        if self._forks == _UNBORN:
            self._check()
        return self._transactions.last_seqno

    def wait_durable(self, seqno: int | None = None) -> None:
        """Return once transaction `seqno` (else this connection's last one) is on the journal's disk."""
        self._check()
        assert self._opened is not None
        opened, number = self._opened, self.last_seqno if seqno is None else seqno
        self._run(lambda: opened.wait_durable(number))

    def attach(self, region: str, name: str = "") -> None:
        """`ATTACH` another region of the instance, wherever its file is, under `name` (else its own). Outside of a
        transaction.

        Raises OperationalError if there is no such region, and as ATTACH does; nothing is attached then.
        """
        self._check()
        assert self._opened is not None
        neighbours = self._opened.neighbours
        try:
            path = region if neighbours is None else neighbours.path_of(region)
        except BaseException as error:
            raise surface(error) from error
        self.execute("ATTACH ? AS ?", (path, name or region))

    # Statements.

    def cursor(self, factory: Callable[[Connection], Any] = Cursor) -> Any:
        """A new cursor, made by `factory`."""
        self._check()
        made = factory(self)
        if not issubclass(type(made), Cursor):
            raise TypeError(f"factory must return a cursor, not {type(made).__name__}")
        if self.row_factory is not None:
            made.row_factory = self.row_factory
        return made

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        """`cursor().execute(…)`."""
        if self._owner != get_ident():
            self._check()
        return cursor_of(self).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Cursor:
        """`cursor().executemany(…)`."""
        self._check()
        made = Cursor(self)
        return made.executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> Cursor:
        """`cursor().executescript(…)`."""
        self._check()
        made = Cursor(self)
        return made.executescript(sql_script)

    def __call__(self, *arguments: Any) -> Any:
        """sqlite3's prepared statement: checked, and given back as its text."""
        self._check()
        if len(arguments) != 1:
            raise TypeError(f"expected 1 argument, got {len(arguments)}")
        sql = arguments[0]
        if not isinstance(sql, str):
            raise TypeError(f"argument 1 must be str, not {type(sql).__name__}")
        sql.encode()
        if "\0" in sql:
            raise ProgrammingError("the query contains a null character")
        if len(sql) > self._sql_bytes_max:
            raise pep249.DataError("query string is too large")
        if classify(sql).several:
            raise ProgrammingError("You can only execute one statement at a time.")
        self._run(lambda: prepare(self._apsw, sql))
        return sql

    def interrupt(self) -> None:
        """Interrupt the running statement; may be called from any thread. A commit at the door is not interrupted."""
        self._check_open()
        if not self._transactions.inside:
            self._apsw.interrupt()

    # Copies.

    def iterdump(self) -> Iterator[str]:
        """The region as SQL text, without replication's bookkeeping."""
        self._check()
        return dump(self)

    def backup(
        self,
        target: Any,
        *,
        pages: int = -1,
        progress: Callable[[int, int, int], object] | None = None,
        name: str = "main",
        sleep: float = 0.250,
    ) -> None:
        """Copy the region into a connection of sqlite3 (bookkeeping and guards included), by way of a temporary
        file."""
        self._check()
        if progress is not None and not callable(progress):
            raise TypeError("progress argument must be a callable")
        if not isinstance(target, sqlite3.Connection):
            raise TypeError(f"backup() argument 1 must be sqlite3.Connection, not {type(target).__name__}")
        with tempfile.TemporaryDirectory(prefix="dualsite-backup-") as directory:
            path = Path(directory) / "copy"
            self._run(lambda: self._copy_to(str(path), name))
            with contextlib.closing(sqlite3.connect(path)) as copy:
                copy.backup(target, pages=pages, progress=progress, sleep=sleep)

    def _copy_to(self, path: str, name: str) -> None:
        copy = apsw.Connection(path)
        try:
            with copy.backup("main", self._apsw, name) as running:
                while not running.done:
                    running.step(-1)
            copy.pragma("journal_mode", "delete")  # one file, so that the other library finds all of it
        finally:
            copy.close()

    def serialize(self, *, name: str = "main") -> bytes:
        """The region's pages as bytes."""
        self._check()
        try:
            return self._apsw.serialize(name)
        except apsw.Error as error:
            raise surface(error) from error

    def deserialize(self, data: Any, /, *, name: str = "main") -> None:
        """Refused: the region's content would be replaced without the door."""
        self._check()
        raise surface(NotReplicable("deserialize() would replace the region behind the commit door", where=name))

    def blobopen(self, table: str, column: str, row: int, /, *, readonly: bool = False, name: str = "main") -> Any:
        """A BLOB to be read and written in place. Outside of a transaction it begins one, which its `close` commits."""
        self._check()
        from replicate.dbapi.blob import Blob, refuse_write

        check = end = None
        try:
            if readonly:
                check = refuse_write
            elif self._transactions.is_region(fold(name)):
                if is_own(table):
                    raise NotReplicable(f"{table} belongs to replication's bookkeeping", do="Leave it alone")
                check, end = self._transactions.write_blob()
            return Blob(self, self._apsw.blob_open(name, table, column, row, not readonly), check, end)
        except BaseException as error:
            if end is not None:
                end()  # nothing was written: this ends the transaction if it began with us
            raise surface(error) from error

    # Limits and extensions.

    def getlimit(self, category: int, /) -> int:
        """One of SQLite's run-time limits."""
        return self.setlimit(category, -1)

    def setlimit(self, category: int, limit: int, /) -> int:
        """Set one of SQLite's run-time limits; returns it as it was."""
        self._check()
        before = self._apsw.limit(category) if 0 <= category <= apsw.SQLITE_LIMIT_WORKER_THREADS else -1
        if before < 0:
            raise ProgrammingError("'category' is out of bounds")
        if limit >= 0:
            self._apsw.limit(category, limit)
            self._sql_bytes_max = self._apsw.limit(apsw.SQLITE_LIMIT_SQL_LENGTH)
        return before

    def enable_load_extension(self, enable: bool, /) -> None:
        """Allow or forbid `load_extension`."""
        self._check()
        self._apsw.enable_load_extension(bool(enable))

    def load_extension(self, name: str, /) -> None:
        """Load an extension library of SQLite."""
        self._check()
        try:
            self._apsw.load_extension(name)
        except apsw.Error as error:
            raise pep249.OperationalError(str(error)) from error

    # Helpers.

    def _open(self) -> apsw.Connection:
        self._check()
        return self._apsw

    def _check(self) -> None:
        """ProgrammingError unless this connection is open, and may be used by this thread and process."""
        if self._forks != _forks or (self._check_thread and self._thread != get_ident()):
            self._check_place()
        if self._opened is None:
            raise ProgrammingError("Cannot operate on a closed database.")

    def _check_open(self) -> None:
        if self._forks == _UNBORN:
            self._check_place()
        if self._opened is None:
            raise ProgrammingError("Cannot operate on a closed database.")

    def _check_place(self) -> None:
        if self._forks == _UNBORN:
            raise ProgrammingError("Base Connection.__init__ not called.")
        if self._forks != _forks:
            raise surface(
                ForkedError("this connection was opened before a fork", do="Connect again in the child process")
            )
        if self._check_thread and self._thread != get_ident():
            raise ProgrammingError(
                "SQLite objects created in a thread can only be used in that same thread. "
                f"The object was created in thread id {self._thread} and this is thread id {get_ident()}."
            )

    def _run(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            shown = surface(error)
            if shown is error:
                raise
            raise shown from error

    def __del__(self) -> None:
        opened = self._opened
        if opened is not None and self._forks == _forks:
            self._opened = self._owner = None
            with contextlib.suppress(Exception):
                self._transactions.close()
            with contextlib.suppress(Exception):
                opened.close()
