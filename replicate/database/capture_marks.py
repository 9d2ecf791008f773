"""What capture hands over: a transaction's changes for the door, and marks: places in the stream to come back to.

Guarantees: a mark holds all that goes back with it.
Refuses to know: how changes are captured (capture.py, capture_several.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from replicate.database.capture_tables import TableMap

if TYPE_CHECKING:
    from replicate.journal.spool import Spool


class CapturedChanges(NamedTuple):
    """One transaction's changes, ready for a frame. With a spool, all of them are in the spool and `payload` is empty.

    `count`: elements (four to a change). `defines`: it holds DEFINE changes. `schema_changed`: the region's schema
    version moved. `touched`: of a connection with several regions, the names under which those are attached that have
    changes, and whether the schema version of each moved.
    """

    payload: bytes
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of these
    partitions: tuple[int, ...]
    defines: bool
    spool: Spool | None
    schema_changed: bool
    touched: Mapping[str, bool] | None = None


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


class Mark(NamedTuple):
    """A place in the change stream, and all that goes back with it. Taken before every statement, so it is cheap."""

    offset: int
    changes: int
    context: Context
    others: tuple[Mark, ...] = ()
    """The places in the streams of attached regions (capture_several.py)."""

    @property
    def refusal(self) -> BaseException | None:
        """Why the transaction could only be rolled back at that place already."""
        if self.context.refusal is None and self.others:
            return next((other.refusal for other in self.others if other.refusal is not None), None)
        return self.context.refusal
