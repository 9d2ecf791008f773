"""Frames in several pieces: what is written is all of them in their order, or nothing that stays."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replicate.errors import DiskFullError
from replicate.journal import pieces as cutting
from replicate.journal.pieces import Pieces
from tests.harness.journals import ToyJournal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    made = ToyJournal(tmp_path)
    yield made
    made.close()


def cut(data: bytes, seed: int) -> list[memoryview]:
    """The bytes, each piece in memory of its own."""
    dice = random.Random(seed)
    views, at = [], 0
    while at < len(data):
        length = dice.choice([1, 7, 90, 400])
        views.append(memoryview(bytearray(data[at : at + length])))
        at += length
    return views


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("short_bytes", [1, 100, 1000])
def test_all_of_it_in_pieces_that_are_not_short(seed: int, short_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SHORT_BYTES", short_bytes)
    data = random.Random(seed).randbytes(random.Random(seed).randint(0, 5000))
    made = Pieces(cut(data, seed))
    assert len(made) == len(data)
    found = [bytes(piece) for piece in made]
    assert b"".join(found) == data
    assert all(len(piece) >= short_bytes for piece in found[:-1])
    assert b"".join(made) == data  # as often as one likes


def test_what_is_long_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SHORT_BYTES", 10)
    memory = bytearray(b"a" * 30)
    (piece,) = Pieces([memoryview(memory)])
    memory[0] = 0x62
    assert bytes(piece[:2]) == b"ba"


def test_memory_can_go_when_it_was_released() -> None:
    memory = bytearray(100)
    made = Pieces([memoryview(memory)[:50], memoryview(memory)[50:]])
    with pytest.raises(BufferError):
        memory.extend(b"x")
    made.release()
    made.release()
    memory.extend(b"x")


def short_writes(fail_at: int | None, real: Callable[..., int] = os.pwrite) -> Callable[..., int]:
    """A pwrite that writes 100 bytes at most, and has no space for the n-th write; zeros pass."""
    calls = 0

    def pwrite(fd: int, data: bytes | memoryview, offset: int) -> int:
        nonlocal calls
        if not any(bytes(data)):
            return real(fd, data, offset)
        calls += 1
        if calls == fail_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, bytes(data)[:100], offset)

    return pwrite


def test_a_segment_takes_pieces_as_if_they_were_one(journal: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SHORT_BYTES", 250)
    journal.write(3)
    segment, begin = journal.segment, journal.end_offset
    data = random.Random(1).randbytes(3000)
    monkeypatch.setattr(os, "pwrite", short_writes(None))
    assert segment.append(begin, Pieces(cut(data, 2))) == begin + 3000
    assert os.pread(segment.fd, 3000, begin) == data


@pytest.mark.parametrize("fail_at", [1, 2, 9, 30])
def test_a_full_disk_takes_all_pieces_back_and_keeps_no_memory(
    journal: ToyJournal, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    monkeypatch.setattr(cutting, "SHORT_BYTES", 250)
    journal.write(3)
    segment, begin = journal.segment, journal.end_offset
    memory = bytearray(random.Random(1).randbytes(3000))
    made = Pieces([memoryview(memory)[:1000], memoryview(memory)[1000:]])
    monkeypatch.setattr(os, "pwrite", short_writes(fail_at))
    with pytest.raises(DiskFullError) as caught:
        segment.append(begin, made)
    made.release()
    memory.extend(b"nobody looks at it any more")
    assert caught.value.__traceback__ is not None
    assert not segment.poisoned
    assert not any(os.pread(segment.fd, 3000, begin))
