"""A transaction that is in the journal and in no region, because its COMMIT failed, becomes a NULL record: the commit
door's part in a failed commit.

It is voided in place, before any reader may have seen its frame. A large one's segment leaves the chain again instead,
and its number is used for something else.

Guarantees: afterwards the number is a NULL record's, or free, on the disk too; or OutcomeUnknownError, and the journal
takes nothing more until recovery has run, or until the next holder of the commit lock has finished the transaction.
Refuses to know: why COMMIT failed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from replicate.errnos import NO_DESCRIPTORS
from replicate.errors import JournalIOError, OutcomeUnknownError
from replicate.journal.record import pack_frame
from replicate.journal.segment import Directory, segment_name
from replicate.pool import control as word
from replicate.recovery.mending import void_payload
from replicate.transaction import Kind

if TYPE_CHECKING:
    from replicate.door.door import Door

ADOPTS: Final = 1
"""INTENT_KIND: a large transaction is appended by renaming its segment into the chain."""


class Allotted(NamedTuple):
    """A frame with the number that it will have; nothing of it is visible yet."""

    seqno: int
    frame: bytes
    origin_seqno: int
    chain: int
    csn: int


def void(door: Door, allotted: Allotted, reason: str) -> None:
    """Commit lock held, and the intent is still that of `allotted`. `reason`: goes into the record."""
    words = door.words
    try:
        if words[word.INTENT_KIND] == ADOPTS:
            _void_adopted(door, allotted.seqno)
            words[word.INTENT_SEQNO] = 0
            return
        payload, count = void_payload(reason, len(allotted.frame))
        frame, chain = pack_frame(
            Kind.NULL,
            allotted.seqno,
            words[word.LAST_DURABLE_SEQNO],
            words[word.OWN_CHAIN],
            words[word.OWN_ORIGIN],
            allotted.origin_seqno,
            allotted.csn,
            payload,
            count,
        )
        segment = door.segment()
        segment.append(words[word.INTENT_OFFSET], frame)
        segment.sync()
    except (OSError, JournalIOError) as error:
        do = "Stop every process of this instance, mend the disk, start again: recovery decides"
        if isinstance(error, JournalIOError) and error.facts.get("errno") in NO_DESCRIPTORS:
            # Nothing has changed: the transaction stands there whole, as a killed writer's.
            do = f"{error.do}: the next writer finishes it"
        else:
            door.poison(error)
        raise OutcomeUnknownError(
            f"transaction {allotted.seqno} failed, and could not be voided in the journal", where=door.directory, do=do
        ) from error
    words[word.INTENT_REGIONS] = 0
    door.finish_own(Allotted(allotted.seqno, frame, allotted.origin_seqno, chain, allotted.csn))


def _void_adopted(door: Door, seqno: int) -> None:
    """Take an adopted segment out of the chain again, durably: its number is used for something else."""
    if door.words[word.SEGMENT_FIRST_SEQNO] != seqno:
        with Directory(door.directory) as names:
            os.unlink(os.path.join(door.directory, segment_name(seqno)))
            names.sync()
        return
    # It had taken the place of the empty segment that was appended to.
    door.begin_again(seqno)
