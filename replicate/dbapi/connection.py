"""PEP 249 connections to a region, as CPython 3.11's sqlite3 has them.

Guarantees: code written for sqlite3.Connection works; what would break replication is refused by name.
Leaves to others: which thread may use a connection (dbapi/connection_state.py), how a transaction is committed
(dbapi/transaction.py), how values are converted (dbapi/row.py).
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any, Final, Literal

import apsw

from replicate.dbapi import callbacks
from replicate.dbapi import errors as pep249
from replicate.dbapi.blob import Blob, refuse_write
from replicate.dbapi.connection_state import ConnectionState
from replicate.dbapi.cursor import Cursor, cursor_of
from replicate.dbapi.dump import dump
from replicate.dbapi.errors import ProgrammingError, surface, surfaced
from replicate.dbapi.prepare import prepare
from replicate.dbapi.region_access import Opened, Sites
from replicate.dbapi.transaction import ConnectionTransaction
from replicate.dbapi.transaction_stages import Stage
from replicate.errors import NotSupportedError as NotReplicable
from replicate.region.sqlite.sql.names import fold, is_own
from replicate.region.sqlite.sql.statements import classify

_LEVELS: Final = ("", "DEFERRED", "IMMEDIATE", "EXCLUSIVE")


def _open_region(instance: Sites, region: str, timeout_s: float | None) -> Opened:
    from replicate.dbapi.open import open_region  # not needed where another opener is given

    return open_region(instance, region, timeout_s)


class Connection:
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

    _state: ConnectionState

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """With a state that says what is wrong when a subclass does not call `__init__`."""
        made = super().__new__(cls)
        made._state = ConnectionState()
        return made

    def __init__(
        self,
        instance: Sites,
        region: str = "main",
        timeout: float | None = None,
        detect_types: int = 0,
        isolation_level: str | None = "",
        check_same_thread: bool = True,
        cached_statements: int = 128,
        uri: bool = False,
        *,
        opener: Callable[[Sites, str], Opened] | None = None,
    ) -> None:
        """Open the region. `timeout` in seconds (None: as configured). `cached_statements` and `uri` have no effect.

        Raises OperationalError and DatabaseError (each also a ReplicateError that names the cause); nothing is open
        then.
        """
        state = self._state
        if state.opened is not None:
            self.close()  # called again: sqlite3 opens again, too
        state.start(check_thread=bool(check_same_thread), detect_types=detect_types)
        self.isolation_level = isolation_level
        try:
            opened = opener(instance, region) if opener else _open_region(instance, region, timeout)
        except BaseException as error:
            raise surface(error) from error
        try:
            state.apsw = opened.session.connection
            state.sql_bytes_max = state.apsw.limit(apsw.SQLITE_LIMIT_SQL_LENGTH)
            state.apsw.config(apsw.SQLITE_DBCONFIG_DQS_DML, 1)
            state.apsw.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 1)
            state.transaction = ConnectionTransaction(opened, opened.busy_timeout_s if timeout is None else timeout)
            state.transaction.begin_text = f"BEGIN {state.isolation_level}"
            callbacks.authorize_by(state, None)
        except BaseException:
            opened.session.close()
            opened.close()
            raise
        state.open(opened)

    # Transactions.

    def commit(self) -> None:
        """Commit through the door. Without an open transaction nothing happens."""
        state = self._state
        if state.owner != get_ident():
            state.check()
        transaction = state.transaction
        try:
            if transaction.tell is None:
                transaction.commit()
            else:
                transaction.commit_told()
        except BaseException as error:
            shown = surface(error)
            if shown is error:
                raise
            raise shown from error

    def rollback(self) -> None:
        """Roll back. Without an open transaction nothing happens."""
        self._state.check()
        surfaced(self._state.transaction.rollback_told)

    def close(self) -> None:
        """Roll back what is open and close. May be called twice."""
        self._state.check_place()
        self._state.close()

    def __enter__(self) -> Connection:
        self._state.check_open()
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
        self._state.check_open()
        return self._state.transaction.stage is not Stage.NONE

    @property
    def total_changes(self) -> int:
        """Rows changed by the application since the connection was opened."""
        self._state.check_open()
        return self._state.apsw.total_changes() - self._state.transaction.regions.own_changes

    @property
    def isolation_level(self) -> str | None:
        """None: every statement is its own transaction. Else a data change begins one (always as BEGIN IMMEDIATE
        does)."""
        self._state.check_open()
        return self._state.isolation_level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        if level is not None:
            if not isinstance(level, str):
                raise TypeError("isolation_level must be str or None")
            if str.upper(level) not in _LEVELS:
                raise ValueError("isolation_level string must be '', 'DEFERRED', 'IMMEDIATE', or 'EXCLUSIVE'")
            level = str.upper(level)
        elif self._state.opened is not None:
            self.commit()
        self._state.isolation_level = level
        if self._state.opened is not None:
            self._state.transaction.begin_text = f"BEGIN {level}"

    @isolation_level.deleter
    def isolation_level(self) -> None:
        raise AttributeError("cannot delete attribute")

    @property
    def row_factory(self) -> Any:
        """What makes a row of its values in cursors that are made from now on, (cursor, tuple) -> row; None: the
        tuple."""
        return self._state.row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self._state.row_factory = factory

    @property
    def text_factory(self) -> Any:
        """What makes a value of the bytes of a TEXT; str: the text as it is."""
        return self._state.text_factory

    @text_factory.setter
    def text_factory(self, factory: Any) -> None:
        self._state.text_factory = factory

    # Beyond sqlite3.

    @property
    def last_seqno(self) -> int:
        """The sequence number of this connection's last commit; 0 before the first."""
        self._state.check_initialized()
        return self._state.transaction.last_seqno

    def wait_durable(self, seqno: int | None = None) -> None:
        """Return once transaction `seqno` (else this connection's last one) is on the journal's disk."""
        self._state.check()
        opened = self._state.opened
        assert opened is not None
        number = self.last_seqno if seqno is None else seqno
        surfaced(lambda: opened.wait_durable(number))

    def log_comment(self, text: str) -> None:
        """Write a comment into the journal, in the open transaction or else in one of its own: replicated, archived,
        shown and found by `replicate audit`. In SQL: `SELECT replicate_log_comment('…')`.

        At most 64 KiB in UTF-8. Raises TypeError for what is no text, OperationalError for one that is longer or cannot
        be written in UTF-8, and what a write raises; the transaction stands as it was."""
        self._state.check()
        if not isinstance(text, str):
            raise TypeError(f"log_comment() argument must be str, not {type(text).__name__}")
        surfaced(lambda: self._state.transaction.comment(text))

    def attach(self, region: str, name: str = "") -> None:
        """`ATTACH` another region of the instance, wherever its file is, under `name` (else its own). Outside of a
        transaction.

        Raises OperationalError if there is no such region, and as ATTACH does; nothing is attached then.
        """
        self._state.check()
        assert self._state.opened is not None
        neighbours = self._state.opened.neighbours
        try:
            path = region if neighbours is None else neighbours.path_of(region)
        except BaseException as error:
            raise surface(error) from error
        self.execute("ATTACH ? AS ?", (path, name or region))

    # Statements.

    def cursor(self, factory: Callable[[Connection], Any] = Cursor) -> Any:
        """A new cursor, made by `factory`."""
        self._state.check()
        made = factory(self)
        if not issubclass(type(made), Cursor):
            raise TypeError(f"factory must return a cursor, not {type(made).__name__}")
        if self.row_factory is not None:
            made.row_factory = self.row_factory
        return made

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        """`cursor().execute(…)`."""
        state = self._state
        if state.owner != get_ident():
            state.check()
        return cursor_of(self, state).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Cursor:
        """`cursor().executemany(…)`."""
        self._state.check()
        made = Cursor(self)
        return made.executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> Cursor:
        """`cursor().executescript(…)`."""
        self._state.check()
        made = Cursor(self)
        return made.executescript(sql_script)

    def __call__(self, *arguments: Any) -> Any:
        """sqlite3's prepared statement: checked, and given back as its text."""
        self._state.check()
        if len(arguments) != 1:
            raise TypeError(f"expected 1 argument, got {len(arguments)}")
        sql = arguments[0]
        if not isinstance(sql, str):
            raise TypeError(f"argument 1 must be str, not {type(sql).__name__}")
        sql.encode()
        if "\0" in sql:
            raise ProgrammingError("the query contains a null character")
        if len(sql) > self._state.sql_bytes_max:
            raise pep249.DataError("query string is too large")
        if classify(sql).several:
            raise ProgrammingError("You can only execute one statement at a time.")
        surfaced(lambda: prepare(self._state.apsw, sql))
        return sql

    def interrupt(self) -> None:
        """Interrupt the running statement; may be called from any thread. A commit at the door is not interrupted."""
        self._state.check_open()
        if not self._state.transaction.regions.inside:
            self._state.apsw.interrupt()

    # Copies.

    def iterdump(self) -> Iterator[str]:
        """The region as SQL text, without replication's bookkeeping."""
        self._state.check()
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
        self._state.check()
        if progress is not None and not callable(progress):
            raise TypeError("progress argument must be a callable")
        if not isinstance(target, sqlite3.Connection):
            raise TypeError(f"backup() argument 1 must be sqlite3.Connection, not {type(target).__name__}")
        with tempfile.TemporaryDirectory(prefix="dualsite-backup-") as directory:
            path = Path(directory) / "copy"
            surfaced(lambda: self._copy_to(str(path), name))
            with contextlib.closing(sqlite3.connect(path)) as copy:
                copy.backup(target, pages=pages, progress=progress, sleep=sleep)

    def _copy_to(self, path: str, name: str) -> None:
        copy = apsw.Connection(path)
        try:
            with copy.backup("main", self._state.apsw, name) as running:
                while not running.done:
                    running.step(-1)
            copy.pragma("journal_mode", "delete")  # one file, so that the other library finds all of it
        finally:
            copy.close()

    def serialize(self, *, name: str = "main") -> bytes:
        """The region's pages as bytes."""
        self._state.check()
        try:
            return self._state.apsw.serialize(name)
        except apsw.Error as error:
            raise surface(error) from error

    def deserialize(self, data: Any, /, *, name: str = "main") -> None:
        """Refused: the region's content would be replaced without the door."""
        self._state.check()
        raise surface(NotReplicable("deserialize() would replace the region without the commit door", where=name))

    def blobopen(self, table: str, column: str, row: int, /, *, readonly: bool = False, name: str = "main") -> Any:
        """A BLOB to be read and written in place. Outside of a transaction it begins one, which its `close` commits."""
        self._state.check()
        transaction = self._state.transaction
        check = end = None
        try:
            if readonly:
                check = refuse_write
            elif transaction.regions.is_region(fold(name)):
                if is_own(table):
                    raise NotReplicable(f"{table} belongs to replication's bookkeeping", do="Leave it alone")
                check, end = transaction.write_blob()
            return Blob(self, self._state.apsw.blob_open(name, table, column, row, not readonly), check, end)
        except BaseException as error:
            if end is not None:
                end()  # nothing was written: this ends the transaction if it began with us
            raise surface(error) from error

    # Callbacks.

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False
    ) -> None:
        """Make `func` an SQL function; None removes it."""
        callbacks.create_function(self._state, name, narg, func, deterministic=deterministic)

    def create_aggregate(self, name: str, n_arg: int, aggregate_class: Callable[[], Any] | None) -> None:
        """Make a class with `step` and `finalize` an SQL aggregate; None removes it."""
        callbacks.create_aggregate(self._state, name, n_arg, aggregate_class)

    def create_window_function(self, name: str, num_params: int, aggregate_class: Callable[[], Any] | None, /) -> None:
        """Make a class with `step`, `inverse`, `value` and `finalize` an SQL window function; None removes it."""
        callbacks.create_window_function(self._state, name, num_params, aggregate_class)

    def create_collation(self, name: str, callback: Callable[[str, str], int] | None, /) -> None:
        """Make `callback` an SQL collation; None removes it."""
        callbacks.create_collation(self._state, name, callback)

    def set_authorizer(self, authorizer_callback: Callable[..., int] | None) -> None:
        """Ask `authorizer_callback` about every access that a statement is prepared for."""
        callbacks.set_authorizer(self._state, authorizer_callback)

    def set_progress_handler(self, progress_handler: Callable[[], Any] | None, n: int) -> None:
        """Call `progress_handler` every `n` instructions; a true result interrupts the statement."""
        callbacks.set_progress_handler(self._state, progress_handler, n)

    def set_trace_callback(self, trace_callback: Callable[[str], Any] | None) -> None:
        """Call `trace_callback` with the text of every statement of the application, and with BEGIN and COMMIT of
        ours."""
        callbacks.set_trace_callback(self._state, trace_callback)

    # Limits and extensions.

    def getlimit(self, category: int, /) -> int:
        """One of SQLite's run-time limits."""
        return self.setlimit(category, -1)

    def setlimit(self, category: int, limit: int, /) -> int:
        """Set one of SQLite's run-time limits; returns it as it was."""
        self._state.check()
        before = self._state.apsw.limit(category) if 0 <= category <= apsw.SQLITE_LIMIT_WORKER_THREADS else -1
        if before < 0:
            raise ProgrammingError("'category' is out of bounds")
        if limit >= 0:
            self._state.apsw.limit(category, limit)
            self._state.sql_bytes_max = self._state.apsw.limit(apsw.SQLITE_LIMIT_SQL_LENGTH)
        return before

    def enable_load_extension(self, enable: bool, /) -> None:
        """Allow or forbid `load_extension`."""
        self._state.check()
        self._state.apsw.enable_load_extension(bool(enable))

    def load_extension(self, name: str, /) -> None:
        """Load an extension library of SQLite."""
        self._state.check()
        try:
            self._state.apsw.load_extension(name)
        except apsw.Error as error:
            raise pep249.OperationalError(str(error)) from error

    def __del__(self) -> None:
        state = self._state
        if state.opened is not None and state.is_ours:
            with contextlib.suppress(Exception):
                state.close()
