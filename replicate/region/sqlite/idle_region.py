"""A primary's region in which nothing was written for long: what it says of itself, so that nobody looks through the
journal for what it may lack.

Guarantees: what is noted counts only for the region as it was then: beside another last number of its own, or beyond
the journal's end, it says nothing. Leaves to others: locks, the journal, when it is worth a note.
"""

from __future__ import annotations

import apsw

from replicate.region.sqlite.bookkeeping import HELD_AT, HELD_BELOW, held_below, read_state, region_seqno, write_state


def may_lack_from(connection: apsw.Connection) -> int:
    """The first number of the journal that the region of a primary may lack. As `held_below`, but what is said for
    another last number than that which the region has now does not count at all."""
    seqno = region_seqno(connection)
    return held_below(connection) if read_state(connection, HELD_AT) == seqno else seqno + 1


def write_held(connection: apsw.Connection, below: int) -> None:
    """Note that it lacks nothing below. The caller holds the region's lock, has nothing unfinished there, and all below
    is durable in the journal."""
    # In this order: what stands there in between is true, or does not count.
    write_state(connection, HELD_BELOW, below)
    write_state(connection, HELD_AT, region_seqno(connection))


def forget_held(connection: apsw.Connection, last_seqno: int) -> None:
    """Take back what is noted of numbers above `last_seqno`, the journal's end: an older journal was put back, and what
    will bear these numbers now is not in the region."""
    noted = read_state(connection, HELD_BELOW)
    if isinstance(noted, int) and noted > last_seqno + 1:
        write_state(connection, HELD_BELOW, last_seqno + 1)
