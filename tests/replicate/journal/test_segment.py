"""Segments: durable before first use, appended exactly, poisoned for good, scanned without being fooled."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicate.errors import (
    AlreadyExistsError,
    DiskFullError,
    FrameDamaged,
    JournalDamagedError,
    JournalIOError,
    JournalMissingError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.journal.header import SegmentHeader
from replicate.journal.record import renumbered
from replicate.journal.segment import create_segment, open_segment, scan, segment_name
from replicate.journal.tail import Clean, Damaged, ScanResult, Torn, classify_tail
from replicate.journal.walk import walk
from replicate.limits import SEGMENT_GROW_BYTES, SEGMENT_HEADER_BYTES
from replicate.model.transaction import Catalogue
from tests.harness.journals import INSTANCE, NETWORK, FrameMaker, ToyJournal, define_payload, flip, make_definition

HEADER = SegmentHeader(NETWORK, INSTANCE, 1, 1, 123)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    toy = ToyJournal(tmp_path / "journal")
    yield toy
    toy.close()


def _scan(journal: ToyJournal) -> ScanResult:
    return journal.segment.scan()


def test_a_flipped_byte_of_a_catalogue_is_named_with_file_and_offset(journal: ToyJournal) -> None:
    flip(Path(journal.segment.path), SEGMENT_HEADER_BYTES + 30)
    with pytest.raises(FrameDamaged, match=f"{journal.segment.path}, offset {SEGMENT_HEADER_BYTES}") as caught:
        journal.segment.read_catalogue()
    assert caught.value.facts["offset"] == SEGMENT_HEADER_BYTES


# Files.


def test_a_new_segment_is_whole_and_zeroed(tmp_path: Path) -> None:
    catalogue = Catalogue().with_definition(make_definition())
    with create_segment(tmp_path, HEADER, catalogue) as segment:
        assert os.listdir(tmp_path) == [segment_name(1)]
        assert os.path.getsize(segment.path) == segment.zeroed_offset == SEGMENT_GROW_BYTES
        assert os.stat(segment.path).st_mode & 0o777 == 0o600
        known, begin = segment.read_catalogue()
        assert known == catalogue
        assert not os.pread(segment.fd, SEGMENT_GROW_BYTES, begin).strip(b"\0")
    with pytest.raises(AlreadyExistsError):
        create_segment(tmp_path, HEADER, catalogue)


def test_a_segment_is_opened_only_by_its_owner(tmp_path: Path) -> None:
    with create_segment(tmp_path, HEADER, Catalogue()) as segment:
        path = segment.path
    with open_segment(path, network=NETWORK, instance=INSTANCE) as again:
        assert again.header == HEADER
    with pytest.raises(WrongNetworkError):
        open_segment(path, network=INSTANCE)
    with pytest.raises(WrongInstanceError):
        open_segment(path, instance=NETWORK)
    os.rename(path, tmp_path / segment_name(2))
    with pytest.raises(JournalDamagedError, match="not as its name says"):
        open_segment(tmp_path / segment_name(2))
    with pytest.raises(JournalMissingError):
        open_segment(path)


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    create_segment(tmp_path, HEADER, Catalogue()).close()
    os.symlink(segment_name(1), tmp_path / "other.journal")
    with pytest.raises(JournalIOError):
        open_segment(tmp_path / "other.journal")


def test_a_segment_grows_by_synced_zeros(journal: ToyJournal) -> None:
    segment = journal.segment
    assert segment.ensure_zeroed(1000) == SEGMENT_GROW_BYTES
    assert segment.ensure_zeroed(SEGMENT_GROW_BYTES + 1) == 2 * SEGMENT_GROW_BYTES == os.path.getsize(segment.path)
    with open_segment(segment.path, writable=True) as other:
        assert other.zeroed_offset == 0  # it must sync once before it relies on zeros that another one wrote
        assert other.ensure_zeroed(10) == 2 * SEGMENT_GROW_BYTES


def test_appending_past_the_zeros_grows_first(journal: ToyJournal) -> None:
    big = journal.maker.transaction("x" * 500_000)
    while journal.end_offset + len(big) <= SEGMENT_GROW_BYTES:
        journal.append(big)
        big = journal.maker.transaction("x" * 500_000)
    journal.append(big)
    assert os.path.getsize(journal.segment.path) == 2 * SEGMENT_GROW_BYTES
    found = _scan(journal)
    assert (found.last_seqno, found.end_offset, found.damaged) == (journal.last_seqno, journal.end_offset, None)


# Failures of the disk (faults 26, 27, 28, 30).

Write = Callable[[int, bytes, int], int]


def _failing_after(bytes_written: int, number: int, real: Write = os.pwrite) -> Write:
    """A pwrite that writes so many bytes of the next call in short writes, then fails; zeros pass."""
    left = [bytes_written]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if not bytes(data).strip(b"\0"):
            return real(fd, data, offset)
        if left[0] <= 0:
            raise OSError(number, os.strerror(number))
        count = min(left[0], 7, len(data))
        left[0] -= count
        return real(fd, bytes(data)[:count], offset)

    return pwrite


def test_short_writes_are_continued(journal: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data)[:5], offset))
    journal.write(3)
    monkeypatch.undo()
    assert _scan(journal).last_seqno == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_takes_the_bytes_back_and_may_end(
    journal: ToyJournal, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    journal.write(3)
    frame = journal.maker.transaction("x" * 100)
    monkeypatch.setattr(os, "pwrite", _failing_after(50, number))
    with pytest.raises(DiskFullError) as caught:
        journal.append(frame)
    assert caught.value.facts["errno"] == number
    monkeypatch.undo()
    assert not journal.segment.poisoned
    clean = _scan(journal)
    assert (clean.last_seqno, clean.damaged) == (3, None)
    journal.append(frame)
    assert _scan(journal).last_seqno == 4


def test_any_other_failed_write_poisons(journal: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = journal.maker.transaction("x" * 100)
    monkeypatch.setattr(os, "pwrite", _failing_after(50, errno.EIO))
    with pytest.raises(JournalIOError) as caught:
        journal.append(frame)
    assert not isinstance(caught.value, DiskFullError)
    monkeypatch.undo()
    assert journal.segment.poisoned
    for method in (lambda: journal.append(frame), journal.segment.sync, lambda: journal.segment.ensure_zeroed(10)):
        with pytest.raises(JournalIOError, match="failed before"):
            method()
    assert _scan(journal).damaged is None


def test_a_write_that_cannot_be_taken_back_poisons(journal: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pwrite, [0]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        calls[0] += 1
        if calls[0] == 1:
            return real(fd, bytes(data)[:60], offset)
        raise OSError(errno.ENOSPC, "full")

    frame = journal.maker.transaction("x" * 100)
    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(JournalIOError, match="could not be taken back"):
        journal.append(frame)
    monkeypatch.undo()
    assert journal.segment.poisoned
    found = _scan(journal)
    assert isinstance(classify_tail(found, last_durable_seqno=0), Torn)
    with open_segment(journal.segment.path, writable=True) as recovering:
        recovering.cut(found.end_offset)
    assert _scan(journal).damaged is None


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_the_first_failed_fsync_is_fatal_and_never_retried(
    journal: ToyJournal, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls = [0]

    def fdatasync(_: int) -> None:
        calls[0] += 1
        raise OSError(number, "lost")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    journal.write(1)
    with pytest.raises(JournalIOError) as caught:
        journal.segment.sync()
    assert not isinstance(caught.value, DiskFullError)  # it is not known what is on the disk, full or not
    with pytest.raises(JournalIOError, match="failed before"):
        journal.segment.sync()
    with pytest.raises(JournalIOError):
        journal.write(1)
    assert calls == [1]


def test_no_space_to_grow_leaves_the_segment_usable(journal: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(DiskFullError):
        journal.segment.ensure_zeroed(SEGMENT_GROW_BYTES + 1)
    monkeypatch.undo()
    assert journal.segment.ensure_zeroed(SEGMENT_GROW_BYTES + 1) == 2 * SEGMENT_GROW_BYTES


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename", "open"])
def test_a_segment_that_cannot_be_made_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(DiskFullError):
        create_segment(tmp_path, HEADER, Catalogue())
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


def test_the_directory_is_synced_after_the_name_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 36: without it, the whole segment may be gone after a power loss."""
    order: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        order.append("directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
        real_fsync(fd)

    def rename(old: str, new: str) -> None:
        order.append("rename")
        real_rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    create_segment(tmp_path, HEADER, Catalogue()).close()
    assert order == ["file", "rename", "directory"]


# Scanning.


def test_a_scan_tells_where_the_journal_stands(journal: ToyJournal) -> None:
    journal.write(3)
    where = journal.append(journal.maker.transaction(payload=define_payload(make_definition())))
    journal.maker.mark = 2
    journal.append(journal.maker.null())
    history_at = journal.append(journal.maker.history(2))
    journal.write(2)
    found = _scan(journal)
    first, second = FrameMaker().origin, journal.maker.origin
    assert (found.last_seqno, found.frame_count, found.end_offset) == (8, 8, journal.end_offset)
    assert found.definition_frames == (where, history_at)
    assert found.chains[second] == (2, journal.maker.chain)
    assert found.chains[first][0] == 5
    assert (found.last_mark, found.last_csn) == (2, 8 << 16)
    assert classify_tail(found, last_durable_seqno=8) == Clean(journal.end_offset, 9)


def test_a_long_segment_is_scanned_through_several_windows(journal: ToyJournal) -> None:
    for _ in range(30):
        journal.write(1, "x" * 300_000)
        journal.write(5)
    found = _scan(journal)
    assert (found.last_seqno, found.damaged) == (journal.last_seqno, None)
    flip(Path(journal.segment.path), journal.end_offset - 20)
    assert _scan(journal).last_seqno == journal.last_seqno - 1
    flip(Path(journal.segment.path), 50_000)
    damaged = _scan(journal)
    assert damaged.last_seqno == 0
    assert damaged.after is not None
    assert damaged.after.seqno == 2


@pytest.mark.slow
def test_every_flip_in_the_middle_is_damage_and_every_flip_in_the_last_is_torn(journal: ToyJournal) -> None:
    """Faults 38 and 39, at every byte of two frames."""
    begin = journal.append(journal.maker.transaction("first"))
    last = journal.append(journal.maker.transaction("second"))
    path = Path(journal.segment.path)
    for offset in range(begin, journal.end_offset):
        flip(path, offset, 0x80)
        found = _scan(journal)
        verdict = classify_tail(found, last_durable_seqno=0)
        if offset < last:
            assert isinstance(verdict, Damaged), offset
            assert verdict.seqno == 1
        else:
            assert isinstance(verdict, Torn), offset
            assert isinstance(classify_tail(found, last_durable_seqno=2), Damaged)
        flip(path, offset, 0x80)
    assert _scan(journal).damaged is None


@pytest.mark.slow
def test_every_torn_length_is_torn(journal: ToyJournal) -> None:
    journal.write(1)
    frame = journal.maker.transaction("hello")
    for length in range(1, len(frame)):
        os.pwrite(journal.segment.fd, frame[:length] + bytes(len(frame) - length), journal.end_offset)
        verdict = classify_tail(_scan(journal), last_durable_seqno=1, region_seqno_max=1)
        complete = not frame[length:].strip(b"\0")
        assert isinstance(verdict, Clean if complete else Torn), length
    assert isinstance(classify_tail(_scan(journal), last_durable_seqno=2), Damaged)


def test_a_wiped_tail_is_damage_when_it_was_durable(journal: ToyJournal) -> None:
    """A flip that reads as a clean, shorter journal is told by the mark beside it."""
    journal.write(1)
    begin = journal.end_offset
    journal.write(1)
    os.pwrite(journal.segment.fd, bytes(journal.end_offset - begin), begin)
    found = _scan(journal)
    assert found.damaged is None
    assert isinstance(classify_tail(found, last_durable_seqno=2), Damaged)


def test_a_lost_page_before_a_good_frame_is_damage(journal: ToyJournal) -> None:
    journal.write(1)
    begin = journal.end_offset
    journal.write(1, "x" * 5000)
    journal.write(1)
    os.pwrite(journal.segment.fd, bytes(4096), begin)
    found = _scan(journal)
    assert found.damaged is not None
    assert "after the end" in found.damaged.reason
    assert found.after is not None
    assert found.after.seqno == 3


def test_frames_in_the_wrong_order_are_damage(journal: ToyJournal) -> None:
    data = journal.maker.transactions(4)
    size = len(data) // 4
    swapped = data[:size] + data[2 * size : 3 * size] + data[size : 2 * size] + data[3 * size :]
    journal.append(swapped)
    found = _scan(journal)
    assert found.damaged is not None
    assert found.damaged.whole_frame
    assert isinstance(classify_tail(found, last_durable_seqno=0), Damaged)


def test_a_frame_of_another_history_under_the_right_number_is_damage(journal: ToyJournal) -> None:
    """Old valid frames, or those of a forked journal: only the chain hash tells."""
    other = FrameMaker()
    other.transactions(2, "another past")
    journal.write(2)
    journal.append(other.transaction())
    found = _scan(journal)
    assert found.last_seqno == 2
    assert found.damaged is not None
    assert "chain hash" in found.damaged.reason
    moved = renumbered(FrameMaker().transaction(), 3, 0)
    os.pwrite(journal.segment.fd, moved, found.end_offset)
    assert "chain hash" in getattr(_scan(journal).damaged, "reason", "")


def test_a_frame_that_holds_frames_is_still_torn(journal: ToyJournal) -> None:
    """An application may keep journal bytes in its blobs: older frames inside a torn one are no witness."""
    old = journal.maker.transactions(5)
    journal.append(old)
    begin = journal.append(journal.maker.transaction(old + b"tail" * 10))
    flip(Path(journal.segment.path), journal.end_offset - 1)
    found = _scan(journal)
    assert (found.end_offset, found.after) == (begin, None)
    assert isinstance(classify_tail(found, last_durable_seqno=5), Torn)


def test_an_unknown_origin_is_taken_on_trust_only_when_asked(journal: ToyJournal) -> None:
    maker = FrameMaker(chain=12345, origin_seqno=70)
    journal.append(maker.transactions(2))
    begin = journal.segment.read_catalogue()[1]
    assert scan(journal.segment.fd, begin, 1).last_seqno == 2
    assert scan(journal.segment.fd, begin, 1, chains={}).last_seqno == 0
    assert scan(journal.segment.fd, begin, 1, chains={maker.origin: (70, 12345)}).last_seqno == 2


def test_scanning_can_begin_in_the_middle(journal: ToyJournal) -> None:
    data = journal.maker.transactions(5)
    begin = journal.append(data)
    offsets = [offset for offset, _ in walk(data)]
    found = scan(journal.segment.fd, begin + offsets[3], 4)
    assert (found.frame_count, found.last_seqno) == (2, 5)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(junk=st.binary(min_size=1, max_size=200), at=st.integers(0, 700))
def test_overwritten_bytes_never_read_as_other_content(journal: ToyJournal, junk: bytes, at: int) -> None:
    if not journal.last_seqno:
        journal.write(6, "content")
    begin = journal.segment.read_catalogue()[1]
    original = os.pread(journal.segment.fd, journal.end_offset - begin, begin)
    offset = begin + at % len(original)
    saved = os.pread(journal.segment.fd, len(junk), offset)
    os.pwrite(journal.segment.fd, junk, offset)
    try:
        found = _scan(journal)
        accepted = os.pread(journal.segment.fd, found.end_offset - begin, begin)
        assert original.startswith(accepted)
        assert found.damaged is not None or accepted == original or found.last_seqno < 6
    finally:
        os.pwrite(journal.segment.fd, saved, offset)
