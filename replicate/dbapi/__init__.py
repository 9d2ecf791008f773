"""`replicate.connect()`: PEP 249 over a region, by the names of the standard library's sqlite3 module.

Guarantees: `from replicate import dbapi as sqlite3` gives every name of sqlite3 that makes sense here; exceptions,
Row, adapters and converters *are* sqlite3's. What differs is in the manual (application.md).
Leaves to others: everything below the connection.
"""

from __future__ import annotations

import datetime
import sqlite3 as _standard
import warnings
from collections.abc import Callable
from sqlite3 import (
    PARSE_COLNAMES,
    PARSE_DECLTYPES,
    Binary,
    Date,
    DateFromTicks,
    PrepareProtocol,
    Row,
    Time,
    TimeFromTicks,
    TimestampFromTicks,
    adapt,
    complete_statement,
    register_adapter,
    register_converter,
)
from typing import Any, Final

import apsw

from replicate.dbapi.blob import Blob
from replicate.dbapi.callbacks import enable_callback_tracebacks
from replicate.dbapi.connection import Connection
from replicate.dbapi.cursor import Cursor
from replicate.dbapi.errors import (
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
from replicate.dbapi.region_access import Opened, Sites

Timestamp = datetime.datetime
apilevel: Final = "2.0"
paramstyle: Final = "qmark"
threadsafety: Final = 1
sqlite_version: Final = apsw.sqlite_lib_version() if hasattr(apsw, "sqlite_lib_version") else apsw.sqlitelibversion()
sqlite_version_info: Final = tuple(int(part) for part in sqlite_version.split("."))
version: Final = "2.6.0"  # what the standard library's said until Python 3.14 took it away
version_info: Final = tuple(int(part) for part in version.split("."))
adapters: Final[dict[Any, Any]] = _standard.adapters
converters: Final[dict[str, Callable[[bytes], Any]]] = _standard.converters


def connect(
    instance: Sites,
    region: str = "main",
    timeout: float | None = None,
    detect_types: int = 0,
    isolation_level: str | None = "",
    check_same_thread: bool = True,
    factory: Callable[..., Any] = Connection,
    cached_statements: int = 128,
    uri: bool = False,
    **more: Any,
) -> Connection:
    """A connection to `region` of `instance` (a directory, or a name below REPLICATE_HOME). Of several instances, which
    are the sites of one network on this machine, it is the one that takes writes now. The rest is as in
    sqlite3.connect; `timeout` in seconds, None: application.busy_timeout_s of the instance's settings.

    Raises OperationalError or DatabaseError, each also a ReplicateError that names the cause; nothing is open then.
    """
    made: Connection = factory(
        instance,
        region,
        timeout,
        detect_types,
        isolation_level,
        check_same_thread,
        cached_statements,
        uri,
        **more,
    )
    return made


def __getattr__(name: str) -> Any:
    """SQLite's constants (SQLITE_DENY, SQLITE_LIMIT_VARIABLE_NUMBER, …)."""
    if name == "OptimizedUnicode":
        warnings.warn("OptimizedUnicode is deprecated; use str", DeprecationWarning, stacklevel=2)
        return str
    if name.startswith("SQLITE_") and hasattr(apsw, name):
        return getattr(apsw, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "PARSE_COLNAMES",
    "PARSE_DECLTYPES",
    "Binary",
    "Blob",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "Opened",
    "OperationalError",
    "PrepareProtocol",
    "ProgrammingError",
    "Row",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "adapt",
    "adapters",
    "apilevel",
    "complete_statement",
    "connect",
    "converters",
    "enable_callback_tracebacks",
    "paramstyle",
    "register_adapter",
    "register_converter",
    "sqlite_version",
    "sqlite_version_info",
    "threadsafety",
    "version",
    "version_info",
]
