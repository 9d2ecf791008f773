"""A seed that arrives: where it goes on after any break, and what is thrown away."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from xxhash import xxh3_128

from replicate.errors import DiskFullError
from replicate.model.transaction import Catalogue
from replicate.model.vector import Position, SynchronizationVector
from replicate.system import failpoint
from replicate.transfer.container import (
    NO_ID,
    PAGES_BYTES,
    SEED,
    RecordType,
    SeedHeader,
    SeedRegion,
    pack_catalogue,
    pack_end,
    pack_pages,
    pack_region,
)  # fmt: skip
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES
from replicate.transfer.seed.incoming import Incoming, IncomingFile, seed_directory
from replicate.wire.message import SeedRequest, SeedRequestPartitions, SeedRequestRegions, SeedStart

SOURCE, SNAPSHOT = bytes(range(16)), bytes(range(1, 17))


@pytest.fixture
def incoming(tmp_path: Path) -> Incoming:
    return Incoming(seed_directory(tmp_path))


def seed_for(request: bytes, source: bytes = SOURCE, *, is_part: bool = False) -> tuple[bytes, list[int]]:
    """A whole file that answers that request, and the offsets after each of its records."""
    region = SeedRegion("main", 65536, 10)
    position = Position(7, SynchronizationVector(), {})
    header = SeedHeader(
        bytes(16), source, "east", "west", NO_ID, SNAPSHOT, request, 1, 2, "1", position, (region,), is_part
    )
    made, ends = bytearray(SEED.pack_prefix(header.version)), []

    def put(pieces: list[bytes]) -> None:
        made.extend(b"".join(pieces))
        ends.append(len(made))

    put(SEED.pack_record(RecordType.HEADER, len(made), header.pack()))
    put(SEED.pack_record(RecordType.CATALOGUE, len(made), pack_catalogue(Catalogue(), 7)))
    put(pack_region(len(made), region))
    pages = random.Random(1).randbytes(region.bytes)
    for at in range(0, region.bytes, PAGES_BYTES):
        put(pack_pages(len(made), at // region.page_bytes + 1, pages[at : at + PAGES_BYTES]))
    put(pack_end(len(made), xxh3_128(made).digest()))
    return bytes(made), ends


def test_it_goes_on_after_the_last_whole_record_wherever_it_was_cut(incoming: Incoming) -> None:
    request = incoming.look(SOURCE).request
    whole, ends = seed_for(request)
    dice = random.Random(24)
    for _ in range(30):
        cut = dice.choice([*ends, dice.randrange(len(whole))])
        garbage = dice.randbytes(dice.choice([0, 0, 7, 70_000]))
        incoming.part.write_bytes(whole[:cut] + garbage)
        asked = incoming.look(SOURCE)
        expected = max([end for end in ends[1:] if end <= cut], default=0)  # header and catalogue are one
        assert (asked.request, asked.offset) == (request, expected)
        assert asked.seed == (SNAPSHOT if expected else NO_ID)
        file = IncomingFile(incoming, start(asked, whole))
        offset = asked.offset
        while offset < len(whole):
            offset = file.write(offset, whole[offset : offset + dice.randrange(1, 100_000)])
        assert incoming.complete() is None, "not before it is finished"
        file.finish()
        file.close()
        found = incoming.complete()
        assert found is not None
        assert (found.seed, found.request) == (SNAPSHOT, request)
        assert incoming.whole.read_bytes() == whole
        assert not incoming.part.exists()
        incoming.whole.unlink()


def start(asked: SeedRequest, whole: bytes) -> SeedStart:
    return SeedStart(SNAPSHOT, asked.offset, len(whole), 7)


def test_another_wish_or_another_source_begins_from_nothing(incoming: Incoming) -> None:
    first = incoming.look(SOURCE)
    assert type(first) is SeedRequest
    assert incoming.look(SOURCE) == first, "the same until it has been met"
    incoming.part.write_bytes(seed_for(first.request)[0])
    seen = {first.request}
    for look in (
        lambda: incoming.look(bytes(16)),
        lambda: incoming.look(SOURCE, ("main",)),
        lambda: incoming.look(SOURCE, ("main", "two")),
        lambda: incoming.look(SOURCE, (), (2,)),
        lambda: incoming.look(SOURCE, (), (2, 3)),
        lambda: incoming.look(SOURCE),
    ):
        asked = look()
        assert (asked.offset, asked.seed) == (0, NO_ID)
        assert asked.request not in seen
        assert not incoming.part.exists()
        seen.add(asked.request)
        incoming.part.write_bytes(seed_for(first.request)[0])  # of a wish that is no more
        assert look() == asked
    some = incoming.look(SOURCE, ("main",))
    assert isinstance(some, SeedRequestRegions)
    assert some.regions == ("main",)
    parts = incoming.look(SOURCE, (), (4, 5))
    assert isinstance(parts, SeedRequestPartitions)
    assert parts.partitions == (4, 5)


@pytest.mark.parametrize("content", [b"", b"x", b"zz zz", b"00 00\n", b"\xff\xfe", b"a" * 100_000])
def test_a_wish_that_cannot_be_read_is_made_again(incoming: Incoming, content: bytes) -> None:
    first = incoming.look(SOURCE)
    incoming.request.write_bytes(content)
    again = incoming.look(SOURCE)
    assert again.request != first.request
    assert incoming.look(SOURCE) == again


def test_a_whole_one_that_makes_no_sense_is_removed_and_one_of_another_wish_is_none(incoming: Incoming) -> None:
    assert incoming.complete() is None
    whole, _ = seed_for(bytes(16), is_part=True)
    incoming.whole.write_bytes(whole)
    assert incoming.complete() is None
    assert incoming.complete(("other",)) is None
    assert incoming.complete(("main",)) is not None
    incoming.whole.write_bytes(whole[:PREFIX_BYTES] + bytes(HEAD_BYTES) + whole[PREFIX_BYTES + HEAD_BYTES :])
    assert incoming.complete(("main",)) is None
    assert not incoming.whole.exists()


def test_a_full_disk_gives_the_room_back(incoming: Incoming) -> None:
    asked = incoming.look(SOURCE)
    whole, _ = seed_for(asked.request)
    file = IncomingFile(incoming, start(asked, whole))
    file.write(0, whole[:100_000])
    failpoint.arm("seed.incoming:1:errno=ENOSPC")
    try:
        with pytest.raises(DiskFullError):
            file.write(100_000, whole[100_000:])
    finally:
        failpoint.disarm()
    assert not incoming.part.exists()
    file.close()
    file.close()
    assert os.listdir(incoming.directory) == ["incoming.request"]
