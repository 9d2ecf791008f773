"""A packet that only its target reads: sealed chunk after chunk, in records that say for whom.

    FILE      = records (../records.py): RECIPIENT (for whom, and the sealed key), CHUNK, …

Each CHUNK holds CHUNK_BYTES of the packet, the last one what is left, and at least one byte; so a place of the packet
leads to its chunk. Each is sealed by security/sealing.py, which tells the last one from the others.

Guarantees: memory is bounded by one chunk, whatever the packet's length, and what is opened is on no disk. A chunk that
was changed, moved or doubled does not open. A file that was cut, also between two chunks, or that something was put
after, is refused before anything of it is read.
Leaves to others: what is in it, and who has the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

import msgpack

from replicate.errors import FormatUnknownError
from replicate.limits import KIB, MIB
from replicate.security.sealing import TAG_BYTES, ChunkCipher
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES, UNREADABLE, RecordFormat, need

VERSION: Final = 2
_WHOLE: Final = 1
"""The format of a packet that was sealed as a whole, in memory. No release ever made one."""
CHUNK_BYTES: Final = 1 * MIB
_RECIPIENT_BYTES: Final = 1 * KIB
_EXTRA_BYTES: Final = HEAD_BYTES + TAG_BYTES
_STRIDE: Final = CHUNK_BYTES + _EXTRA_BYTES

Read = Callable[[int, int], bytes]
"""Gives so many bytes from an offset."""
Unseal = Callable[[bytes, str, str], bytes]
"""Opens what is sealed, for whom, in which file."""


class SealedRecord(IntEnum):
    """The type byte of a record. Never re-used, never re-numbered; 3 was the end in format 1."""

    RECIPIENT = 1
    CHUNK = 2


SEALED: Final = RecordFormat(
    b"DSREPSLD",
    "sealed packet",
    (_WHOLE, VERSION),
    {SealedRecord.RECIPIENT: _RECIPIENT_BYTES, SealedRecord.CHUNK: CHUNK_BYTES + TAG_BYTES},
    make_do="Make one: replicate -i SENDER packet export --to TARGET --encrypt",
    damaged_do="Copy it again; if it is damaged where it was made, there: replicate -i SENDER packet recover",
)


def is_sealed(prefix: bytes) -> bool:
    """Whether a file that begins so is a sealed packet."""
    return prefix.startswith(SEALED.magic)


def plain_bytes_within(file_bytes: int) -> int:
    """How long a packet may be that is to have at most `file_bytes` when it is sealed."""
    return file_bytes - PREFIX_BYTES - HEAD_BYTES - _RECIPIENT_BYTES - -(-file_bytes // _STRIDE) * _EXTRA_BYTES


class PacketSealer:
    """Makes the file of one packet while that is written: `begin`, `add` as often as wanted, `end`. Each gives the next
    bytes of the file."""

    def __init__(self, target: str, sealed_key: bytes, cipher: ChunkCipher) -> None:
        """`sealed_key`: the cipher's key, which the target alone opens. It must never have sealed anything."""
        self._recipient = bytes(msgpack.packb([target, sealed_key], use_bin_type=True))
        self._cipher = cipher
        self._plain = bytearray()
        self._chunks = 0
        self._position = 0

    def begin(self) -> bytes:
        """The beginning, which says for whom it is."""
        prefix = SEALED.pack_prefix(VERSION)
        self._position = len(prefix)
        return prefix + self._record(SealedRecord.RECIPIENT, self._recipient)

    def add(self, data: bytes) -> Iterator[bytes]:
        """The chunks that are full with that. One is left: only the end knows which is the last."""
        self._plain += data
        while len(self._plain) > CHUNK_BYTES:
            yield self._chunk(is_last=False)

    def end(self) -> bytes:
        """The last chunk."""
        return self._chunk(is_last=True)

    def _chunk(self, *, is_last: bool) -> bytes:
        data = bytes(self._plain[:CHUNK_BYTES])
        del self._plain[:CHUNK_BYTES]
        sealed = self._cipher.seal(data, self._chunks, is_last=is_last)
        self._chunks += 1
        return self._record(SealedRecord.CHUNK, sealed)

    def _record(self, kind: SealedRecord, body: bytes) -> bytes:
        data = b"".join(SEALED.pack_record(kind, self._position, body))
        self._position += len(data)
        return data


