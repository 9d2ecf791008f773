"""The ring of records in a pool: its arithmetic, and the byte picture of a record.

Addresses only grow; an address' place in the ring is address % capacity. Both are multiples of 8. A record:

     0       4        8                16               24               32      36      40
    +-------+--------+----------------+----------------+----------------+-------+-------+------------------+------+
    | check | length | own address    | first seqno    | last seqno     | count | kind  | data             | 0-7  |
    +-------+--------+----------------+----------------+----------------+-------+-------+------------------+------+
    |<- u32 ->       |<-------------------- u64 --------------------->  |<- u32 ->      |                  | pad  |
    |<------------------------------ length (head and data) ------------------------------------>|

* All numbers are native. `check` is the CRC-32C of everything after it: the rest of the head, and the data.
* A record never wraps. What is too short for it at the end of the ring is filled by a PADDING record (its length is
  that of the gap), or, when not even a head fits, by nothing: both sides skip fewer than HEAD_BYTES at the end.
* A record of kind IN_FILES has no data: its transactions are to be read from the journal files.

Guarantees: `parse` accepts no record that was not written whole at that very address.
Leaves to others: memory, who reads or writes, when. Pure.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

HEAD_BYTES: Final = 40
CHECK_BYTES: Final = 4
_HEAD: Final = struct.Struct("=IQQQII")
_WHOLE: Final = struct.Struct("=IIQQQII")
_CHECK: Final = struct.Struct("=I")

_pack_head = _HEAD.pack
_pack_check = _CHECK.pack
_unpack_word = _CHECK.unpack_from
unpack_head = _WHOLE.unpack_from
"""(check, length, own address, first seqno, last seqno, count, kind) at an offset of a buffer; nothing is verified."""

assert _WHOLE.size == HEAD_BYTES == CHECK_BYTES + _HEAD.size
assert HEAD_BYTES % 8 == 0


class RecordKind(IntEnum):
    """What a record holds. PADDING and IN_FILES have no data."""

    PADDING = 1
    FRAMES = 2
    IN_FILES = 3
    PARTS = 4
    """Part frames of one large transaction; first_seqno = last_seqno = its number, count = parts."""
    LARGE = 5
    """The frame that commits a large transaction, after its parts."""
    CATALOGUE = 6


class RecordHead(NamedTuple):
    """The numbers in front of a record."""

    length: int
    address: int
    first_seqno: int
    last_seqno: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a head
    kind: int


def aligned(length: int) -> int:
    """Bytes that a record of `length` takes in the ring."""
    return (length + 7) & ~7


def pack_head(kind: int, address: int, first_seqno: int, last_seqno: int, count: int, data: bytes) -> bytes:
    """The HEAD_BYTES in front of `data`."""
    head = _pack_head(HEAD_BYTES + len(data), address, first_seqno, last_seqno, count, kind)
    return _pack_check(crc32c(data, crc32c(head))) + head


def pack_padding(address: int, length: int) -> bytes:
    """The head of a record that fills `length` bytes (at least HEAD_BYTES) with nothing."""
    head = _pack_head(length, address, 0, 0, 0, RecordKind.PADDING)
    return _pack_check(crc32c(head)) + head


def parse(chunk: bytes, position: int, address: int) -> RecordHead | None:
    """The head of the record at `position` of a copied chunk, which should be the one of `address`.

    None when it is not that record, or not whole in the chunk, or its check does not match.
    """
    if len(chunk) - position < HEAD_BYTES:
        return None
    check, length, own, first_seqno, last_seqno, count, kind = unpack_head(chunk, position)
    end = position + (HEAD_BYTES if kind == RecordKind.PADDING else length)
    if own != address or length < HEAD_BYTES or end > len(chunk):
        return None
    if crc32c(chunk[position + CHECK_BYTES : end]) != check:
        return None
    return RecordHead(length, own, first_seqno, last_seqno, count, kind)


def parse_apart(head_bytes: bytes, data: bytes, address: int) -> RecordHead | None:
    """The same for a record whose head and data were copied apart; `data` may be cut short, and is nothing's but its.

    None as `parse` says it; for padding `data` is not looked at.
    """
    if len(head_bytes) < HEAD_BYTES:
        return None
    check, length, own, first_seqno, last_seqno, count, kind = unpack_head(head_bytes, 0)
    is_padding = kind == RecordKind.PADDING
    if own != address or length < HEAD_BYTES or (not is_padding and length != HEAD_BYTES + len(data)):
        return None
    found = crc32c(head_bytes[CHECK_BYTES:HEAD_BYTES])
    if check != (found if is_padding else crc32c(data, found)):
        return None
    return RecordHead(length, own, first_seqno, last_seqno, count, kind)


def room_at(address: int, capacity: int) -> int:
    """Bytes from `address` to the end of the ring."""
    return capacity - address % capacity


def whole_bytes(chunk: bytes) -> int:
    """How many bytes of a chunk that begins with a record are needed to verify that one; nothing is verified here."""
    length, kind = _unpack_word(chunk, CHECK_BYTES)[0], _unpack_word(chunk, HEAD_BYTES - 4)[0]
    return HEAD_BYTES if kind == RecordKind.PADDING else int(length)
