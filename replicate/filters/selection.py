"""Partitions on their way to a consumer: rows of those that it does not have stay here, everything else goes.

A transaction of such rows only becomes a NULL record of its number and hash. Of one over several partitions the
sections go that are wanted; of one from before there were partitions, or that a filter has told in other words, the
wanted changes go in other words.

Guarantees: definitions, schema changes and comments for everybody always go; each number goes exactly once; the order
of changes stays; what is wanted as a whole goes byte for byte.
Refuses to know: sockets, journals, who wants what and may have it. Pure: one for each stream, in order from its
beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, Final

from replicate.errors import JournalDamagedError
from replicate.filters.restating import Restating, StreamItem, StreamLarge
from replicate.journal.frame import FRAME_HEAD_BYTES, FRAME_PREFIX_BYTES, NUMBERED
from replicate.journal.record import (
    CHANGES_BEGIN,
    DEFINE_MARK,
    UNPACK_ERRORS,
    FrameBatch,
    changes_of,
    decode_batch,
    pack_changes,
    pack_null,
    pack_restated,
    read_head,
    read_part,
    trim,
    unpacker,
)
from replicate.journal.sections import owners_of, section_of
from replicate.limits import PARTITION_NONE, PARTITION_STREAM
from replicate.model.transaction import Kind, Op, TableDefinition

_FIRST: Final = Struct(">BBI")
"""The operation, the marker of a table id, and the id, of the first change of a transaction."""
_ID: Final = 0xCE
_FOR_EVERYBODY: Final = tuple(map(bytes, ((Op.SCHEMA, 0), (Op.REGION, 0), (Op.COMMENT, 0), (Op.COMMENT, _ID))))
_ONE_CHANGE: Final = 4
_MIXED, _TRANSACTION, _RESTATED = int(Kind.MIXED), int(Kind.TRANSACTION), int(Kind.RESTATED)


class PartitionSelection:
    """What of one stream goes to one consumer. `wanted`: partitions; None: all, but NONE."""

    def __init__(self, wanted: Collection[int] | None, definitions: Mapping[int, TableDefinition]) -> None:
        """`definitions`: of all tables at the stream's beginning, by their ids."""
        self._wanted = None if wanted is None else frozenset(wanted)
        self._partitions = {key: one.partition for key, one in definitions.items()}
        self.kept_back = 0
        """Transactions of which nothing went, so far."""

    def wants(self, number: int) -> bool:
        """Whether changes of that section go."""
        if number == PARTITION_STREAM:
            return True
        return number != PARTITION_NONE if self._wanted is None else number in self._wanted

    def take(self, batch: FrameBatch) -> FrameBatch:
        """The batch as it goes; the same one when all of it does. JournalDamagedError for a table that nobody has
        defined."""
        data, offset, kept, pieces = batch.data, 0, 0, list[bytes]()
        defines = DEFINE_MARK in data
        while offset < len(data):
            length, kind, _ = NUMBERED.unpack_from(data, offset)
            end = offset + length + FRAME_PREFIX_BYTES
            if defines and kind in CHANGES_BEGIN and data.find(DEFINE_MARK, offset, end) >= 0:
                self._learn(data[offset:end])
            if kind in CHANGES_BEGIN:
                made = self._goes(data, offset, end, kind)
                if made is not None:
                    pieces += (data[kept:offset], made)
                    kept = end
            offset = end
        if not pieces:
            return batch
        return FrameBatch(batch.first_seqno, batch.last_seqno, batch.count, b"".join((*pieces, data[kept:])))

    def _goes(self, data: bytes, offset: int, end: int, kind: int) -> bytes | None:
        """What goes in the place of a frame; None: it goes as it is."""
        if kind == _TRANSACTION:
            begin = offset + FRAME_HEAD_BYTES
            if end - begin >= _FIRST.size:
                op, marker, ident = _FIRST.unpack_from(data, begin)
                number = section_of(op, ident if marker == _ID else data[begin + 1], self._partitions)
                is_wanted = self.wants(number)
                if number != PARTITION_STREAM and not _may_be_mixed(data, begin, end):
                    return None if is_wanted else self._null(data[offset:end])
        frame = data[offset:end]
        if kind == _MIXED:
            made = trim(frame, self.wants)
            self.kept_back += NUMBERED.unpack_from(made)[1] == Kind.NULL
            return None if made is frame else made
        return self._told_again(frame, kind)

    def _told_again(self, frame: bytes, kind: int) -> bytes | None:
        """Of a transaction whose changes may be of several sections, and say so nowhere."""
        body = decode_batch(frame, count=1)[2]
        start = CHANGES_BEGIN[kind]
        packed = pack_changes(changes_of(body))
        owners, _ = owners_of(packed, self._partitions)
        if all(map(self.wants, owners)):
            return None
        left: list[Any] = []
        for place, number in enumerate(owners):
            if self.wants(number):
                left += body[start + 4 * place : start + 4 * place + 4]
        if not left:
            return self._null(frame)
        reason = body[start - 1][0] if kind == _RESTATED else ""
        return pack_restated(read_head(frame), reason, pack_changes(left), len(left))

    def _null(self, frame: bytes) -> bytes:
        self.kept_back += 1
        return pack_null(read_head(frame), "", ())

    def _learn(self, frame: bytes) -> None:
        changes = changes_of(decode_batch(frame, count=1)[2])
        for place in range(0, len(changes) - 3, 4):
            if changes[place] == Op.DEFINE:
                section_of(Op.DEFINE, changes[place + 1], self._partitions, changes[place + 3])

    # Large transactions.

    def takes_whole(self, commit_frame: bytes, partitions: Iterable[int]) -> bool:
        """Whether a large transaction over those partitions goes byte for byte: `large` says what does of any other.
        One that was told in other words may hold other partitions than it names."""
        return read_head(commit_frame).kind == Kind.LARGE and all(map(self.wants, partitions))

    def large(self, commit_frame: bytes, parts: Iterable[bytes], token: int) -> Generator[StreamItem]:
        """What goes of a large transaction that does not go whole: parts under `token`, one that nobody else has, and
        the frame that commits them; or one frame, where one holds what is left. `parts`: its PART frames; what reading
        them raises."""
        head = read_head(commit_frame)
        made = Restating(head.seqno, head.origin, token)
        for change in _changes(parts):
            if self.wants(section_of(change[0], change[1], self._partitions, change[3])):
                made.add(pack_changes(change))
                if (ready := made.parts()) is not None:
                    yield ready
        made.close()
        if (ready := made.parts()) is not None:
            yield ready
        frame = made.finish(head, "", ())
        if made.is_large:
            yield StreamLarge(head.seqno, frame)
        else:
            self.kept_back += not made.count
            yield FrameBatch(head.seqno, head.seqno, 1, frame)

    def learn_large(self, parts: Callable[[], Iterable[bytes]]) -> None:
        """What a large transaction that goes whole defines. `parts` gives its PART frames, each time it is called."""
        if not _defines(parts()):
            return
        for change in _changes(parts()):
            if change[0] == Op.DEFINE:
                section_of(Op.DEFINE, change[1], self._partitions, change[3])


