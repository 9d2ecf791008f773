"""The exceptions of the PEP 249 interface: the standard library's own sqlite3 classes, so that `except
sqlite3.IntegrityError` works.

Guarantees: every error of SQLite arrives as the class that CPython 3.11's sqlite3 gives it, with `sqlite_errorcode` and
`sqlite_errorname`; every ReplicateError arrives as a class that is both itself (code, text, facts) and a PEP 249 class.
Leaves to others: connections and transactions.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from sqlite3 import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)
from typing import Any, Final

import apsw

from replicate import errors

__all__ = [
    "DataError",
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Warning",
    "from_apsw",
    "from_replicate",
    "surface",
    "surfaced",
]

_CLASS_BY_CODE: Final[Mapping[int, type[sqlite3.Error]]] = {
    apsw.SQLITE_INTERNAL: InternalError,
    apsw.SQLITE_NOTFOUND: InternalError,
    **dict.fromkeys(
        (
            apsw.SQLITE_ERROR,
            apsw.SQLITE_PERM,
            apsw.SQLITE_ABORT,
            apsw.SQLITE_BUSY,
            apsw.SQLITE_LOCKED,
            apsw.SQLITE_READONLY,
            apsw.SQLITE_INTERRUPT,
            apsw.SQLITE_IOERR,
            apsw.SQLITE_FULL,
            apsw.SQLITE_CANTOPEN,
            apsw.SQLITE_PROTOCOL,
            apsw.SQLITE_EMPTY,
            apsw.SQLITE_SCHEMA,
        ),
        OperationalError,
    ),
    apsw.SQLITE_CORRUPT: DatabaseError,
    apsw.SQLITE_TOOBIG: DataError,
    apsw.SQLITE_CONSTRAINT: IntegrityError,
    apsw.SQLITE_MISMATCH: IntegrityError,
    apsw.SQLITE_MISUSE: InterfaceError,
    apsw.SQLITE_RANGE: InterfaceError,
}

_MISUSED: Final = (
    apsw.BindingsError,
    apsw.ThreadingViolationError,
    apsw.ConnectionClosedError,
    apsw.CursorClosedError,
    apsw.IncompleteExecutionError,
    apsw.ConnectionNotClosedError,
)

# PEP 249 class, SQLite code, and what applications that know sqlite3 look for in the text.
_KINDS: Final[tuple[tuple[type[errors.ReplicateError], type[sqlite3.Error], int, str], ...]] = (
    (errors.SnapshotStaleError, OperationalError, apsw.SQLITE_BUSY_SNAPSHOT, "database is locked"),
    (errors.BusyError, OperationalError, apsw.SQLITE_BUSY, "database is locked"),
    (errors.NotPrimaryError, OperationalError, apsw.SQLITE_READONLY, "attempt to write a readonly database"),
    (errors.NotSupportedError, NotSupportedError, apsw.SQLITE_ERROR, ""),
    (errors.DiskFullError, OperationalError, apsw.SQLITE_FULL, "database or disk is full"),
    (errors.ExhaustedError, OperationalError, apsw.SQLITE_CANTOPEN, ""),
    (errors.JournalIOError, OperationalError, apsw.SQLITE_IOERR, "disk I/O error"),
    (errors.SchemaChangedError, OperationalError, apsw.SQLITE_SCHEMA, ""),
    (errors.DamagedError, DatabaseError, apsw.SQLITE_CORRUPT, ""),
    (errors.NotFoundError, OperationalError, apsw.SQLITE_CANTOPEN, "unable to open database file"),
    (errors.PermissionRefusedError, OperationalError, apsw.SQLITE_PERM, ""),
    (errors.ForkedError, ProgrammingError, apsw.SQLITE_MISUSE, ""),
    (errors.InternalError, InternalError, apsw.SQLITE_INTERNAL, ""),
    (errors.ReplicateError, OperationalError, apsw.SQLITE_ERROR, ""),
)


def error_name(code: int) -> str:
    """SQLite's name of an extended result code, as in `sqlite_errorname`."""
    for table in (apsw.mapping_extended_result_codes, apsw.mapping_result_codes):
        name = table.get(code)
        if name is not None:
            return str(name)
    return "unknown"


def coded(error: sqlite3.Error, code: int) -> sqlite3.Error:
    """Give an error the attributes that sqlite3 gives it."""
    error.sqlite_errorcode = code
    error.sqlite_errorname = error_name(code)
    return error


_BINDINGS: Final = re.compile(
    r"(Incorrect number of bindings supplied\.)  (The current statement uses \d+) (and there are \d+ supplied\.).*"
)


def from_apsw(error: apsw.Error) -> Exception:
    """The sqlite3 exception for one of APSW's."""
    if isinstance(error, _MISUSED):
        return ProgrammingError(_BINDINGS.sub(r"\1 \2, \3", str(error)))
    code = getattr(error, "extendedresult", None)
    if code is None:
        return OperationalError(str(error))
    if code & 0xFF == apsw.SQLITE_NOMEM:
        return MemoryError()
    return coded(_CLASS_BY_CODE.get(code & 0xFF, DatabaseError)(str(error)), code)


_made: dict[type[errors.ReplicateError], Any] = {}


def _combined(kind: type[errors.ReplicateError], base: type[sqlite3.Error]) -> Any:
    """The class that is both; made once."""
    made = _made.get(kind)
    if made is None:
        made = _made[kind] = type(kind.__name__, (kind, base), {"__module__": __name__, "__doc__": kind.__doc__})
    return made


def from_replicate(error: errors.ReplicateError) -> sqlite3.Error:
    """An error that is both `error`'s class and the PEP 249 class that it belongs to, with its text, code and facts."""
    if isinstance(error, sqlite3.Error):
        return error
    for kind, base, code, hint in _KINDS:
        if isinstance(error, kind):
            made: sqlite3.Error = _combined(type(error), base)(
                error.what, where=error.where, do=error.do, **error.facts
            )
            if hint and hint not in str(made):
                made.args = (f"{made} ({hint})",)
            return coded(made, code)
    raise AssertionError("the root class is in the table")


def surface(error: BaseException) -> BaseException:
    """What the application is to see of any error: SQLite's and ours translated, everything else as it is."""
    if isinstance(error, apsw.Error):
        return from_apsw(error)
    if isinstance(error, errors.ReplicateError):
        if type(error) is errors.JournalIOError and isinstance(error.__cause__, apsw.InterruptError):
            return from_apsw(error.__cause__)  # it came while the region was taken: no disk has failed
        return from_replicate(error)
    return error


def surfaced(action: Callable[[], object]) -> None:
    """Run `action`; what it raises arrives as `surface` shows it."""
    try:
        action()
    except BaseException as error:
        shown = surface(error)
        if shown is error:
            raise
        raise shown from error
