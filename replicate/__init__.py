"""Dualsite Replicate: logical dual-site database replication. An application needs one name from here: `connect`.

Guarantees: importing it is cheap and opens nothing; `connect` is loaded on first use. `__dualsite__` tells our package
from the unrelated PyPI distribution of the same import name.
Refuses to know: everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import os

    from replicate.dbapi import Connection

__version__: Final = "0.1.0"
__dualsite__: Final = True
__all__ = ["__version__", "connect"]


def connect(instance: str | os.PathLike[str], region: str = "main", **options: Any) -> Connection:
    """A PEP 249 connection to a region of an instance (a directory, or a name below REPLICATE_HOME).

    `options` are those of `sqlite3.connect`. Raises what replicate.dbapi.connect raises; nothing is open then.
    """
    from replicate import dbapi

    return dbapi.connect(instance, region, **options)
