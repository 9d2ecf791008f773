"""Frames in several pieces: what is written is all of them in their order, or nothing that stays."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from replicate.errors import DiskFullError
from replicate.journal import walk as cutting
from replicate.journal.walk import Pieces
from tests.harness.journals import ToyJournal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    made = ToyJournal(tmp_path)
    yield made
    made.close()


def cut(data: bytes, seed: int) -> Pieces:
    """The bytes, in stretches here and there in a memory."""
    dice = random.Random(seed)
    lengths: list[int] = []
    while sum(lengths) < len(data):
        lengths.append(min(dice.choice([1, 7, 90, 400]), len(data) - sum(lengths)))
    begins = [sum(lengths[:number]) for number in range(len(lengths))]
    memory = bytearray(2 * len(data) + 100 * len(lengths))
    places = [0] * len(lengths)
    end = 0
    for number in dice.sample(range(len(lengths)), len(lengths)):
        places[number] = end + dice.randint(0, 50)
        end = places[number] + lengths[number]
        memory[places[number] : end] = data[begins[number] : begins[number] + lengths[number]]
    return Pieces(memoryview(memory), places, lengths)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("short_bytes", [1, 100, 1000])
def test_all_of_it_in_pieces_that_are_not_short(seed: int, short_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SHORT_BYTES", short_bytes)
    data = random.Random(seed).randbytes(random.Random(seed).randint(0, 5000))
    made = cut(data, seed)
    assert len(made) == len(data)
    found = [bytes(piece) for piece in made]
    assert b"".join(found) == data
    assert all(len(one) + len(other) > short_bytes for one, other in pairwise(found))
    assert b"".join(map(bytes, made)) == data  # as often as one likes
    assert b"".join(map(bytes, made.stretches())) == data


def test_what_is_long_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SHORT_BYTES", 10)
    memory = bytearray(b"a" * 30)
    for piece in Pieces(memoryview(memory), [5], [25]):
        memory[5] = 0x62
        assert bytes(piece[:2]) == b"ba"


def test_no_memory_is_held_when_it_was_read_or_left() -> None:
    memory = bytearray(cutting.SHORT_BYTES * 2)
    with memoryview(memory) as view:
        made = Pieces(view, [0, 5], [cutting.SHORT_BYTES + 1, 10])
        assert [len(piece) for piece in made] == [cutting.SHORT_BYTES + 1, 10]
        for _ in made:
            break
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
    assert segment.append(begin, cut(data, 2)) == begin + 3000
    assert os.pread(segment.fd, 3000, begin) == data


@pytest.mark.parametrize("fail_at", [1, 2, 9, 30])
def test_a_full_disk_takes_all_pieces_back_and_keeps_no_memory(
    journal: ToyJournal, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    monkeypatch.setattr(cutting, "SHORT_BYTES", 250)
    journal.write(3)
    segment, begin = journal.segment, journal.end_offset
    memory = bytearray(random.Random(1).randbytes(3000))
    monkeypatch.setattr(os, "pwrite", short_writes(fail_at))
    with memoryview(memory) as view, pytest.raises(DiskFullError) as caught:
        segment.append(begin, Pieces(view, [0, 1000], [1000, 2000]))
    memory.extend(b"nobody looks at it any more")
    assert caught.value.__traceback__ is not None
    assert not segment.poisoned
    assert not any(os.pread(segment.fd, 3000, begin))
