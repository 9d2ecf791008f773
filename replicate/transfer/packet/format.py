"""The bytes of a packet: an increment of the journal from one replica to others, to be carried by whatever there is.

    FILE      = records (../records.py): of each segment of the increment SEGMENT and its PIECEs, then SUMMARY, where it
                is signed SIGNATURE, then END
    SEGMENT   = a journal segment, cut to the increment, or the whole one of a large transaction; from which byte
    PIECE     = RAW_BYTES(u32) and the next bytes of it, compressed where that is shorter
    END       = POSITION(u64) of SUMMARY;  the other bodies are msgpack

The summary stands after what it sums up, so that a packet is written in one pass; END, which is always of the same
length, leads to it. It holds a digest of all bytes before it, and the signature covers it. A packet between suppliers
has version 2: its segments hold what the target lacks only, and so leave numbers out. An excerpt, which has some
partitions only, or was told on by a filter, has version 3.

Guarantees: those of records.py; what is unpacked has the types and ranges that it should have.
Leaves to others: files, who may sign, and what is done with the segments. Pure.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Any, Final

import msgpack
from msgspec import Struct

from replicate.errors import DamagedError
from replicate.limits import KIB, MIB, NAME_PATTERN, PARTITION_NONE
from replicate.model.vector import U32_MAX, U64_MAX, Position, SynchronizationVector, pack_chains, unpack_chains
from replicate.transfer.records import HEAD_BYTES, UNREADABLE, RecordFormat, need

VERSION: Final = 1
BY_VECTOR: Final = 2
"""The version of a packet between suppliers."""
AN_EXCERPT: Final = 3
"""The version of a packet that is an excerpt."""
PIECE_BYTES: Final = 1 * MIB
"""Bytes of a segment in one record, at most."""
TARGETS_MAX: Final = 256
_RAW: Final = struct.Struct(">I")
_END: Final = struct.Struct(">Q")
END_BYTES: Final = HEAD_BYTES + _END.size
SHA256_BYTES: Final = 32
_UUID_BYTES: Final = 16
_SEGMENT_BYTES_MAX: Final = 2**62
_NAME: Final = re.compile(NAME_PATTERN)


class PacketRecord(IntEnum):
    """The type byte of a record. Never re-used, never re-numbered."""

    SEGMENT = 1
    PIECE = 2
    SUMMARY = 3
    SIGNATURE = 4
    END = 5


PACKET: Final = RecordFormat(
    b"DSREPPKT",
    "packet",
    (VERSION, AN_EXCERPT),
    {
        PacketRecord.SEGMENT: 1 * KIB,
        PacketRecord.PIECE: _RAW.size + PIECE_BYTES,
        PacketRecord.SUMMARY: 1 * MIB,
        PacketRecord.SIGNATURE: 64 * KIB,
        PacketRecord.END: _END.size,
    },
    make_do="Make one: replicate -i SENDER packet export --to TARGET",
    damaged_do="Copy it again; if it is damaged where it was made, there: replicate -i SENDER packet recover",
)


class SegmentPart(Struct, frozen=True):
    """A segment that begins with `first_seqno`. `size` not 0: it is the whole one of a large transaction, so many bytes
    long, of which those from `offset` on follow; it may go on in the next packet."""

    first_seqno: int
    size: int = 0
    offset: int = 0

    def pack(self) -> bytes:
        """The body of SEGMENT."""
        return bytes(msgpack.packb([self.first_seqno, self.size, self.offset]))

    @classmethod
    def unpack(cls, body: bytes) -> SegmentPart:
        """What `pack` gave. ValueError and its kin when it is none."""
        first, size, offset = msgpack.unpackb(body)
        for number in (first, size, offset):
            need(type(number) is int and 0 <= number < _SEGMENT_BYTES_MAX, "a number")
        need(first > 0 and (offset < size or size == offset == 0), "a part of a segment")
        return cls(first, size, offset)


class OriginName(Struct, frozen=True):
    """Which instance an origin's key stands for, and the number of its first transaction in the sender's journal (0:
    not told)."""

    key: int
    instance: str
    incarnation: int
    begins: int = 0


NO_LARGE: Final = (0, 0)


class BetweenSuppliers(Struct, frozen=True):
    """What a supplier's packet says besides. `incarnation`: the one that the sender writes in. `goes_on`: origin and
    number of the large transaction that its first bytes are of, `goes_on_after`: its last bytes; NO_LARGE: of none.
    `met`: of each target the last incarnation that the sender has met, 0: none."""

    incarnation: int
    goes_on: tuple[int, int] = NO_LARGE
    goes_on_after: tuple[int, int] = NO_LARGE
    met: tuple[int, ...] = ()

    def pack(self) -> list[int]:
        """Flat."""
        return [self.incarnation, *self.goes_on, *self.goes_on_after, *self.met]

    @classmethod
    def unpack(cls, packed: Any, targets: int) -> BetweenSuppliers:
        """What `pack` gave, of a packet for so many targets. ValueError when it is none."""
        need(type(packed) is list and len(packed) == 5 + targets, "what suppliers say")
        need(all(type(one) is int and 0 <= one <= U64_MAX for one in packed), "numbers of 64 bits")
        incarnation, origin, number, origin_after, number_after, *met = packed
        need(max(incarnation, origin, origin_after, *met) <= U32_MAX, "numbers of 32 bits")
        return cls(incarnation, (origin, number), (origin_after, number_after), tuple(met))


class Excerpt(Struct, frozen=True):
    """What a packet says of which not all is there, or not in its writers' words. `partitions`: those whose changes it
    has, ascending; (): all. `filter`: the identities of the filters that it came through to its sender; "": none."""

    partitions: tuple[int, ...] = ()
    filter: str = ""

    def pack(self) -> list[Any]:
        """Flat."""
        return [list(self.partitions), self.filter]

    @classmethod
    def unpack(cls, packed: Any) -> Excerpt:
        """What `pack` gave. ValueError and its kin when it is none."""
        numbers, told_by = packed
        need(type(numbers) is list and type(told_by) is str and (numbers or told_by) != "", "an excerpt")
        need(all(type(one) is int and 0 < one < PARTITION_NONE for one in numbers), "partitions")
        need(numbers == sorted(set(numbers)), "partitions in their order")
        return cls(tuple(numbers), told_by)


class PacketSummary(Struct, frozen=True):
    """What a packet is, whose and for whom. UUIDs have 16 bytes.

    `number`: rises with each packet of the sender; `before`: of the one that leads there where it begins, 0 when there
    is none. `base`: what the target must have; `inside`: and so many bytes of the large transaction after it. `end`:
    what it has afterwards; `end_inside`: the same of what goes on in the next packet. `own`: how far the sender is.
    `digest`: SHA-256 of all bytes before the summary. `suppliers`: of a packet between these, whose numbers are those
    of the sender's journal, and whose `base` and `end` say by origin what the target must have, and has. `excerpt`: of
    one that is not all of the journal, or not in its writers' words.
    """

    packet: bytes
    network: bytes
    sender: bytes
    sender_name: str
    targets: tuple[str, ...]
    number: int
    before: int
    base: Position
    inside: int
    end: Position
    end_inside: int
    own: Position
    origins: tuple[OriginName, ...]
    created_wall_ns: int
    release: str
    digest: bytes
    suppliers: BetweenSuppliers | None = None
    excerpt: Excerpt | None = None

    @property
    def version(self) -> int:
        """Of the file that it stands in."""
        return version_of(self.suppliers is not None, self.excerpt)

    @property
    def first_seqno(self) -> int:
        """Of the first transaction that it brings, at least in part."""
        return self.base.last_seqno + 1

    @property
    def last_seqno(self) -> int:
        """The last transaction that it completes."""
        return self.end.last_seqno

    @property
    def is_receipt(self) -> bool:
        """Whether it brings nothing but word of how far the sender is."""
        return self.base.last_seqno == self.end.last_seqno and self.inside == self.end_inside

    def pack(self) -> bytes:
        """The body of SUMMARY."""
        positions = [
            part
            for one in (self.base, self.end, self.own)
            for part in (one.last_seqno, one.vector.pack(), pack_chains(one.chains))
        ]
        names = [part for one in self.origins for part in (one.key, one.instance, one.incarnation, one.begins)]
        fields: list[Any] = [
            self.packet, self.network, self.sender, self.sender_name, list(self.targets), self.number, self.before,
            self.inside, self.end_inside, self.created_wall_ns, self.release, self.digest, names, *positions,
        ]  # fmt: skip
        if self.suppliers is not None:
            fields.append(self.suppliers.pack())
        elif self.excerpt is not None:
            fields += [None, self.excerpt.pack()]
        return bytes(msgpack.packb(fields, use_bin_type=True))

    @classmethod
    def unpack(cls, body: bytes) -> PacketSummary:
        """The summary that `pack` gave. DamagedError when it is none."""
        try:
            fields = msgpack.unpackb(body, raw=False, max_map_len=0, max_ext_len=0)
            (packet, network, sender, name, targets, number, before, inside, end_inside, created, release, digest,
             names, *positions) = fields  # fmt: skip
            for one in (packet, network, sender):
                need(type(one) is bytes and len(one) == _UUID_BYTES, "a UUID of 16 bytes")
            need(type(digest) is bytes and len(digest) == SHA256_BYTES, "a digest")
            need(type(targets) is list and 0 < len(targets) <= TARGETS_MAX, "targets")
            for one in (name, *targets):
                need(_is_name(one), "a name")
            for one in (number, before, inside, end_inside, created):
                need(type(one) is int and 0 <= one <= U64_MAX, "a number of 64 bits")
            need(type(release) is str and type(names) is list and len(names) % 4 == 0, "a release and origins")
            need(len(positions) in (9, 10, 11), "three positions")
            base, end, own = (_position(*positions[at : at + 3]) for at in (0, 3, 6))
            need(len(positions) < 11 or positions[9] is None, "an excerpt, or a supplier's")
            suppliers = BetweenSuppliers.unpack(positions[9], len(targets)) if len(positions) == 10 else None
            excerpt = Excerpt.unpack(positions[10]) if len(positions) == 11 else None
            need(before < number and base.last_seqno <= end.last_seqno, "an increment")
            need(base.last_seqno < end.last_seqno or inside <= end_inside, "an increment")
            origins = tuple(_origin(*names[at : at + 4]) for at in range(0, len(names), 4))
        except UNREADABLE as error:
            raise DamagedError(f"the summary of the packet makes no sense: {error}", do=PACKET.damaged_do) from None
        return cls(
            packet, network, sender, name, tuple(targets), number, before, base, inside, end, end_inside, own, origins,
            created, release, digest, suppliers, excerpt,
        )  # fmt: skip


def version_of(is_between_suppliers: bool, excerpt: Excerpt | None) -> int:
    """Of the file of such a packet."""
    return BY_VECTOR if is_between_suppliers else VERSION if excerpt is None else AN_EXCERPT


def _is_name(name: Any) -> bool:
    return type(name) is str and _NAME.match(name) is not None


def _position(last_seqno: Any, vector: Any, chains: Any) -> Position:
    need(type(last_seqno) is int and 0 <= last_seqno <= U64_MAX, "a number of 64 bits")
    return Position(last_seqno, SynchronizationVector.unpack(vector), unpack_chains(chains))


def _origin(key: Any, instance: Any, incarnation: Any, begins: Any) -> OriginName:
    need(type(key) is int and 0 < key <= U32_MAX and _is_name(instance), "an origin's key and name")
    need(type(incarnation) is int and 0 <= incarnation <= U32_MAX, "an incarnation")
    need(type(begins) is int and 0 <= begins <= U64_MAX, "a number of 64 bits")
    return OriginName(key, instance, incarnation, begins)


class Signature(Struct, frozen=True):
    """`certificates`: the signer's in PEM form, and what leads from it to the CA. `value`: over the body of SUMMARY."""

    certificates: bytes
    value: bytes

    def pack(self) -> bytes:
        """The body of SIGNATURE."""
        return bytes(msgpack.packb([self.certificates, self.value], use_bin_type=True))

    @classmethod
    def unpack(cls, body: bytes) -> Signature:
        """What `pack` gave. DamagedError when it is none."""
        try:
            certificates, value = msgpack.unpackb(body, raw=False)
            need(type(certificates) is bytes and type(value) is bytes, "a certificate and a signature")
        except UNREADABLE as error:
            raise DamagedError(f"the signature makes no sense: {error}", do=PACKET.damaged_do) from None
        return cls(certificates, value)


def pack_piece(raw_bytes: int, data: bytes) -> tuple[bytes, bytes]:
    """The body of PIECE, in two pieces. `data`: compressed when it is shorter than `raw_bytes`."""
    return _RAW.pack(raw_bytes), data


def unpack_piece(body: bytes) -> tuple[int, bytes]:
    """How many bytes they are, and the bytes as they stand. ValueError and its kin."""
    (raw_bytes,) = _RAW.unpack_from(body)
    data = body[_RAW.size :]
    need(0 < raw_bytes <= PIECE_BYTES and len(data) <= raw_bytes, "bytes of a segment")
    return raw_bytes, data


def pack_end(summary_position: int) -> bytes:
    """The body of END."""
    return _END.pack(summary_position)


def unpack_end(body: bytes) -> int:
    """Where SUMMARY begins. ValueError and its kin."""
    return int(_END.unpack(body)[0])