def _defines(parts: Iterable[bytes]) -> bool:
    """Whether the parts may hold a definition. Cheap."""
    last = b""
    for frame in parts:
        piece = bytes(read_part(frame)[2])
        if DEFINE_MARK in piece or last + piece[:1] == DEFINE_MARK:
            return True
        last = piece[-1:]
    return False


def _may_be_mixed(data: bytes, begin: int, end: int) -> bool:
    """Whether a transaction that begins with a row may hold what goes to everybody: one from before there were
    partitions. Cheap; wrong now and then for one that does not."""
    return data.find(DEFINE_MARK, begin, end) >= 0 or any(data.find(mark, begin, end) >= 0 for mark in _FOR_EVERYBODY)


def _changes(parts: Iterable[bytes]) -> Iterator[list[Any]]:
    """The changes in the parts of a large transaction, one by one. JournalDamagedError."""
    reader, waiting = unpacker(), list[Any]()
    try:
        for frame in parts:
            reader.feed(read_part(frame)[2])
            for element in reader:
                waiting.append(element)
                if len(waiting) == _ONE_CHANGE:
                    yield waiting
                    waiting = []
    except UNPACK_ERRORS as error:
        raise JournalDamagedError(f"the changes of a large transaction do not decode: {error}") from error
    if waiting:
        raise JournalDamagedError("the changes of a large transaction are cut short")
