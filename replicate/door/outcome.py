"""What a failure in the middle of a commit is to be called: nothing happened, or nobody can say.

Guarantees: an error that leaves here as it came means that the transaction is neither in the journal nor in a region;
every other one is OutcomeUnknownError.
Leaves to others: who commits (door/primary.py on a primary, door/secondary.py on a secondary).
"""

from __future__ import annotations

from typing import Final

from replicate.errors import (
    BusyError,
    DamagedError,
    DiskFullError,
    JournalIOError,
    OutcomeUnknownError,
    ReplicateError,
)
from replicate.pool import control as word

DISK_ERRORS: Final = (JournalIOError, DamagedError, BusyError)
"""What the disk can do to a commit (BusyError: another process's sync hangs, and it holds the sync lock); every other
error is one of ours, and is told as it is."""


def outcome_of(words: memoryview, seqno: int, error: ReplicateError) -> ReplicateError:
    """What to raise for `error`, met while transaction `seqno` (of a batch: its first) was brought through the door.
    Commit lock held, so that the words still speak of that transaction."""
    if isinstance(error, OutcomeUnknownError):
        return error
    if words[word.LAST_SEQNO] >= seqno:
        return OutcomeUnknownError(
            f"transaction {seqno} is committed, but what has to follow failed: {error.what}",
            where=error.where,
            do="Mend the disk, stop every process of this instance, start again",
            **error.facts,
        )
    if isinstance(error, DiskFullError) or words[word.INTENT_SEQNO] != seqno:
        return error
    # The frame may be in the journal whole, and recovery redoes it then.
    return OutcomeUnknownError(
        f"transaction {seqno} was being written into the journal when it failed: {error.what}",
        where=error.where,
        do="Mend the disk, stop every process of this instance, start again: recovery decides",
        **error.facts,
    )
