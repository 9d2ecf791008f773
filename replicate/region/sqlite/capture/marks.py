"""What capture hands over: a transaction's changes for the door, and marks: places in the stream to come back to.

Guarantees: a mark holds all that goes back with it.
Leaves to others: how changes are captured (capture.py, several_regions.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from replicate.region.sqlite.capture.tables import TableMap


class Context(NamedTuple):
    """What changes seldom within a transaction, and goes back with a mark."""

    tables: TableMap
    sequences: Mapping[str, int] | None
    """The counters of AUTOINCREMENT before the first statement that may move them; None before that."""
    partitions: frozenset[int]
    defines: bool
    schema_changed: bool
    refusal: BaseException | None
    doubt: bool = False
    """Whether the counters of AUTOINCREMENT may be other than the rows that were inserted make them."""
    by_hand: frozenset[Any] = frozenset()
    """The names in sqlite_sequence whose rows a statement of the application has written."""


class Mark(NamedTuple):
    """A place in the change stream, and all that goes back with it. Taken before every statement, so it is cheap."""

    offset: int
    changes: int
    context: Context
    others: tuple[Mark, ...] = ()
    """The places in the streams of attached regions (several_regions.py)."""

    @property
    def refusal(self) -> BaseException | None:
        """Why the transaction could only be rolled back at that place already."""
        if self.context.refusal is None and self.others:
            return next((other.refusal for other in self.others if other.refusal is not None), None)
        return self.context.refusal
