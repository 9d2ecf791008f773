"""A whole range of received transactions enters the journal in one step: the commit door's part in a replay.

The range stands in a segment of its own, written beside the chain (journal/prepared_segment.py). Under the commit lock
it gets its name, the regions commit, and the control words follow. INTENT_KIND TAKES tells the next holder of the lock
what a killed one was about: INTENT_OFFSET and INTENT_BYTES are the place of the range's last frame, which is there if
and only if the rename took place; then the range is *redone* like any other append (the regions are rolled forward from
our journal).

Guarantees: the journal holds the whole range or nothing of it, whenever the process is killed.
Leaves to others: the commit lock, which the caller holds; rows, and where the range comes from.
"""

from __future__ import annotations

from replicate.door.appended_segment import NewestSegment
from replicate.door.ledger import TAKES, Ledger
from replicate.errors import DamagedError, JournalIOError, JournalMissingError, TryAgainError
from replicate.journal.prepared_segment import AsideSegment
from replicate.journal.record import Head, check_frame
from replicate.journal.segment import read_exactly
from replicate.pool import control as word
from replicate.system.failpoint import hit
from replicate.system.files import sync_directory
from replicate.system.os_errors import SPARED_ERRORS


def enter_taken(ledger: Ledger, end: NewestSegment, aside: AsideSegment, regions: int) -> None:
    """Rename the segment into the chain. Nothing is visible to readers yet.

    TryAgainError: the journal has moved on since `begin_aside`; nothing has changed.
    """
    words = ledger.words
    wanted = end.next_header(words[word.LAST_SEQNO] + 1)
    ours = aside.header
    last = aside.last_head
    if last is None or (
        (wanted.first_seqno, wanted.previous_first_seqno, wanted.previous_end_offset, wanted.previous_check)
        != (ours.first_seqno, ours.previous_first_seqno, ours.previous_end_offset, ours.previous_check)
        or wanted.incarnation != ours.incarnation
    ):
        raise TryAgainError(
            f"the journal has moved on to transaction {words[word.LAST_SEQNO]} meanwhile; nothing was taken over",
            where=str(end.instance.path),
            do="Run the same command again",
        )
    ledger.intend(TAKES, aside.first_seqno, regions, offset=aside.last_offset, size=last.frame_bytes)
    try:
        aside.enter()
    except JournalIOError as error:
        if isinstance(error, SPARED_ERRORS):
            ledger.done()
        else:
            ledger.poison(error)
        raise
    hit("take.after_rename")


def finish_taken(ledger: Ledger, aside: AsideSegment) -> None:
    """Make the range visible; the regions have committed it."""
    assert aside.last_head is not None
    _show(ledger, aside.first_seqno, aside.last_head, ledger.words[word.INTENT_REGIONS], done=True)


def mend_taken(ledger: Ledger, end: NewestSegment, first_seqno: int, regions: int) -> bool:
    """Finish what a killed holder of the lock has begun. Whether the range is in the journal."""
    sync_directory(end.directory)  # the process that was killed may not have come to it
    ledger.words[word.SEGMENT_GENERATION] += 1  # the name of an empty segment may be another file's now
    last = _last_head(ledger, end, first_seqno)
    if last is None:
        ledger.done()
        return False
    _show(ledger, first_seqno, last, regions, done=False)
    return True


def _last_head(ledger: Ledger, end: NewestSegment, first_seqno: int) -> Head | None:
    """The head of the range's last frame; None when the segment has not got its name."""
    words = ledger.words
    try:
        with end.chain.open(first_seqno) as segment:
            frame = read_exactly(segment.fd, words[word.INTENT_BYTES], words[word.INTENT_OFFSET], segment.path)
            return check_frame(frame)
    except (JournalMissingError, DamagedError):
        return None  # not there, or the empty segment that bears this name still


def _show(ledger: Ledger, first_seqno: int, last: Head, regions: int, *, done: bool) -> None:
    words = ledger.words
    end = words[word.INTENT_OFFSET] + words[word.INTENT_BYTES]
    words[word.ZEROED_OFFSET] = end
    ledger.enter_segment(first_seqno, last, end, regions, done=done)
