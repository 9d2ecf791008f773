"""Partitions on their way to a consumer: rows of those that it does not have stay here, everything else goes.

A transaction of such rows only becomes a NULL record of its number and hash. Of one over several partitions the
sections go that are wanted; of one from before there were partitions, or that a filter has told in other words, the
wanted changes go in other words.

Guarantees: definitions always go, and so does what names no partition (comments for everybody, schema changes whose
audit element has none); each number goes exactly once; the order of changes stays; what is wanted as a whole goes byte
for byte.
Leaves to others: sockets, journals, who wants what and may have it. Pure: one for each stream, in order from its
beginning.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from crc32c import crc32c
from xxhash import xxh3_64_intdigest

from replicate.errors import JournalDamagedError
from replicate.filters.restating import Restating, StreamItem, StreamLarge
from replicate.journal.frame import FIXED_ELEMENTS, FRAME_HEAD_BYTES, FRAME_PREFIX_BYTES, LABEL_OFFSET, NUMBERED, PREFIX
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
from replicate.journal.sections import owners_of, partitions_of, section_of
from replicate.limits import PARTITION_NONE, PARTITION_STREAM
from replicate.model.transaction import Kind, Op, TableDefinition

_LABEL_BYTES: Final = FRAME_HEAD_BYTES - LABEL_OFFSET
_CHANGE: Final = Struct(">HI")
"""Of a change the operation with the marker of an id, and the id."""
_FRAME: Final = Struct(f">xI5xI{_LABEL_BYTES}s{_CHANGE.size}s")
"""Of a frame LENGTH, COUNT and KIND with the marker before them, the rest of its head, and its first `_CHANGE`."""
_NULL_FRONT: Final = (0xDC << 16 | FIXED_ELEMENTS + 2) << 8 | Kind.NULL
_NULL_PAYLOAD: Final = 0xA090
_NULL_BODY: Final = Struct(f">I{_LABEL_BYTES}sH")
_NULL_PREFIX: Final = PREFIX.pack(0xCE, _NULL_BODY.size, 0xCE, 0)[:-4]
_NULL: Final = Struct(f">{len(_NULL_PREFIX)}sI{_NULL_BODY.size}s")
_ID: Final = 0xCE
_FOR_EVERYBODY: Final = re.compile(b"[\\x05\\x06\\x08]\\x00|[\\x04\\x06]\\xce")
"""SCHEMA, COMMENT or REGION of no table, DEFINE, or COMMENT of a table: what a transaction that begins with a row may
hold for everybody, if it is from before there were partitions."""
_OF_ONE: Final = (0xDC << 16 | FIXED_ELEMENTS + 4) << 8 | Kind.TRANSACTION
"""COUNT and KIND, as `_FRAME` has them, of a transaction with one change."""
_ONE_CHANGE: Final = 4
_OF_TABLES: Final = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.SEQUENCE)
_REGION: Final = int(Op.REGION)
_MIXED, _TRANSACTION, _RESTATED = int(Kind.MIXED), int(Kind.TRANSACTION), int(Kind.RESTATED)


class PartitionSelection:
    """What of one stream goes to one consumer. `wanted`: partitions; None: all, but NONE."""

    def __init__(self, wanted: Collection[int] | None, definitions: Mapping[int, TableDefinition]) -> None:
        """`definitions`: of all tables at the stream's beginning, by their ids."""
        self._wanted = None if wanted is None else frozenset(wanted)
        self._partitions = {key: one.partition for key, one in definitions.items()}
        self._sizes: defaultdict[int, list[int]] = defaultdict(list)
        """Lengths of frames with one change, by partition, until they are counted."""
        self._goes: dict[bytes, Callable[[int], None]] = {}
        self._stays: dict[bytes, Callable[[int], None]] = {}
        """By its first bytes, as `_FRAME` has them, where a change of a table's rows is noted that goes, or stays."""
        for key in self._partitions:
            self._note(key)
        self.kept_back = 0
        """Transactions of which nothing went, so far."""
        self.counts: dict[int, list[int]] = {}
        """By partition transactions that change it, so far, and the bytes of their frames as they are here."""

    @property
    def label(self) -> int:
        """Names what is wanted: the same number for the same partitions, anywhere, below 2^64."""
        wanted = "all" if self._wanted is None else ",".join(map(str, sorted(self._wanted)))
        return xxh3_64_intdigest(wanted.encode())

    def wants(self, number: int) -> bool:
        """Whether changes of that section go."""
        if number == PARTITION_STREAM:
            return True
        return number != PARTITION_NONE and (self._wanted is None or number in self._wanted)

    def goes_whole(self, definition: TableDefinition) -> bool:
        """Whether all rows of that table go, as they are."""
        return self.wants(definition.partition)

    def check(self) -> None:
        """As RowSelection's, which may have to stop; this one never has."""

    def take(self, batch: FrameBatch) -> FrameBatch:
        """The batch as it goes; the same one when all of it does. JournalDamagedError for a table that nobody has
        defined."""
        data, offset, kept, pieces = batch.data, 0, 0, list[bytes]()
        size, add = len(data), pieces.append
        goes_of, stays_of, is_of_one, prefix = self._goes.get, self._stays.get, _OF_ONE, FRAME_PREFIX_BYTES
        unpack, pack_body, pack = _FRAME.unpack_from, _NULL_BODY.pack, _NULL.pack
        while offset < size:
            try:
                length, word, label, change = unpack(data, offset)
            except StructError:  # the last frame may be shorter; to have all of it longer is a copy of the batch
                length, word, label, change = unpack(data[offset:] + bytes(_FRAME.size))
            end = offset + length + prefix
            if word == is_of_one:
                noted = goes_of(change)
                if noted is not None:
                    noted(length)
                    offset = end
                    continue
                noted = stays_of(change)
                if noted is not None:
                    # `pack_null`, written out: passed for each transaction that is not wanted.
                    noted(length)
                    if kept < offset:
                        add(data[kept:offset])
                    body = pack_body(_NULL_FRONT, label, _NULL_PAYLOAD)
                    add(pack(_NULL_PREFIX, crc32c(body), body))
                    kept = offset = end
                    continue
            made = self._of_many(data[offset:end], word & 0xFF, label, change)
            if made is not None:
                if kept < offset:
                    add(data[kept:offset])
                add(made)
                kept = end
            offset = end
        self._count_noted()
        if not pieces:
            return batch
        if kept < size:
            pieces.append(data[kept:])
        return FrameBatch(batch.first_seqno, batch.last_seqno, batch.count, b"".join(pieces))

    def _of_many(self, frame: bytes, kind: int, label: bytes, change: bytes) -> bytes | None:
        """What goes of a frame that has not one change of a table's rows; None: it goes as it is. Only such a frame may
        define a table. `label`, `change`: as `_FRAME` has them."""
        if kind in CHANGES_BEGIN and DEFINE_MARK in frame:
            self._learn(frame)
        if kind == _TRANSACTION:
            if change[0] == _REGION:
                return None  # a region that is added has no rows
            goes = change in self._goes
            if goes or (change in self._stays and not _FOR_EVERYBODY.search(frame, FRAME_HEAD_BYTES)):
                self.count((self._partitions[_CHANGE.unpack(change)[1]],), len(frame))
                if goes:
                    return None
                self.kept_back += 1
                body = _NULL_BODY.pack(_NULL_FRONT, label, _NULL_PAYLOAD)
                return _NULL.pack(_NULL_PREFIX, crc32c(body), body)
        if kind == _MIXED:
            told = trim(frame, self.wants)
            self.count(partitions_of(memoryview(frame)[FRAME_HEAD_BYTES:]), len(frame))
            self.kept_back += NUMBERED.unpack_from(told)[1] == Kind.NULL
            return None if told is frame else told
        return self._told_again(frame, kind) if kind in CHANGES_BEGIN else None

    def count(self, partitions: Iterable[int], frame_bytes: int) -> None:
        """One transaction that changes these, and whose frames have so many bytes."""
        for number in partitions:
            if number != PARTITION_STREAM:
                counts = self.counts.setdefault(number, [0, 0])
                counts[0] += 1
                counts[1] += frame_bytes

    def _count_noted(self) -> None:
        """Those with one change, of a batch at once."""
        for number, sizes in self._sizes.items():
            if sizes:
                counts = self.counts.setdefault(number, [0, 0])
                counts[0] += len(sizes)
                counts[1] += sum(sizes) + FRAME_PREFIX_BYTES * len(sizes)
                if not self.wants(number):
                    self.kept_back += len(sizes)
                sizes.clear()

    def _told_again(self, frame: bytes, kind: int) -> bytes | None:
        """Of a transaction whose changes may be of several sections, and say so nowhere."""
        body = decode_batch(frame, count=1)[2]
        start = CHANGES_BEGIN[kind]
        packed = pack_changes(changes_of(body))
        owners, _ = owners_of(packed, self._partitions)
        self.count(set(owners), len(frame))
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
                self._define(changes[place + 1], changes[place + 3])

    def _define(self, table_id: int, values: Any) -> None:
        section_of(Op.DEFINE, table_id, self._partitions, values)
        self._note(table_id)

    def _note(self, table_id: int) -> None:
        number = self._partitions[table_id]
        known = self._goes if self.wants(number) else self._stays
        for op in _OF_TABLES:
            known[_CHANGE.pack(op << 8 | _ID, table_id)] = self._sizes[number].append

    # Large transactions.

    def takes_whole(self, commit_frame: bytes, partitions: Iterable[int]) -> bool:
        """Whether a large transaction over those partitions goes byte for byte: `large` says what does of any other.
        One that was told in other words may hold other partitions than it names."""
        return is_as_written(commit_frame) and all(map(self.wants, partitions))

    def large(self, commit_frame: bytes, parts: Iterable[bytes], token: int) -> Generator[StreamItem]:
        """What goes of a large transaction that does not go whole: parts under `token`, one that nobody else has, and
        the frame that commits them; or one frame, where one holds what is left. `parts`: its PART frames; what reading
        them raises."""
        for item in told_large(commit_frame, self.wanted(parts), token):
            self.kept_back += is_null(item)
            yield item

    def wanted(self, parts: Iterable[bytes]) -> Iterator[list[Any]]:
        """The changes of it that go, one by one."""
        for change in changes_in(parts):
            if change[0] == Op.DEFINE:
                self._define(change[1], change[3])
            if self.wants(section_of(change[0], change[1], self._partitions)):
                yield change

    def wants_all_of(self, parts: Iterable[bytes]) -> bool:
        """Whether every change of a large transaction is wanted, whatever partitions it names. `parts`: its PART
        frames. JournalDamagedError."""
        for change in changes_in(parts):
            if change[0] == Op.DEFINE:
                self._define(change[1], change[3])
            if not self.wants(section_of(change[0], change[1], self._partitions)):
                return False
        return True

    def learn_large(self, parts: Callable[[], Iterable[bytes]]) -> None:
        """What a large transaction that goes whole defines. `parts` gives its PART frames, each time it is called."""
        if not may_define(parts()):
            return
        for change in changes_in(parts()):
            if change[0] == Op.DEFINE:
                self._define(change[1], change[3])


