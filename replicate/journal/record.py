"""The frame: how one transaction, or one part of a large one, stands in the journal, in the pools and on the wire.

Where each number of its head stands, frame.py says. Every frame is valid msgpack, so a batch is decoded in C by one
`Unpacker`. COUNT = 7 + elements of the payload.

    LOCAL    KIND, SEQNO, MARK: the journal's own. MARK: its last durable seqno at the append; a bad frame
             at or below any MARK is damage, never a torn tail.
    ORIGIN   From CHAIN on: never changes as it travels. CHAIN = XXH3-64 over the bytes from ORIGIN's marker
             to the end, seeded with the origin's previous CHAIN (the first: 0).
    NULL     may stand for a transaction whose content is gone, and then carries its CHAIN.
    RESTATED, RESTATED_LARGE: a transaction in other words, under its CHAIN. Its payload begins with a
             comment (06 00 cf CHECK [reason]); CHECK = XXH3-64 over ORIGIN's part and all after CHECK,
             seeded with CHAIN.
    MIXED    A transaction over several partitions. CHAIN covers its sections (sections.py), not its changes.

Guarantees: bytes that do not verify raise FrameDamaged (a JournalDamagedError), a kind or operation of a later release
FormatUnknownError, and no decoder raises anything else, whatever the bytes. What is packed decodes equal.
Leaves to others: files, locks, who writes. Pure.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from itertools import repeat
from operator import add
from typing import Any, Final, NamedTuple

import msgpack
from crc32c import crc32c
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from replicate.errors import FormatUnknownError, FrameDamaged, InternalError, JournalDamagedError
from replicate.journal.frame import (
    CHAIN,
    FIXED_ELEMENTS,
    FRAME_HEAD_BYTES,
    FRAME_PREFIX_BYTES,
    HEAD,
    LABEL_OFFSET,
    LOCAL,
    NUMBERED,
    ORIGIN,
    ORIGIN_OFFSET,
    PREFIX,
)
from replicate.journal.sections import (
    SECTIONS_ELEMENTS,
    chained_bytes,
    is_sectioned,
    owners_of,
    section_of,
    sectioned,
    sections_fault,
    trimmed,
)
from replicate.limits import (
    BATCH_BYTES_MAX,
    CATALOGUE_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_CHANGES_MAX,
    MIB,
    PARTITION_STREAM,
)
from replicate.model.transaction import (
    RAW_TEXT_CODE,
    Catalogue,
    Change,
    Content,
    History,
    Kind,
    LargeCommit,
    LargePart,
    NullRecord,
    Op,
    Resolved,
    Transaction,
    decode_change,
    unpack_partitions,
)

PART_OVERHEAD_BYTES: Final = FRAME_HEAD_BYTES + 10
"""A PART frame is this much longer than its slice: its number and its length are packed at full width."""
KINDS: Final = frozenset(int(kind) for kind in Kind)
STREAM_KINDS: Final = frozenset(map(int, (Kind.TRANSACTION, Kind.NULL, Kind.HISTORY, Kind.RESTATED, Kind.MIXED)))
"""What may stand where a seqno is expected; all else (a CATALOGUE, a PART) has its place elsewhere."""
RESTATED_KINDS: Final = frozenset((int(Kind.RESTATED), int(Kind.RESTATED_LARGE)))
"""Told in other words: CHAIN does not follow from their content, and they have a check of their own."""
CHANGES_BEGIN: Final = {
    int(Kind.TRANSACTION): FIXED_ELEMENTS,
    int(Kind.RESTATED): FIXED_ELEMENTS + 4,
    int(Kind.MIXED): FIXED_ELEMENTS + SECTIONS_ELEMENTS,
}
"""Of a kind that holds a whole transaction: which element of the body is the first of its flat changes."""
OWN_CHANGES: Final = frozenset((int(Kind.TRANSACTION), int(Kind.MIXED)))
"""As a primary writes them in one frame: what a ring may hold."""
LARGE_BEGINS: Final = {int(Kind.LARGE): FIXED_ELEMENTS, int(Kind.RESTATED_LARGE): FIXED_ELEMENTS + 4}
"""Of a kind that commits a large transaction: which element of the body is the first of what says so."""
_LARGE_ELEMENTS: Final = 5
BODY_BYTES_MIN: Final = FRAME_HEAD_BYTES - FRAME_PREFIX_BYTES
BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - FRAME_PREFIX_BYTES
CATALOGUE_BODY_BYTES_MAX: Final = CATALOGUE_BYTES_MAX + FRAME_HEAD_BYTES
DEFINE_MARK: Final = bytes([Op.DEFINE, 0xCE])
"""Every payload that holds a DEFINE change holds these two bytes (table ids always have their top bit set)."""

_PART: Final = struct.Struct(">BIBI")
_CHECKED: Final = struct.Struct(">BBBQ")
_CHECK_END: Final = FRAME_HEAD_BYTES + _CHECKED.size
"""After the check of a restated frame."""
_ARRAY32: Final = struct.Struct(">BI")
_STREAM_VALUE_BYTES_MAX: Final = 2**31 - 1

_MIXED: Final = int(Kind.MIXED)
_prefix = PREFIX.pack
_local = LOCAL.pack
_origin = ORIGIN.pack

assert FIXED_ELEMENTS + SECTIONS_ELEMENTS + 4 * FRAME_CHANGES_MAX < 65_536

Buffer = bytes | bytearray | memoryview


class Head(NamedTuple):
    """The numbers in front of every frame. `length`: bytes of the body; `count`: elements of the body's array."""

    length: int
    check: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a head
    kind: int
    seqno: int
    mark: int
    chain: int
    origin: int
    origin_seqno: int
    csn: int

    @property
    def frame_bytes(self) -> int:
        return self.length + FRAME_PREFIX_BYTES


