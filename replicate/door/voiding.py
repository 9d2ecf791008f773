"""A transaction that is in the journal and in no region, because its COMMIT failed, becomes a NULL record: the commit
door's part in a failed commit.

It is voided in place, before any reader may have seen its frame. A large one's segment leaves the chain again instead,
and its number is used for something else.

Guarantees: afterwards the number is a NULL record's, or free, on the disk too; or OutcomeUnknownError, and the journal
takes nothing more until recovery has run, or until the next holder of the commit lock has finished the transaction.
Leaves to others: the commit lock, which the caller holds, and why COMMIT failed.
"""

from __future__ import annotations

import os

from replicate.door.appended_segment import NewestSegment
from replicate.door.ledger import ADOPTS, Allotted, Ledger
from replicate.door.recovery.journal_end import void_payload
from replicate.errors import JournalIOError, OutcomeUnknownError
from replicate.journal.record import pack_frame
from replicate.journal.segment import segment_name
from replicate.model.transaction import Kind
from replicate.pool import control as word
from replicate.system.files import Directory
from replicate.system.os_errors import NO_DESCRIPTORS


def void(ledger: Ledger, end: NewestSegment, allotted: Allotted, reason: str) -> Allotted | None:
    """The intent is still that of `allotted`. `reason`: goes into the record. Gives the NULL record, on the disk and
    still to be made visible; None when the number is free again."""
    words = ledger.words
    try:
        if words[word.INTENT_KIND] == ADOPTS:
            _void_adopted(ledger, end, allotted.seqno)
            ledger.done()
            return None
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
        segment = end.segment()
        segment.append(words[word.INTENT_OFFSET], frame)
        segment.sync()
    except (OSError, JournalIOError) as error:
        do = "Stop every process of this instance, mend the disk, start again: recovery decides"
        if isinstance(error, JournalIOError) and error.facts.get("errno") in NO_DESCRIPTORS:
            # Nothing has changed: the transaction stands there whole, as a killed writer's.
            do = f"{error.do}: the next writer finishes it"
        else:
            ledger.poison(error)
        raise OutcomeUnknownError(
            f"transaction {allotted.seqno} failed, and could not be voided in the journal", where=end.directory, do=do
        ) from error
    words[word.INTENT_REGIONS] = 0
    return Allotted(allotted.seqno, frame, allotted.origin_seqno, chain, allotted.csn)


def _void_adopted(ledger: Ledger, end: NewestSegment, seqno: int) -> None:
    """Take an adopted segment out of the chain again, durably: its number is used for something else."""
    if ledger.words[word.SEGMENT_FIRST_SEQNO] != seqno:
        with Directory(end.directory) as names:
            os.unlink(os.path.join(end.directory, segment_name(seqno)))
            names.sync()
        return
    # It had taken the place of the empty segment that was appended to.
    end.begin_again(seqno)
