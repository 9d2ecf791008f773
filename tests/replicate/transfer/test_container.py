"""Seed files in memory: what is packed is read, in its order alone, and a byte that is changed is found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_128

from replicate.errors import DamagedError, FormatUnknownError
from replicate.limits import PARTITION_MAX
from replicate.model.transaction import Catalogue
from replicate.model.vector import Position, SynchronizationVector
from replicate.transfer.container import (
    PAGES_BYTES,
    SEED,
    RecordType,
    SeedHeader,
    SeedRegion,
    SeedSequence,
    file_bytes,
    pack_catalogue,
    pack_end,
    pack_pages,
    pack_region,
)
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES

UUIDS = st.binary(min_size=16, max_size=16)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
NUMBERS = st.integers(0, 2**64 - 1)
REGIONS = st.lists(
    st.builds(SeedRegion, NAMES, st.integers(9, 16).map(lambda n: 2**n), st.integers(1, 9)),
    min_size=1,
    max_size=3,
    unique_by=lambda region: region.name,
).map(tuple)
SOME = st.lists(st.integers(1, PARTITION_MAX), max_size=3, unique=True).map(lambda found: tuple(sorted(found)))
ROWS = st.dictionaries(st.tuples(NAMES, st.text(max_size=9)), st.text(max_size=9), max_size=2)
HEADERS = st.builds(
    lambda *facts, more: SeedHeader(*facts[:-2], Position(facts[-2], SynchronizationVector(), {}), facts[-1], *more),
    UUIDS, UUIDS, NAMES, NAMES, UUIDS, UUIDS, UUIDS, NUMBERS, NUMBERS, st.text(max_size=9),
    st.integers(0, 2**40), REGIONS,
    more=st.tuples(st.booleans(), st.none() | SOME, ROWS),
)  # fmt: skip


def packed(header: SeedHeader, order: list[int] | None = None) -> bytes:
    """The whole file, its regions full of their own numbers; `order` turns the records of pages about."""
    made = bytearray(SEED.pack_prefix(header.version))
    catalogue = pack_catalogue(Catalogue(), header.seqno)
    for kind, body in ((RecordType.HEADER, header.pack()), (RecordType.CATALOGUE, catalogue)):
        made += b"".join(SEED.pack_record(kind, len(made), body))
    for number, region in enumerate(header.regions):
        made += b"".join(pack_region(len(made), region))
        data = bytes([number]) * region.bytes
        pieces = range(0, region.bytes, PAGES_BYTES)
        for at in pieces if order is None else [pieces[one % len(pieces)] for one in order]:
            first = at // region.page_bytes + 1
            made += b"".join(pack_pages(len(made), first, data[at : at + PAGES_BYTES]))
    made += b"".join(pack_end(len(made), xxh3_128(made).digest()))
    return bytes(made)


def read(data: bytes) -> tuple[SeedSequence, dict[str, bytes]]:
    """As a reader does: what came, and the pages of each region."""
    sequence = SeedSequence("x", SEED.check_prefix(data[:PREFIX_BYTES], "x"))
    at, found = PREFIX_BYTES, dict[str, bytes]()
    while at < len(data):
        head = SEED.read_head(data[at : at + HEAD_BYTES].ljust(HEAD_BYTES, b"\0"), at, "x")
        body = data[at + HEAD_BYTES :][: head.length]
        SEED.check_body(head, body, "x")
        pages = sequence.take(head, body)
        if pages is not None:
            found[pages.region.name] = found.get(pages.region.name, b"") + pages.data
        at += HEAD_BYTES + head.length
    return sequence, found


@settings(max_examples=60)
@given(header=HEADERS)
def test_what_is_packed_is_read_and_is_as_long_as_was_said(header: SeedHeader) -> None:
    data = packed(header)
    sequence, found = read(data)
    assert sequence.is_complete
    read_back = sequence.header
    assert read_back is not None
    assert read_back.pack() == header.pack()
    assert (read_back.version, read_back.position, read_back.regions) == (
        header.version,
        header.position,
        header.regions,
    )
    assert (read_back.partitions, read_back.rows) == (header.partitions, header.rows)
    assert read_back.is_part == header.is_part
    assert found == {one.name: bytes([number]) * one.bytes for number, one in enumerate(header.regions)}
    assert sequence.file_bytes == len(data)
    assert file_bytes(header.pack(), pack_catalogue(Catalogue(), header.seqno), header.regions) == len(data)


@settings(max_examples=60)
@given(header=HEADERS, data=st.data())
def test_a_bit_that_is_turned_is_found_before_the_end(header: SeedHeader, data: st.DataObject) -> None:
    whole = bytearray(packed(header))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((DamagedError, FormatUnknownError)):
        read(bytes(whole))


@settings(max_examples=30)
@given(header=HEADERS, other=HEADERS)
def test_two_files_are_not_put_together(header: SeedHeader, other: SeedHeader) -> None:
    """Each of their records verifies, where it stands."""
    one, two = packed(header), packed(other)
    cut = PREFIX_BYTES + HEAD_BYTES + len(header.pack())
    mixed = one[:cut] + two[cut:]
    if mixed in (one, two):
        return
    with pytest.raises(DamagedError):
        read(mixed)


@pytest.mark.parametrize("order", [[1, 0], [0, 0], [0], [0, 1, 1]])
def test_pages_come_in_their_order_and_each_once(order: list[int]) -> None:
    region = SeedRegion("main", 65536, 5)
    position = Position(3, SynchronizationVector(), {})
    header = SeedHeader(bytes(16), bytes(16), "a", "b", *[bytes(16)] * 3, 0, 0, "1", position, (region,))
    assert read(packed(header, [0, 1]))[0].is_complete
    with pytest.raises(DamagedError, match=r"page .* comes where|out of its order"):
        read(packed(header, order))
