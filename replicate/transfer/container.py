"""The bytes of a seed file: every region of an instance at one sequence number, to be read in one pass.

    FILE    = records (records.py): HEADER, CATALOGUE, then for each region in the order of the header REGION and its
              PAGES, then END
    PAGES   = FIRST_PAGE(u32) and whole pages;  the other bodies are msgpack

END holds a digest of all bytes before it, so a file that was put together from two is found. How long the file will be
follows from its header and catalogue, and every cut is at a place where reading can go on. VERSION 2 holds some
regions, 1 all.

Guarantees: those of records.py; records come in this order, or DamagedError names the offset.
Leaves to others: files, and what is done with the pages. Pure.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Any, Final

import msgpack
from msgspec import Struct, field
from xxhash import xxh3_128

from replicate.errors import DamagedError
from replicate.journal.record import catalogue_payload, decode, pack_frame
from replicate.limits import CATALOGUE_BYTES_MAX, KIB, MIB, NAME_PATTERN, REGIONS_MAX
from replicate.model.subscription import Rows, Table
from replicate.model.transaction import Catalogue, Kind, unpack_partitions
from replicate.model.vector import U32_MAX, U64_MAX, Chains, Position, SynchronizationVector, pack_chains, unpack_chains
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES, UNREADABLE, ContainerRecordHead, RecordFormat, need

SEED_FORMAT_VERSION: Final = 1
PART_FORMAT_VERSION: Final = 2
"""Of a file with some of the regions: a release that does not know it would take it for all of them."""
PARTIAL_FORMAT_VERSION: Final = 3
"""Of a file with the rows of some partitions only."""
ROWS_FORMAT_VERSION: Final = 4
"""Of a file with some rows of a table only: a release that does not know it would take them for all."""
PAGES_BYTES: Final = 256 * KIB
"""Bytes of pages in one record; a multiple of every page size."""
NO_ID: Final = bytes(16)

_FIRST_PAGE: Final = struct.Struct(">I")
_NAME: Final = re.compile(NAME_PATTERN)
_PAGE_SIZES: Final = frozenset(2**n for n in range(9, 17))


class RecordType(IntEnum):
    """The type byte of a record. Never re-used, never re-numbered."""

    HEADER = 1
    CATALOGUE = 2
    REGION = 3
    PAGES = 4
    END = 5


SEED: Final = RecordFormat(
    b"DSREPSED",
    "seed file",
    (SEED_FORMAT_VERSION, ROWS_FORMAT_VERSION),
    {
        RecordType.HEADER: 1 * MIB,
        RecordType.CATALOGUE: CATALOGUE_BYTES_MAX,
        RecordType.REGION: 4 * KIB,
        RecordType.PAGES: _FIRST_PAGE.size + PAGES_BYTES,
        RecordType.END: 4 * KIB,
    },
    make_do="Make one: replicate -i PRIMARY seed --to-file FILE --for NAME",
    damaged_do="Copy the file again; if it is damaged where it was made, make it again: replicate -i PRIMARY seed "
    "--to-file",
)


class SeedRegion(Struct, frozen=True):
    """One region's file in the seed. `page_bytes`: a power of two from 512 to 65536."""

    name: str
    page_bytes: int
    pages: int

    @property
    def bytes(self) -> int:
        """Of the database file."""
        return self.page_bytes * self.pages


