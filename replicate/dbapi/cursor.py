"""PEP 249 cursors, as CPython 3.11's sqlite3 has them.

Guarantees: `execute` runs to the first row, and each fetch looks one row ahead, so that a statement whose last row
was fetched holds nothing open; rows of a writing statement (RETURNING) are all there when `execute` returns.
Leaves to others: transactions (dbapi/transaction.py) and how values are converted (dbapi/row.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from operator import index
from threading import get_ident
from typing import Any, Final

import apsw

from replicate.dbapi.callbacks import report, tell
from replicate.dbapi.connection_state import AnyConnection, ConnectionState
from replicate.dbapi.errors import DataError, InterfaceError, ProgrammingError, surface
from replicate.dbapi.returned_rows import Rows
from replicate.dbapi.row import (
    Columns,
    Description,
    bindings,
    column_converters,
    columns_of,
    columns_of_text,
    decode_failed,
    describe,
    row_changer,
    row_maker,
    text_from,
)
from replicate.region.sqlite.sql.statements import Statement, Verb, classify, keep, parameter_count, recall, split

_END: Final = object()
_ARRAYSIZE: Final[Any] = object()
_BUSY: Final = "Recursive use of cursors not allowed."
_CLOSED: Final = "Cannot operate on a closed cursor."
_UNBORN: Final = "Base Cursor.__init__ not called."
_WRITE: Final = Verb.WRITE
_NO_CHANGES: Final = (
    *(Verb.READ, Verb.EMPTY, Verb.COMMIT, Verb.ROLLBACK, Verb.SAVEPOINT, Verb.RELEASE, Verb.ROLLBACK_TO),
    Verb.PRAGMA,
)
"""What may change nothing; SQLite is asked."""


class Cursor:
    """Runs statements and gives their rows. `row_factory` is the connection's when the cursor is made."""

    _row_factory: Any

    # What a cursor begins with stands here, for a connection's `execute` makes one each time. (A `__getattr__` would
    # do for one that never began, but with it CPython 3.11 looks up every attribute of every cursor the slow way.)
    connection: AnyConnection
    _state: ConnectionState
    arraysize = 1
    description: Description | None = None
    rowcount = -1
    lastrowid: int | None = None
    _unusable = _UNBORN
    _fresh = True
    _traced = False
    _columns: Columns = ()
    _next: Any = _END
    _rows: Iterator[tuple[Any, ...]] | None = None
    _change: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    _make: Callable[[Any, tuple[Any, ...]], Any] | None = None

    def __init__(self, connection: AnyConnection) -> None:
        if not isinstance(getattr(connection, "_state", None), ConnectionState):
            raise TypeError(f"Cursor() argument 1 must be replicate's Connection, not {type(connection).__name__}")
        if self._unusable is not _UNBORN:  # called again
            if self._unusable == _BUSY:
                raise ProgrammingError(_BUSY)
            for name in ("arraysize", "description", "rowcount", "lastrowid"):
                self.__dict__.pop(name, None)
            self._next, self._rows, self._columns, self._traced = _END, None, (), False
            self._change = self._make = None
        self.connection = connection
        self._state = state = connection._state
        self._unusable = ""
        self._row_factory = state.row_factory
        self._apsw: apsw.Cursor = state.apsw.cursor()

    @property
    def row_factory(self) -> Any:
        """What makes a row of its values, (cursor, tuple) -> row; None: the tuple. It may be set between two rows."""
        return self._row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self._row_factory = factory
        if self.description is not None:
            self._describe()

    # PEP 249.

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        """Run one statement. Raises Warning if there are several."""
        statement = self._start(sql)
        state = self._state
        transaction = state.transaction
        try:
            if parameters or type(parameters) is not tuple:
                try:
                    parameters = bindings(parameters, sql)
                except BaseException:
                    transaction.prepare_and_begin(statement, state.isolation_level is not None)
                    raise
            implicit = state.isolation_level is not None
            if statement.verb is _WRITE:
                rows: Rows | None = transaction.write(self._apsw, statement, parameters, implicit)
            else:
                rows = transaction.run(self._apsw, statement, parameters, implicit)
            if statement.dml:
                self.rowcount = transaction.changed
            if rows is None:
                self._fresh = False
                self._rows = self._apsw
                self._next = next(self._apsw, _END)
            elif rows:
                self._rows = iter(rows)
                self._next = next(self._rows)
            if statement.rows:  # its columns as it was prepared just now, for the schema of now
                self._fresh = False
                at_row = rows is None and self._next is not _END
                self._columns = columns_of(self._apsw) if at_row else self._columns_now(sql, parameters)
            self.lastrowid = state.apsw.last_insert_rowid()
        except BaseException as error:
            self.rowcount = -1
            raise self._failed(error) from _cause(error)
        finally:
            self._unusable = ""
        if statement.rows:
            self._describe()
        return self

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Cursor:
        """Run one data change with each of the sets of parameters."""
        statement = self._start(sql)
        state = self._state
        transaction = state.transaction
        try:
            # (No `map`: a StopIteration that an adapter raises would end it, and no row that is left be written.)
            sets: Iterator[Any] = (bindings(parameters, sql) for parameters in seq_of_parameters)
            if statement.verb is Verb.WRITE:
                if statement.rows:
                    sets = self._describing(statement, sets)
                transaction.run_many(self._apsw, statement, sets, implicit=state.isolation_level is not None)
            elif transaction.prepare(statement) and (
                statement.verb in _NO_CHANGES or statement.kind == "DEFERRED"  # of a BEGIN
            ):
                raise ProgrammingError("executemany() can only execute DML statements.")
            else:
                for parameters in sets:
                    if transaction.run(self._apsw, statement, parameters, False) is None:
                        for _ in self._apsw:
                            pass
            if statement.dml:
                self.rowcount = transaction.changed
        except BaseException as error:
            self.rowcount = -1
            raise self._failed(error) from _cause(error)
        finally:
            self._unusable = ""
        return self

    def executescript(self, sql_script: str, /) -> Cursor:
        """Commit what is open, then run every statement of the script, each in its own transaction unless it says
        BEGIN."""
        if not isinstance(sql_script, str):
            raise TypeError(f"executescript() argument must be str, not {type(sql_script).__name__}")
        self._check()
        if "\0" in sql_script:
            raise ValueError("embedded null character")
        state = self._state
        if len(sql_script) > state.sql_bytes_max:
            raise DataError("query string is too large")
        # By an APSW cursor of its own: the rows that this one has still to give stay, as in sqlite3.
        kept = self._apsw, self._traced
        left = self._next, self._rows
        self._apsw, self._traced = state.apsw.cursor(), False
        self._listen()
        self._unusable = _BUSY
        transaction = state.transaction
        try:
            transaction.commit_told()
            for text in split(sql_script):
                statement = classify(text)
                nothing = (None,) * parameter_count(text)  # as sqlite3, which binds nothing: they are NULL
                if transaction.run(self._apsw, statement, nothing, False) is None:
                    for _ in self._apsw:
                        pass
        except BaseException as error:
            raise self._failed(error) from _cause(error)
        finally:
            self._apsw.close(True)
            self._apsw, self._traced = kept
            self._next, self._rows = left
            self._unusable = ""
        return self

    def fetchone(self) -> Any:
        """The next row; None when there is none."""
        return next(self, None)

    def fetchmany(self, size: int = _ARRAYSIZE) -> list[Any]:
        """The next `size` (else `arraysize`) rows; all that are left if that is not positive."""
        wanted = index(self.arraysize if size is _ARRAYSIZE else size)
        self._check()
        rows: list[Any] = []
        while len(rows) < wanted or wanted <= 0:
            row = next(self, _END)
            if row is _END:
                break
            rows.append(row)
        return rows

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        self._check()
        if self._change is not None or self._make is not None or self._next is _END:
            return list(self)
        first, rows = self._next, self._rows
        self._next, self._rows = _END, None
        try:
            return [first, *rows] if rows is not None else [first]
        except BaseException as error:
            raise self._failed(error) from _cause(error)

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Any:
        if self._unusable or self._state.owner != get_ident():
            self._check()
        row = self._next
        if row is _END:
            raise StopIteration
        self._unusable = _BUSY
        if self._change is not None:
            try:
                row = self._change(row)
            except BaseException:
                self._unusable = ""
                raise  # as in sqlite3: this row is still the next one
        try:
            rows = self._rows
            self._next = next(rows, _END) if rows is not None else _END
        except BaseException as error:
            raise self._failed(error) from _cause(error)
        finally:
            self._unusable = ""
        if self._next is _END:
            self._rows = None
        return row if self._make is None else self._make(self, row)

    def close(self) -> None:
        """End the statement. The cursor cannot be used afterwards."""
        if self._unusable and self._unusable != _CLOSED:
            raise ProgrammingError(self._unusable)
        self._state.check()
        self._reset()
        self._apsw.close(True)
        self._unusable = _CLOSED

    def setinputsizes(self, sizes: Any, /) -> None:
        """Required by PEP 249; does nothing."""

    def setoutputsize(self, size: Any, column: Any = None, /) -> None:
        """Required by PEP 249; does nothing."""

    # Helpers.

    def _check(self) -> None:
        if self._unusable:
            raise ProgrammingError(self._unusable)
        self._state.check()

    def _start(self, sql: str) -> Statement:
        if type(sql) is not str and not isinstance(sql, str):
            raise TypeError(f"execute() argument 1 must be str, not {type(sql).__name__}")
        if self._unusable:
            raise ProgrammingError(self._unusable)
        state = self._state
        if state.owner != get_ident():
            state.check()
        statement = recall(sql)
        if statement is None and "\0" in sql:
            raise ProgrammingError("the query contains a null character")
        if len(sql) > state.sql_bytes_max:
            raise DataError("query string is too large")
        if not self._fresh:
            self.description = None
            self._reset()
        if statement is None:
            statement = classify(sql)
            if statement.several:
                self.description, self.rowcount = None, -1
                raise ProgrammingError("You can only execute one statement at a time.")
            if type(sql) is str:
                keep(statement)
        self.rowcount = 0 if statement.dml else -1
        if self._traced or state.trace is not None:
            self._listen()
        self._unusable = _BUSY
        return statement

    def _listen(self) -> None:
        """Have statements told to the trace callback, if there is one. (No reference back to this cursor may come of
        it: a dropped cursor has to end its statement at once.)"""
        state = self._state
        is_traced = state.trace is not None
        if is_traced:
            self._apsw.exec_trace = lambda cursor, sql, parameters: tell(state, _expanded(cursor, sql))
        elif self._traced:
            self._apsw.exec_trace = None
        self._traced = is_traced

    def _describe(self) -> None:
        columns = self._columns
        self._change = self._make = None
        if not columns:
            self.description = None
            return
        state = self._state
        detect_types = state.detect_types
        self.description = describe(columns, detect_types)
        if not detect_types and state.text_factory is str and self._row_factory is None:
            return
        converters = column_converters(columns, detect_types)
        text = text_from(state.text_factory)
        self._make = row_maker(self._row_factory, self.description)
        if converters is not None or text is not None:
            self._change = row_changer(converters, text)

    def _columns_now(self, sql: str, parameters: Any) -> Columns:
        """The columns of a statement that has run. There is nothing any more that a progress handler could stop: in
        sqlite3 the statement is not prepared again."""
        state = self._state
        state.describing = True
        try:
            return columns_of_text(state.apsw, sql, parameters)
        finally:
            state.describing = False

    def _describing(self, statement: Statement, sets: Iterator[Any]) -> Iterator[Any]:
        """`sets`, of a statement that returns rows: when the first one has been run, its columns are described."""
        for first in sets:
            yield first
            self._columns = self._columns_now(statement.text, first)
            self._fresh = False
            self._describe()
            break
        yield from sets

    def _reset(self) -> None:
        if self._rows is not None and self._rows is self._apsw:
            self._apsw.close(True)
            self._state.check()
            self._apsw = self._state.apsw.cursor()
        self._next, self._rows = _END, None
        self._columns, self._change, self._make = (), None, None
        self._fresh = True

    def _failed(self, error: BaseException) -> BaseException:
        """What to raise for `error`; the cursor has no rows any more."""
        self._next, self._rows = _END, None
        if isinstance(error, UnicodeDecodeError) and error.encoding == "utf-8":
            with contextlib.suppress(apsw.Error):
                self._columns = self._columns or columns_of(self._apsw)
            return decode_failed(self._columns, error)
        if isinstance(error, apsw.ThreadingViolationError):
            return ProgrammingError("Recursive use of cursors not allowed.")
        if isinstance(error, OverflowError) and "convert" in str(error):
            return OverflowError("Python int too large to convert to SQLite INTEGER")
        if isinstance(error, InterfaceError):
            return error
        return surface(error)


_bare: Final = object.__new__


def cursor_of(connection: AnyConnection, state: ConnectionState) -> Cursor:
    """`Cursor(connection)`, for a connection that asks for itself: what its `__init__` does, a quarter quicker."""
    cursor = _bare(Cursor)
    cursor.connection = connection
    cursor._state = state
    cursor._unusable = ""
    cursor._row_factory = state.row_factory
    cursor._apsw = state.apsw.cursor()
    return cursor


def _cause(error: BaseException) -> BaseException | None:
    """What an error is chained to: nothing if it is raised as it is."""
    return error.__cause__ if surface(error) is error else error


def _expanded(cursor: apsw.Cursor, sql: str) -> str:
    """The statement with its parameters' values; as it is if that is too long."""
    try:
        return str(cursor.expanded_sql or sql)
    except (apsw.Error, MemoryError):
        report(DataError("Expanded SQL string exceeds the maximum string length"), None)
        return sql