class FrameBatch(Struct, frozen=True):
    """Complete frames one after the other in `data`, without a gap: `count` of them, first_seqno to last_seqno."""

    first_seqno: int
    last_seqno: int
    count: int
    data: bytes


# Writing.


def pack_frame(
    kind: int,
    seqno: int,
    mark: int,
    previous_chain: int,
    origin: int,
    origin_seqno: int,
    csn: int,
    payload: bytes,
    payload_count: int,
) -> tuple[bytes, int]:
    """A frame, and its CHAIN. `payload`: `payload_count` msgpack elements, already packed.

    InternalError when a number does not fit its field, or the frame is above its limit (the caller should have
    spooled).
    """
    try:
        tail = _origin(0xCE, origin, 0xCF, origin_seqno, 0xCF, csn) + payload
        chained = tail if kind != _MIXED else tail[: ORIGIN.size + chained_bytes(payload, 0)]
        chain = xxh3_64_intdigest(chained, previous_chain)
        body = _local(0xDC, FIXED_ELEMENTS + payload_count, kind, 0xCF, seqno, 0xCF, mark, 0xCF, chain) + tail
        length = len(body)
        if length > BODY_BYTES_MAX and (kind != Kind.CATALOGUE or length > CATALOGUE_BODY_BYTES_MAX):
            raise InternalError(f"a frame of {length} bytes is above its limit")
        return _prefix(0xCE, length, 0xCE, crc32c(body)) + body, chain
    except struct.error as error:
        raise InternalError(f"a number does not fit its field in a frame: {error}") from error


def pack_null(head: Head, reason: str, partitions: tuple[int, ...]) -> bytes:
    """A NULL record that stands for the transaction with that head, of which nothing is kept, and carries its CHAIN."""
    return _labelled(Kind.NULL, head, *pack_elements(reason, list(partitions)))


def null_maker(reason: str) -> Callable[[bytes, Sequence[int]], bytes]:
    """`pack_null` of no partitions for many frames together: of the data and the offsets where verified ones begin."""
    payload, count = pack_elements(reason, [])
    front = bytes([0xDC, 0, FIXED_ELEMENTS + count, Kind.NULL])
    size = len(front) + FRAME_HEAD_BYTES - LABEL_OFFSET + len(payload)

    def made(data: bytes, offsets: Sequence[int]) -> bytes:
        bodies = [front + data[at + LABEL_OFFSET : at + FRAME_HEAD_BYTES] + payload for at in offsets]
        prefixes = map(_prefix, repeat(0xCE), repeat(size), repeat(0xCE), map(crc32c, bodies))
        return b"".join(map(add, prefixes, bodies))

    return made


def pack_restated(head: Head, reason: str, changes: bytes, count: int) -> bytes:
    """The transaction with that head (small or large) told in other words: `changes` are `count` elements, flat and
    packed. `reason`: who tells it so. InternalError above the limit of a frame: `pack_restated_large` is for those."""
    return _restated(Kind.RESTATED, head, reason, changes, count)