class SeedHeader(Struct, frozen=True):
    """What the seed is, whose and for whom. UUIDs have 16 bytes.

    `seed`: of this very snapshot. `request`: what it was made for, NO_ID when nobody asked over a connection.
    `secondary_uuid`: NO_ID when the primary had not met the secondary yet. `csn`: of the last transaction in it.
    """

    network: bytes
    primary: bytes
    primary_name: str
    secondary_name: str
    secondary_uuid: bytes
    seed: bytes
    request: bytes
    csn: int
    created_wall_ns: int
    release: str
    position: Position
    regions: tuple[SeedRegion, ...]
    is_part: bool = False
    """Some of the regions, for a secondary that has the others."""
    partitions: tuple[int, ...] | None = None
    """Those whose rows are in it, ascending; None: all, but NONE."""
    rows: Rows = field(default_factory=dict)
    """Of tables of which some rows are in it: the conditions that find these."""

    @property
    def version(self) -> int:
        """Of the file's format."""
        if self.rows:
            return ROWS_FORMAT_VERSION
        if self.partitions is not None:
            return PARTIAL_FORMAT_VERSION
        return PART_FORMAT_VERSION if self.is_part else SEED_FORMAT_VERSION

    @property
    def seqno(self) -> int:
        """The last transaction that the regions hold."""
        return self.position.last_seqno

    @property
    def pages(self) -> int:
        """Of all regions."""
        return sum(region.pages for region in self.regions)

    def pack(self) -> bytes:
        """The body of the HEADER record."""
        position = self.position
        fields = [
            self.network, self.primary, self.primary_name, self.secondary_name, self.secondary_uuid, self.seed,
            self.request, self.csn, self.created_wall_ns, self.release, position.last_seqno, position.vector.pack(),
            pack_chains(position.chains), [part for r in self.regions for part in (r.name, r.page_bytes, r.pages)],
        ]  # fmt: skip
        if self.rows:
            numbers = None if self.partitions is None else list(self.partitions)
            fields += [self.is_part, numbers, [[*key, one] for key, one in sorted(self.rows.items())]]
        elif self.partitions is not None:
            fields += [self.is_part, list(self.partitions)]
        return bytes(msgpack.packb(fields, use_bin_type=True))

    @classmethod
    def unpack(cls, body: bytes, version: int = SEED_FORMAT_VERSION) -> SeedHeader:
        """The header that `pack` gave, of a file of that version. DamagedError when it is none."""
        try:
            fields = msgpack.unpackb(body, raw=False, max_map_len=0, max_ext_len=0)
            is_part, partitions, rows = version == PART_FORMAT_VERSION, None, dict[Table, str]()
            if version == ROWS_FORMAT_VERSION:
                *fields, listed = fields
                rows = {(region, table): condition for region, table, condition in listed}
                need(bool(rows) and all(type(text) is str for one in listed for text in one), "rows of tables")
            if version >= PARTIAL_FORMAT_VERSION:
                *fields, is_part, numbers = fields
                partitions = None if rows and numbers is None else unpack_partitions(numbers)
                ascending = partitions is None or list(partitions) == sorted(set(partitions))
                need(type(is_part) is bool and ascending, "partitions")
            network, primary, name, to, to_uuid, seed, request, csn, created, release, seqno, vector, chains, flat = (
                fields
            )
            for one in (network, primary, to_uuid, seed, request):
                need(type(one) is bytes and len(one) == 16, "a UUID of 16 bytes")
            for one in (name, to):
                need(type(one) is str and _NAME.match(one) is not None, "a name")
            for one in (csn, created, seqno):
                need(type(one) is int and 0 <= one <= U64_MAX, "a number of 64 bits")
            need(type(release) is str and type(flat) is list and len(flat) % 3 == 0, "a release and regions")
            regions = tuple(_region(*flat[i : i + 3]) for i in range(0, len(flat), 3))
            names = {region.name for region in regions}
            need(0 < len(names) == len(regions) <= REGIONS_MAX, "regions of different names")
            known: Chains = unpack_chains(chains)
            position = Position(seqno, SynchronizationVector.unpack(vector), known)
        except UNREADABLE as error:
            raise DamagedError(f"the header of the seed makes no sense: {error}", do=SEED.damaged_do) from None
        known_of = (network, primary, name, to, to_uuid, seed, request, csn, created, release)
        return cls(*known_of, position, regions, is_part, partitions, rows)


def _region(name: Any, page_bytes: Any, pages: Any) -> SeedRegion:
    need(type(name) is str and _NAME.match(name) is not None, "a region's name")
    need(type(page_bytes) is int and page_bytes in _PAGE_SIZES, "a page size")
    need(type(pages) is int and 0 < pages <= U32_MAX, "a number of pages")
    return SeedRegion(name, page_bytes, pages)


# Writing.


def pack_pages(position: int, first_page: int, data: bytes) -> list[bytes]:
    """A PAGES record."""
    return SEED.pack_record(RecordType.PAGES, position, _FIRST_PAGE.pack(first_page), data)


def pack_region(position: int, region: SeedRegion) -> list[bytes]:
    """A REGION record."""
    return SEED.pack_record(RecordType.REGION, position, _region_body(region))


def pack_end(position: int, digest: bytes) -> list[bytes]:
    """The END record; `digest`: of all bytes before it."""
    return SEED.pack_record(RecordType.END, position, _end_body(digest))


def _region_body(region: SeedRegion) -> bytes:
    return bytes(msgpack.packb([region.name, region.page_bytes, region.pages]))


def _end_body(digest: bytes) -> bytes:
    return bytes(msgpack.packb([digest], use_bin_type=True))


def pack_catalogue(catalogue: Catalogue, seqno: int) -> bytes:
    """The body of CATALOGUE: a frame as in a segment that begins after `seqno`."""
    payload, count = catalogue_payload(catalogue)
    return pack_frame(Kind.CATALOGUE, seqno + 1, 0, 0, 0, 0, 0, payload, count)[0]


