"""PEP 249 cursors, as CPython 3.11's sqlite3 has them.

Guarantees: `execute` runs to the first row, and each fetch looks one row ahead, so that a statement whose last row was fetched
holds nothing open; rows of a writing statement (RETURNING) are all there when `execute` returns.
Refuses to know: transactions (dbapi_transaction.py) and how values are converted (dbapi_row.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import apsw

from replicate.database.statements import Statement, Verb, classify, split
from replicate.dbapi_errors import DataError, InterfaceError, ProgrammingError, Warning, surface
from replicate.dbapi_row import (
    Columns,
    Description,
    bindings,
    column_converters,
    columns_of,
    decode_failed,
    describe,
    row_maker,
    text_from,
)
from replicate.dbapi_row import as_bytes as _as_bytes

if TYPE_CHECKING:
    from replicate.dbapi_connection import Connection

_END: Final = object()
_SQL_BYTES_MAX: Final = 1_000_000_000


class Cursor:
    """Runs statements and gives their rows. `row_factory` is the connection's when the cursor is made."""

    def __init__(self, connection: Connection) -> None:
        from replicate.dbapi_connection import Connection as Made

        if not isinstance(connection, Made):
            raise TypeError(f"Cursor() argument 1 must be replicate's Connection, not {type(connection).__name__}")
        self.connection = connection
        self.row_factory: Any = connection.row_factory
        self.arraysize = 1
        self.description: Description | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self._closed = False
        self._busy = False
        self._columns: Columns = ()
        self._next: Any = _END
        self._rows: Iterator[tuple[Any, ...]] | None = None
        self._change: Callable[[tuple[Any, ...]], Any] | None = None
        self._apsw: apsw.Cursor = connection._open().cursor()

    # PEP 249.

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        """Run one statement. Raises Warning if there are several."""
        statement = self._start(sql)
        connection = self.connection
        transactions = connection._transactions
        try:
            if parameters or type(parameters) is not tuple:
                parameters = bindings(parameters, sql)
            if connection._trace is not None:
                connection._trace_statement(statement)
            rows = transactions.run(
                self._apsw, statement, parameters, implicit=connection._isolation_level is not None
            )
            if rows is None:
                self._rows = self._apsw
                self._next = next(self._apsw, _END)
            elif rows:
                self._rows = iter(rows)
                self._next = next(self._rows)
            if statement.dml:
                self.rowcount = transactions.changed
            self.lastrowid = connection._apsw.last_insert_rowid()
        except BaseException as error:
            raise self._failed(error) from _cause(error)
        finally:
            self._busy = False
            if connection._trace is not None:
                connection._trace_end()
        self._finish_description(statement)
        return self

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Cursor:
        """Run one data change with each of the sets of parameters."""
        statement = self._start(sql)
        connection = self.connection
        transactions = connection._transactions
        try:
            sets = (bindings(parameters, sql) for parameters in seq_of_parameters)
            if connection._trace is not None:
                connection._trace_statement(statement)
            if statement.verb is Verb.WRITE:
                gives_rows = transactions.run_many(
                    self._apsw, statement, sets, implicit=connection._isolation_level is not None
                )
            else:
                gives_rows = False
                for parameters in sets:
                    rows = transactions.run(self._apsw, statement, parameters, implicit=False)
                    gives_rows = bool(rows) or (rows is None and next(self._apsw, _END) is not _END)
                    if gives_rows:
                        break
            if gives_rows:
                self._apsw.close(True)
                self._apsw = connection._open().cursor()
                raise ProgrammingError("executemany() can only execute DML statements.")
            if statement.dml:
                self.rowcount = transactions.changed
        except BaseException as error:
            raise self._failed(error) from _cause(error)
        finally:
            self._busy = False
            if connection._trace is not None:
                connection._trace_end()
        self.description = None
        return self

    def executescript(self, sql_script: str, /) -> Cursor:
        """Commit what is open, then run every statement of the script, each in its own transaction unless it says BEGIN."""
        if not isinstance(sql_script, str):
            raise TypeError(f"executescript() argument must be str, not {type(sql_script).__name__}")
        self._check()
        if "\0" in sql_script:
            raise ValueError("embedded null character")
        if len(sql_script) > self.connection.getlimit(apsw.SQLITE_LIMIT_SQL_LENGTH):
            raise DataError("query string is too large")
        self._reset()
        self._busy = True
        transactions = self.connection._transactions
        try:
            transactions.commit()
            for text in split(sql_script):
                statement = classify(text)
                if self.connection._trace is not None:
                    self.connection._trace_statement(statement)
                if transactions.run(self._apsw, statement, None, implicit=False) is None:
                    for _ in self._apsw:
                        pass
        except BaseException as error:
            raise self._failed(error) from _cause(error)
        finally:
            self._busy = False
            if self.connection._trace is not None:
                self.connection._trace_end()
        return self

    def fetchone(self) -> Any:
        """The next row; None when there is none."""
        return next(self, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next `size` (else `arraysize`) rows."""
        self._check()
        rows: list[Any] = []
        wanted = self.arraysize if size is None else size
        while len(rows) < wanted or wanted < 0:
            row = next(self, _END)
            if row is _END:
                break
            rows.append(row)
            if wanted == 0:
                break
        return rows

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        self._check()
        if self._change is not None or self._next is _END:
            return list(self)
        first, rows = self._next, self._rows
        self._next, self._rows = _END, None
        try:
            return [first, *rows] if rows is not None else [first]
        except BaseException as error:
            raise self._failed(error) from _cause(error)

    def __iter__(self) -> Cursor:
        self._check()
        return self

    def __next__(self) -> Any:
        self._check()
        row = self._next
        if row is _END:
            raise StopIteration
        self._busy = True
        try:
            if self._change is not None:
                row = self._change(row)
            self._next = next(self._rows, _END) if self._rows is not None else _END
        except BaseException as error:
            raise self._failed(error) from _cause(error)
        finally:
            self._busy = False
        if self._next is _END:
            self._rows = None
        return row

    def close(self) -> None:
        """End the statement. The cursor can not be used afterwards."""
        connection = getattr(self, "connection", None)
        if connection is None:
            raise ProgrammingError("Base Cursor.__init__ not called.")
        if self._busy:
            raise ProgrammingError("Recursive use of cursors not allowed.")
        connection._check()
        self._reset()
        self._apsw.close(True)
        self._closed = True

    def setinputsizes(self, sizes: Any, /) -> None:
        """Required by PEP 249; does nothing."""

    def setoutputsize(self, size: Any, column: Any = None, /) -> None:
        """Required by PEP 249; does nothing."""

    # Helpers.

    def _check(self) -> None:
        try:
            connection, closed, busy = self.connection, self._closed, self._busy
        except AttributeError:
            raise ProgrammingError("Base Cursor.__init__ not called.") from None
        if closed:
            raise ProgrammingError("Cannot operate on a closed cursor.")
        if busy:
            raise ProgrammingError("Recursive use of cursors not allowed.")
        connection._check()

    def _start(self, sql: str) -> Statement:
        if type(sql) is not str and not isinstance(sql, str):
            raise TypeError(f"execute() argument 1 must be str, not {type(sql).__name__}")
        self._check()
        if "\0" in sql:
            raise ProgrammingError("the query contains a null character")
        if len(sql) > 1000 and len(sql) > self.connection.getlimit(apsw.SQLITE_LIMIT_SQL_LENGTH):
            raise DataError("query string is too large")
        self._reset()
        statement = classify(sql)
        if statement.several:
            raise Warning("You can only execute one statement at a time.")
        self.description = None
        self.rowcount = 0 if statement.dml else -1
        if statement.rows:
            self._apsw.exec_trace = self._note_columns
        elif self._apsw.exec_trace is not None:
            self._apsw.exec_trace = None
        self._busy = True
        return statement

    def _note_columns(self, cursor: apsw.Cursor, sql: str, parameters: Any) -> bool:
        self._columns = columns_of(cursor)
        return True

    def _finish_description(self, statement: Statement) -> None:
        if not statement.rows or not self._columns:
            self.description, self._change = None, None
            return
        connection = self.connection
        columns = self._columns
        self.description = describe(columns, connection._detect_types)
        converters = column_converters(columns, connection._detect_types)
        text = text_from(connection.text_factory)
        make = row_maker(self.row_factory, self, self.description)
        if converters is None and text is None:
            self._change = make
            return

        def change(row: tuple[Any, ...]) -> Any:
            values = []
            for at, value in enumerate(row):
                converter = converters[at] if converters is not None else None
                if converter is not None:
                    value = converter(_as_bytes(value)) if value is not None else None
                elif text is not None and type(value) is str:
                    value = text(value)
                values.append(value)
            return make(tuple(values)) if make is not None else tuple(values)

        self._change = change

    def _reset(self) -> None:
        if self._rows is not None and self._rows is self._apsw:
            self._apsw.close(True)
            self._apsw = self.connection._open().cursor()
        self._next, self._rows = _END, None
        self._columns, self._change = (), None

    def _failed(self, error: BaseException) -> BaseException:
        """What to raise for `error`; the cursor has no rows any more."""
        self._next, self._rows = _END, None
        if isinstance(error, UnicodeDecodeError) and self._columns:
            return decode_failed(self._columns, error)
        if isinstance(error, apsw.ThreadingViolationError):
            return ProgrammingError("Recursive use of cursors not allowed.")
        if isinstance(error, OverflowError) and "convert" in str(error):
            return OverflowError("Python int too large to convert to SQLite INTEGER")
        if isinstance(error, InterfaceError):
            return error
        return surface(error)


def _cause(error: BaseException) -> BaseException | None:
    """What an error is chained to: nothing if it is raised as it is."""
    return error.__cause__ if surface(error) is error else error
