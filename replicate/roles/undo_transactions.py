"""Taking transactions back in one region, the newest first, by the before-images in the journal.

Guarantees: the region goes from one whole transaction to the one before it, in pieces that are each one SQLite
transaction on the disk; what it holds at any moment stands in its own bookkeeping, so that the next call goes on where
a killed one stopped; a row that is not as the journal has it stops the work between two pieces, and nothing of that
piece is done. Memory holds one piece.
Leaves to others: locks, markers, the journal's end. The caller has all of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from replicate.door.recovery.unapply import inverse, inverse_apart
from replicate.errors import ConflictError
from replicate.instance.file import RegionEntry
from replicate.journal.backwards import changes_backwards, pieces_backwards
from replicate.journal.chain import Chain
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import FrameBatch, changes_of, decode_batch
from replicate.model.transaction import TableDefinition
from replicate.region.kind import KIND
from replicate.region.protocol import MendedRegion, RowsOfRegion, ScrRow
from replicate.system.failpoint import hit


def undo_region(
    entry: RegionEntry, chain: Chain, to: int, definitions: Mapping[int, TableDefinition], rows: list[ScrRow], do: str
) -> None:
    """Bring the region back to `to`, where `rows` are its checkpoint records and `definitions` are in force. `do`: what
    mends a region whose rows are not as they should be, for the error.

    Raises ConflictError, RegionReplacedError, and what reading the journal and SQLite raise.
    """
    try:
        with closing(KIND.mended(entry.path, region=entry.uuid)) as region, KIND.naming(region.where), region.synced():
            here = {key: one for key, one in definitions.items() if one.region == entry.name}
            undoing = _Undoing(region.rows(here, entry.name))
            reached = _reached(region, to)
            for piece in pieces_backwards(chain, to + 1, reached) if reached > to else ():
                first = piece.seqno if isinstance(piece, LargeTransaction) else piece.first_seqno
                with region.transaction():
                    undoing.piece(piece)
                    undoing.rows.settle_sequences()
                    region.note_taken_back(first - 1, rows, last=first - 1 <= to)
                hit("rollback.piece_undone")
    except ConflictError as error:
        raise ConflictError(error.what, where=error.where, do=do, **error.facts) from error


def _reached(region: MendedRegion, to: int) -> int:
    """The last transaction that the region holds. Its checkpoint records stand at `to` from the first piece on, and a
    slot of its ring says how far it is."""
    applied = max((row.seqno for row in region.checkpoint()), default=0)
    return applied if applied > to else max((slot.seqno for slot in region.ring()), default=to)


class _Undoing:
    """The applier of one region, fed with what it takes back."""

    def __init__(self, rows: RowsOfRegion) -> None:
        self.rows = rows

    def piece(self, piece: FrameBatch | LargeTransaction) -> None:
        """All of a piece, in an open transaction."""
        self.rows.begin()
        if isinstance(piece, LargeTransaction):
            self._large(piece)
            return
        for body in reversed(decode_batch(piece.data)[2::3]):
            self.rows.seqno = body[1]
            self.rows.apply_all(inverse(self._ours(changes_of(body))))

    def _large(self, large: LargeTransaction) -> None:
        self.rows.seqno = large.seqno
        counters: list[Any] = []
        for changes in changes_backwards(large):
            rows, more = inverse_apart(self._ours(changes))
            self.rows.apply_all(rows)
            counters += more
        self.rows.apply_all(counters)

    def _ours(self, flat: Any) -> list[Any]:
        """The changes of this region; comments and those of others are nothing to it."""
        return [
            element
            for place in range(0, len(flat), 4)
            if flat[place + 1] in self.rows.definitions
            for element in flat[place : place + 4]
        ]