def pack_restated_large(head: Head, reason: str, payload: bytes, count: int) -> bytes:
    """The same for one whose changes were spooled: `payload` and `count` as `large_payload`, or `Spool.commit_payload`,
    gives them. The spool is of the head's origin, and its token one of its own."""
    return _restated(Kind.RESTATED_LARGE, head, reason, payload, count)


def renumbered(frame: Buffer, seqno: int, mark: int = 0) -> bytes:
    """The same frame as it stands in another journal: LOCAL part and CHECK made again, ORIGIN part as it is."""
    view = memoryview(frame)
    local = list(LOCAL.unpack_from(view, FRAME_PREFIX_BYTES))
    local[4], local[6] = seqno, mark
    body = _local(*local) + view[ORIGIN_OFFSET:]
    return _prefix(0xCE, len(body), 0xCE, crc32c(body)) + body


def mixed(changes: bytes, count: int, tables: Mapping[int, int]) -> tuple[bytes, int]:
    """The payload of a transaction whose changes may belong to several sections, and its elements; as they are when
    they do not. `tables`: table id -> partition, of all that it does not define itself. JournalDamagedError."""
    owners, ends = owners_of(changes, dict(tables))
    return (changes, count) if len(set(owners)) < 2 else sectioned(changes, owners, ends)


def kind_of(payload: bytes) -> Kind:
    """MIXED for what `mixed` has made of several sections, else TRANSACTION."""
    return Kind.MIXED if is_sectioned(payload) else Kind.TRANSACTION


def trim(frame: bytes, wants: Callable[[int], bool]) -> bytes:
    """What of a MIXED frame goes to a site with those sections: itself, fewer sections, or a NULL record where nothing
    is left. JournalDamagedError when it has no sections."""
    head = read_head(frame)
    left = trimmed(memoryview(frame)[FRAME_HEAD_BYTES:], wants)
    if left is None:
        return pack_null(head, "", ())
    payload, count = left
    return frame if FIXED_ELEMENTS + count == head.count else _labelled(Kind.MIXED, head, payload, count)


def pack_resolved(frame: bytes, reason: str, changes: Sequence[object], losses: Sequence[bytes] = ()) -> bytes:
    """The transaction of that frame as what it came to where it was merged: RESTATED by those flat changes, with what
    its writer wrote after them (RESOLVED), and the `losses`. `as_written` gives the frame back. InternalError above
    the limit."""
    flat = [*changes, *resolved_change(frame, losses)]
    return pack_restated(read_head(frame), reason, pack_changes(flat), len(flat))


def resolved_change(frame: bytes, losses: Sequence[bytes] = ()) -> list[object]:
    """The flat change that holds what the writer of that frame wrote, with the `losses` of the merge."""
    head = read_head(frame)
    written = [bytes(frame[FRAME_HEAD_BYTES:]), head.count - FIXED_ELEMENTS, list(losses)]
    return [int(Op.RESOLVED), PARTITION_STREAM, head.kind, written]


def as_written(frame: bytes) -> bytes | None:
    """The frame that `pack_resolved` was given, with the numbers that it has now; None for any other. FrameDamaged."""
    head = read_head(frame)
    if head.kind != Kind.RESTATED:
        return None
    return _as_written(head, resolved_of(decode_batch(frame)[2]))


def as_written_large(commit_frame: bytes, parts: Iterable[bytes]) -> bytes | None:
    """The same of a merged transaction that was spooled; `parts`: its PART frames."""
    head = read_head(commit_frame)
    if head.kind != Kind.RESTATED_LARGE:
        return None
    stream, last = unpacker(), deque[Any](maxlen=4)
    for part in parts:
        stream.feed(read_part(part)[2])
        last.extend(stream)
    found = decode_change(*last) if len(last) == 4 and last[0] == Op.RESOLVED else None
    return _as_written(head, found if isinstance(found, Resolved) else None)


def _as_written(head: Head, resolved: Resolved | None) -> bytes | None:
    return None if resolved is None else _labelled(Kind(resolved.kind), head, resolved.payload, resolved.count)


def resolved_of(body: Sequence[Any]) -> Resolved | None:
    """What the writer of a merged transaction wrote, of a decoded body; None of any other."""
    if body[0] != Kind.RESTATED or len(body) < CHANGES_BEGIN[int(Kind.RESTATED)] + 4 or body[-4] != Op.RESOLVED:
        return None
    found = decode_change(*body[-4:])
    return found if isinstance(found, Resolved) else None


