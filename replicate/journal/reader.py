"""Reading the chain in order, in big chunks, while another process appends to it.

The caller gives the bound: the last seqno that is known to be complete (and, for a Source Server, durable). Frames at
or below it are wholly in the files; what stands above it is not looked at, so no lock is needed.

Guarantees: what `read` returns is whole frames, each CHECK verified once, seqnos without a gap from where the last ones
ended; good frames before a bad one are delivered first, then the bad one raises, again and again.
Leaves to others: pools, peers, how the bound is learnt.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from replicate.errors import (
    DamagedError,
    FrameDamaged,
    GapError,
    InternalError,
    JournalDamagedError,
    JournalMissingError,
)
from replicate.journal.catalogue import catalogue_before
from replicate.journal.chain import Chain
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.record import PART_OVERHEAD_BYTES, FrameBatch, chain_of, read_head, read_part
from replicate.journal.segment import SegmentFile, open_segment
from replicate.journal.spool_format import part_count_of, part_offset, read_part_frame, slice_bytes
from replicate.journal.walk import Measured, measure
from replicate.limits import BATCH_BYTES_MAX, FRAME_BYTES_MAX
from replicate.model.transaction import Catalogue, LargeCommit

_INDEX_STEP_BYTES: Final = 256 * 1024
_INDEXED_SEGMENTS_MAX: Final = 64

Place = tuple[int, int]
"""The first seqno of a segment, and an offset in it."""
SparseIndex = dict[tuple[int, int], tuple[list[int], list[int]]]
"""(first seqno, check of the header) of a segment -> seqnos, ascending, and the offsets where their frames begin."""


class LargeTransaction(Struct, frozen=True):
    """A large transaction in its own segment: its parts one by one from the file, then `commit_frame`."""

    seqno: int
    path: str
    token: int
    part_count: int
    payload_bytes: int
    last_part_chain: int
    partitions: tuple[int, ...]
    commit_frame: bytes

    def parts(self, from_part: int = 0) -> Iterator[bytes]:
        """The PART frames in order from number `from_part` on, each verified: CHECK, number, token, and chain.

        Opens the file again. FrameDamaged, GapError or JournalMissingError (pruned meanwhile).
        """
        segment = open_segment(self.path)
        try:
            previous: int | None = None if from_part else 0
            for number in range(from_part, self.part_count):
                frame = read_part_frame(segment.fd, self.path, number, slice_bytes(self.payload_bytes, number))
                head, _, _ = read_part(frame)
                if head.csn != self.token:
                    raise JournalDamagedError("a part of another transaction stands here", where=self.path, part=number)
                if previous is not None and chain_of(frame, previous) != head.chain:
                    raise JournalDamagedError("a part's chain hash does not follow", where=self.path, part=number)
                previous = head.chain
                yield frame
            if previous is not None and previous != self.last_part_chain:
                raise JournalDamagedError("the last part is not the one that was committed", where=self.path)
        finally:
            segment.close()


def large_transaction(segment: SegmentFile) -> LargeTransaction:
    """The large transaction that an adopted segment holds. JournalDamagedError when its commit frame is not its own."""
    frame, transaction = segment.read_commit()
    commit = transaction.content[0]
    assert isinstance(commit, LargeCommit)
    end = part_offset(0) + commit.part_count * PART_OVERHEAD_BYTES + commit.payload_bytes
    if commit.part_count != part_count_of(commit.payload_bytes) or end != segment.header.commit_offset:
        raise JournalDamagedError("the commit frame does not fit the parts before it", where=segment.path)
    return LargeTransaction(
        transaction.seqno,
        segment.path,
        commit.token,
        commit.part_count,
        commit.payload_bytes,
        commit.last_part_chain,
        commit.partitions,
        frame,
    )


class ChainReader:
    """One reader's place in the chain. Holds one descriptor, and a sparse index of the segments it has walked.

    Not for use from two threads at once. After an error the place has not moved. `close` it.
    """

    def __init__(
        self, chain: Chain, next_seqno: int = 1, index: SparseIndex | None = None, place: Place | None = None
    ) -> None:
        """`index`: what another reader of the same chain has walked, and does not need any more. `place`: where
        `next_seqno` begins, if it stands in that segment."""
        self._chain = chain
        self._next_seqno = next_seqno
        self._segment: SegmentFile | None = None
        self._offset = 0
        self._sealed_last_seqno: int | None = None
        self._indices: SparseIndex = {} if index is None else index
        self._known_place = place

    @property
    def next_seqno(self) -> int:
        """The first seqno not yet read."""
        return self._next_seqno

    def close(self) -> None:
        """Let go of the descriptor; a later `read` opens again."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def seek(self, next_seqno: int) -> None:
        """Go to `next_seqno`; looked up at the next `read`, which raises when it is not there."""
        if next_seqno < 1:
            raise InternalError("there is no seqno below 1")
        if next_seqno != self._next_seqno:
            self._next_seqno = next_seqno
            self._known_place = None
            self.close()

    def read(self, max_bytes: int, last_seqno: int) -> FrameBatch | LargeTransaction | None:
        """The next frames, or the next large transaction, with seqnos up to `last_seqno`; None when all are read.

        At most `max_bytes`, but always one whole frame. JournalMissingError: pruned, or a segment is gone. GapError: a
        number at or below the bound is not there. FrameDamaged, JournalDamagedError: named with file and offset.
        """
        while self._next_seqno <= last_seqno:
            segment = self._segment or self._position()
            if segment.header.adopted:
                if self._next_seqno == segment.header.first_seqno:
                    large = large_transaction(segment)
                    self._next_seqno += 1
                    return large
                self._follow(segment)
                continue
            batch = self._batch(segment, max_bytes, last_seqno)
            if batch is not None:
                return batch
            self._follow(segment)
        return None

    def catalogue_at(self, seqno: int) -> Catalogue:
        """What is in force just before `seqno`, position included; see catalogue.py. The place does not move, but the
        way there is known then."""
        return catalogue_before(self._chain, seqno, self._note_new)

    def _note_new(self, segment: SegmentFile, seqno: int, offset: int) -> None:
        self._index(segment)
        self._note(segment, seqno, offset)

    # Finding the place.

    def _position(self) -> SegmentFile:
        found = self._chain.find(self._next_seqno)
        segment = self._chain.open(found.first_seqno)
        try:
            offset = self._locate(segment)
        except BaseException:
            segment.close()
            raise
        self._segment, self._offset, self._sealed_last_seqno = segment, offset, None
        return segment

    def _locate(self, segment: SegmentFile) -> int:
        """The offset of the frame `_next_seqno`, or where frames end when it is the one right after the last."""
        if segment.header.adopted:
            return 0
        known, self._known_place = self._known_place, None
        if known is not None and known[0] == segment.header.first_seqno:
            return known[1]
        seqnos, offsets = self._index(segment)
        place = bisect_right(seqnos, self._next_seqno) - 1
        seqno, offset = seqnos[place], offsets[place]
        while seqno < self._next_seqno:
            data = segment.read_some(BATCH_BYTES_MAX, offset)
            # Frames are skipped by their heads; only what is read is checked.
            found = self._measured(segment, data, offset, seqno, self._next_seqno - 1, None, verify=False)
            if not found.frames:
                raise GapError(
                    f"the segment ends with seqno {seqno - 1}, {self._next_seqno} is wanted",
                    where=segment.path,
                    seqno=seqno - 1,
                    expected=self._next_seqno,
                )
            seqno, offset = found.last_seqno + 1, offset + found.end
            self._note(segment, seqno, offset)
        return offset

    def _index(self, segment: SegmentFile) -> tuple[list[int], list[int]]:
        name = (segment.header.first_seqno, segment.header.check)
        index = self._indices.get(name)
        if index is None:
            _, offset = segment.read_catalogue()
            while len(self._indices) >= _INDEXED_SEGMENTS_MAX:
                del self._indices[next(iter(self._indices))]
            index = self._indices[name] = ([name[0]], [offset])
        return index

    def _note(self, segment: SegmentFile, seqno: int, offset: int) -> None:
        index = self._indices.get((segment.header.first_seqno, segment.header.check))
        if index is not None and offset - index[1][-1] >= _INDEX_STEP_BYTES:
            index[0].append(seqno)
            index[1].append(offset)

    # Reading.

    def _measured(
        self,
        segment: SegmentFile,
        data: bytes,
        offset: int,
        next_seqno: int,
        last_seqno: int,
        max_bytes: int | None,
        *,
        verify: bool = True,
    ) -> Measured:
        """`measure`, its errors named with file and offset."""
        try:
            return measure(data, next_seqno=next_seqno, last_seqno=last_seqno, max_bytes=max_bytes, verify=verify)
        except DamagedError as error:
            # The first frame is the one that is wrong; its offset was in the piece, we name the one in the file.
            named = type(error)(error.what, where=f"{segment.path}, offset {offset}")
            named.facts.update({"seqno": next_seqno, **error.facts, "offset": offset})
            raise named from error

    def _bounded(self, segment: SegmentFile, last_seqno: int) -> int:
        """The bound, but not beyond where the next segment begins: a sealed one may hold what was cut."""
        if self._sealed_last_seqno is None:
            numbers = self._chain.first_seqnos()
            place = bisect_right(numbers, segment.header.first_seqno)
            if place == len(numbers):
                return last_seqno
            self._sealed_last_seqno = numbers[place] - 1
        return min(last_seqno, self._sealed_last_seqno)

    def _batch(self, segment: SegmentFile, max_bytes: int, last_seqno: int) -> FrameBatch | None:
        last_seqno = self._bounded(segment, last_seqno)
        if self._next_seqno > last_seqno:
            return None
        data = segment.read_some(max(max_bytes, FRAME_HEAD_BYTES), self._offset)
        found = self._measured(segment, data, self._offset, self._next_seqno, last_seqno, max_bytes)
        if not found.frames and len(data) >= FRAME_HEAD_BYTES and data[0] != 0:
            # The one frame that is larger than was asked for.
            whole = min(read_head(data).frame_bytes, FRAME_BYTES_MAX)
            data = segment.read_some(whole, self._offset)
            found = self._measured(segment, data, self._offset, self._next_seqno, last_seqno, None)
            if not found.frames:
                raise FrameDamaged(
                    "a frame is cut short by the end of the file",
                    where=f"{segment.path}, offset {self._offset}",
                    offset=self._offset,
                    seqno=self._next_seqno,
                )
        if not found.frames:
            return None
        self._offset += found.end
        self._next_seqno = found.last_seqno + 1
        self._note(segment, self._next_seqno, self._offset)
        return FrameBatch(found.first_seqno, found.last_seqno, found.frames, data[: found.end])

    def _follow(self, segment: SegmentFile) -> None:
        """Go on to the segment that begins with `_next_seqno`, which must be tied to this one."""
        try:
            following = self._chain.open(self._next_seqno)
        except JournalMissingError:
            raise self._nothing_there(segment) from None
        header = following.header
        if header.first_seqno == segment.header.first_seqno:
            # Ours was empty, and something else has taken its name: a large transaction, or its like again.
            self._take_over(following)
            return
        fault = header.link_fault(segment.header)
        if fault is None and not segment.header.adopted and header.previous_end_offset != self._offset:
            fault = f"its predecessor ended at {header.previous_end_offset}, we are at {self._offset}"
        try:
            if fault is not None:
                raise JournalDamagedError(f"the chain is broken: {fault}", where=following.path)
            offset = 0 if header.adopted else self._index(following)[1][0]
        except BaseException:
            following.close()
            raise
        segment.close()
        self._segment, self._offset, self._sealed_last_seqno = following, offset, None

    def _take_over(self, following: SegmentFile) -> None:
        old = self._segment
        assert old is not None
        if os.fstat(old.fd).st_ino == os.fstat(following.fd).st_ino:
            following.close()
            raise self._nothing_there(old)
        try:
            offset = 0 if following.header.adopted else self._index(following)[1][0]
        except BaseException:
            following.close()
            raise
        old.close()
        self._segment, self._offset, self._sealed_last_seqno = following, offset, None

    def _nothing_there(self, segment: SegmentFile) -> DamagedError:
        there = self._chain.first_seqnos()
        if there and there[0] > self._next_seqno:  # pruned while we read
            return JournalMissingError(
                f"seqno {self._next_seqno} is not in the journal any more; the oldest is {there[0]}",
                where=self._chain.directory,
                do="A consumer that still needs it must be seeded again",
                seqno=self._next_seqno,
            )
        later = [first for first in there if first > self._next_seqno]
        if later:
            header = self._chain.segment(later[0]).header
            if header.previous_last_seqno < self._next_seqno:
                return JournalMissingError(
                    f"the segment that begins with seqno {self._next_seqno} is not there",
                    where=self._chain.directory,
                    seqno=self._next_seqno,
                )
        return GapError(
            f"seqno {self._next_seqno} should be in the journal and is not",
            where=f"{segment.path}, offset {self._offset}",
            do="Run `replicate -i INSTANCE journal verify`",
            expected=self._next_seqno,
            offset=self._offset,
        )
