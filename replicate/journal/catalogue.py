"""What was in force at a place of the journal: a segment's CATALOGUE frame, and what the frames after it changed.

Guarantees: definitions and history are complete for every frame before the place; chain hashes and whole-stream rows
of the vector are exact there. Rows of single partitions stand as at the segment's beginning, but for NULL and LARGE
frames, which name theirs: to raise the others we would have to decode every transaction. What is told comes from frames
that verify; frames that tell nothing are passed over by their heads, so damage in one of them is not found here.
Leaves to others: who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from replicate.errors import GapError, JournalDamagedError
from replicate.journal.chain import Chain
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.record import UNPACK_ERRORS, decode, read_part, unpacker
from replicate.journal.segment import SegmentFile
from replicate.journal.spool_format import read_part_frame, slice_bytes
from replicate.journal.walk import DEFINITION, may_define, measure, skim_run, walk
from replicate.limits import BATCH_BYTES_MAX, FRAME_BYTES_MAX, PARTITION_STREAM
from replicate.model.transaction import (
    Catalogue,
    DefinitionChange,
    History,
    Kind,
    LargeCommit,
    NullRecord,
    Op,
    TableDefinition,
    decode_change,
)

_DEFINE_BYTES_MAX: Final = 16


def with_frame(catalogue: Catalogue, frame: bytes | memoryview) -> Catalogue:
    """The catalogue after one frame: its definitions, its history record. What `decode` raises."""
    transaction = decode(frame)
    for content in transaction.content:
        if isinstance(content, DefinitionChange):
            catalogue = catalogue.with_definition(content.definition)
        elif isinstance(content, History):
            catalogue = catalogue.with_history(content)
    return catalogue


def catalogue_with(known: Catalogue, segment: SegmentFile, offsets: Iterable[int]) -> Catalogue:
    """`known` after the frames at `offsets` in `segment` (those that define something); after all of an adopted one.

    FrameDamaged or JournalDamagedError when a frame there does not verify.
    """
    if segment.header.adopted:
        for definition in large_definitions(segment):
            known = known.with_definition(definition)
        return known
    for offset in offsets:
        known = with_frame(known, segment.read_frame(offset))
    return known


def _nobody(_segment: SegmentFile, _seqno: int, _offset: int) -> None:
    pass


def catalogue_before(chain: Chain, seqno: int, note: Callable[[SegmentFile, int, int], None] = _nobody) -> Catalogue:
    """Everything in force just before `seqno`, position included. `seqno` may be the one right after the last.

    `note` is told where frames begin on the way: segment, seqno, offset. JournalMissingError when it was pruned;
    GapError when the journal ends before it; what reading raises.
    """
    found = chain.find(seqno)
    with chain.open(found.first_seqno) as segment:
        catalogue, offset = segment.read_catalogue()
        if seqno == found.first_seqno:
            return catalogue
        if found.header.adopted:
            return _after_large(catalogue, segment, seqno)
        return _walked(catalogue, segment, offset, seqno, note)


def _after_large(catalogue: Catalogue, segment: SegmentFile, seqno: int) -> Catalogue:
    _, commit = segment.read_commit()
    content = commit.content[0]
    if seqno != commit.seqno + 1 or not isinstance(content, LargeCommit):
        raise GapError(f"seqno {seqno} is not in the journal", where=segment.path, expected=seqno)
    vector = catalogue.vector
    for partition in (PARTITION_STREAM, *content.partitions):
        vector = vector.raised(commit.origin, partition, commit.origin_seqno)
    chains = {**catalogue.chains, commit.origin: (commit.origin_seqno, commit.chain)}
    return catalogue_with(catalogue, segment, ()).at(vector, chains)


def _walked(
    catalogue: Catalogue,
    segment: SegmentFile,
    offset: int,
    next_seqno: int,
    note: Callable[[SegmentFile, int, int], None],
) -> Catalogue:
    vector, chains = catalogue.vector, dict(catalogue.chains)
    seqno, last_seqno = segment.header.first_seqno, next_seqno - 1
    while seqno < next_seqno:
        data = segment.read_some(max(BATCH_BYTES_MAX, FRAME_BYTES_MAX), offset)
        view = memoryview(data)
        # Nearly all frames, by their heads; the others, and what is wrong, one by one.
        run = skim_run(data, 0, seqno, chains, last_seqno)
        if run.count:
            chains[run.origin] = run.point
            for begin, end in run.definitions:
                catalogue = with_frame(catalogue, view[begin:end])
            offset, seqno = offset + run.end, seqno + run.count
            note(segment, seqno, offset)
        if seqno == next_seqno:
            break
        found = measure(data, run.end, next_seqno=seqno, last_seqno=last_seqno)
        if not found.frames and not run.count:
            raise GapError(f"seqno {seqno} is not in the journal", where=segment.path, expected=seqno, offset=offset)
        for begin, head in walk(view[run.end : found.end]):
            at, end = run.end + begin, run.end + begin + head.frame_bytes
            chains[head.origin] = (head.origin_seqno, head.chain)
            if head.kind == Kind.HISTORY or may_define(data, at + FRAME_HEAD_BYTES, end):
                catalogue = with_frame(catalogue, view[at:end])
            elif head.kind == Kind.NULL:
                content = decode(view[at:end]).content[0]
                assert isinstance(content, NullRecord)
                for partition in content.partitions:
                    vector = vector.raised(head.origin, partition, head.origin_seqno)
        offset, seqno = offset + found.end - run.end, seqno + found.frames
    for origin, (origin_seqno, _) in chains.items():
        vector = vector.raised(origin, PARTITION_STREAM, origin_seqno)
    return catalogue.at(vector, chains)


# Definitions within a large transaction.


def _slices(segment: SegmentFile) -> Iterator[bytes]:
    _, commit = segment.read_commit()
    content = commit.content[0]
    assert isinstance(content, LargeCommit)
    for number in range(content.part_count):
        frame = read_part_frame(segment.fd, segment.path, number, slice_bytes(content.payload_bytes, number))
        yield bytes(read_part(frame)[2])


def large_definitions(segment: SegmentFile) -> list[TableDefinition]:
    """The definitions that the large transaction of an adopted segment makes; decoded only when it looks so."""
    rest = b""
    for piece in _slices(segment):
        if DEFINITION.search(rest + piece):
            break
        rest = piece[-_DEFINE_BYTES_MAX:]
    else:
        return []
    definitions = []
    reader = unpacker()
    waiting: list[object] = []
    try:
        for piece in _slices(segment):
            reader.feed(piece)
            for element in reader:
                waiting.append(element)
                if len(waiting) == 4:
                    if waiting[0] == Op.DEFINE:
                        change = decode_change(*waiting)
                        assert isinstance(change, DefinitionChange)
                        definitions.append(change.definition)
                    waiting.clear()
    except UNPACK_ERRORS as error:
        raise JournalDamagedError(f"a large transaction does not decode: {error}", where=segment.path) from error
    return definitions
