"""Seed in, disaster out: a random life of two sites, with every fault of the line at once; then peace, and equality."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicate.wire.event import CloseReason
from tests.harness.link_pair import Journal, LinkedSites, Pipe


def bad_pipe(dice: random.Random) -> Pipe:
    """A line with a few of: delay, little bandwidth, odd packets, deafness, frames lost, doubled or damaged."""
    pipe = Pipe()
    if dice.random() < 0.4:
        pipe.delay_s = dice.choice([0.01, 0.2, 2.0])
    if dice.random() < 0.2:
        pipe.bytes_per_s = dice.choice([2000, 50_000])
    if dice.random() < 0.3:
        size = dice.choice([1, 13, 1400])
        pipe.cut = lambda data: [data[i : i + size] for i in range(0, len(data), size)]
    pipe.is_deaf = dice.random() < 0.1
    trouble = dice.choice([None, None, "lose", "double", "damage"])
    if trouble is not None:
        pipe.mangle = lambda frame: mangled(frame, trouble, dice)
    return pipe


def mangled(frame: bytes, trouble: str, dice: random.Random) -> list[bytes]:
    if dice.random() > 0.1:
        return [frame]
    if trouble == "lose":
        return []
    if trouble == "damage":
        index = dice.randrange(len(frame))
        return [frame[:index] + bytes([frame[index] ^ (1 << dice.randrange(8))]) + frame[index + 1 :]]
    return [frame, frame]


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_whatever_the_line_does_the_secondary_holds_a_true_prefix(seed: int) -> None:
    """I1, I2, I6, I7."""
    dice = random.Random(seed)
    journal = Journal(large=dice.sample(range(1, 80), dice.randrange(4)), parts=dice.choice([1, 4, 9]))
    journal.write(dice.randrange(30))
    made = LinkedSites(journal, batch=dice.choice([1, 3, 20]), parts=dice.choice([1, 2, 5]))
    for _ in range(dice.randrange(1, 6)):
        made.cut()
        made.connect(there=bad_pipe(dice), back=bad_pipe(dice))
        made.applying = dice.random() < 0.8
        for _ in range(dice.randrange(1, 4)):
            journal.write(dice.randrange(20))
            made.run(dice.choice([0.05, 1.0, 30.0, 200.0]))
            assert made.received == journal.frames[: len(made.received)]
            assert made.acknowledged_seqno <= made.applied_seqno <= len(made.received)
    made.cut()
    made.applying = True
    made.connect()
    made.run(5)
    assert made.received == journal.frames
    assert made.parts_of == journal.parts
    assert made.acknowledged_seqno == journal.last_seqno
    # Nothing of this is ever a reason to give up for good.
    reasons = [end.error.facts.get("reason") for end in made.ends if end.error is not None]
    assert not {"DIVERGED", "SECONDARY_AHEAD", "ROLLBACK_FIRST", "JOURNAL_MISSING", "INTERNAL"} & set(reasons)
    assert {end.reason for end in made.ends} <= set(CloseReason)