def told_large(commit_frame: bytes, changes: Iterable[list[Any]], token: int) -> Generator[StreamItem]:
    """The large transaction with that commit frame as these changes: parts under `token`, and the frame that commits
    them; or one frame, where one holds them."""
    head = read_head(commit_frame)
    made = Restating(head.seqno, head.origin, token)
    for change in changes:
        made.add(pack_changes(change))
        if (ready := made.parts()) is not None:
            yield ready
    made.close()
    if (ready := made.parts()) is not None:
        yield ready
    frame = made.finish(head, "", ())
    yield StreamLarge(head.seqno, frame) if made.is_large else FrameBatch(head.seqno, head.seqno, 1, frame)


def is_as_written(commit_frame: bytes) -> bool:
    """Whether a large transaction was told in no other words: it holds the partitions that it names."""
    return read_head(commit_frame).kind == Kind.LARGE


def is_null(item: StreamItem) -> bool:
    """Whether it is the NULL record of one transaction."""
    return isinstance(item, FrameBatch) and read_head(item.data).kind == Kind.NULL


def may_define(parts: Iterable[bytes]) -> bool:
    """Whether the parts may hold a definition. Cheap."""
    last = b""
    for frame in parts:
        piece = bytes(read_part(frame)[2])
        if DEFINE_MARK in piece or last + piece[:1] == DEFINE_MARK:
            return True
        last = piece[-1:]
    return False


def changes_in(parts: Iterable[bytes]) -> Iterator[list[Any]]:
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
