"""The commit door by itself: what is visible when, and what the next holder of the lock makes of a dead one's work."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.door.door import Door
from replicate.door.ledger import Allotted
from replicate.door.recovery.journal_end import void_payload
from replicate.errors import BusyError, ClockAheadError, InternalError, JournalIOError
from replicate.journal.record import check_frame
from replicate.model.moment import first_csn, readable
from replicate.model.transaction import Kind
from replicate.pool import control as word
from replicate.system.locks import FileLock
from tests.harness.instances import door_of, last_seqno, make_primary

pytestmark = pytest.mark.usefixtures("shared_memory")


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with door_of(make_primary(tmp_path / "p")) as made:
        yield made


def allot(door: Door) -> Allotted:
    payload, count = void_payload("tried", 100)
    return door.allot(payload, count, Kind.NULL)


def append(door: Door, regions: int = 0) -> Allotted:
    allotted = allot(door)
    door.append(allotted.frame, allotted.seqno, regions)
    return allotted


def test_a_number_is_visible_only_when_its_outcome_is_known(door: Door) -> None:
    words = door.words
    before = words[word.LAST_SEQNO]
    with door.locked():
        allotted = append(door, 1)
        assert (words[word.LAST_SEQNO], words[word.INTENT_SEQNO]) == (before, before + 1)
        door.finish_own(allotted)
        assert (words[word.LAST_SEQNO], words[word.INTENT_SEQNO]) == (before + 1, 0)
        assert words[word.REGION_APPENDED] == words[word.REGION_DONE] == before + 1
        following = allot(door)
    assert following.seqno == allotted.seqno + 1
    assert following.origin_seqno == allotted.origin_seqno + 1
    assert following.csn > allotted.csn


def test_nothing_gets_a_time_from_2100_on(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken into a journal once, it cannot be taken back, and 2112 is all that a number can bear."""
    before = door.words[word.LAST_CSN]
    with door.locked():
        with monkeypatch.context() as patched:
            patched.setattr(time, "time_ns", lambda: 4_102_444_800_000_000_000)
            with pytest.raises(ClockAheadError, match="would bear the time 2100-01-01 00:00:00"):
                allot(door)
            patched.setattr(time, "time_ns", lambda: 4_102_444_799_999_999_000)
            allot(door)
        assert door.words[word.LAST_CSN] == before
        append(door)


def test_nothing_gets_a_time_that_no_other_host_would_take(door: Door) -> None:
    end = door.words[word.CSN_END] = first_csn(time.time_ns() // 1000 - 60_000_000)
    door.words[word.CSN_END_UNTIL_NS] = time.monotonic_ns() + 600_000_000_000
    with door.locked():
        with pytest.raises(ClockAheadError, match=f"nothing may from {re.escape(readable(end))} on"):
            allot(door)
        door.words[word.CSN_END] = first_csn(time.time_ns() // 1000 + 60_000_000)
        allot(door)
        door.words[word.CSN_END] = end
        door.words[word.CSN_END_UNTIL_NS] = time.monotonic_ns()
        append(door)  # a process that said so has been silent


def test_what_does_not_follow_is_not_appended(door: Door) -> None:
    with door.locked():
        allotted = allot(door)
        with pytest.raises(InternalError, match="does not follow"):
            door.append(allotted.frame, allotted.seqno + 1, 0)
        assert not door.words[word.INTENT_SEQNO]


def test_a_whole_frame_of_a_dead_holder_is_redone_and_its_regions_are_behind(door: Door) -> None:
    with door.locked():
        allotted = append(door, 1)
    with door.locked():  # as the next one would, had the first been killed
        pass
    words = door.words
    assert (words[word.LAST_SEQNO], words[word.INTENT_SEQNO]) == (allotted.seqno, 0)
    assert words[word.REGION_APPENDED] == allotted.seqno > words[word.REGION_DONE]
    words[word.REGION_DONE] = allotted.seqno


def test_half_a_frame_of_a_dead_holder_is_zeroed(door: Door) -> None:
    words = door.words
    with door.locked():
        before = words[word.LAST_SEQNO]
        allotted = append(door)
        offset, size = words[word.INTENT_OFFSET], words[word.INTENT_BYTES]
        path = door.segment().path
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, bytes(size // 2), offset + size // 2)
        with door.locked():
            assert (words[word.LAST_SEQNO], words[word.INTENT_SEQNO]) == (before, 0)
            assert os.pread(fd, size, offset) == bytes(size)
            door.finish_own(append(door))
    finally:
        os.close(fd)
    assert words[word.LAST_SEQNO] == allotted.seqno


def test_a_frame_that_no_region_has_becomes_a_null_record(door: Door) -> None:
    with door.locked():
        payload, count = void_payload("tried", 100)
        allotted = door.allot(payload, count)
        door.append(allotted.frame, allotted.seqno, 1)
        done = door.words[word.REGION_DONE]
        door.void(allotted, "planted")
        segment = door.segment()
        frame = os.pread(segment.fd, len(allotted.frame), door.words[word.INTENT_OFFSET])
    head = check_frame(frame)
    assert (head.seqno, head.kind, len(frame)) == (allotted.seqno, Kind.NULL, len(allotted.frame))
    assert b"void: planted" in frame
    assert door.words[word.LAST_SEQNO] == allotted.seqno
    assert door.words[word.REGION_DONE] == done


def test_after_a_failure_nobody_comes_in(door: Door) -> None:
    door.poison(28)
    with pytest.raises(JournalIOError, match="failed earlier"):
        door.enter()
    door.words[word.FATAL] = 0
    with door.locked():
        pass


def test_the_lock_is_waited_for_as_long_as_was_said(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "p")
    other = FileLock(instance.locks_directory / "commit.lock")
    with door_of(instance) as door:
        assert other.try_acquire()
        with pytest.raises(BusyError, match="the commit lock"):
            door.enter(0)
        other.close()
        with door.locked(0):
            pass
    assert last_seqno(instance) >= 1
