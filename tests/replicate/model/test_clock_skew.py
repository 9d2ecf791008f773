"""Another host's clock, by its heartbeats; and our own, by all of theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.model.clock_skew import HEARD_NS, LEAST, SKEW_S, WORDS, PeerClock, csn_end, latest_beyond_ns
from replicate.model.moment import wall_us

S = 1_000_000_000
WALL = 1_700_000_000 * S
BOOTED = 5_000 * S
"""Our monotonic clock when our wall clock says WALL."""
DAY_S = 86_400.0


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0, 30), min_size=WORDS, max_size=3 * WORDS))
def test_what_is_late_on_its_way_does_not_count(ahead_s: float, late_s: list[float]) -> None:
    """One of the last few words that came at once is enough."""
    clock = PeerClock()
    late_s[-1 - int(len(late_s) / 4) % WORDS] = 0.0
    for number, late in enumerate(late_s):
        clock.heard(WALL + number * S + int(ahead_s * S), BOOTED + number * S + int(late * S))
    passed = 100 * S
    assert clock.ahead_s(WALL + passed, BOOTED + passed) == (round(ahead_s) if abs(ahead_s) >= SKEW_S else 0)


def test_few_words_say_nothing() -> None:
    clock = PeerClock()
    for _ in range(LEAST - 1):
        clock.heard(WALL + 50 * S, BOOTED)
    assert (clock.beyond_ns, clock.ahead_s(WALL, BOOTED)) == (None, 0)
    clock.heard(WALL + 50 * S, BOOTED)
    assert clock.ahead_s(WALL, BOOTED) == 50


@pytest.mark.parametrize("count", [0, WORDS])
def test_a_clock_that_is_set_right_is_right_soon(count: int) -> None:
    clock = PeerClock()
    for ahead in [90] * WORDS + [0] * count:
        clock.heard(WALL + ahead * S, BOOTED)
    assert clock.ahead_s(WALL, BOOTED) == (0 if count else 90)


def test_a_clock_of_ours_that_is_set_shows_at_once() -> None:
    clock = known(0)
    assert clock.ahead_s(WALL + 3600 * S, BOOTED) == -3600


def test_one_that_says_no_time_has_none() -> None:
    clock = PeerClock()
    for _ in range(WORDS):
        clock.heard(0, BOOTED)
    assert clock.ahead_s(WALL, BOOTED) == 0


def known(ahead_s: int) -> PeerClock:
    """One that is so far ahead of WALL."""
    clock = PeerClock()
    for _ in range(LEAST):
        clock.heard(WALL + ahead_s * S, BOOTED)
    return clock


def test_the_latest_of_those_that_are_known_counts() -> None:
    assert latest_beyond_ns([PeerClock()]) is latest_beyond_ns([]) is None
    assert latest_beyond_ns([known(-90), PeerClock(), known(5)]) == known(5).beyond_ns
    assert latest_beyond_ns([known(5)]) == known(5).beyond_ns


def test_one_that_says_1970_gives_a_number_that_a_word_can_hold() -> None:
    clock = PeerClock()
    for second in range(LEAST):
        clock.heard(1 + second * S, BOOTED)
    assert latest_beyond_ns([clock]) == 0
    assert latest_beyond_ns([clock, known(5)]) == known(5).beyond_ns


@given(st.lists(st.integers(-200_000, 200_000), min_size=1, max_size=4), st.integers(-200_000, 200_000))
def test_nothing_is_written_by_a_clock_that_is_ahead_of_every_other_by_more_than_the_limit(
    others_s: list[int], own_s: int
) -> None:
    beyond_ns = latest_beyond_ns(map(known, others_s))
    assert beyond_ns is not None
    end = csn_end(beyond_ns, BOOTED, WALL + own_s * S, BOOTED, DAY_S)
    assert bool(end) == all(own_s - other > DAY_S for other in others_s)
    if end:
        assert wall_us(end) == WALL // 1000 + (max(others_s) + int(DAY_S)) * 1_000_000


@pytest.mark.parametrize(
    ("heard_ns", "later_ns", "is_believed"), [(BOOTED, HEARD_NS, True), (BOOTED, HEARD_NS + 1, False), (0, 0, False)]
)
def test_what_was_heard_long_ago_stops_nobody(heard_ns: int, later_ns: int, is_believed: bool) -> None:
    beyond_ns = known(0).beyond_ns
    assert beyond_ns is not None
    end = csn_end(beyond_ns, heard_ns, WALL + later_ns + 2 * int(DAY_S) * S, BOOTED + later_ns, DAY_S)
    assert bool(end) == is_believed