class SealedPacket:
    """A sealed packet. `target`: for whom it is; `bytes`: how long the packet in it is, when it is open."""

    def __init__(self, read: Read, size: int, where: str) -> None:
        """`read`: of the file, which has `size` bytes. DamagedError, FormatUnknownError."""
        self._read = read
        self._size = size
        self._where = where
        self._cipher: ChunkCipher | None = None
        self._opened = (-1, b"")
        version = SEALED.check_prefix(read(0, min(PREFIX_BYTES, size)), where)
        if version == _WHOLE:
            raise FormatUnknownError(
                "the packet was sealed by an older release, as a whole",
                where=where,
                do="Upgrade its sender, and have it made again: there, packet recover --to TARGET --number N",
            )
        kind, body = self._record(PREFIX_BYTES, None)
        try:
            need(kind is SealedRecord.RECIPIENT, "for whom it is")
            target, sealed_key = msgpack.unpackb(body, raw=False)
            need(type(target) is str and type(sealed_key) is bytes, "a name and a key")
        except UNREADABLE as error:
            raise SEALED.damaged(f"a record {kind.name} makes no sense: {error}", PREFIX_BYTES, where) from error
        self.target: str = target
        self._sealed_key: bytes = sealed_key
        self._begin = PREFIX_BYTES + HEAD_BYTES + len(body)
        self._chunks = -(-(size - self._begin) // _STRIDE)
        self.bytes = 0

    def open(self, unseal: Unseal) -> None:
        """Open it, and make sure of its end. DamagedError, and what `unseal` raises."""
        self._cipher = ChunkCipher(unseal(self._sealed_key, self.target, self._where))
        if self._chunks < 1:
            raise SEALED.damaged("the packet was cut", self._size, self._where)
        self.bytes = (self._chunks - 1) * CHUNK_BYTES + len(self._chunk(self._chunks - 1))

    def read(self, position: int, count: int) -> bytes:
        """As `Read`, of the packet in it; fewer bytes at its end. DamagedError."""
        chunk, at = divmod(position, CHUNK_BYTES)
        return self._chunk(chunk)[at : at + count] if chunk < self._chunks else b""

    def _chunk(self, number: int) -> bytes:
        assert self._cipher is not None
        if self._opened[0] != number:
            offset = self._begin + number * _STRIDE
            kind, body = self._record(offset, min(_STRIDE, self._size - offset))
            if kind is not SealedRecord.CHUNK or len(body) <= TAG_BYTES:
                raise SEALED.damaged(f"a record {kind.name} comes out of its order", offset, self._where)
            is_last, where = number == self._chunks - 1, f"{self._where}, offset {offset}"
            self._opened = number, self._cipher.open(body, number, is_last=is_last, where=where)
        return self._opened[1]

    def _record(self, offset: int, length: int | None) -> tuple[SealedRecord, bytes]:
        """The record there; `length`: so many bytes it must have, with its head."""
        if offset + HEAD_BYTES > self._size:
            raise SEALED.damaged("the packet was cut", self._size, self._where)
        head = SEALED.read_head(self._read(offset, HEAD_BYTES), offset, self._where)
        has = HEAD_BYTES + head.length
        if offset + has > self._size or has != (has if length is None else length):
            raise SEALED.damaged("the packet was cut, or something is after its end", offset, self._where)
        body = self._read(offset + HEAD_BYTES, head.length)
        SEALED.check_body(head, body, self._where)
        return head.kind, body
