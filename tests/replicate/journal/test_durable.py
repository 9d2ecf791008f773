"""The durable mark: newer of two whole slots, never lower by accident, never a number out of a half written slot."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicate.errors import DiskFullError, JournalDamagedError, JournalIOError, JournalMissingError
from replicate.journal.durable import DurableSidecar


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[DurableSidecar]:
    made = DurableSidecar.create(tmp_path / "durable")
    yield made
    made.close()


def test_it_remembers_the_highest(sidecar: DurableSidecar) -> None:
    assert sidecar.read() == 0
    for seqno, known in ((5, 5), (3, 5), (5, 5), (2**64 - 1, 2**64 - 1)):
        sidecar.write(seqno)
        assert sidecar.read() == known
    assert DurableSidecar(sidecar.path).read() == 2**64 - 1
    sidecar.sync()
    sidecar.close()
    sidecar.close()
    assert sidecar.read() == 2**64 - 1


def test_only_reset_lowers(sidecar: DurableSidecar) -> None:
    for seqno in (10, 20, 30):
        sidecar.write(seqno)
        sidecar.reset(7)
        assert sidecar.read() == 7
    sidecar.write(8)
    assert sidecar.read() == 8


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_whichever_half_is_torn_on_the_disk_settling_leaves_two_whole_ones(
    sidecar: DurableSidecar, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the disk has is what was stored since a sync failed: the newer half first, as it is, then the older one."""
    for seqno in range(1, writes + 1):
        sidecar.write(seqno)
    stored: list[str] = []
    before = Path(sidecar.path).read_bytes()
    newest = int(sidecar.counter() % 2 == 0)
    store, sync = DurableSidecar._store, DurableSidecar.sync

    def storing(self: DurableSidecar, seqno: int, counter: int, index: int) -> None:
        store(self, seqno, counter, index)
        stored.append(f"half {index}")

    def syncing(self: DurableSidecar) -> None:
        sync(self)
        stored.append("sync")
        if stored.count("sync") == 1:
            assert Path(self.path).read_bytes() == before

    monkeypatch.setattr(DurableSidecar, "_store", storing)
    monkeypatch.setattr(DurableSidecar, "sync", syncing)
    sidecar.settle(2)
    assert stored == [f"half {newest}", "sync", f"half {1 - newest}", "sync"]
    assert sidecar.read() == max(writes, 2)
    assert sidecar.is_of_this_boot()


def test_two_writers_share_one(sidecar: DurableSidecar) -> None:
    other = DurableSidecar(sidecar.path)
    for seqno in range(1, 20, 2):
        sidecar.write(seqno)
        other.write(seqno + 1)
        assert sidecar.read() == other.read() == seqno + 1
    other.close()


def test_with_shared_words_only_the_first_writer_reads_the_file(
    sidecar: DurableSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = memoryview(bytearray(64)).cast("Q")
    one, two = (DurableSidecar(sidecar.path, words=words, counter_at=3, seqno_at=5) for _ in range(2))
    reads: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *asked: (reads.append(1), pread(*asked))[1])
    found = []
    for seqno, writer in enumerate((one, one, one, two, two, one, two, two), 1):
        before = len(reads)
        writer.write(seqno)
        writer.write(seqno - 1)  # never lower
        found.append(len(reads) > before)
        assert sidecar.read() == seqno
    assert found == [True] + [False] * 7
    words[3] = 0  # a pool that was made again, perhaps with a mark that was reset
    sidecar.reset(2)
    two.write(3)
    assert sidecar.read() == 3
    one.close()
    two.close()


