"""Stretches of memory that others have, too: what comes out is what was taken, or an error."""

from __future__ import annotations

import random

import pytest

from replicate.errors import DamagedError
from update_process.batch.pool_frames import PoolFrames


def taken(memory: bytearray, seed: int) -> tuple[PoolFrames, bytes, list[int]]:
    """Some stretches of it, in any order; their bytes, and where each of these lies."""
    dice = random.Random(seed)
    spans, data, places = PoolFrames(memoryview(memory)), b"", []
    for _ in range(dice.randint(1, 20)):
        begin = dice.randrange(len(memory))
        middle = dice.randint(begin, len(memory))
        end = dice.randint(middle, len(memory))
        for piece in ((begin, middle), (middle, end)) if dice.random() < 0.5 else ((begin, end),):
            spans.take(piece[0], memoryview(bytes(memory[piece[0] : piece[1]])))
        data += memory[begin:end]
        places += range(begin, end)
    return spans, data, places


@pytest.mark.parametrize("seed", range(20))
def test_what_was_taken_comes_out_in_its_order(seed: int) -> None:
    memory = bytearray(random.Random(seed).randbytes(500))
    spans, data, _ = taken(memory, seed)
    for _ in range(2):
        assert b"".join(map(bytes, spans.verified())) == data


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_bit_is_noticed_and_no_memory_is_kept(seed: int) -> None:
    dice = random.Random(seed)
    memory = bytearray(dice.randbytes(500))
    spans, _, places = taken(memory, seed)
    memory[dice.choice(places or [0])] ^= 1 << dice.randrange(8)
    if places:
        with pytest.raises(DamagedError, match="has changed"):
            spans.verified()
    del spans
    memory.extend(b"x")  # nobody looks at it any more


def test_stretches_that_touch_are_one() -> None:
    memory = bytearray(b"abcdef")
    spans = PoolFrames(memoryview(memory))
    for place in range(6):
        spans.take(place, memoryview(memory)[place : place + 1])
    assert spans.count == 1
    assert b"".join(map(bytes, spans.verified())) == b"abcdef"
