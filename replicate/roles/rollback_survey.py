"""What a rollback would take back: how much, of which tables, and what bars the way.

Guarantees: reads the journal alone, and changes nothing; memory does not grow with what is surveyed.
Leaves to others: who asks, and how it is taken back (undo_transactions.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from replicate.audit.show import ShownTransaction
from replicate.model.transaction import Kind, Op

BARS = (Op.DEFINE.name, Op.SCHEMA.name, Op.REGION.name)
"""Changes of which the journal has no state of before."""
_ROWS = (Op.INSERT.name, Op.UPDATE.name, Op.DELETE.name)
_NOBODYS = (Kind.HISTORY.name, Kind.NULL.name)


class Surveyed(Struct, frozen=True):
    """`transactions`: those that carry somebody's data. `changes`: table -> how many rows were inserted, updated and
    deleted there. `barred_at`: the first transaction that cannot be taken back, 0 when all can; `barred_by` what it
    does."""

    transactions: int
    changes: dict[str, dict[str, int]]
    barred_at: int = 0
    barred_by: str = ""


def survey(transactions: Iterable[ShownTransaction]) -> Surveyed:
    """Of these, parts of large ones among them."""
    count, barred_at, barred_by = 0, 0, ""
    changes: dict[str, Counter[str]] = {}
    for one in transactions:
        count += one.kind not in (*_NOBODYS, Kind.PART.name)
        for change in one.changes:
            if change.what in _ROWS:
                changes.setdefault(change.table, Counter())[change.what] += 1
            elif change.what in BARS and not barred_at:
                barred_at, barred_by = one.seqno, f"{change.what} {change.table} {change.text}".replace("  ", " ")
    return Surveyed(count, {table: dict(found) for table, found in sorted(changes.items())}, barred_at, barred_by)