@pytest.mark.parametrize("shared", [False, True])
def test_whole_slots_in_the_other_order_are_never_written_over_first(sidecar: DurableSidecar, shared: bool) -> None:
    """Where the newer number goes follows from its counter; in a file of ours the counters alternate so."""
    data = Path(sidecar.path).read_bytes()
    Path(sidecar.path).write_bytes(data[512:] + data[:512])
    words = memoryview(bytearray(16)).cast("Q")
    writers = [DurableSidecar(sidecar.path, words=words) for _ in range(2)] if shared else [sidecar] * 2
    for seqno in range(1, 10):
        before = Path(sidecar.path).read_bytes()
        writers[seqno % 2].write(seqno)
        after = Path(sidecar.path).read_bytes()
        assert sidecar.read() == seqno
        kept = after[:512] if before[:512] == after[:512] else after[512:]
        Path(sidecar.path).write_bytes(kept + bytes(512))
        assert sidecar.read() == seqno - 1
        Path(sidecar.path).write_bytes(after)
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("word", [0, 1])
def test_a_writer_that_was_killed_between_its_words_leaves_a_mark_that_is_written_once_more(
    sidecar: DurableSidecar, word: int
) -> None:
    """`word`: the last of its stores that happened; none of the words (0), the number's (1)."""
    words = memoryview(bytearray(16)).cast("Q")
    one, two = (DurableSidecar(sidecar.path, words=words) for _ in range(2))
    for seqno in range(1, 5):
        one.write(seqno)
    kept = bytes(words)
    one.write(5)
    words.cast("B")[:8] = kept[:8]
    if not word:
        words.cast("B")[8:] = kept[8:]
    two.write(6)
    assert sidecar.read() == 6
    one.write(7)
    assert sidecar.read() == 7
    one.close()
    two.close()


def test_a_failed_write_is_made_good_by_the_next_one_with_a_shared_counter(
    sidecar: DurableSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = memoryview(bytearray(16)).cast("Q")
    one = DurableSidecar(sidecar.path, words=words)
    one.write(5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "planted")))
        with pytest.raises(JournalIOError):
            one.write(6)
    assert sidecar.read() == 5
    one.write(7)
    assert sidecar.read() == 7
    one.close()


def test_a_half_written_slot_gives_the_number_before(sidecar: DurableSidecar) -> None:
    """A torn write can only hit the older slot."""
    for seqno in range(1, 40):
        before = Path(sidecar.path).read_bytes()
        sidecar.write(seqno)
        after = Path(sidecar.path).read_bytes()
        changed = [index for index in range(len(after)) if before[index] != after[index]]
        for cut in changed[1:]:
            Path(sidecar.path).write_bytes(after[:cut] + before[cut:])
            assert sidecar.read() in (seqno - 1, seqno)
            assert sidecar.read() == seqno - 1 or after[cut:] == before[cut:]
        Path(sidecar.path).write_bytes(after)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(junk=st.binary(max_size=64), at=st.sampled_from([0, 8, 500, 512, 520]))
def test_junk_is_never_a_number(sidecar: DurableSidecar, junk: bytes, at: int) -> None:
    sidecar.reset(100)
    sidecar.write(101)
    data = bytearray(Path(sidecar.path).read_bytes())
    data[at : at + len(junk)] = junk
    Path(sidecar.path).write_bytes(data)
    try:
        assert sidecar.read() in (100, 101)
    finally:
        os.unlink(sidecar.path)
        sidecar.close()
        DurableSidecar.create(sidecar.path)


def test_both_slots_gone_is_damage(sidecar: DurableSidecar) -> None:
    for content in (bytes(1024), b"", b"x" * 1024):
        Path(sidecar.path).write_bytes(content)
        with pytest.raises(JournalDamagedError):
            sidecar.read()


def test_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalMissingError):
        DurableSidecar(tmp_path / "durable").write(1)


def test_failures(sidecar: DurableSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar.write(4)

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(DiskFullError):
        sidecar.write(5)
    with pytest.raises(DiskFullError):
        DurableSidecar.create(sidecar.path)
    monkeypatch.undo()
    assert sidecar.read() == 4
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(JournalIOError, match="fsync"):
        sidecar.sync()
