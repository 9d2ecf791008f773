"""Dualsite Replicate: logical dual-site database replication. An application needs `connect`, and the names of PEP 249.

Guarantees: importing it is cheap and opens nothing; `connect` and all names of PEP 249 (those of replicate.dbapi) are
loaded on first use, for the daemons import this package too and need no SQL. `__dualsite__` tells our package
from the unrelated PyPI distribution of the same import name.
Leaves to others: everything else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import os

    from replicate.dbapi import (
        Connection,
        DatabaseError,
        DataError,
        Error,
        IntegrityError,
        InterfaceError,
        InternalError,
        NotSupportedError,
        OperationalError,
        ProgrammingError,
        Row,
        Warning,
        apilevel,
        paramstyle,
        threadsafety,
    )

__version__: Final = "0.1.0"
__dualsite__: Final = True
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
    "Row",
    "Warning",
    "__version__",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]


def connect(instance: str | os.PathLike[str], region: str = "main", **options: Any) -> Connection:
    """A PEP 249 connection to a region of an instance (a directory, or a name below REPLICATE_HOME).

    `options` are those of `sqlite3.connect`. Raises what replicate.dbapi.connect raises; nothing is open then.
    """
    from replicate import dbapi

    return dbapi.connect(instance, region, **options)


def __getattr__(name: str) -> Any:
    """replicate.dbapi, and its names (PEP 249's, and Row): loaded on first use."""
    if name not in __all__ and name != "dbapi":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    dbapi = importlib.import_module("replicate.dbapi")
    if name == "dbapi":
        return dbapi
    value = globals()[name] = getattr(dbapi, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
