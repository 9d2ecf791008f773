"""What of a region two instances are compared by, where one of them has some rows or columns of a table only.

Guarantees: the side that has all is read by the other one's condition, with blanks where that has them, and that other
one as a whole: a row or a value that should not be there is a difference, too. Where both have some, and not the same,
the table is left out.
Leaves to others: reading rows (region/sqlite/digest.py).
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from replicate.filters.wishes import parse_wish
from replicate.model.column_list import TableShare
from replicate.model.subscription import Rows
from replicate.region.sqlite.schema import recorded_definitions


class SomeRows(Struct, frozen=True):
    """Of each side, table by table, what of it is read; tables that cannot be compared."""

    in_first: dict[str, TableShare]
    in_second: dict[str, TableShare]
    left_out: frozenset[str]

    @staticmethod
    def between(region: str, first: Rows, second: Rows, connection: Any) -> SomeRows:
        """Of that region, by what the two have of its tables. `connection`: to the first one's. UsageError where a
        wish says nothing of the table as it is by now."""
        made = SomeRows({}, {}, frozenset())
        if not first and not second:
            return made
        left_out = set()
        for definition in recorded_definitions(connection):
            key = region, definition.table
            one, other = first.get(key), second.get(key)
            if one is not None and other is not None and one != other:
                left_out.add(definition.table)
            elif (wish := one if other is None else other) is not None and one != other:
                side = made.in_first if one is None else made.in_second
                side[definition.table] = parse_wish(wish).bind(definition).share
        return SomeRows(made.in_first, made.in_second, frozenset(left_out))
