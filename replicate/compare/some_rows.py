"""Which rows of a region two instances are compared by, where one of them has some rows of a table only.

Guarantees: the side that has all is read by the other one's condition, and that other one as a whole: a row that should
not be there is a difference, too. Where both have some, by different conditions, the table is left out.
Leaves to others: reading rows (region/sqlite/digest.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replicate.filters.row_filter import parse
from replicate.model.subscription import Rows
from replicate.region.sqlite.schema import recorded_definitions


@dataclass(frozen=True, slots=True)
class SomeRows:
    """Of each side, table by table, the condition in SQL by which it is read; tables that cannot be compared."""

    in_first: dict[str, str]
    in_second: dict[str, str]
    left_out: frozenset[str]

    @staticmethod
    def between(region: str, first: Rows, second: Rows, connection: Any) -> SomeRows:
        """Of that region, by what the two have of its tables. `connection`: to the first one's. UsageError where a
        condition says nothing of the table as it is by now."""
        made = SomeRows({}, {}, frozenset())
        if not first and not second:
            return made
        left_out = set()
        for definition in recorded_definitions(connection):
            key = region, definition.table
            one, other = first.get(key), second.get(key)
            if one is not None and other is not None and one != other:
                left_out.add(definition.table)
            elif (condition := one if other is None else other) is not None and one != other:
                side = made.in_first if one is None else made.in_second
                side[definition.table] = parse(condition).bind(definition).sql
        return SomeRows(made.in_first, made.in_second, frozenset(left_out))
