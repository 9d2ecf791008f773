"""Which audit element a statement of SQLite is of.

    DEFINITION  tables, virtual tables, views, PRAGMA user_version and application_id
    STORAGE     indexes, REINDEX, ANALYZE
    SECTION     triggers
    DATA        whatever writes rows

Guarantees: each statement that travels as its text is of exactly one; the same text is of the same one everywhere.
Leaves to others: where an element goes (model/elements.py). Pure.
"""

from __future__ import annotations

from typing import Final

from replicate.model.elements import DATA, DEFINITION, SECTION, STORAGE
from replicate.region.sqlite.sql.statements import Statement, Verb, classify

_STORAGE: Final = frozenset(("INDEX", "REINDEX", "ANALYZE"))


def element_of(statement: Statement) -> str:
    """The element of a statement that travels as its text."""
    if statement.verb is Verb.WRITE:
        return DATA
    if statement.kind in _STORAGE:
        return STORAGE
    return SECTION if statement.kind == "TRIGGER" else DEFINITION


def element_of_text(sql: str) -> str:
    """The same of its text."""
    return element_of(classify(sql))
