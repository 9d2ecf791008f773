"""Batches that make their own room at the end of a segment: killed, cut short, out of space, and small ones after."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from replicate.compare.compare import compare
from replicate.door.recovery.opening import make_chain
from replicate.errors import DiskFullError
from replicate.journal import segment as segments
from replicate.limits import SEGMENT_GROW_BYTES
from replicate.settings.table import UpdateConfig
from replicate.system import failpoint
from replicate.system.failpoint import FailpointError
from tests.harness.instances import lose_pool, newest_segment, read_journal
from tests.harness.pair import Pair, work_all
from update_process import applier as applying

TEXT_BYTES = 400_000
BATCHES = 6
"""Of two transactions each. The last one goes beyond the zeros that a new segment has."""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setattr(segments, "OWN_ROOM_BYTES", 2 * TEXT_BYTES)
    monkeypatch.setattr(applying, "BATCH_S", 60.0)  # batches end by their number, whatever else the machine has to do
    failpoint.disarm()
    made = Pair.create(tmp_path)
    made.seed()
    write(made, 1, 2 * BATCHES, TEXT_BYTES)
    return made


def write(pair: Pair, first: int, count: int, size: int) -> None:
    connection = pair.connect()
    for number in range(first, first + count):
        connection.execute("INSERT INTO account VALUES (?, ?, 0, NULL)", (number, "x" * size))
        connection.commit()
    connection.close()


def apply(pair: Pair) -> None:
    with pair.receive_pool(32 * 1024 * 1024) as pool:
        pair.deliver(pool, record_bytes=1)
        with pair.applier(pool, UpdateConfig(batch_transactions=2)) as applier:
            work_all(applier)


def check(pair: Pair) -> None:
    found = compare(pair.primary, pair.secondary, timeout_s=5)
    assert found.equal, found
    assert found.seqno == pair.last_seqno() == pair.last_seqno(pair.secondary)
    read_journal(pair.secondary, make_chain(pair.secondary).oldest_seqno())


def test_the_file_ends_with_the_batch_until_a_small_one_wants_zeros(pair: Pair) -> None:
    apply(pair)
    path = newest_segment(pair.secondary)
    end = os.path.getsize(path)
    assert end > SEGMENT_GROW_BYTES
    assert end % SEGMENT_GROW_BYTES != 0
    check(pair)
    write(pair, 100, 1, 10)
    apply(pair)
    assert os.path.getsize(path) == 2 * SEGMENT_GROW_BYTES
    check(pair)


@pytest.mark.slow
@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("step", ["append.before_write", "append.after_write", "half", "apply.after_commit"])
def test_killed_while_it_makes_its_room(pair: Pair, monkeypatch: pytest.MonkeyPatch, step: str, reboot: bool) -> None:
    """`raise` leaves behind what a kill would: the process's objects are dropped. `half` is in the middle of a write
    beyond the end of the file."""
    with monkeypatch.context() as patch:
        if step == "half":
            patch.setattr(os, "pwrite", stopping(FailpointError("half"), take_back=False))
        else:
            failpoint.arm(f"{step}:{BATCHES}:raise")
        with pytest.raises(FailpointError):
            apply(pair)
    failpoint.disarm()
    if reboot:
        lose_pool(pair.secondary)
    apply(pair)
    write(pair, 100, 3, TEXT_BYTES)
    write(pair, 200, 3, 10)
    apply(pair)
    check(pair)


def stopping(error: Exception, *, take_back: bool) -> object:
    """A pwrite that stops in the middle of what goes beyond the zeros; from then on it writes what lies within them."""
    real, is_stopped = os.pwrite, False

    def pwrite(fd: int, data: bytes | memoryview, offset: int) -> int:
        nonlocal is_stopped
        room = os.fstat(fd).st_size
        if not is_stopped and (len(data) < TEXT_BYTES or offset + len(data) <= SEGMENT_GROW_BYTES):
            return real(fd, data, offset)
        if is_stopped and (not take_back or offset + len(data) > room):
            raise error
        if not is_stopped:
            is_stopped = True
            real(fd, bytes(data)[: SEGMENT_GROW_BYTES + TEXT_BYTES // 2 - offset], offset)
            raise error
        return real(fd, data, offset)

    return pwrite


def test_a_disk_that_becomes_full_takes_the_batch_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", stopping(OSError(errno.ENOSPC, "No space left on device"), take_back=True))
        with pytest.raises(DiskFullError):
            apply(pair)
    path = newest_segment(pair.secondary)
    assert os.path.getsize(path) == SEGMENT_GROW_BYTES + TEXT_BYTES // 2
    assert not path.read_bytes()[SEGMENT_GROW_BYTES:].strip(b"\0")
    apply(pair)  # there is space again
    check(pair)