def file_bytes(header: bytes, catalogue: bytes, regions: tuple[SeedRegion, ...]) -> int:
    """How long the whole file is. `header` and `catalogue`: the bodies of these records."""
    size = PREFIX_BYTES + 2 * HEAD_BYTES + len(header) + len(catalogue)
    for region in regions:
        records = -(-region.bytes // PAGES_BYTES)
        size += HEAD_BYTES + len(_region_body(region)) + records * (HEAD_BYTES + _FIRST_PAGE.size) + region.bytes
    return size + HEAD_BYTES + len(_end_body(NO_ID))


# Reading.


def unpack_catalogue(body: bytes, seqno: int) -> Catalogue:
    """The catalogue of the seed at `seqno`. DamagedError when it is none."""
    transaction = decode(body)
    found = transaction.content[0] if transaction.kind is Kind.CATALOGUE and transaction.content else None
    if not isinstance(found, Catalogue) or transaction.seqno != seqno + 1:
        raise DamagedError("the catalogue is not that of the seed", do=SEED.damaged_do)
    return found


class Pages(Struct, frozen=True):
    """The next pages of `region`, the first of which has the number `first_page` (from 1)."""

    region: SeedRegion
    first_page: int
    data: memoryview


class SeedSequence(Struct):
    """Takes verified records in their order, and knows what must come next. One pass; a second file needs a second one.

    `digest` runs over everything taken. `header` and `catalogue` are there once they came; `is_complete` after END.
    """

    where: str
    version: int = SEED_FORMAT_VERSION
    header: SeedHeader | None = None
    catalogue: Catalogue | None = None
    is_complete: bool = False
    file_bytes: int = 0
    """How long the whole file is; 0 before the catalogue came."""
    _regions: list[SeedRegion] = field(default_factory=list)
    _open: SeedRegion | None = None
    _next_page: int = 1
    _header_body: bytes = b""
    _digest: Any = None

    def __post_init__(self) -> None:
        self._digest = xxh3_128(SEED.pack_prefix(self.version))

    def take(self, head: ContainerRecordHead[RecordType], body: bytes) -> Pages | None:
        """Act on a record that `check_body` has verified; its pages, if it holds some. DamagedError out of order."""
        try:
            pages = self._take(head.kind, body)
        except DamagedError as error:
            raise SEED.damaged(error.what, head.position, self.where) from error
        except UNREADABLE as error:
            raise SEED.damaged(
                f"a record {head.kind.name} makes no sense: {error}", head.position, self.where
            ) from error
        if not self.is_complete:
            for piece in SEED.pack_record(head.kind, head.position, body):
                self._digest.update(piece)
        return pages

    def _take(self, kind: RecordType, body: bytes) -> Pages | None:
        header = self.header
        if self.is_complete:
            raise DamagedError("there is something after the end")
        if header is None:
            self._expect(kind is RecordType.HEADER, kind)
            self.header = SeedHeader.unpack(body, self.version)
            self._header_body = body
            self._regions = list(self.header.regions)
        elif self.catalogue is None:
            self._expect(kind is RecordType.CATALOGUE, kind)
            self.catalogue = unpack_catalogue(body, header.seqno)
            self.file_bytes = file_bytes(self._header_body, body, header.regions)
        elif self._open is not None:
            self._expect(kind is RecordType.PAGES, kind)
            return self._pages(self._open, body)
        elif self._regions:
            self._expect(kind is RecordType.REGION, kind)
            region = _region(*msgpack.unpackb(body, raw=False))
            if region != self._regions[0]:
                raise DamagedError(f"region {region.name} comes where {self._regions[0].name} should")
            self._open, self._next_page = region, 1
        else:
            self._expect(kind is RecordType.END, kind)
            (digest,) = msgpack.unpackb(body, raw=False)
            if digest != self._digest.digest():
                raise DamagedError("the file as a whole does not verify: its digest differs")
            self.is_complete = True
        return None

    def _expect(self, well: bool, kind: RecordType) -> None:
        if not well:
            raise DamagedError(f"a record {kind.name} comes out of its order")

    def _pages(self, region: SeedRegion, body: bytes) -> Pages:
        (first_page,) = _FIRST_PAGE.unpack_from(body)
        data = memoryview(body)[_FIRST_PAGE.size :]
        left = (region.pages - self._next_page + 1) * region.page_bytes
        if first_page != self._next_page or len(data) != min(PAGES_BYTES, left):
            raise DamagedError(f"page {first_page} of region {region.name} comes where {self._next_page} should")
        self._next_page += len(data) // region.page_bytes
        if self._next_page > region.pages:
            self._open = None
            self._regions.pop(0)
        return Pages(region, first_page, data)
