"""The sections of a transaction over several partitions: what the payload of a MIXED frame says, and how it is trimmed.

The payload begins with four elements (09 00 c5 SECTIONS [OWNERS]). SECTIONS: for each partition its number, how
many changes it has, and the XXH3-64 of their bytes in order. OWNERS: for each change that is here, the place of its
section, one byte. Then the changes, in their true order. CHAIN covers the head and SECTIONS only, so a payload from
which whole sections were taken still proves itself: CHAIN proves SECTIONS, each digest proves its changes.

Section 0 goes to everybody: definitions, and what names no partition.

Guarantees: a trimmed payload proves what it holds; what does not verify is told, whatever the bytes.
Leaves to others: frames, who wants what, how a table comes to its partition. Pure.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final

import msgpack
from xxhash import xxh3_64

from replicate.errors import JournalDamagedError
from replicate.limits import FRAME_CHANGES_MAX, PARTITION_DEFAULT, PARTITION_MAX
from replicate.model.transaction import TABLE_ID_MIN, Op

SECTIONS_ELEMENTS: Final = 4
"""Of the payload, before its changes."""
SECTIONS_MAX: Final = 65
"""Section 0, and the numbers that partitions may have, and NONE."""
SECTIONS_ROOM: Final = 16 * SECTIONS_MAX + 16 + FRAME_CHANGES_MAX
"""Bytes that they take at most, in front of the most changes that a frame holds."""

_HEAD: Final = struct.Struct(">BBBH")
_OP: Final = 9
"""Stands where the operation of a change would; no change has it."""
_SECTION: Final = struct.Struct(">IIQ")
_EVERYBODY: Final = 0
_OF_ROWS_MAX: Final = int(max(Op.INSERT, Op.UPDATE, Op.DELETE))
_FIXINT_MAX: Final = 0x7F
"""Of msgpack: how high a number is that takes one byte. Ids of tables take five."""
_ERRORS: Final = (ValueError, TypeError, OverflowError, msgpack.UnpackException, RecursionError, struct.error)

Buffer = bytes | bytearray | memoryview


def section_of(op: int, ident: int, partitions: MutableMapping[int, int], values: Any = None) -> int:
    """The section of a change: its table's partition, the one that it names itself (a comment, a schema change), or 0.
    `partitions`, table id -> partition, learns from a DEFINE. JournalDamagedError for a table that nobody defined."""
    if op == Op.DEFINE:
        if values is not None:
            partitions[ident] = values[1]
        return _EVERYBODY
    if ident < TABLE_ID_MIN:
        return ident
    if op == Op.COMMENT:  # that a table was put into another partition
        return _EVERYBODY
    try:
        return partitions[ident]
    except KeyError:
        raise JournalDamagedError(f"a change of table {ident:x}, which nobody has defined") from None


def owners_of(changes: Buffer, partitions: MutableMapping[int, int]) -> tuple[list[int], list[int]]:
    """The section of each change in flat, packed `changes`, and where each of them ends. `partitions` as `section_of`
    takes it. JournalDamagedError for what are no changes."""
    return _walk(changes, partitions)


def changed_partitions(payload: Buffer, named: tuple[int, ...], tables: Mapping[int, int] | None) -> tuple[int, ...]:
    """The partitions, NONE left out, that a transaction with that payload (b"": a large one) changes. `named`,
    `tables`: of its CapturedChanges, which name DEFAULT where it is of no partition. JournalDamagedError."""
    found: Iterable[int] = named
    if payload and (payload[1] <= _FIXINT_MAX or payload[0] > _OF_ROWS_MAX):  # no row stands first
        if is_sectioned(payload):
            found = partitions_of(payload)
        else:
            owner = named[0] if named else PARTITION_DEFAULT
            found = sorted(set(owners_of(payload, defaultdict(lambda: owner) if tables is None else dict(tables))[0]))
    elif len(named) == 1 and _EVERYBODY < named[0] <= PARTITION_MAX:
        return named  # nearly always
    return tuple(number for number in found if _EVERYBODY < number <= PARTITION_MAX)


def _walk(changes: Buffer, partitions: MutableMapping[int, int] | None) -> tuple[list[int], list[int]]:
    reader = msgpack.Unpacker(max_buffer_size=max(len(changes), 1), ext_hook=msgpack.ExtType, use_list=False)
    reader.feed(changes)
    unpack, skip, tell = reader.unpack, reader.skip, reader.tell
    owners, ends, end = [], [], 0
    try:
        while end < len(changes):
            if partitions is None:
                skip()
                skip()
                skip()
                skip()
            else:
                op, ident = unpack(), unpack()
                skip()
                if op == Op.DEFINE:
                    owners.append(section_of(op, ident, partitions, unpack()))
                else:
                    skip()
                    owners.append(section_of(op, ident, partitions))
            end = tell()
            ends.append(end)
    except _ERRORS as error:
        raise JournalDamagedError(f"the changes of a transaction do not decode: {error}") from error
    return owners, ends


def sectioned(changes: bytes, owners: list[int], ends: list[int]) -> tuple[bytes, int]:
    """The payload of a MIXED frame of these changes, whole, and its elements. `owners`, `ends`: of `owners_of`."""
    numbers = sorted(set(owners))
    places = {number: place for place, number in enumerate(numbers)}
    digests, counts = [xxh3_64() for _ in numbers], [0] * len(numbers)
    begin = 0
    marks = bytes(map(places.__getitem__, owners))
    for place, end in zip(marks, ends, strict=True):
        digests[place].update(changes[begin:end])
        counts[place] += 1
        begin = end
    table = b"".join(
        _SECTION.pack(number, count, digest.intdigest())
        for number, count, digest in zip(numbers, counts, digests, strict=True)
    )
    return _payload(table, marks, changes)


def _payload(table: bytes, marks: bytes, changes: bytes) -> tuple[bytes, int]:
    head = _HEAD.pack(_OP, 0, 0xC5, len(table))
    return head + table + msgpack.packb([marks], use_bin_type=True) + changes, SECTIONS_ELEMENTS * (1 + len(marks))


def is_sectioned(payload: Buffer) -> bool:
    """Whether a payload begins with sections, and not with a change."""
    return len(payload) > 0 and payload[0] == _OP


def chained_bytes(data: Buffer, offset: int) -> int:
    """How many bytes of the payload at `offset` CHAIN covers. All that is there where no sections are, so that it
    proves nothing."""
    if len(data) - offset < _HEAD.size:
        return len(data) - offset
    return _HEAD.size + int(_HEAD.unpack_from(data, offset)[3])


def sections_fault(payload: Buffer) -> str:
    """Why a payload's changes are not those of its sections; "" when each section that is here is proven, and whole."""
    try:
        table, marks, changes = _parts(payload)
        _, ends = _walk(changes, None)
        found = list(_SECTION.iter_unpack(table))
        numbers = [number for number, _, _ in found]
        if not 0 < len(found) <= SECTIONS_MAX or numbers != sorted(set(numbers)):
            return "the sections of a transaction are malformed"
        if len(ends) != len(marks) or (marks and max(marks) >= len(found)):
            return "the changes of a transaction are not those of its sections"
        digests, counts = {place: xxh3_64() for place in set(marks)}, [0] * len(found)
        begin = 0
        for place, end in zip(marks, ends, strict=True):
            digests[place].update(changes[begin:end])
            counts[place] += 1
            begin = end
        for place, digest in digests.items():
            if found[place][1:] != (counts[place], digest.intdigest()):
                return f"the changes of partition {numbers[place]} do not match the digest of their section"
    except (*_ERRORS, JournalDamagedError) as error:
        return f"the sections of a transaction do not decode: {error}"
    return ""


