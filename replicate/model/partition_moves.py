"""Tables that a transaction puts into another partition: how a stream tells it, and what came with them.

Guarantees: a move is found wherever it stands in a transaction, with the partition before and after, and whether the
table had rows.
Leaves to others: what that means where one of the two partitions is not (update_process/routes.py, door/recovery).
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from replicate.model.partitions import MOVED_EMPTY
from replicate.model.transaction import TABLE_ID_MIN, Op, TableDefinition


class TableMove(NamedTuple):
    """`definition`: of the table as it is from here on. `before`: the partition that it was in."""

    definition: TableDefinition
    before: int
    is_empty: bool


def moves_in(changes: Sequence[Any]) -> Iterator[TableMove]:
    """The moves in flat changes of whole transactions."""
    came = {
        changes[place + 1]: changes[place + 2]
        for place in range(0, len(changes), 4)
        if changes[place] == Op.COMMENT and changes[place + 1] >= TABLE_ID_MIN
    }
    for place in range(0, len(changes) if came else 0, 4):
        if changes[place] == Op.DEFINE and changes[place + 1] in came:
            told = came[changes[place + 1]]
            yield TableMove(TableDefinition.unpack(changes[place + 3]), told & ~MOVED_EMPTY, bool(told & MOVED_EMPTY))
