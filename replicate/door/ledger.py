"""What the control block says of the journal: the intent of the holder of the commit lock, and the numbers given out.

INTENT words. Before a frame is written, its place and number stand in INTENT_OFFSET, INTENT_BYTES, INTENT_REGIONS,
INTENT_KIND and, last, INTENT_SEQNO; when everything is done INTENT_SEQNO goes back to 0. So the next holder of the
lock knows all that a dead one may have touched, and finishes it (door/door.py, `_mend`). LAST_SEQNO stands before
INTENT_SEQNO until COMMIT has returned: no reader is allowed to see a frame before its outcome is known.

Guarantees: INTENT_SEQNO is set last and taken back first; a number becomes visible only together with the end of the
journal, its chain and its regions.
Leaves to others: the commit lock, which the caller holds; files; SQL. The words of a single frame's hot path are
written by door/door.py itself.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from replicate.door.durability import Durability
from replicate.journal.record import Head
from replicate.pool import control as word
from replicate.pool.journal_pool import JournalPool

APPENDS: Final = 0
"""INTENT_KIND: frames are written at INTENT_OFFSET."""
ADOPTS: Final = 1
"""INTENT_KIND: a large transaction is appended by renaming its segment into the chain."""
SWITCHES: Final = 2
"""INTENT_KIND: the segment that begins with INTENT_SEQNO is being made; once it is there, the words turn to it."""
TAKES: Final = 3
"""INTENT_KIND: a segment written aside, which begins with INTENT_SEQNO, is renamed into the chain."""


class Allotted(NamedTuple):
    """A frame with the number that it will have; nothing of it is visible yet."""

    seqno: int
    frame: bytes
    origin_seqno: int
    chain: int
    csn: int


class Moved(NamedTuple):
    """Several frames: where each of their origins stands after them, and the highest csn."""

    places: Mapping[int, tuple[int, int]]
    csn: int


class Ledger:
    """One per door. `ring`: wakes those that sleep until there is something new in the pool."""

    def __init__(
        self, pool: JournalPool, durability: Durability, ring: Callable[[], None], *, is_supplier: bool = False
    ) -> None:
        """`is_supplier`: other origins move while ours does."""
        self._is_supplier = is_supplier
        self.words = pool.words
        self.pool = pool
        self.durability = durability
        self.ring = ring

    # The intent.

    def intend(self, kind: int, first_seqno: int, regions: int, *, offset: int | None = None, size: int = 0) -> None:
        """Say what is about to be done. `offset`: where `size` bytes will stand (None: the kind does not need it)."""
        words = self.words
        words[word.INTENT_KIND] = kind
        if offset is not None:
            words[word.INTENT_OFFSET] = offset
            words[word.INTENT_BYTES] = size
        words[word.INTENT_REGIONS] = regions
        words[word.INTENT_SEQNO] = first_seqno

    def done(self) -> None:
        """It is done, or nothing of it has happened."""
        self.words[word.INTENT_SEQNO] = 0

    def poison(self, error: BaseException | int) -> None:
        """No process of this instance appends any more until recovery has run."""
        number = error if isinstance(error, int) else getattr(error, "errno", None) or errno.EIO
        cause = getattr(error, "__cause__", None)
        self.words[word.FATAL] = getattr(cause, "errno", None) or number

    # The journal's end.

    def advance(self, end: int, last: Head, regions: int, *, done: bool, moved: Moved | None = None) -> None:
        """The journal ends at offset `end` of its newest segment, with the frame whose head is `last`; of `regions`,
        `done` says whether they have committed up to there. `moved`: where more than one frame was appended, where
        their origins stand, and the highest csn among them."""
        words = self.words
        words[word.END_OFFSET] = end
        places = {last.origin: (last.origin_seqno, last.chain)} if moved is None else moved.places
        own = places.get(words[word.OWN_ORIGIN])
        if own is not None:
            words[word.OWN_ORIGIN_SEQNO], words[word.OWN_CHAIN] = own
        if self._is_supplier:
            self._note_foreign(places, last.seqno)
        words[word.LAST_CSN] = max(words[word.LAST_CSN], last.csn, 0 if moved is None else moved.csn)
        words[word.LAST_COMMIT_WALL_NS] = time.time_ns()
        while regions:
            region = regions.bit_length() - 1
            words[word.REGION_APPENDED + region] = last.seqno
            if done:
                words[word.REGION_DONE + region] = last.seqno
            regions ^= 1 << region
        words[word.LAST_SEQNO] = last.seqno

    def _note_foreign(self, places: Mapping[int, tuple[int, int]], seqno: int) -> None:
        """On a supplier: other origins have moved. Where there is no room for all, the next append begins a segment,
        whose header says where they stand."""
        words = self.words
        own, count = words[word.OWN_ORIGIN], words[word.FOREIGN_COUNT]
        if places.keys() != {own}:
            words[word.FOREIGN_SEQNO] = seqno
        known = {words[word.FOREIGN + word.FOREIGN_WORDS * place]: place for place in range(count)}
        for origin, (origin_seqno, chain) in places.items():
            if origin == own:
                continue
            place = known.setdefault(origin, len(known))
            if place >= word.FOREIGN_MAX:
                words[word.SEGMENT_FOREIGN] = 1
                return
            at = word.FOREIGN + word.FOREIGN_WORDS * place
            words[at], words[at + 1], words[at + 2] = origin, origin_seqno, chain
            words[word.FOREIGN_COUNT] = len(known)

    def note_definition(self, offset: int) -> None:
        """The frame at `offset` of the newest segment changes the catalogue."""
        words = self.words
        count = words[word.DEFINITION_COUNT]
        if count and words[word.DEFINITION_OFFSET + count - 1] == offset:
            return
        words[word.DEFINITION_OFFSET + count] = offset
        words[word.DEFINITION_COUNT] = count + 1
        words[word.CATALOGUE_GENERATION] += 1

    def enter_segment(self, first_seqno: int, last: Head, end: int, regions: int, *, done: bool) -> None:
        """A whole segment has entered the chain by its name, and is on the disk: what it holds up to `last` becomes
        visible, to be read from the files. The next append begins a new segment."""
        words = self.words
        words[word.SEGMENT_SEALED] = 1
        words[word.SEGMENT_FOREIGN] = words[word.FOREIGN_COUNT] = 0
        words[word.DEFINITION_COUNT] = 0
        words[word.SEGMENT_FIRST_SEQNO] = first_seqno
        words[word.SEGMENT_GENERATION] += 1
        words[word.CATALOGUE_GENERATION] += 1
        self.advance(end, last, regions, done=done)
        self.durability.note_durable(last.seqno)
        self.pool.publish_in_files(first_seqno, last.seqno)
        self.done()
        self.ring()
