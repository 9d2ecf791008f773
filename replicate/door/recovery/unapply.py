"""Taking row changes back by their before-images: the inverse of a change stream, to be applied by RowApplier.

Guarantees: applying `inverse(changes)` after `changes` leaves every row as it was, and every counter of AUTOINCREMENT:
those stand last, since putting a deleted row back raises its table's counter.
Leaves to others: databases, positions. Pure. Schema changes cannot be taken back; they are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicate.errors import JournalDamagedError, NotSupportedError
from replicate.model.transaction import TELLS_ONLY, Op, changed_of


def inverse(changes: Sequence[Any]) -> list[Any]:
    """The flat stream that undoes `changes` (op, id, arg, values, …), last change first.

    NotSupportedError for a schema change or definition, JournalDamagedError for a stream that is none.
    """
    rows, counters = inverse_apart(changes)
    return rows + counters


def inverse_apart(changes: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The same for a part of a transaction: of its rows, and of the counters, which come after the rows of all its
    parts."""
    if len(changes) % 4:
        raise JournalDamagedError("a change stream ends inside a change")
    undone: list[Any] = []
    counters: list[Any] = []
    for place in range(len(changes) - 4, -1, -4):
        op, ident, argument, values = changes[place : place + 4]
        if op == Op.INSERT:
            undone += (int(Op.DELETE), ident, argument, values)
        elif op == Op.DELETE:
            undone += (int(Op.INSERT), ident, argument, values)
        elif op == Op.UPDATE:
            undone += (int(Op.UPDATE), ident, argument, _back(argument, values))
        elif op == Op.SEQUENCE:
            counters += (int(Op.SEQUENCE), ident, argument, [values[1], values[0]])
        elif op not in TELLS_ONLY and op != Op.REGION:
            raise NotSupportedError("a schema change cannot be taken back", do="Restore or seed this region again")
    return undone, counters


def _back(mask: Any, values: Sequence[Any]) -> list[Any]:
    changed = changed_of(mask)
    after, before = list(values[: len(changed)]), list(values[len(changed) :])
    image = list(before)
    for ordinal, value in zip(changed, after, strict=True):
        image[ordinal] = value
    return [*(before[ordinal] for ordinal in changed), *image]
