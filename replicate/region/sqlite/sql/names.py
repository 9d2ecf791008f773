"""Names inside SQL text: quoting, and which names are ours.

Guarantees: a quoted name or text is one token for every SQLite release, whatever it holds; our own objects are told
from the user's by one rule.
Leaves to others: where a name comes from. (From the wire none may come: identifiers are the local schema's only.)
"""

from __future__ import annotations

from typing import Final

OWN_PREFIX: Final = "_replicate_"
_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def quote(name: str) -> str:
    """An identifier in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """A text literal in single quotes."""
    return "'" + text.replace("'", "''") + "'"


def fold(name: str) -> str:
    """A name as SQLite compares it: A to Z without case, and no other letter (`str.lower` knows too many)."""
    return name.lower() if name.isascii() else name.translate(_FOLD)


def is_own(name: str) -> bool:
    """Whether the object is our bookkeeping (SQLite's names are compared without case)."""
    return name[: len(OWN_PREFIX)].lower() == OWN_PREFIX


def is_internal(name: str) -> bool:
    """Whether the object is SQLite's own or ours: never captured, never guarded."""
    return name[:7].lower() == "sqlite_" or is_own(name)
