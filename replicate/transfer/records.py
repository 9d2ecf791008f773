"""Files of checked records, to be read in one pass: what seed files and packets have in common.

    FILE    = MAGIC(8) VERSION(u32) CHECK(u32, over both), then records; big-endian throughout
    RECORD  = CHECK(u32) TYPE(u8) LENGTH(u32) POSITION(u64) BODY    CHECK = crc32c of all after it

POSITION is where in the file the record begins, so a piece that was moved or doubled is found.

Guarantees: whatever is read is verified before anything is done with it; DamagedError names the offset. A file of a
later format is refused by name. No record is longer than its type allows, so memory is bounded.
Leaves to others: files, what the records hold, and in which order they come. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, Generic, TypeVar

from crc32c import crc32c
from msgspec import Struct

from replicate.errors import DamagedError, FormatUnknownError, InternalError, ReplicateError

_PREFIX: Final = struct.Struct(">8sII")
_HEAD: Final = struct.Struct(">IBIQ")
_CHECK_BYTES: Final = 4
PREFIX_BYTES: Final = _PREFIX.size
HEAD_BYTES: Final = _HEAD.size

_Kind = TypeVar("_Kind", bound=IntEnum)

UNREADABLE: Final = (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error, ReplicateError)
"""What taking a body to pieces may raise, whatever its bytes."""


class ContainerRecordHead(Struct, Generic[_Kind], frozen=True):
    """The head of a record; its body has `length` bytes."""

    check: int
    kind: _Kind
    length: int
    position: int


class RecordFormat(Struct, Generic[_Kind], frozen=True):
    """One kind of file. `what`: its name in errors. `versions`: the oldest and the newest that this release knows.
    `limits`: most bytes of a body by type; looked at before the body is read. `make_do`: what to do about a file that
    is none; `damaged_do`: about a damaged one."""

    magic: bytes
    what: str
    versions: tuple[int, int]
    limits: Mapping[_Kind, int]
    make_do: str
    damaged_do: str

    def pack_prefix(self, version: int) -> bytes:
        """The first PREFIX_BYTES of a file."""
        front = _PREFIX.pack(self.magic, version, 0)[:-_CHECK_BYTES]
        return front + crc32c(front).to_bytes(_CHECK_BYTES, "big")

    def check_prefix(self, data: bytes, where: str) -> int:
        """The version of the file. FormatUnknownError for a later format, DamagedError for what is no such file."""
        if len(data) != PREFIX_BYTES or data[: len(self.magic)] != self.magic:
            raise DamagedError(f"this is no {self.what}", where=where, do=self.make_do)
        _, version, check = _PREFIX.unpack(data)
        well = crc32c(data[:-_CHECK_BYTES]) == check
        oldest, newest = self.versions
        if version > newest:
            raise FormatUnknownError(
                f"the {self.what} has format {version}, this release knows up to {newest}"
                + ("" if well else "; its check does not match either, so it may be damaged"),
                where=where,
                do="Upgrade this instance first",
            )
        if not well or version < oldest:
            raise self.damaged(f"the beginning of the {self.what} does not verify", 0, where)
        return int(version)

    def pack_record(self, kind: _Kind, position: int, *body: bytes) -> list[bytes]:
        """One record, in pieces: the body is not copied. InternalError when it is longer than its type allows."""
        length = sum(map(len, body))
        if length > self.limits[kind]:
            raise InternalError(f"a record {kind.name} of {length} bytes; at most {self.limits[kind]} are allowed")
        head = _HEAD.pack(0, kind, length, position)[_CHECK_BYTES:]
        check = crc32c(head)
        for piece in body:
            check = crc32c(piece, check)
        return [check.to_bytes(_CHECK_BYTES, "big") + head, *body]

    def read_head(self, data: bytes, position: int, where: str) -> ContainerRecordHead[_Kind]:
        """The head at `position`. DamagedError when it cannot be one; nothing of the body is verified yet."""
        check, number, length, said = _HEAD.unpack(data)
        kind = next((one for one in self.limits if one == number), None)
        if kind is None or length > self.limits[kind] or said != position:
            raise self.damaged("no record begins here", position, where)
        return ContainerRecordHead(check, kind, length, position)

    def check_body(self, head: ContainerRecordHead[_Kind], body: bytes, where: str) -> None:
        """DamagedError when head and body do not verify."""
        packed = _HEAD.pack(0, head.kind, head.length, head.position)[_CHECK_BYTES:]
        if len(body) != head.length or crc32c(body, crc32c(packed)) != head.check:
            raise self.damaged(f"the check of a record {head.kind.name} does not fit its content", head.position, where)

    def damaged(self, what: str, position: int, where: str) -> DamagedError:
        """The error of a file that is damaged at `position`."""
        return DamagedError(what, where=f"{where}, offset {position}", do=self.damaged_do, offset=position)


def need(well: bool, what: str) -> None:
    """ValueError, of a body that does not hold `what`."""
    if not well:
        raise ValueError(f"expected {what}")
