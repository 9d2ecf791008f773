"""What SQL calls the hidden rowid of a table, which any of three names reaches that no column bears.

Guarantees: nothing is asked but the names; they are compared as SQLite compares them.
Leaves to others: which tables have a rowid. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ROWID_NAMES: Final = ("rowid", "_rowid_", "oid")
RAREST_FIRST: Final = ("_rowid_", "rowid", "oid")
"""For code that does not know all columns: a definition has no generated ones, and hardly one of those is called so."""


def rowid_name(columns: Iterable[str], names: Iterable[str] = ROWID_NAMES) -> str | None:
    """The first of these names that no column bears; None if all are taken."""
    taken = {column.lower() for column in columns}
    return next((name for name in names if name not in taken), None)