def removes_rows(resolved: Resolved) -> bool:
    """Whether its writer removes rows for their unique values, and does nothing else. JournalDamagedError."""
    stream = unpacker()
    stream.feed(resolved.payload)
    try:
        return int(Op.RESOLVED) in list(stream)[CHANGES_BEGIN[resolved.kind] - FIXED_ELEMENTS :: 4]
    except UNPACK_ERRORS as error:
        raise JournalDamagedError(f"a resolved transaction does not decode: {error}") from error


def pack_changes(changes: Sequence[object]) -> bytes:
    """Flat changes as they stand in a payload, and in the stream of a large transaction."""
    pack = msgpack.Packer(use_bin_type=True, autoreset=False)
    for element in changes:
        pack.pack(element)
    return bytes(pack.bytes())


def _restated(kind: Kind, head: Head, reason: str, payload: bytes, count: int) -> bytes:
    rest = msgpack.packb([reason]) + payload
    origin = _origin(0xCE, head.origin, 0xCF, head.origin_seqno, 0xCF, head.csn)
    check = xxh3_64_intdigest(origin + rest, head.chain)
    return _labelled(kind, head, _CHECKED.pack(Op.COMMENT, 0, 0xCF, check) + rest, 4 + count)


def _labelled(kind: Kind, head: Head, payload: bytes, count: int) -> bytes:
    """A frame in the place of the one with that head, whose CHAIN it carries."""
    tail = _origin(0xCE, head.origin, 0xCF, head.origin_seqno, 0xCF, head.csn) + payload
    try:
        body = _local(0xDC, FIXED_ELEMENTS + count, kind, 0xCF, head.seqno, 0xCF, head.mark, 0xCF, head.chain) + tail
    except struct.error as error:
        raise InternalError(f"a number does not fit its field in a frame: {error}") from error
    if len(body) > BODY_BYTES_MAX:
        raise InternalError(f"a frame of {len(body)} bytes is above its limit")
    return _prefix(0xCE, len(body), 0xCE, crc32c(body)) + body


def pack_elements(*elements: object) -> tuple[bytes, int]:
    """A payload of those elements and their count, for `pack_frame`."""
    packed = msgpack.packb(elements, use_bin_type=True)
    # Strip the array's own header: fixarray up to 15 elements, array16 above.
    return packed[1 if len(elements) < 16 else 3 :], len(elements)


def history_payload(history: History) -> tuple[bytes, int]:
    """Payload of a HISTORY record."""
    return pack_elements(*history.pack())


def catalogue_payload(catalogue: Catalogue) -> tuple[bytes, int]:
    """Payload of a CATALOGUE frame."""
    return pack_elements(*catalogue.pack())


def large_payload(
    token: int, part_count: int, payload_bytes: int, last_part_chain: int, partitions: tuple[int, ...]
) -> tuple[bytes, int]:
    """Payload of the LARGE frame that commits parts."""
    return pack_elements(token, part_count, payload_bytes, last_part_chain, list(partitions))


def pack_part(origin: int, token: int, part_number: int, data: bytes, previous_chain: int) -> tuple[bytes, int]:
    """One PART frame of the large transaction `token`, and the running chain over the parts."""
    payload = _PART.pack(0xCE, part_number, 0xC6, len(data)) + data
    return pack_frame(Kind.PART, 0, 0, previous_chain, origin, 0, token, payload, 2)


# Reading heads.


def frame_damaged(what: str, offset: int) -> FrameDamaged:
    """The error for what is wrong with the frame at `offset`."""
    return FrameDamaged(what, where=f"offset {offset}", offset=offset)


def _head(buffer: Buffer, offset: int, end: int) -> Head:
    if offset < 0 or end - offset < FRAME_HEAD_BYTES or end > len(buffer):
        raise frame_damaged("a frame's head is cut short", offset)
    (
        m0, length, m1, check, m2, count, kind, m3, seqno, m4, mark, m5, chain, m6, origin, m7, origin_seqno, m8, csn,
    ) = HEAD.unpack_from(buffer, offset)  # fmt: skip
    if not (m0 == m1 == m6 == 0xCE and m2 == 0xDC and m3 == m4 == m5 == m7 == m8 == 0xCF):
        raise frame_damaged("no frame begins here: a marker is wrong", offset)
    if kind not in KINDS:
        if kind > 0x7F:
            raise frame_damaged("a frame's kind is no number", offset)
        raise FormatUnknownError(f"a frame of kind {kind} is of a later release", where=f"offset {offset}")
    if count < FIXED_ELEMENTS or not BODY_BYTES_MIN <= length <= _body_bytes_max(kind):
        raise frame_damaged("a frame's length or count is out of its range", offset)
    return Head(length, check, count, kind, seqno, mark, chain, origin, origin_seqno, csn)


