"""The first SEGMENT_HEADER_BYTES of a segment: whose it is, where it begins, and how it is tied to the one before.

Big-endian; the byte picture is `_LAYOUT`; zeros to the end, and the last four bytes are the CRC-32C of all before them,
so a flip anywhere in the header is found. A header never changes once its segment stands in the chain: `check` names
it, and the next header's `previous_check` ties the two together.

Guarantees: `unpack` raises JournalDamagedError on bytes that do not verify, FormatUnknownError on a later format.
Leaves to others: files. Pure.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from replicate.errors import (
    FormatUnknownError,
    InternalError,
    JournalDamagedError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.limits import FORMAT_VERSION, SEGMENT_HEADER_BYTES
from replicate.model.vector import Origin

MAGIC: Final = b"DSREPJNL"
FLAG_ADOPTED: Final = 1
"""The segment is the adopted spool of one large transaction: its parts, its LARGE frame, then the CATALOGUE frame."""
FLAG_PARTIAL: Final = 2
"""The journal is that of a secondary which does not get all: transactions are here without the rows of some partitions,
without some rows or columns of a table, or in the words of a filter. Once set, each later segment of the journal has
it, too, until the instance is made primary."""
PARTIAL: Final = "a secondary that gets some partitions, rows or columns only, or what a filter tells"
"""The same for people."""

_KNOWN_FLAGS: Final = FLAG_ADOPTED | FLAG_PARTIAL
# magic, format version, flags, network, instance, incarnation, first seqno, created, previous: first seqno, last seqno,
# end offset, check; own origin's seqno and chain; offsets of the LARGE frame and the CATALOGUE frame
_LAYOUT: Final = struct.Struct(">8sII16s16sIQQQQQIQQQQ")
_CHECK: Final = struct.Struct(">I")
_FILE_BYTES_MAX: Final = 2**62
"""Far above any file: what the system's calls still take as an offset."""
_CHECK_OFFSET: Final = SEGMENT_HEADER_BYTES - _CHECK.size

assert _LAYOUT.size <= _CHECK_OFFSET


class SegmentHeader(Struct, frozen=True):
    """What the header says, field by field.

    `created_wall_ns`: wall time of creation, for people only. `previous_*`: the segment before (first seqno 0 = none),
    its last seqno, the offset after its last frame, and its header's check. `origin_seqno`, `chain`: the own origin's
    at the start. `commit_offset`: of the LARGE frame in an adopted segment, else 0. `catalogue_offset`: of the
    CATALOGUE frame.
    """

    network: bytes
    instance: bytes
    incarnation: int
    first_seqno: int
    created_wall_ns: int
    previous_first_seqno: int = 0
    previous_last_seqno: int = 0
    previous_end_offset: int = 0
    previous_check: int = 0
    origin_seqno: int = 0
    chain: int = 0
    flags: int = 0
    commit_offset: int = 0
    catalogue_offset: int = SEGMENT_HEADER_BYTES

    @property
    def adopted(self) -> bool:
        return bool(self.flags & FLAG_ADOPTED)

    @property
    def is_partial(self) -> bool:
        return bool(self.flags & FLAG_PARTIAL)

    @property
    def origin(self) -> Origin:
        return Origin(self.instance, self.incarnation)

    @property
    def check(self) -> int:
        """The CRC-32C that closes this header, by which the next one names it."""
        return int(_CHECK.unpack_from(self.pack(), _CHECK_OFFSET)[0])

    def pack(self) -> bytes:
        """SEGMENT_HEADER_BYTES bytes. InternalError when a number does not fit its field."""
        try:
            fixed = _LAYOUT.pack(
                MAGIC,
                FORMAT_VERSION,
                self.flags,
                self.network,
                self.instance,
                self.incarnation,
                self.first_seqno,
                self.created_wall_ns,
                self.previous_first_seqno,
                self.previous_last_seqno,
                self.previous_end_offset,
                self.previous_check,
                self.origin_seqno,
                self.chain,
                self.commit_offset,
                self.catalogue_offset,
            )
        except struct.error as error:
            raise InternalError(f"a number does not fit a segment header: {error}") from error
        body = fixed.ljust(_CHECK_OFFSET, b"\0")
        return body + _CHECK.pack(crc32c(body))

    @classmethod
    def unpack(cls, data: bytes, *, where: str = "") -> SegmentHeader:
        """The header that `pack` gave; `where` names the file in errors. JournalDamagedError or FormatUnknownError."""
        if len(data) != SEGMENT_HEADER_BYTES or data[: len(MAGIC)] != MAGIC:
            raise JournalDamagedError("this is no journal segment", where=where)
        well = crc32c(data[:_CHECK_OFFSET]) == _CHECK.unpack_from(data, _CHECK_OFFSET)[0]
        (
            _, version, flags, network, instance, incarnation, first_seqno, created_wall_ns, previous_first_seqno,
            previous_last_seqno, previous_end_offset, previous_check, origin_seqno, chain,
            commit_offset, catalogue_offset,
        ) = _LAYOUT.unpack_from(data)  # fmt: skip
        if version > FORMAT_VERSION:
            raise FormatUnknownError(
                f"the segment says format version {version}, this release knows up to {FORMAT_VERSION}"
                + ("" if well else "; its check does not match either, so it may be damaged"),
                where=where,
                do="Upgrade this instance first",
            )
        if not well or version != FORMAT_VERSION:
            raise JournalDamagedError("the segment's header does not verify", where=where)
        if flags & ~_KNOWN_FLAGS:
            raise FormatUnknownError(f"the segment has flags {flags:#x} of a later release", where=where)
        offsets = (previous_end_offset, commit_offset, catalogue_offset)
        if max(offsets) > _FILE_BYTES_MAX or catalogue_offset < SEGMENT_HEADER_BYTES:
            raise JournalDamagedError(f"the segment's header names offsets that no file has: {offsets}", where=where)
        return cls(
            network, instance, incarnation, first_seqno, created_wall_ns, previous_first_seqno, previous_last_seqno,
            previous_end_offset, previous_check, origin_seqno, chain, flags, commit_offset, catalogue_offset,
        )  # fmt: skip

    def validate(self, *, network: bytes | None, instance: bytes | None, where: str = "") -> None:
        """WrongNetworkError or WrongInstanceError when the segment belongs elsewhere; None = do not ask."""
        if network is not None and self.network != network:
            raise WrongNetworkError(
                f"the segment belongs to network {self.network.hex()}, not {network.hex()}",
                where=where,
                do="Mount this instance's own journal directory",
            )
        if instance is not None and self.instance != instance:
            raise WrongInstanceError(
                f"the segment belongs to instance {self.instance.hex()}, not {instance.hex()}",
                where=where,
                do="Mount this instance's own journal directory",
            )

    def link_fault(self, previous: SegmentHeader) -> str | None:
        """Why this segment cannot be the one right after `previous`; None when it is."""
        if self.previous_first_seqno != previous.first_seqno:
            return f"it follows segment {self.previous_first_seqno}, not {previous.first_seqno}"
        if self.previous_check != previous.check:
            return f"segment {previous.first_seqno} is not the one that it was written after"
        if self.previous_last_seqno + 1 != self.first_seqno or self.first_seqno < previous.first_seqno:
            return f"it begins with {self.first_seqno} after {self.previous_last_seqno}"
        return None
