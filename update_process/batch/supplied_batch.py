"""What a supplier has taken of others' transactions for one commit, until they are committed.

Guarantees: windows go together only where all of them are merged, or none is; `places` and `csn` are of all that was
taken.
Leaves to others: how rows are applied or merged, what is refused, the commit (supplied_transactions.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from replicate.journal.record import Head, read_head
from replicate.journal.walk import PiecedBatch, Pieces
from replicate.model.vector import Position
from update_process.window.columns import Changes

_CSN: Final = itemgetter(6)


@dataclass(slots=True)
class SuppliedBatch:
    """`before`: where our journal ends. `is_alone`: there is one transaction, and so an error says which row it is."""

    before: Position
    is_alone: bool
    position: Position = field(init=False)
    """After all that was taken."""
    points: dict[int, tuple[int, int]] = field(init=False)
    """Where each origin stands after all that was opened (plan.open_window)."""
    count: int = 0
    """Transactions that were taken of others."""
    csn: int = 0
    """The highest of them."""
    defines: bool = False
    """The last one changes tables."""
    merges: bool | None = None
    """Whether they are looked at row by row. None: they change nothing that several write, so far."""
    frames: list[bytes | bytearray] = field(default_factory=list)
    last_at: int = 0
    """Where in the last of `frames`, which may hold several, its last one begins."""
    scattered: list[Changes] = field(default_factory=list)
    """Changes here and there in a table, which wait for the others of the batch."""

    def __post_init__(self) -> None:
        self.position = self.before
        self.points = dict(self.before.chains)

    @property
    def next_seqno(self) -> int:
        """Of the transaction that is taken next."""
        return self.before.last_seqno + 1 + self.count

    def admits(self, merges: bool | None) -> bool:
        """Whether a window goes with those before it, which is then counted among them. `merges`: as `Merging.merges`
        tells of it."""
        if merges is None or merges == self.merges:
            return True
        if self.merges is not None:
            return False
        if merges and self.count:
            return False  # what was taken was not looked at, and has to be in our journal for that
        self.merges = merges
        return True

    def add_frames(self, frames: Sequence[bytes | bytearray], ends: Sequence[int]) -> None:
        """These are to stand in our journal: each transaction's by itself, or all as they lie in a window, where each
        ends at one of `ends`."""
        self.frames += frames
        self.last_at = ends[-2] if len(frames) == 1 and len(ends) > 1 else 0

    def took(self, bodies: Sequence[Any], after: Position) -> None:
        """These were applied, up to `after`."""
        self.position = after
        self.csn = max(self.csn, *map(_CSN, bodies))
        self.count += len(bodies)

    @property
    def places(self) -> dict[int, tuple[int, int]]:
        """Where each origin stands that was moved."""
        known = self.before.chains
        return {origin: place for origin, place in self.position.chains.items() if known.get(origin) != place}

    @property
    def size_bytes(self) -> int:
        """Of all frames."""
        return sum(map(len, self.frames))

    def took_own(self, frame: bytes, after: Position) -> None:
        """Our own transaction `frame` comes after them, up to `after`."""
        self.add_frames([frame], ())
        self.csn = max(self.csn, read_head(frame).csn)
        self.position = after

    def for_journal(self) -> tuple[PiecedBatch, Head]:
        """All frames, and the head of the last one."""
        joined = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        first_seqno, last_seqno = self.before.last_seqno + 1, self.position.last_seqno
        whole = Pieces(memoryview(joined), [0], [len(joined)])
        batch = PiecedBatch(first_seqno, last_seqno, last_seqno + 1 - first_seqno, whole)
        return batch, read_head(self.frames[-1], self.last_at)