def _body_bytes_max(kind: int) -> int:
    return CATALOGUE_BODY_BYTES_MAX if kind == Kind.CATALOGUE else BODY_BYTES_MAX


def read_head(buffer: Buffer, offset: int = 0) -> Head:
    """The numbers of the frame at `offset`, of which the head at least must be in `buffer`; CHECK is not looked at.

    FrameDamaged on a wrong marker or length, FormatUnknownError on an unknown kind.
    """
    return _head(buffer, offset, len(buffer))


def check_frame(buffer: Buffer, offset: int = 0, end: int | None = None) -> Head:
    """Verify the whole frame at `offset`, which must end at or before `end`: markers, lengths and CHECK.

    A damaged kind fails its CHECK first, so FormatUnknownError means: written so, by a later release.
    """
    limit = len(buffer) if end is None else end
    if offset < 0 or limit > len(buffer) or limit - offset < FRAME_HEAD_BYTES:
        raise frame_damaged("a frame's head is cut short", offset)
    m0, length, m1, check = PREFIX.unpack_from(buffer, offset)
    begin = offset + FRAME_PREFIX_BYTES
    if m0 != 0xCE or m1 != 0xCE:
        raise frame_damaged("no frame begins here: a marker is wrong", offset)
    if not BODY_BYTES_MIN <= length <= CATALOGUE_BODY_BYTES_MAX:
        raise frame_damaged("a frame's length is out of its range", offset)
    if begin + length > limit:
        raise frame_damaged("a frame is cut short, or its length is wrong", offset)
    if crc32c(memoryview(buffer)[begin : begin + length]) != check:
        raise frame_damaged("a frame's check does not match its content", offset)
    return _head(buffer, offset, limit)


def chain_of(frame: Buffer, previous_chain: int) -> int:
    """The CHAIN that a frame's content gives after `previous_chain`; unequal to the one it carries means diverged."""
    view = memoryview(frame)
    end = len(view)
    if end >= FRAME_HEAD_BYTES and NUMBERED.unpack_from(view)[1] == _MIXED:
        end = FRAME_HEAD_BYTES + chained_bytes(view, FRAME_HEAD_BYTES)
    return xxh3_64_intdigest(view[ORIGIN_OFFSET:end], previous_chain)


def restated_fault(frame: Buffer) -> str:
    """Why a whole frame of RESTATED_KINDS is not what it says; "" when its own check proves it."""
    view = memoryview(frame)
    if len(view) < _CHECK_END:
        return "a restated transaction has no check"
    op, ident, marker, check = _CHECKED.unpack_from(view, FRAME_HEAD_BYTES)
    if (op, ident, marker) != (Op.COMMENT, 0, 0xCF):
        return "a restated transaction has no check"
    proven = bytes(view[ORIGIN_OFFSET:FRAME_HEAD_BYTES]) + bytes(view[_CHECK_END:])
    if xxh3_64_intdigest(proven, CHAIN.unpack_from(view)[0]) != check:
        return "the check of a restated transaction does not match its content"
    return ""


def proven_after(frame: Buffer, kind: int, chain: int, previous_chain: int) -> bool:
    """Whether a whole frame is proven to continue its origin after `previous_chain`: by its chain hash (over
    several partitions, with the digests of its sections), or, told in other words, by its own check. A NULL record may
    stand for a transaction whose content is gone, and then carries
    that one's hash: the next transaction, which continues it, is what proves it."""
    if kind in RESTATED_KINDS:
        return not restated_fault(frame)
    if kind == Kind.NULL:
        return True
    if chain_of(frame, previous_chain) != chain:
        return False
    return kind != _MIXED or not sections_fault(memoryview(frame)[FRAME_HEAD_BYTES:])


# Decoding bodies.


