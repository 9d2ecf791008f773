"""Making another site's changes over whatever row is here: what an operator asks for who overwrites a conflict.

Guarantees: what was made is given back as it must stand in a journal: each before-image is what was really in the
region, so that redo, rollback and a third site meet exactly that; nothing is given back where nothing had to be done. A
row that holds a unique value which the change needs gives way, and is among what was made. What no row is in the way of
(a CHECK, NOT NULL, another definition) remains the conflict that it was.
Leaves to others: transactions, and who decided. After an error the caller rolls back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicate.errors import ConflictError
from replicate.model.transaction import Op, TableDefinition, mask_of
from replicate.region.protocol import RowsOfRegion
from replicate.region.sqlite.apply.rows import Conflict

Image = tuple[Any, ...]
OVER_A_ROW = ("the row exists already", "the row differs from its before-image")
_MISSING = "the row is missing"
_SEQUENCE = "the AUTOINCREMENT sequence differs"
_RIVAL = "UNIQUE constraint failed: "


def change_of(op: Op, table_id: int, before: Image | None, after: Image | None) -> list[Any]:
    """One flat change (op, id, argument, values) from whole images; nothing where both are the same."""
    if before is not None and after is not None:
        changed = [at for at, pair in enumerate(zip(before, after, strict=True)) if repr(pair[0]) != repr(pair[1])]
        if not changed:
            return []
        values = [*(after[at] for at in changed), *before]
        return [int(Op.UPDATE), table_id, mask_of(changed, len(before)), values]
    image = after if before is None else before
    assert image is not None
    return [int(op), table_id, 0, list(image)]


def instead(conflict: Conflict, table_id: int) -> list[Any] | None:
    """What comes to the same, over the row that is there; None when it is not that row which is in the way."""
    found, after = conflict.found, conflict.after
    if found is not None and conflict.reason not in OVER_A_ROW:
        return None
    if found is None and (conflict.reason != _MISSING):
        return None
    if found is None:
        return [] if after is None else change_of(Op.INSERT, table_id, None, after)
    return change_of(Op.DELETE if after is None else Op.UPDATE, table_id, found, after)


def overwrite(rows: RowsOfRegion, change: Sequence[Any]) -> list[Any]:
    """Make one flat change of a row or a counter over what is there; the changes that were made. Raises as
    `RowsOfRegion.apply_all`: ConflictError where no row is in the way."""
    table_id = change[1]
    made: list[Any] = []
    wanted = list(change)
    # Each turn takes a row out of the way, or puts one in its place: a table has no more unique values than columns.
    for turns in range(len(change[3]) + 4, -1, -1):
        if not wanted:
            return made
        try:
            rows.apply_all(wanted)
            return [*made, *wanted]
        except ConflictError as error:
            conflict = error.conflict
            if not isinstance(conflict, Conflict) or not turns:
                raise
            over = _over(conflict, table_id)
            if over is not None:
                wanted = over
                continue
            rival = _rival(conflict, rows.definitions[table_id])
            if rival is None:
                raise
        gone = [int(Op.DELETE), table_id, 0, list(rival)]
        rows.apply_all(gone)
        made += gone
    raise AssertionError("the last turn raises")


def _over(conflict: Conflict, table_id: int) -> list[Any] | None:
    if conflict.reason == _SEQUENCE and conflict.found is not None and conflict.after is not None:
        return [int(Op.SEQUENCE), table_id, 0, [conflict.found[0], conflict.after[0]]]
    return instead(conflict, table_id)


def _rival(conflict: Conflict, definition: TableDefinition) -> Image | None:
    """The other row that holds a unique value which the change needs."""
    found = conflict.found
    if found is None or not conflict.reason.startswith(_RIVAL):
        return None
    key = tuple(found[ordinal] for ordinal in definition.key)
    is_its_own = conflict.op == Op.UPDATE and repr(key) == repr(conflict.key)
    return None if is_its_own else found
