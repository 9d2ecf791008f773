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


class FrameRoom:
    """Where the frames of a batch lie until it is committed: in the memory of the batch before it. Memory that is
    given back comes from the kernel again page by page: a tenth of an Update Process's time (measured)."""

    def __init__(self) -> None:
        self.data = bytearray()

    def put(self, at: int, frames: bytes | bytearray) -> int:
        """Have frames stand at `at`; where they end. What was at and after it is void."""
        end = at + len(frames)
        if end > len(self.data):
            longer = bytearray(2 * end)  # never the same one: somebody may look at it
            longer[:at] = self.data[:at]
            self.data = longer
        self.data[at:end] = frames
        return end


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
    room: FrameRoom = field(default_factory=FrameRoom)
    """Where the frames are."""
    size_bytes: int = 0
    """Of all frames."""
    last_at: int = 0
    """Where among them the last one begins."""
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
        begin = self.size_bytes
        for frame in frames:
            begin, self.size_bytes = self.size_bytes, self.room.put(self.size_bytes, frame)
        self.last_at = begin + (ends[-2] if len(frames) == 1 and len(ends) > 1 else 0)

    def took(self, bodies: Sequence[Any], after: Position) -> None:
        """These were applied, up to `after`."""
        self.position = after
        self.csn = max(self.csn, max(map(_CSN, bodies), default=0))
        self.count += len(bodies)

    @property
    def places(self) -> dict[int, tuple[int, int]]:
        """Where each origin stands that was moved."""
        known = self.before.chains
        return {origin: place for origin, place in self.position.chains.items() if known.get(origin) != place}

    def took_own(self, frame: bytes, after: Position) -> None:
        """Our own transaction `frame` comes after them, up to `after`."""
        self.add_frames([frame], ())
        self.csn = max(self.csn, read_head(frame).csn)
        self.position = after

    def for_journal(self) -> tuple[PiecedBatch, Head]:
        """All frames, and the head of the last one."""
        first_seqno, last_seqno = self.before.last_seqno + 1, self.position.last_seqno
        whole = Pieces(memoryview(self.room.data), [0], [self.size_bytes])
        batch = PiecedBatch(first_seqno, last_seqno, last_seqno + 1 - first_seqno, whole)
        return batch, read_head(self.room.data, self.last_at)