def changes_of(body: Sequence[Any]) -> Sequence[Any]:
    """The flat changes of a decoded body, whatever its kind: none of a NULL or HISTORY record."""
    begin = CHANGES_BEGIN.get(body[0])
    return body[begin:] if begin else ()


def large_commit_of(body: Sequence[Any]) -> Sequence[Any]:
    """Token, number of parts, bytes, the last part's chain and partitions, of a decoded body that commits a large
    transaction; none of any other."""
    begin = LARGE_BEGINS.get(body[0], 0)
    return body[begin:] if begin and len(body) == begin + _LARGE_ELEMENTS else ()


def sections_in(body: Sequence[Any], partitions: MutableMapping[int, int]) -> set[int]:
    """The sections (sections.py) of what a decoded body changes, or says that it changed. `partitions` as `section_of`
    takes it. JournalDamagedError."""
    if body[0] == Kind.NULL:
        return set(unpack_partitions(body[FIXED_ELEMENTS + 1]))
    if commit := large_commit_of(body):
        return set(unpack_partitions(commit[-1]))
    flat = changes_of(body)
    return {section_of(flat[at], flat[at + 1], partitions, flat[at + 3]) for at in range(0, len(flat), 4)}


def _extension(code: int, data: bytes) -> Any:
    if code != RAW_TEXT_CODE:
        raise FormatUnknownError(f"a value of extension type {code} is of a later release")
    return msgpack.ExtType(code, data)


_ARRAY_MAX: Final = 65_535
_OPTIONS: Final[dict[str, Any]] = {
    "ext_hook": _extension,
    "max_array_len": _ARRAY_MAX,
    "max_map_len": 0,
    "strict_map_key": True,
}


def unpacker(max_bytes: int = _STREAM_VALUE_BYTES_MAX, *, tuples: bool = False) -> Any:
    """A msgpack Unpacker for the change stream of a large transaction.

    Feed it the slices, take op, id, argument, values. No maps, no unknown extension types, arrays up to 65,535
    elements (lists, or `tuples`); `max_bytes` bounds what it buffers. It raises ValueError and its kin:
    `UNPACK_ERRORS` are what to catch.
    """
    return msgpack.Unpacker(max_buffer_size=max_bytes, use_list=not tuples, **_OPTIONS)


UNPACK_ERRORS: Final = (ValueError, TypeError, OverflowError, msgpack.UnpackException, RecursionError)
"""All that msgpack raises on bytes that are no msgpack, or above a limit."""


def decode_batch(data: bytes, *, tuples: bool = False, count: int = 0) -> Sequence[Any]:
    """Fast: [length, check, body, length, check, body, …] for a batch of verified frames, each body one flat list
    (count elements: kind, seqno, mark, chain, origin, origin_seqno, csn, payload…). With `tuples` in place of all lists
    within, a quarter of the time is saved (measured): a tuple is one piece of memory, a list two. `count`: of frames,
    where that is known, 0 where it is not; it saves as much again, as all of them are one value then.

    FrameDamaged when `data` is not exactly such frames; CHECK and the types within a payload are not looked at.
    """
    flat: Sequence[Any]
    try:
        if 0 < 3 * count <= _ARRAY_MAX:
            flat = msgpack.unpackb(_ARRAY32.pack(0xDD, 3 * count) + data, **_OPTIONS, use_list=not tuples)
        else:
            reader = unpacker(max(len(data), BATCH_BYTES_MAX), tuples=tuples)
            reader.feed(data)
            flat = list(reader)
            if reader.tell() != len(data):
                raise frame_damaged("a batch is not whole frames", 0)
    except UNPACK_ERRORS as error:
        raise frame_damaged(f"a batch does not decode: {error}", 0) from error
    lengths, bodies = flat[0::3], flat[2::3]
    found = len(bodies)
    if len(flat) != 3 * found or list(map(type, bodies)).count(tuple if tuples else list) != found:
        raise frame_damaged("a batch is not whole frames", 0)
    if list(map(type, lengths)).count(int) != found or sum(lengths) + FRAME_PREFIX_BYTES * found != len(data):
        raise frame_damaged("a batch is not whole frames", 0)
    if bodies and min(set(map(len, bodies))) < FIXED_ELEMENTS:
        raise frame_damaged("a frame has too few elements", 0)
    return flat


