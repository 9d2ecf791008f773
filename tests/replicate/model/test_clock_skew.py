"""Another host's clock, by its heartbeats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.model.clock_skew import LEAST, SKEW_S, WORDS, PeerClock

S = 1_000_000_000


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0, 30), min_size=WORDS, max_size=3 * WORDS))
def test_what_is_late_on_its_way_does_not_count(ahead_s: float, late_s: list[float]) -> None:
    """One of the last few words that came at once is enough."""
    clock, now = PeerClock(), 1_700_000_000 * S
    late_s[-1 - int(len(late_s) / 4) % WORDS] = 0.0
    for number, late in enumerate(late_s):
        sent = now + number * S
        clock.heard(sent + int(ahead_s * S), sent + int(late * S))
    assert clock.ahead_s == (round(ahead_s) if abs(ahead_s) >= SKEW_S else 0)


def test_few_words_say_nothing() -> None:
    clock = PeerClock()
    for _ in range(LEAST - 1):
        clock.heard(100 * S, 50 * S)
    assert clock.ahead_s == 0
    clock.heard(100 * S, 50 * S)
    assert clock.ahead_s == 50


@pytest.mark.parametrize("count", [0, WORDS])
def test_a_clock_that_is_set_right_is_right_soon(count: int) -> None:
    clock = PeerClock()
    for ahead in [90] * WORDS + [0] * count:
        clock.heard((1000 + ahead) * S, 1000 * S)
    assert clock.ahead_s == (0 if count else 90)


def test_one_that_says_no_time_has_none() -> None:
    clock = PeerClock()
    for _ in range(WORDS):
        clock.heard(0, 100 * S)
    assert clock.ahead_s == 0
