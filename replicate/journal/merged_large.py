"""A large transaction that was merged here: what it came to, and, piece by piece after that, what its writer wrote.

    what part 0 came to · RESOLVED (part 0) · what part 1 came to · RESOLVED (part 1) · … · RESOLVED (the commit)

So a reader that follows this journal takes what stands between, and other suppliers get the transaction that its writer
made: its parts are packed again, byte for byte, since a part's frame follows from its number and its bytes.

Guarantees: one part at most is in memory, with what it came to; parts that are not those that were committed are never
given out whole. Leaves to others: merging, and small transactions (record.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from replicate.errors import JournalDamagedError
from replicate.journal.header import FLAG_ADOPTED, SegmentHeader
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import (
    LARGE_BEGINS,
    PART_OVERHEAD_BYTES,
    RESTATED_KINDS,
    UNPACK_ERRORS,
    FrameBatch,
    as_written_large,
    decode,
    pack_part,
    read_head,
    read_part,
    unpacker,
)
from replicate.journal.segment import catalogue_frame
from replicate.journal.spool_format import part_offset
from replicate.limits import PARTITION_STREAM
from replicate.model.transaction import Catalogue, Kind, LargeCommit, Op

_RESOLVED: Final = int(Op.RESOLVED)
_PART: Final = int(Kind.PART)


def piece_told(number: int, data: bytes, losses: Sequence[bytes]) -> list[object]:
    """The flat change that holds part `number` of what the writer wrote, with the `losses` of its merge."""
    return [_RESOLVED, PARTITION_STREAM, _PART, [data, number, list(losses)]]


class PiecesTaken:
    """The change stream of a large transaction, from its first piece on: of each the changes that end in it."""

    def __init__(self, *, tuples: bool = False) -> None:
        self._unpacker = unpacker(tuples=tuples)
        self._waiting: list[Any] = []

    def take(self, data: bytes | memoryview) -> list[Any]:
        """Whole changes, flat. JournalDamagedError."""
        try:
            self._unpacker.feed(data)
            self._waiting.extend(self._unpacker)
        except UNPACK_ERRORS as error:
            raise JournalDamagedError(f"a part of a large transaction does not decode: {error}") from error
        whole = len(self._waiting) // 4 * 4
        found, self._waiting = self._waiting[:whole], self._waiting[whole:]
        return found


def told_and_written(large: LargeTransaction) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """Of a large transaction, piece by piece: the changes that its writer made, and what they came to here; the same
    list twice where they were not merged. What `LargeTransaction.parts` raises, JournalDamagedError."""
    stream, written, done = PiecesTaken(tuples=True), PiecesTaken(tuples=True), list[Any]()
    is_in_pieces, is_merged = False, read_head(large.commit_frame).kind in RESTATED_KINDS
    for part in large.parts():
        flat = stream.take(read_part(part)[2])
        if not is_merged:
            yield flat, flat
            continue
        begin = 0
        for place in range(0, len(flat), 4):
            if flat[place] == _RESOLVED and flat[place + 2] == _PART:
                yield written.take(flat[place + 3][0]), [*done, *flat[begin:place]]
                done, begin, is_in_pieces = [], place + 4, True
        done += flat[begin:]
    if done and not is_in_pieces:  # told in other words by somebody else
        yield done, done


class WrittenLarge(LargeTransaction, frozen=True):
    """As its writer made it, with the number that it has here."""

    merged: LargeTransaction

    def parts(self, from_part: int = 0) -> Iterator[bytes]:
        """As of any other; what comes before is read as well."""
        origin = read_head(self.commit_frame).origin
        number = chained = 0
        for data in _pieces(self.merged.parts()):
            frame, chained = pack_part(origin, self.token, number, data, chained)
            if number >= from_part:
                yield frame
            number += 1
        if (number, chained) != (self.part_count, self.last_part_chain):
            raise JournalDamagedError(
                f"what the writer of transaction {self.seqno} wrote is not what was committed", where=self.path
            )

    def segment(self, header: SegmentHeader, catalogue: Catalogue) -> tuple[int, Iterator[bytes]]:
        """As the segment that its writer's journal has of it, but for the head: so many bytes, and all of them in some
        pieces. `header`, `catalogue`: of a segment that would begin with it here."""
        end = part_offset(0) + self.part_count * PART_OVERHEAD_BYTES + self.payload_bytes
        final = replace(
            header,
            flags=header.flags | FLAG_ADOPTED,
            commit_offset=end,
            catalogue_offset=end + len(self.commit_frame),
        )
        after = self.commit_frame + catalogue_frame(catalogue, final)
        return end + len(after), chain([final.pack().ljust(part_offset(0), b"\0")], self.parts(), [after])


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    stream = PiecesTaken()
    for part in parts:
        flat = stream.take(read_part(part)[2])
        for op, argument, values in zip(flat[0::4], flat[2::4], flat[3::4], strict=True):
            if op == _RESOLVED and argument == _PART:
                yield values[0]


def as_its_writer_wrote(found: LargeTransaction) -> FrameBatch | WrittenLarge | None:
    """Of one that was merged here: the frame of one that is large only by what it came to, else the large one; None of
    any other. What `LargeTransaction.parts` raises."""
    frame = as_written_large(found.commit_frame, found.parts())
    return None if frame is None else written_by(found, frame)


def written_by(found: LargeTransaction, frame: bytes) -> FrameBatch | WrittenLarge:
    """The same, where `as_written_large` gave that frame."""
    if read_head(frame).kind not in LARGE_BEGINS:
        return FrameBatch(found.seqno, found.seqno, 1, frame)
    commit = decode(frame).content[0]
    assert isinstance(commit, LargeCommit)
    sizes = commit.part_count, commit.payload_bytes, commit.last_part_chain
    return WrittenLarge(found.seqno, found.path, commit.token, *sizes, commit.partitions, frame, found)