def decode(frame: Buffer) -> Transaction:
    """Verify and decode exactly one frame, whole. For people and tools; the applier uses `decode_batch`.

    FrameDamaged, JournalDamagedError or FormatUnknownError; nothing else, whatever the bytes.
    """
    head = check_frame(frame)
    if head.frame_bytes != len(frame):
        raise frame_damaged("something stands after the frame", head.frame_bytes)
    reader = msgpack.Unpacker(
        ext_hook=_extension,
        max_buffer_size=CATALOGUE_BODY_BYTES_MAX + MIB,
        max_array_len=max(65_535, CATALOGUE_BYTES_MAX // 8) if head.kind == Kind.CATALOGUE else 65_535,
        max_map_len=0,
    )
    try:
        reader.feed(memoryview(frame)[FRAME_PREFIX_BYTES:])
        elements = reader.unpack()
        whole = reader.tell() == head.length
    except UNPACK_ERRORS as error:
        raise frame_damaged(f"a frame does not decode: {error}", 0) from error
    if type(elements) is not list or not whole:
        raise frame_damaged("a frame's body is not one list", 0)
    if head.kind in RESTATED_KINDS and (fault := restated_fault(frame)):
        raise frame_damaged(fault, 0)
    if head.kind == _MIXED and (fault := sections_fault(memoryview(frame)[FRAME_HEAD_BYTES:])):
        raise frame_damaged(fault, 0)
    content = content_of(head.kind, head.seqno, elements[FIXED_ELEMENTS:])
    kind = Kind(head.kind)
    return Transaction(kind, head.seqno, head.mark, head.chain, head.origin, head.origin_seqno, head.csn, content)


def content_of(kind: int, seqno: int, payload: Sequence[Any]) -> tuple[Content, ...]:
    """What the payload of a frame says: the changes of a TRANSACTION in order, of one told in other words
    after the reason; one record for every other kind.

    JournalDamagedError or FormatUnknownError."""
    comment: tuple[Content, ...] = ()
    if kind == Kind.MIXED:
        return decode_changes(payload[SECTIONS_ELEMENTS:])
    if kind in CHANGES_BEGIN:
        return decode_changes(payload)
    if kind == Kind.HISTORY:
        return (History.unpack(payload, seqno),)
    if kind == Kind.CATALOGUE:
        return (Catalogue.unpack(payload),)
    if kind == Kind.NULL and len(payload) == 2 and type(payload[0]) is str:
        return (NullRecord(payload[0], unpack_partitions(payload[1])),)
    if kind == Kind.PART and len(payload) == 2 and type(payload[0]) is int and type(payload[1]) is bytes:
        return (LargePart(payload[0], payload[1]),)
    if kind == Kind.RESTATED_LARGE:
        comment, payload = decode_changes(payload[:4]), payload[4:]
    if kind in LARGE_BEGINS and len(payload) == 5 and all(type(n) is int and n >= 0 for n in payload[:4]):
        token, part_count, payload_bytes, last_part_chain, partitions = payload
        commit = LargeCommit(token, part_count, payload_bytes, last_part_chain, unpack_partitions(partitions))
        return (commit, *comment)
    raise JournalDamagedError(f"a frame of kind {Kind(kind).name} does not hold what it should")


def decode_changes(flat: Sequence[Any]) -> tuple[Change, ...]:
    """Views of flat changes (op, id, argument, values, …). JournalDamagedError or FormatUnknownError."""
    if len(flat) % 4:
        raise JournalDamagedError("changes should come in fours")
    return tuple(decode_change(*flat[index : index + 4]) for index in range(0, len(flat), 4))


def read_part(frame: Buffer, offset: int = 0, end: int | None = None) -> tuple[Head, int, memoryview]:
    """Verify the PART frame at `offset`: its head, number, and slice of the change stream (a view, not a copy)."""
    head = check_frame(frame, offset, end)
    begin = offset + PART_OVERHEAD_BYTES
    if head.kind != Kind.PART or head.count != FIXED_ELEMENTS + 2 or head.frame_bytes < PART_OVERHEAD_BYTES:
        raise frame_damaged("a part of a large transaction should stand here", offset)
    m0, number, m1, length = _PART.unpack_from(frame, offset + FRAME_HEAD_BYTES)
    if m0 != 0xCE or m1 != 0xC6 or length != head.frame_bytes - PART_OVERHEAD_BYTES:
        raise frame_damaged("a part of a large transaction is malformed", offset)
    return head, number, memoryview(frame)[begin : begin + length]
