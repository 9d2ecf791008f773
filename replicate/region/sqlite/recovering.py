"""The SQLite side of recovery, redo and rollback: one region that is brought to where the journal says.

Guarantees: what is in one `transaction` is there as a whole or not at all; within `synced` each COMMIT is on the disk.
Leaves to others: what is brought there, and why (door/recovery/, roles/undo_transactions.py); locks of ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from replicate.limits import PARTITION_STREAM, RING_SLOTS
from replicate.model.transaction import TableDefinition
from replicate.region.protocol import RingSlot, ScrRow
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.region.sqlite.bookkeeping import (
    APPLIED_FROM,
    held_below,
    read_ring,
    stored_schema_version,
    write_scr,
    write_slot,
    write_state,
)
from replicate.region.sqlite.idle_region import forget_held, may_lack_from, write_held
from replicate.region.sqlite.open import open_region, write_transaction
from replicate.region.sqlite.open_region import OpenedFile
from replicate.region.sqlite.turn_role import note_taken_back

SYNCED: Final = "PRAGMA main.synchronous = FULL"
"""SQLite syncs the WAL with each COMMIT from now on."""
NOT_SYNCED: Final = "PRAGMA main.synchronous = NORMAL"


class MendedFile(OpenedFile):
    """One region, open for recovery."""

    def __init__(self, path: str | os.PathLike[str], *, region: bytes) -> None:
        """Open the file of the region with that UUID. Raises as `open_region`."""
        super().__init__(open_region(path, applier=True, region=region), path, region)

    def ring(self) -> list[RingSlot]:
        """Its last commits as a primary, by number."""
        return read_ring(self.connection)

    def stored_version(self) -> int:
        """The schema version that was kept with the last change of ours."""
        return stored_schema_version(self.connection)

    def held_below(self) -> int:
        """As in bookkeeping.py."""
        return held_below(self.connection)

    def may_lack_from(self) -> int:
        """As in idle_region.py."""
        return may_lack_from(self.connection)

    def note_held(self, below: int) -> None:
        """As `write_held`."""
        write_held(self.connection, below)

    def forget_held(self, last_seqno: int) -> None:
        """As in idle_region.py, on the disk when it returns."""
        with self.synced():
            forget_held(self.connection, last_seqno)

    def rows(self, definitions: Mapping[int, TableDefinition], name: str) -> RowApplier:
        """What applies rows to it; `name`: the region's."""
        return RowApplier(self.connection, definitions, region=name)

    @contextmanager
    def synced(self) -> Iterator[None]:
        """What is committed within is on the disk by then. After a failure the region is to be closed."""
        self.connection.execute(SYNCED)
        yield
        self.connection.execute(NOT_SYNCED)

    def transaction(self) -> AbstractContextManager[None]:
        """As `write_transaction`."""
        return write_transaction(self.connection, self.where)

    def write_slot(self, seqno: int, record: bytes | None) -> None:
        """In a transaction: put a commit's number and record into the ring."""
        write_slot(self.connection, seqno, record)

    def move_checkpoint(self, rows: Sequence[ScrRow], *, applied_from: int) -> None:
        """In a transaction: raise the checkpoint records, and note the batch's first number (0: it is not noted)."""
        write_scr(self.connection, rows)
        if applied_from:
            write_state(self.connection, APPLIED_FROM, applied_from)

    def cut_ring(self, last_seqno: int, *, reaches: bool) -> None:
        """In a transaction: forget the commits above, and the checkpoint records of partitions that name them: which
        they named before, nothing here tells. `reaches`: the region holds `last_seqno`, without a record."""
        self.connection.execute(
            "DELETE FROM main._replicate_scr WHERE seqno > ? AND partition <> ?", (last_seqno, PARTITION_STREAM)
        )
        self.connection.execute(
            "UPDATE main._replicate_ring SET seqno = 0, record = NULL WHERE seqno > ?", (last_seqno,)
        )
        if reaches:
            # One of them may have stood in the slot of the last commit that stays; its number went with it.
            self.connection.execute(
                "UPDATE main._replicate_ring SET seqno = ?2, record = NULL WHERE slot = ?1 AND seqno < ?2",
                (last_seqno % RING_SLOTS, last_seqno),
            )

    def note_taken_back(self, reached: int, rows: list[ScrRow], *, last: bool) -> None:
        """As in turn_role.py."""
        note_taken_back(self.connection, reached, rows, last=last)
