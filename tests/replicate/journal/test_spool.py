"""Spools: cut anywhere, adopted whole or not at all, received in parts, taken up again, cleaned up when orphaned."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicate.errors import (
    AlreadyExistsError,
    DamagedError,
    DiskFullError,
    DivergedError,
    FrameDamaged,
    GapError,
    InternalError,
    JournalDamagedError,
    JournalIOError,
)
from replicate.journal.header import SegmentHeader
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import pack_frame, pack_part, read_part
from replicate.journal.spool import Spool, adopt, large_payload_of, remove_orphans, split
from replicate.limits import PART_BYTES
from replicate.model.transaction import Catalogue, Kind
from tests.harness.journals import INSTANCE, NETWORK, ORIGIN, FrameMaker, ToyJournal, flip

HEADER = SegmentHeader(NETWORK, INSTANCE, 1, 1, 0)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    toy = ToyJournal(tmp_path / "journal")
    toy.write(2)
    yield toy
    toy.close()


def _noise(count: int, seed: int = 1) -> bytes:
    block = bytes((seed * 31 + index * 7) % 251 for index in range(251))
    return (block * (count // 251 + 1))[:count]


def _large(journal: ToyJournal, seqno: int = 3) -> LargeTransaction:
    reader = ChainReader(journal.chain, seqno)
    found = reader.read(10**6, seqno)
    reader.close()
    assert isinstance(found, LargeTransaction)
    return found


def _stream(large: LargeTransaction) -> bytes:
    return b"".join(bytes(read_part(frame)[2]) for frame in large.parts())


@pytest.mark.parametrize("length", [1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, 3 * PART_BYTES + 5])
def test_what_was_written_is_read_back(journal: ToyJournal, length: int) -> None:
    stream = _noise(length)
    journal.adopt(stream)
    large = _large(journal)
    assert _stream(large) == stream
    assert large.part_count == -(-length // PART_BYTES)
    assert [read_part(frame)[1] for frame in large.parts(1)] == list(range(1, large.part_count))
    assert not any(name.endswith(".spool") for name in os.listdir(journal.directory))


STEPS = st.lists(
    st.tuples(st.just("write"), st.integers(0, 2 * PART_BYTES)) | st.tuples(st.just("cut"), st.floats(0, 1)), max_size=8
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS)
def test_writes_and_cuts_in_any_order(tmp_path: Path, steps: list[tuple[str, float]]) -> None:
    spool = Spool.create(tmp_path, ORIGIN.key)
    model = bytearray()
    for number, (what, amount) in enumerate(steps):
        if what == "write":
            data = _noise(int(amount), number)
            spool.write(data)
            model += data
        else:
            offset = int(len(model) * amount)
            spool.cut(offset)
            del model[offset:]
        assert spool.tell() == len(model)
    spool.write(b"end")
    summary = spool.finish()
    assert summary == spool.finish()
    assert os.path.getsize(summary.path) == summary.end_offset
    again = b""
    with open(summary.path, "rb") as file:
        data = file.read()[4096:]
    offset = chain = 0
    for number in range(summary.part_count):
        head, found, piece = read_part(data, offset)
        assert found == number
        again += bytes(piece)
        offset += head.frame_bytes
        chain = head.chain
    assert (again, chain) == (bytes(model) + b"end", summary.last_part_chain)
    spool.abort()
    assert os.listdir(tmp_path) == []


def test_misuse_is_our_bug(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path, 7)
    with pytest.raises(InternalError):
        spool.cut(1)
    with pytest.raises(InternalError, match="empty"):
        spool.finish()
    spool.write(b"x")
    spool.finish()
    with pytest.raises(InternalError):
        spool.write(b"y")
    with pytest.raises(InternalError):
        spool.adopt(HEADER, FrameMaker().transaction(), Catalogue())
    spool.abort()
    spool.abort()
    with pytest.raises(InternalError):
        spool.write(b"y")


def test_a_commit_frame_of_other_parts_is_refused(tmp_path: Path) -> None:
    spool, other = Spool.create(tmp_path, ORIGIN.key), Spool.create(tmp_path, ORIGIN.key)
    spool.write(b"mine")
    other.write(b"other")
    with pytest.raises(DivergedError):
        adopt(spool, HEADER, FrameMaker().large(other), Catalogue())
    payload, count = other.commit_payload(())
    spool.token = other.token
    frame, _ = pack_frame(Kind.LARGE, 1, 0, 0, ORIGIN.key, 1, 0, payload, count)
    with pytest.raises(GapError):
        adopt(spool, HEADER, frame, Catalogue())
    spool.abort()
    other.abort()


def test_a_number_that_is_taken_is_refused(journal: ToyJournal) -> None:
    spool = Spool.create(journal.directory, ORIGIN.key)
    spool.write(b"x")
    with pytest.raises(AlreadyExistsError):
        spool.adopt(HEADER, FrameMaker().large(spool), Catalogue())
    spool.abort()
    with pytest.raises(AlreadyExistsError):
        Spool(journal.segment.path, 7)


# Failures of the disk.


def test_a_full_disk_leaves_only_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool.create(tmp_path, 7)

    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(DiskFullError):
        spool.write(bytes(PART_BYTES))
    spool.abort()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "rename", "pwrite"])
def test_an_adoption_that_fails_leaves_the_chain_as_it_was(
    journal: ToyJournal, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    spool = Spool.create(journal.directory, ORIGIN.key)
    spool.write(b"changes")
    frame = journal.maker.large(spool)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(os, call, fail)
    header = SegmentHeader(NETWORK, INSTANCE, 1, 3, 0)
    with pytest.raises(JournalIOError):
        spool.adopt(header, frame, Catalogue())
    monkeypatch.undo()
    assert journal.chain.first_seqnos() == [1]
    spool.abort()
    assert not [name for name in os.listdir(journal.directory) if name.endswith(".spool")]


def test_after_a_failed_directory_sync_abort_keeps_the_segment(
    journal: ToyJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool.create(journal.directory, ORIGIN.key)
    spool.write(b"changes")
    frame = journal.maker.large(spool)
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "lost")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(JournalIOError, match="directory"):
        spool.adopt(SegmentHeader(NETWORK, INSTANCE, 1, 3, 0), frame, Catalogue())
    spool.abort()
    assert journal.chain.first_seqnos() == [1, 3]


# Damage.


def _verify_adopted(journal: ToyJournal) -> None:
    _stream(_large(journal))
    with journal.chain.open(3) as segment:
        segment.scan_adopted()


def test_a_flip_anywhere_in_an_adopted_segment_is_noticed(journal: ToyJournal) -> None:
    journal.adopt(_noise(PART_BYTES + 40))
    path = Path(journal.segment.path)
    size = path.stat().st_size
    first_part, second_part = 4096, 4096 + PART_BYTES + 74
    places = [*range(first_part, first_part + 80), first_part + 9999, *range(second_part - 3, size)]
    for offset in places:
        flip(path, offset)
        with pytest.raises(DamagedError):
            _verify_adopted(journal)
        flip(path, offset)
    assert _stream(_large(journal)) == _noise(PART_BYTES + 40)


def test_swapped_parts_are_noticed(journal: ToyJournal) -> None:
    journal.adopt(_noise(PART_BYTES) + _noise(PART_BYTES, 5))
    path = Path(journal.segment.path)
    data = bytearray(path.read_bytes())
    size = PART_BYTES + 74
    data[4096 : 4096 + size], data[4096 + size : 4096 + 2 * size] = (
        data[4096 + size : 4096 + 2 * size],
        data[4096 : 4096 + size],
    )
    path.write_bytes(data)
    with pytest.raises(GapError, match="part 1 stands where part 0 should"):
        _stream(_large(journal))


def test_a_part_of_another_stream_is_noticed(journal: ToyJournal) -> None:
    journal.adopt(_noise(2 * PART_BYTES))
    large = _large(journal)
    path = Path(journal.segment.path)
    for token in (large.token, large.token ^ 1):
        forged, _ = pack_part(ORIGIN.key, token, 1, _noise(PART_BYTES, 9), 77)
        data = bytearray(path.read_bytes())
        data[4096 + PART_BYTES + 74 : 4096 + 2 * (PART_BYTES + 74)] = forged
        path.write_bytes(data)
        for first in (0, 1):
            with pytest.raises(JournalDamagedError):
                list(large.parts(first))


# Parts that arrive.


def _parts(stream: bytes, origin: int = ORIGIN.key, token: int = 99) -> list[bytes]:
    chain, frames = 0, []
    for number in range(0, len(stream), PART_BYTES):
        frame, chain = pack_part(origin, token, number // PART_BYTES, stream[number : number + PART_BYTES], chain)
        frames.append(frame)
    return frames


def test_a_secondary_spools_the_same_segment(journal: ToyJournal, tmp_path: Path) -> None:
    frame = journal.adopt(_noise(2 * PART_BYTES + 9))
    other = ToyJournal(tmp_path / "other")
    other.write(2)
    spool = Spool.receiving(other.directory / "3.spool")
    for part in _large(journal).parts():
        spool.write_frame(part)
    assert spool.part_count == 3
    spool.adopt(journal.segment.header, frame, Catalogue())
    assert _stream(_large(other)) == _noise(2 * PART_BYTES + 9)
    other.close()


def test_parts_out_of_turn_are_refused(tmp_path: Path) -> None:
    frames = _parts(_noise(3 * PART_BYTES))
    spool = Spool.receiving(tmp_path / "1.spool")
    with pytest.raises(JournalDamagedError):
        spool.write_frame(frames[1])
    spool.write_frame(frames[0])
    with pytest.raises(GapError):
        spool.write_frame(frames[0])
    with pytest.raises(GapError):
        spool.write_frame(frames[2])
    with pytest.raises(DivergedError):
        spool.write_frame(_parts(_noise(2 * PART_BYTES, 3))[1])
    with pytest.raises(JournalDamagedError, match="another large"):
        spool.write_frame(_parts(_noise(2 * PART_BYTES), token=5)[1])
    with pytest.raises(FrameDamaged):
        spool.write_frame(frames[1][:-1])
    with pytest.raises(JournalDamagedError):
        spool.write_frame(frames[1] + b"\0")
    spool.write_frame(frames[1])
    spool.write_frame(frames[2])
    with pytest.raises(DivergedError):
        spool.finish_received(3, 3 * PART_BYTES, 1)
    with pytest.raises(GapError):
        spool.finish_received(4, 3 * PART_BYTES, 1)
    spool.abort()


def test_nothing_follows_a_short_part(tmp_path: Path) -> None:
    frames = _parts(_noise(PART_BYTES + 5))
    spool = Spool.receiving(tmp_path / "1.spool")
    for frame in frames:
        spool.write_frame(frame)
    head, _, _ = read_part(frames[1])
    more, _ = pack_part(ORIGIN.key, 99, 2, b"more", head.chain)
    with pytest.raises(JournalDamagedError, match="should be full"):
        spool.write_frame(more)
    spool.abort()


def test_orphans_are_removed_and_live_spools_are_not(tmp_path: Path) -> None:
    live = Spool.create(tmp_path, 7)
    dead = Spool.create(tmp_path, 7)
    dead.keep()
    (tmp_path / "00000000000000000001.journal.tmp").write_bytes(b"half")
    (tmp_path / "durable").write_bytes(b"")
    names = (os.path.basename(dead.path), "00000000000000000001.journal.tmp")
    assert set(remove_orphans(tmp_path)) == set(names)
    assert set(os.listdir(tmp_path)) == {os.path.basename(live.path), "durable"}
    live.abort()


def test_what_parts_would_be_committed_by_is_known_without_a_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = bytes(range(256)) * (2 * PART_BYTES // 256) + b"the rest"
    spool = Spool(tmp_path / "one.spool", 7, 5)
    spool.write(stream)
    parts = split(stream)
    assert [len(one) for one in parts] == [PART_BYTES, PART_BYTES, 8]
    assert list(spool.stream()) == parts
    monkeypatch.setattr(os, "urandom", lambda count: (5).to_bytes(count, "big"))
    assert large_payload_of(7, parts, (1, 3)) == spool.commit_payload((1, 3))
    spool.abort()
