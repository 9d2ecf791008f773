"""The segment that is appended to, as one process sees it: its descriptor, what is in force, the next header.

Guarantees: whatever is asked for is of the file that the control words mean now, also when another process has switched
segments, or one file has taken another's name; nothing is appended LOOK_S after the journal was replaced.
Leaves to others: frames, locks. The caller holds the commit lock, but for `open_segment`.
"""

from __future__ import annotations

import os
import time

from msgspec.structs import replace

from replicate.door.recovery.way_out import telling_way_out
from replicate.errors import ConfigurationError
from replicate.instance.instance import Instance
from replicate.journal.catalogue import catalogue_before, catalogue_with
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME
from replicate.journal.header import FLAG_PARTIAL, SegmentHeader
from replicate.journal.segment import SegmentFile, create_segment, grow_bytes_of, open_segment, segment_name
from replicate.limits import PARTITION_STREAM
from replicate.model.transaction import Catalogue
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.system.failpoint import hit


class NewestSegment:
    """One per door."""

    def __init__(self, instance: Instance, words: memoryview, chain: Chain) -> None:
        self.instance = instance
        self._words = words
        self.chain = chain
        self.directory = os.fspath(instance.journal_directory)
        self.received_position: Position | None = None
        """On a secondary: what the Update Process of this process has applied; None on a primary."""
        self.grow_bytes = grow_bytes_of(instance.config.journal.segment_bytes)
        self._segment: SegmentFile | None = None
        self._generation = -1
        self._catalogue: tuple[int, Catalogue] | None = None
        self._mark_path = os.path.join(self.directory, SIDECAR_NAME)
        self._mark: tuple[int, int] | None = None

    def check_place(self) -> None:
        """ConfigurationError when another journal stands where ours was: a backup was put there beneath us, and what
        we append would be in files that nobody finds. Nothing has changed then. It is told by the durable mark, which
        is one file as long as there is a journal. The door asks when it looks at the pool's name, each LOOK_S.

        Where there is none at all, the journal may have been moved: what we append is found where it is now.
        """
        try:
            found = os.stat(self._mark_path)
        except OSError:
            return
        mark = (found.st_dev, found.st_ino)
        if self._mark is None:
            self._mark = mark
        elif mark != self._mark:
            raise ConfigurationError(
                "the journal was replaced while processes use it",
                where=self.directory,
                do="Stop every process of this instance, then start again: recovery runs first",
            )

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def segment(self) -> SegmentFile:
        """The file, open in this process."""
        segment, generation = self._segment, self._words[word.SEGMENT_GENERATION]
        if segment is None or self._generation != generation:
            self.close()
            self._segment = segment = self.open_segment()
            self._generation = generation
        return segment

    def open_segment(self) -> SegmentFile:
        """A descriptor of the caller's own."""
        words = self._words
        content = self.instance.content
        return open_segment(
            os.path.join(self.directory, segment_name(words[word.SEGMENT_FIRST_SEQNO])),
            network=content.network,
            instance=content.uuid,
            writable=True,
            zeroed_offset=words[word.ZEROED_OFFSET],
            grow_bytes=self.grow_bytes,
        )

    def use(self, segment: SegmentFile) -> None:
        """Append to `segment`, which is new and empty, from now on. May be done again after a kill in its middle."""
        words = self._words
        self.close()
        self._segment = segment
        words[word.DEFINITION_COUNT] = 0
        words[word.ZEROED_OFFSET] = segment.zeroed_offset
        words[word.END_OFFSET] = segment.read_catalogue()[1]
        words[word.SEGMENT_FIRST_SEQNO] = segment.header.first_seqno
        hit("switch.between_words")
        words[word.SEGMENT_FOREIGN] = words[word.FOREIGN_COUNT] = 0
        words[word.SEGMENT_SEALED] = 0
        words[word.CATALOGUE_GENERATION] += 1
        words[word.SEGMENT_GENERATION] += 1
        self._generation = words[word.SEGMENT_GENERATION]

    def next_header(self, first_seqno: int, *, is_partial: bool = False) -> SegmentHeader:
        """The header of a segment that begins with `first_seqno`, after this one or, while this is empty, in its
        place. `is_partial`: it will be that of a secondary which does not get all. What a primary writes is all there
        is, whatever it was made from."""
        words = self._words
        content = self.instance.content
        here = self.segment().header
        is_partial = content.role == "secondary" and (is_partial or here.is_partial or content.is_partial)
        flags = FLAG_PARTIAL if is_partial else 0
        if here.first_seqno == first_seqno:
            flags |= here.flags & ~FLAG_PARTIAL
            return replace(here, incarnation=content.incarnation, created_wall_ns=time.time_ns(), flags=flags)
        return SegmentHeader(
            network=content.network,
            instance=content.uuid,
            incarnation=content.incarnation,
            first_seqno=first_seqno,
            created_wall_ns=time.time_ns(),
            previous_first_seqno=here.first_seqno,
            previous_last_seqno=words[word.LAST_SEQNO],
            previous_end_offset=words[word.END_OFFSET],
            previous_check=here.check,
            origin_seqno=words[word.OWN_ORIGIN_SEQNO],
            chain=words[word.OWN_CHAIN],
            flags=flags,
        )

    def catalogue(self) -> Catalogue:
        """Definitions and history in force at the end, and the position where the segment began."""
        words = self._words
        generation = words[word.CATALOGUE_GENERATION]
        if self._catalogue is None or self._catalogue[0] != generation:
            offsets = tuple(words[word.DEFINITION_OFFSET + i] for i in range(words[word.DEFINITION_COUNT]))
            with telling_way_out(self.instance):
                segment = self.segment()
                known = segment.read_catalogue()[0]
                self._catalogue = (generation, catalogue_with(known, segment, offsets))
        return self._catalogue[1]

    def position(self) -> Position:
        """The journal's end: last seqno, vector and chains."""
        words = self._words
        last_seqno = words[word.LAST_SEQNO]
        received = self.received_position
        if received is not None and received.last_seqno == last_seqno:
            return received
        if self.instance.role != "primary" or words[word.SEGMENT_FOREIGN]:
            # Other origins move within a segment, and only its frames say how far: rare questions may walk them.
            with telling_way_out(self.instance):
                there = catalogue_before(self.chain, last_seqno + 1)
            return Position(last_seqno, there.vector, there.chains)
        known = self.catalogue()
        moved = {}
        for place in range(words[word.FOREIGN_COUNT]):
            at = word.FOREIGN + word.FOREIGN_WORDS * place
            moved[words[at]] = (words[at + 1], words[at + 2])
        origin_seqno, chain = words[word.OWN_ORIGIN_SEQNO], words[word.OWN_CHAIN]
        if origin_seqno or chain:  # else the incarnation has not begun yet
            moved[words[word.OWN_ORIGIN]] = (origin_seqno, chain)
        vector = known.vector
        for origin, (last, _) in moved.items():
            vector = vector.raised(origin, PARTITION_STREAM, last)
        return Position(last_seqno, vector, {**known.chains, **moved})

    def catalogue_at_end(self) -> Catalogue:
        """`catalogue` as a segment that begins after the journal's end has it in its header."""
        here = self.position()
        return self.catalogue().newest().at(here.vector, here.chains)

    def create(self, header: SegmentHeader, catalogue: Catalogue) -> SegmentFile:
        """A new segment, empty, under its name."""
        return create_segment(self.directory, header, catalogue, replace=True, grow_bytes=self.grow_bytes)

    def begin_again(self, first_seqno: int) -> None:
        """An empty segment in the place of the newest one, which begins with that number, too."""
        self.use(self.create(self.next_header(first_seqno), self.catalogue_at_end()))
