"""A region's bookkeeping when its instance changes its role: where it stands is said in the other role's way.

A primary's region tells its position by the ring, a secondary's by its checkpoint records and by where its last batch
began (APPLIED_FROM). What an earlier era has left of the other way would be taken for the present one.

Guarantees: each change is one SQLite transaction, on the disk when this returns; the region's last number is the same
before and after, in either role's reading; doing it again changes nothing.
Leaves to others: locks (the caller holds the region's), the journal, what comes next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from replicate.region.protocol import ScrRow
from replicate.region.sqlite.bookkeeping import APPLIED_FROM, clear_ring, replace_scr, write_slot, write_state
from replicate.region.sqlite.open import open_region, translate, write_transaction
from replicate.region.sqlite.own_counters import OwnCounters
from replicate.region.sqlite.row_stamps import make_stamp_tables


def begin_as_secondary(path: Path, region: bytes, rows: list[ScrRow]) -> None:
    """`rows`: the checkpoint records that say its position."""
    with synced_transaction(path, region) as connection:
        clear_ring(connection)
        replace_scr(connection, rows)
        # Else the number of the next batch, in a WAL that was begun before it, is held against an older file's records.
        write_state(connection, APPLIED_FROM, 1)


def begin_as_primary(path: Path, region: bytes, seqno: int) -> None:
    """`seqno`: the journal's last number, all of which the region holds."""
    with synced_transaction(path, region) as connection:
        clear_ring(connection)
        if seqno:
            write_slot(connection, seqno, None)


def begin_as_supplier(path: Path, region: bytes, *, begins_at: int) -> None:
    """`begins_at`: the first number that its journal holds."""
    with synced_transaction(path, region) as connection:
        make_stamp_tables(connection, begins_at=begins_at)
        counters = OwnCounters(connection)
        counters.take_places()
        counters.settle()


@contextmanager
def synced_transaction(path: Path, region: bytes) -> Iterator[apsw.Connection]:
    """One transaction in a region, on the disk when the block has been left. Raises what opening it and SQLite raise;
    nothing is changed then."""
    connection = open_region(path, applier=True, region=region)
    try:
        connection.execute("PRAGMA main.synchronous = FULL")  # SQLite syncs the WAL with the COMMIT
        with write_transaction(connection, str(path)):
            yield connection
    except apsw.Error as error:
        raise translate(error, where=str(path)) from error
    finally:
        connection.close(True)


def note_taken_back(connection: apsw.Connection, reached: int, rows: list[ScrRow], *, last: bool) -> None:
    """In the transaction that takes a piece back: the region stands at `reached` now, on its way to where `rows` are
    its checkpoint records; `last`: it is there. The slot of the ring is the progress: the records alone would hide
    it."""
    clear_ring(connection)
    replace_scr(connection, rows)
    if not last:
        write_slot(connection, reached, None)
    write_state(connection, APPLIED_FROM, 1)
