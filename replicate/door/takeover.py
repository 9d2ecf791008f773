"""A whole range of received transactions enters the journal in one step: the commit door's part in a replay.

The range stands in a segment of its own, written aside (journal/aside.py). Under the commit lock it gets its name, the
regions commit, and the control words follow. INTENT_KIND TAKES tells the next holder of the lock what a killed one was
about: INTENT_OFFSET and INTENT_BYTES are the place of the range's last frame, which is there if and only if the rename
took place; then the range is *redone* like any other append (the regions are rolled forward from our journal).

Guarantees: the journal holds the whole range or nothing of it, whenever the process is killed.
Refuses to know: rows, and where the range comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from replicate.errnos import SPARED_ERRORS
from replicate.errors import DamagedError, JournalIOError, JournalMissingError, TryAgainError
from replicate.failpoint import hit
from replicate.journal.aside import AsideSegment
from replicate.journal.record import Head, check_frame
from replicate.journal.segment import read_exactly, sync_directory
from replicate.pool import control as word

if TYPE_CHECKING:
    from replicate.door.door import Door

TAKES: Final = 3
"""INTENT_KIND: a segment written aside, which begins with INTENT_SEQNO, is renamed into the chain."""


def begin_aside(door: Door) -> AsideSegment:
    """A segment aside that continues the journal's end as it is now. Takes the commit lock for a moment.

    DiskFullError, JournalIOError; what `Door.enter` raises.
    """
    with door.locked():
        catalogue = door.catalogue_at_end()
        door.durability.sync_to_end()
        header = door.next_header(door.words[word.LAST_SEQNO] + 1)
    return AsideSegment(door.instance.journal_directory, header, catalogue)


def enter_taken(door: Door, aside: AsideSegment, regions: int) -> None:
    """Rename the segment into the chain. Commit lock held; nothing is visible to readers yet.

    TryAgainError: the journal has moved on since `begin_aside`; nothing has changed.
    """
    words = door.words
    wanted = door.next_header(words[word.LAST_SEQNO] + 1)
    ours = aside.header
    last = aside.last_head
    if last is None or (
        (wanted.first_seqno, wanted.previous_first_seqno, wanted.previous_end_offset, wanted.previous_check)
        != (ours.first_seqno, ours.previous_first_seqno, ours.previous_end_offset, ours.previous_check)
        or wanted.incarnation != ours.incarnation
    ):
        raise TryAgainError(
            f"the journal has moved on to transaction {words[word.LAST_SEQNO]} meanwhile; nothing was taken over",
            where=str(door.instance.path),
            do="Run the same command again",
        )
    words[word.INTENT_KIND] = TAKES
    words[word.INTENT_OFFSET] = aside.last_offset
    words[word.INTENT_BYTES] = last.frame_bytes
    words[word.INTENT_REGIONS] = regions
    words[word.INTENT_SEQNO] = aside.first_seqno
    try:
        aside.enter()
    except JournalIOError as error:
        if isinstance(error, SPARED_ERRORS):
            words[word.INTENT_SEQNO] = 0
        else:
            door.poison(error)
        raise
    hit("take.after_rename")


def finish_taken(door: Door, aside: AsideSegment) -> None:
    """Make the range visible; the regions have committed it. The next append begins a new segment."""
    assert aside.last_head is not None
    _show(door, aside.first_seqno, aside.last_head, door.words[word.INTENT_REGIONS], done=True)


def mend_taken(door: Door, first_seqno: int, regions: int) -> None:
    """Finish what a killed holder of the lock has begun."""
    words = door.words
    sync_directory(door.directory)  # whoever was killed may not have come to it
    words[word.SEGMENT_GENERATION] += 1  # the name of an empty segment may be another file's now
    last = _last_head(door, first_seqno)
    if last is None:
        words[word.INTENT_SEQNO] = 0
    else:
        _show(door, first_seqno, last, regions, done=False)


def _last_head(door: Door, first_seqno: int) -> Head | None:
    """The head of the range's last frame; None when the segment has not got its name."""
    words = door.words
    try:
        with door.chain.open(first_seqno) as segment:
            frame = read_exactly(segment.fd, words[word.INTENT_BYTES], words[word.INTENT_OFFSET], segment.path)
            return check_frame(frame)
    except (JournalMissingError, DamagedError):
        return None  # not there, or the empty segment that bears this name still


def _show(door: Door, first_seqno: int, last: Head, regions: int, *, done: bool) -> None:
    words = door.words
    end = words[word.INTENT_OFFSET] + words[word.INTENT_BYTES]
    words[word.SEGMENT_SEALED] = 1
    words[word.SEGMENT_FOREIGN] = 0
    words[word.DEFINITION_COUNT] = 0
    words[word.SEGMENT_FIRST_SEQNO] = first_seqno
    words[word.ZEROED_OFFSET] = end
    words[word.SEGMENT_GENERATION] += 1
    words[word.CATALOGUE_GENERATION] += 1
    door.advance(end, last, regions, done=done)
    door.durability.note_durable(last.seqno)
    door.pool.publish_in_files(first_seqno, last.seqno)
    words[word.INTENT_SEQNO] = 0
    door.has_switched = True
    door.ring()
