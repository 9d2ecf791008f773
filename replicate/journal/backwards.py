"""Reading a stretch of the journal from its end: whole transactions in pieces, the newest piece first.

Guarantees: memory holds one piece and a number or two for each of the others, whatever the stretch or a single large
transaction holds; what is given out verifies, in the first pass too, so that damage anywhere in the stretch is known
before its newest piece is out. Within a piece the order is the journal's.
Leaves to others: what a change is, and what is done with it. Nobody appends meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgpack

from replicate.errors import JournalDamagedError
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import UNPACK_ERRORS, FrameBatch, read_part, unpacker
from replicate.journal.segment import open_segment
from replicate.journal.spool_format import read_part_frame, slice_bytes
from replicate.journal.walk import measure
from replicate.limits import BATCH_BYTES_MAX, FRAME_BYTES_MAX, MIB

PIECE_BYTES: Final = MIB
PIECE_CHANGES: Final = 4000


def pieces_backwards(
    chain: Chain, first: int, last: int, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[FrameBatch | LargeTransaction]:
    """The transactions from `first` to `last`, both of which the chain holds; a large one is a piece by itself.

    Raises what reading the chain does."""
    reader = ChainReader(chain, first)
    try:
        ends: list[int] = []
        while (found := reader.read(piece_bytes, last)) is not None:
            ends.append(found.seqno if isinstance(found, LargeTransaction) else found.last_seqno)
        for place in range(len(ends) - 1, -1, -1):
            reader.seek(ends[place - 1] + 1 if place else first)
            piece = reader.read(piece_bytes, ends[place])
            assert piece is not None
            yield piece
    finally:
        reader.close()


def changes_backwards(
    large: LargeTransaction, *, piece_bytes: int = PIECE_BYTES, piece_changes: int = PIECE_CHANGES
) -> Iterator[list[Any]]:
    """The whole changes of a large transaction as flat lists (op, id, argument, values, …), the last of them first.

    JournalDamagedError and its kin."""
    starts = _starts(large, piece_bytes, piece_changes)
    segment = open_segment(large.path)
    try:
        slice_length = slice_bytes(large.payload_bytes, 0)
        end = large.payload_bytes
        for start in reversed(starts):
            data = bytearray()
            for number in range(start // slice_length, -(-end // slice_length)):
                frame = read_part_frame(segment.fd, large.path, number, slice_bytes(large.payload_bytes, number))
                data += read_part(frame)[2]
            begin = start - start // slice_length * slice_length
            yield _decoded(bytes(data[begin : begin + end - start]), large)
            end = start
    finally:
        segment.close()


def _starts(large: LargeTransaction, piece_bytes: int, piece_changes: int) -> list[int]:
    """Where, in the stream of its changes, each piece begins. Each change lies wholly in one."""
    stream, starts = unpacker(), [0]
    elements, since = 0, 0
    try:
        for part in large.parts():
            stream.feed(read_part(part)[2])
            while True:
                try:
                    stream.skip()
                except msgpack.OutOfData:
                    break
                elements += 1
                if elements % 4:
                    continue
                since += 1
                if since >= piece_changes or stream.tell() - starts[-1] >= piece_bytes:
                    starts.append(stream.tell())
                    since = 0
    except UNPACK_ERRORS as error:
        raise JournalDamagedError(f"a large transaction does not decode: {error}", where=large.path) from error
    if elements % 4 or stream.tell() != large.payload_bytes:
        raise JournalDamagedError(f"large transaction {large.seqno} ends inside a change", where=large.path)
    return [start for start in starts if start < large.payload_bytes]


def _decoded(data: bytes, large: LargeTransaction) -> list[Any]:
    stream = unpacker(max(len(data), BATCH_BYTES_MAX))
    stream.feed(data)
    try:
        return list(stream)
    except UNPACK_ERRORS as error:
        raise JournalDamagedError(f"a large transaction does not decode: {error}", where=large.path) from error


def offset_after(chain: Chain, seqno: int) -> tuple[int, int]:
    """(first number of the segment that holds `seqno`, offset after its frame). Of an adopted one the offset is 0:
    nothing can stand after it. `seqno` may be the one before the oldest: that is the beginning of the oldest segment.

    JournalMissingError (pruned), GapError or JournalDamagedError; what stands after is not looked at."""
    found = chain.find(seqno + 1 if seqno + 1 == chain.oldest_seqno() else seqno)
    if found.header.adopted:
        return found.first_seqno, 0
    with chain.open(found.first_seqno) as segment:
        _, offset = segment.read_catalogue()
        following = found.first_seqno
        while following <= seqno:
            data = segment.read_some(max(BATCH_BYTES_MAX, FRAME_BYTES_MAX), offset)
            run = measure(data, next_seqno=following, last_seqno=seqno)
            if not run.frames:
                raise JournalDamagedError(f"transaction {following} is not there", where=f"{segment.path}, {offset}")
            following, offset = run.last_seqno + 1, offset + run.end
    return found.first_seqno, offset
