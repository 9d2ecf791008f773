"""Frames made by hand, byte by byte as the format is written down, independently of the product's own packer.

Guarantees: what comes out is what a primary would have written: numbers without a hole, chain hashes that follow.
Leaves to others: whether the product agrees (that is what the tests ask).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import msgpack
from crc32c import crc32c
from xxhash import xxh3_64_intdigest

TRANSACTION, NULL, HISTORY, PART, LARGE = 1, 2, 3, 4, 5
INSERT, UPDATE, DELETE, DEFINE, SCHEMA, COMMENT, SEQUENCE, REGION = range(1, 9)

_ORIGIN_PART = struct.Struct(">BIBQBQ")


def pack_frame(
    kind: int, seqno: int, mark: int, seed: int, origin: int, origin_seqno: int, csn: int, payload: list[Any]
) -> tuple[bytes, int]:
    """One frame and its chain hash."""
    tail = _ORIGIN_PART.pack(0xCE, origin, 0xCF, origin_seqno, 0xCF, csn)
    tail += b"".join(msgpack.packb(element) for element in payload)
    chain = xxh3_64_intdigest(tail, seed)
    body = struct.pack(">BHBBQBQBQ", 0xDC, 7 + len(payload), kind, 0xCF, seqno, 0xCF, mark, 0xCF, chain) + tail
    return struct.pack(">BIBI", 0xCE, len(body), 0xCE, crc32c(body)) + body, chain


def decode(data: bytes) -> list[Any]:
    """length, check, body, length, check, body, …"""
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(data)
    return list(unpacker)


@dataclass
class Writer:
    """A journal that only exists in memory: every frame continues the one before it. Switch `origin` as you like."""

    origin: int = 7
    seqno: int = 0
    csn: int = 100
    chains: dict[int, tuple[int, int]] = field(default_factory=dict)

    def frame(self, payload: list[Any], kind: int = TRANSACTION) -> bytes:
        """The next frame of the present origin."""
        last, chain = self.chains.get(self.origin, (0, 0))
        self.seqno += 1
        self.csn += 1
        origin_seqno = 0 if kind == HISTORY else last + 1
        made, chain = pack_frame(kind, self.seqno, 0, chain, self.origin, origin_seqno, self.csn, payload)
        self.chains[self.origin] = (origin_seqno, chain)
        return made

    def insert(self, table_id: int, *values: Any) -> bytes:
        """A transaction that inserts one row."""
        return self.frame([INSERT, table_id, 0, list(values)])

    def many(self, count: int, table_id: int = 9) -> list[bytes]:
        """`count` transactions that each insert one row."""
        return [self.insert(table_id, self.seqno + 1, "x" * (self.seqno % 7)) for _ in range(count)]
