"""What packets bring, record by record, in the place of the receive pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import JournalDamagedError, WrongNetworkError
from replicate.journal.header import SegmentHeader
from replicate.journal.record import read_head
from replicate.journal.segment import catalogue_frame, segment_name
from replicate.journal.walk import walk
from replicate.limits import FRAME_BYTES_MAX
from replicate.model.transaction import Catalogue
from replicate.pool.receive_pool import ReceivedRecord, RecordKind
from tests.harness.journals import FrameMaker
from update_process.packet_feed import RECORD_BYTES, PacketFeed

NETWORK = bytes(range(16))


def segment(directory: Path, frames: list[bytes], first_seqno: int) -> Path:
    """As it is unpacked from a packet."""
    header = SegmentHeader(NETWORK, bytes(16), 1, first_seqno, 0)
    path = directory / segment_name(first_seqno)
    path.write_bytes(header.pack() + catalogue_frame(Catalogue(), header) + b"".join(frames))
    return path


def frames(count: int, size: int = 10) -> list[bytes]:
    maker = FrameMaker()
    return [maker.transaction("x" * size) for _ in range(count)]


def taken(feed: PacketFeed) -> list[ReceivedRecord]:
    found = []
    while record := next(iter(feed.peek()), None):
        found.append(record)
        assert next(iter(feed.peek())) == record, "it is there until it is freed"
        feed.free(record.next_address)
    assert feed.read_address == feed.written_address == len(found)
    return found


def test_numbers_may_be_left_out_and_all_comes_once(tmp_path: Path) -> None:
    made = frames(9)
    sparse = [made[0], made[3], made[4], made[8]]
    first = read_head(made[0]).seqno
    records = taken(PacketFeed([segment(tmp_path, sparse, first)], NETWORK))
    assert [one.kind for one in records] == [RecordKind.CATALOGUE, RecordKind.FRAMES]
    assert (records[1].data, records[1].count) == (b"".join(sparse), 4)
    assert (records[1].first_seqno, records[1].last_seqno) == (first, first + 8)


def test_a_long_one_comes_in_records_of_whole_frames(tmp_path: Path) -> None:
    made = frames(4000, 100)
    records = taken(PacketFeed([segment(tmp_path, made, read_head(made[0]).seqno)], NETWORK))
    assert len(records) > 2
    assert b"".join(one.data for one in records[1:]) == b"".join(made)
    assert all(len(one.data) <= RECORD_BYTES and list(walk(one.data)) for one in records[1:])


def test_a_frame_that_is_larger_than_a_record_comes_whole(tmp_path: Path) -> None:
    made = [*frames(1, RECORD_BYTES + 5000), *frames(1)]
    assert RECORD_BYTES < len(made[0]) <= FRAME_BYTES_MAX
    records = taken(PacketFeed([segment(tmp_path, made, read_head(made[0]).seqno)], NETWORK))
    assert b"".join(one.data for one in records[1:]) == b"".join(made)


def test_segments_come_one_after_another(tmp_path: Path) -> None:
    paths = []
    for number in (1, 5):
        place = tmp_path / str(number)
        place.mkdir()
        paths.append(segment(place, frames(2), read_head(frames(1)[0]).seqno))
    kinds = [one.kind for one in taken(PacketFeed(paths, NETWORK))]
    assert kinds == [RecordKind.CATALOGUE, RecordKind.FRAMES] * 2


def test_one_that_is_cut_or_of_another_network_is_refused(tmp_path: Path) -> None:
    made = frames(3)
    path = segment(tmp_path, made, read_head(made[0]).seqno)
    with pytest.raises(WrongNetworkError):
        list(PacketFeed([path], bytes(16)).peek())
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(JournalDamagedError, match="ends inside a frame"):
        taken(PacketFeed([path], NETWORK))


def test_it_cannot_begin_again() -> None:
    feed = PacketFeed([], NETWORK)
    assert feed.restart_requested() == 0
    assert not feed.restart_done(feed.request_restart())
    feed.note_applied(1, 1)
    assert list(feed.peek()) == []
    feed.close()
    feed.close()