def partitions_of(payload: Buffer) -> tuple[int, ...]:
    """The sections that the transaction had, ascending, whatever of it is here. JournalDamagedError."""
    try:
        return tuple(number for number, _, _ in _SECTION.iter_unpack(_parts(payload)[0]))
    except _ERRORS as error:
        raise JournalDamagedError(f"the sections of a transaction do not decode: {error}") from error


def trimmed(payload: Buffer, wants: Callable[[int], bool]) -> tuple[bytes, int] | None:
    """The payload with the wanted sections only, and its elements; None when nothing is left.
    JournalDamagedError for what has no sections."""
    try:
        table, marks, changes = _parts(payload)
        kept = {place for place, (number, _, _) in enumerate(_SECTION.iter_unpack(table)) if wants(number)}
        _, ends = _walk(changes, None)
        begin, left = 0, []
        for place, end in zip(marks, ends, strict=True):
            if place in kept:
                left.append(changes[begin:end])
            begin = end
    except _ERRORS as error:
        raise JournalDamagedError(f"the sections of a transaction do not decode: {error}") from error
    if not left:
        return None
    return _payload(table, bytes(place for place in marks if place in kept), b"".join(left))


def _parts(payload: Buffer) -> tuple[bytes, bytes, bytes]:
    """SECTIONS, OWNERS and the changes. Raises _ERRORS."""
    op, ident, marker, size = _HEAD.unpack_from(payload)
    begin = _HEAD.size + size
    if (op, ident, marker) != (_OP, 0, 0xC5) or begin >= len(payload) or size % _SECTION.size:
        raise ValueError("no sections stand there")
    data = bytes(payload)
    reader = msgpack.Unpacker(max_buffer_size=len(data), use_list=False)
    reader.feed(memoryview(data)[begin:])
    values = reader.unpack()
    if type(values) is not tuple or len(values) != 1 or type(values[0]) is not bytes:
        raise ValueError("no owners stand there")
    return data[_HEAD.size : begin], values[0], data[begin + reader.tell() :]
