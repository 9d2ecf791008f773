"""Plain SQLite as CPython 3.11's sqlite3 uses it, in a few lines over APSW: the plain side of a differential test, as a
process.

Guarantees: the same SQLite release as ours, so that outcomes can be compared exactly, and none of our code: no door, no
capture, no hook. Leaves to others: what outcomes should be.

The standard library's own sqlite3 was tried first: its release differs from APSW's in what a failing statement leaves
behind (STRICT tables with OR IGNORE), in last_insert_rowid, in RETURNING's affinities and in the digits of a REAL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

import apsw

from tests.harness.conversation import serve
from tests.harness.sql_calls import Calls, content

_CHANGES = ("INSERT", "UPDATE", "DELETE", "REPLACE")


class PlainCursor:
    """What `execute` gives."""

    def __init__(self, rows: list[tuple[Any, ...]], rowcount: int, lastrowid: int) -> None:
        self._rows, self.rowcount, self.lastrowid = rows, rowcount, lastrowid

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows."""
        return self._rows


class PlainConnection:
    """As far as programs go, sqlite3.Connection."""

    def __init__(self, path: str, isolation_level: str | None) -> None:
        # Nothing is run twice: an INSERT prepared under defer_foreign_keys, and run without, fails and leaves its row.
        self._apsw = apsw.Connection(path, statementcachesize=0)
        self._apsw.set_busy_timeout(0)
        self._apsw.config(apsw.SQLITE_DBCONFIG_DQS_DML, 1)
        self._apsw.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 1)
        self._level = isolation_level
        # As ours. One that has read nothing forgets defer_foreign_keys when it reads the schema (measured).
        self.read_schema()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._apsw.in_transaction

    def close(self) -> None:
        """Close."""
        self._apsw.close(True)

    def read_schema(self) -> None:
        """Have the present schema in memory."""
        self._apsw.execute("SELECT 1 FROM sqlite_schema").fetchall()

    def commit(self) -> None:
        """COMMIT if there is something to commit."""
        if self._apsw.in_transaction:
            self._apsw.execute("COMMIT")

    def rollback(self) -> None:
        """ROLLBACK if there is something to roll back."""
        if self._apsw.in_transaction:
            self._apsw.execute("ROLLBACK")

    def execute(self, text: str, parameters: Iterable[Any] = ()) -> PlainCursor:
        """One statement. (BEGIN IMMEDIATE in a savepoint can make SQLite lose everything: see dbapi/test_bugs.py.)"""
        if self._apsw.in_transaction and text.upper().startswith("BEGIN"):
            text = "BEGIN"
        changes = self._prepare(text)
        rows = list(self._apsw.execute(text, tuple(parameters)))
        return PlainCursor(rows, self._apsw.changes() if changes else -1, self._apsw.last_insert_rowid())

    def executemany(self, text: str, sets: Iterable[Any]) -> PlainCursor:
        """One data change with each of the sets."""
        self._prepare(text)
        total = 0
        for parameters in sets:
            returned = self._apsw.execute(text, tuple(parameters)).fetchall()
            total += 0 if returned else self._apsw.changes()
        return PlainCursor([], total, 0)

    def blobopen(self, table: str, column: str, row: int) -> contextlib.closing[apsw.Blob]:
        """A BLOB for writing in place."""
        return contextlib.closing(self._apsw.blob_open("main", table, column, row, True))

    def executescript(self, script: str) -> None:
        """COMMIT, then all statements as they are."""
        self.commit()
        self._apsw.execute(script).fetchall()

    def _prepare(self, text: str) -> bool:
        changes = text.lstrip().upper().startswith(_CHANGES)
        if changes and self._level is not None and not self._apsw.in_transaction:
            cursor = self._apsw.cursor()
            cursor.exec_trace = lambda *_: (
                False
            )  # prepared, as by sqlite3; run, even an EXPLAIN ends defer_foreign_keys
            with contextlib.suppress(apsw.BindingsError, apsw.ExecTraceAbort):
                cursor.execute(text)
            self._apsw.execute(f"BEGIN {self._level}")
        return changes

    def __enter__(self) -> PlainConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.rollback()
            return
        try:
            self.commit()
        except BaseException:
            self.rollback()
            raise


class SchemaWatch:
    """Tells connections of another one's schema changes: SQLite finds no table that was made again meanwhile, if only a
    trigger asks for it (measured)."""

    def __init__(self, path: str) -> None:
        self._reader = apsw.Connection(path)
        self._version = self._reader.pragma("schema_version")

    def close(self) -> None:
        """Close."""
        self._reader.close(True)

    def tell(self, connections: Iterable[PlainConnection]) -> None:
        """After a step."""
        version = self._reader.pragma("schema_version")
        if version != self._version:
            self._version = version
            for connection in connections:
                if not connection.in_transaction:  # a read would fix what it sees
                    connection.read_schema()


@contextlib.contextmanager
def opened(path: str) -> Iterator[apsw.Connection]:
    """An APSW connection, closed at the end."""
    connection = apsw.Connection(path)
    try:
        yield connection
    finally:
        connection.close(True)


class _Served:
    """The connections of the present program."""

    def __init__(self) -> None:
        self._calls: Calls | None = None
        self._watch: SchemaWatch | None = None
        self._path = ""

    def answer(self, request: str, argument: Any) -> Any:
        """One request."""
        calls, watch = self._calls, self._watch
        if request == "begin":
            script, pragmas, self._path = argument
            if calls is not None and watch is not None:
                calls.close()
                watch.close()
            with opened(self._path) as connection:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
                connection.execute(script).fetchall()
            self._calls, self._watch = Calls(partial(PlainConnection, self._path), pragmas), SchemaWatch(self._path)
            return None
        if calls is None or watch is None:
            raise AssertionError("nothing has begun")
        if request == "step":
            found = calls.perform(argument)
            watch.tell(calls.connections.values())
            return found
        if request == "roll back":
            calls.roll_back(argument)
            return None
        with opened(self._path) as connection:
            return content(connection.execute)


if __name__ == "__main__":
    serve(_Served().answer)
