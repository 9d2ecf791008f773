"""contact.py: what is called known, for every combination of what may have been heard and when."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.model.contact import GRACE_LEAST_S, PERIOD_S_MAX, Known, Moment, known, patience_s

PERIOD_S = 15.0
AGES = (None, 0.0, 1.0, PERIOD_S, patience_s(PERIOD_S), patience_s(PERIOD_S) + 0.001, 57.0, 1e6)


@pytest.mark.parametrize(
    ("period_s", "limit_s"),
    [(0.05, 5.05), (1.0, 6.0), (9.0, 14.0), (15.0, 20.0), (60.0, 80.0), (3600.0, 4800.0), (1e12, 4800.0)],
)
def test_the_patience_is_one_heartbeat_and_a_grace(period_s: float, limit_s: float) -> None:
    assert patience_s(period_s) == pytest.approx(limit_s)
    assert patience_s(period_s) >= min(period_s, PERIOD_S_MAX) + GRACE_LEAST_S


def test_every_case() -> None:
    """Of 1,536: whether it is connected, both ages, and what was told."""
    lags = (None, 0.0, 2.5, 90.0)
    for is_connected, told_s, heard_s, backlog, lag_s in itertools.product(
        (True, False), AGES, AGES, (None, 0, 383), lags
    ):
        found = known(
            is_connected=is_connected, told_s=told_s, heard_s=heard_s, period_s=PERIOD_S, backlog=backlog, lag_s=lag_s
        )
        fresh = is_connected and told_s is not None and told_s <= 20.0
        assert found.is_known == fresh
        assert found.is_silent == (is_connected and heard_s is not None and heard_s > 20.0)
        assert found.backlog_at_least == backlog
        if fresh:
            assert (found.lag_s, found.lag_at_least_s, found.backlog) == (lag_s, lag_s, backlog)
            continue
        assert (found.lag_s, found.backlog) == (None, None)
        silent_s = told_s if told_s is None or heard_s is None else min(told_s, heard_s)
        assert found.lag_at_least_s == ((lag_s or None) if silent_s is None else max(silent_s, lag_s or 0.0))


def test_a_line_that_swallows_everything_makes_the_level_secondary_unknown() -> None:
    """The operator's case: all that was told of is applied, and nothing was told for 57 s."""
    found = known(is_connected=True, told_s=57.0, heard_s=57.0, period_s=15.0, backlog=0, lag_s=0.0)
    assert found == Known(False, True, None, 57.0, None, 0)


def test_a_long_batch_on_a_slow_line_is_no_silence_and_yet_nothing_is_known() -> None:
    found = known(is_connected=True, told_s=40.0, heard_s=0.2, period_s=15.0, backlog=7, lag_s=41.0)
    assert found == Known(False, False, None, 41.0, None, 7)


def test_a_line_cut_long_after_the_last_heartbeat_makes_the_lag_no_longer_than_the_cut() -> None:
    """A busy stream, cut 14 s after its heartbeat: what has come until then is as young as the cut."""
    found = known(is_connected=False, told_s=20.0, heard_s=6.0, period_s=15.0, backlog=0, lag_s=0.0)
    assert found == Known(False, False, None, 6.0, None, 0)


def test_what_was_told_before_the_stream_began_says_nothing_of_now() -> None:
    told = {"is_connected": True, "told_s": 3.0, "heard_s": 3.0, "period_s": 15.0, "backlog": 0, "lag_s": 0.0}
    assert known(**told, is_streaming=False) == Known(False, False, None, 3.0, None, 0)  # type: ignore[arg-type]


def test_an_idle_pair_whose_heartbeats_come_is_level() -> None:
    for age_s in (0.0, 7.0, 15.0, 19.9):
        found = known(is_connected=True, told_s=age_s, heard_s=age_s, period_s=15.0, backlog=0, lag_s=0.0)
        assert found == Known(True, False, 0.0, 0.0, 0, 0)


def test_a_wall_clock_that_is_set_moves_no_age_within_one_boot() -> None:
    then = Moment(1_000_000_000, 50_000_000_000, 7)
    for wall_ns in (0, 50_000_000_000, 9_999_000_000_000):
        assert Moment(55_000_000_000, wall_ns, 7).age_s(then) == 54.0
    assert Moment(900_000_000, 0, 7).age_s(then) == 0.0


def test_what_was_heard_before_this_boot_has_the_wall_clocks_age_and_is_older_than_the_boot() -> None:
    then = Moment(4_000_000_000_000, 50_000_000_000, 7)
    assert Moment(20_000_000_000, 350_000_000_000, 8).age_s(then) == 300.0
    assert Moment(20_000_000_000, 40_000_000_000, 8).age_s(then) == 20.0  # set back meanwhile


ages = st.none() | st.floats(0, 1e9)


@given(ages, ages, st.booleans(), st.floats(0.05, 3600), st.none() | st.integers(0, 2**63), ages)
def test_nothing_is_exact_that_was_not_confirmed_lately(
    told_s: float | None,
    heard_s: float | None,
    is_connected: bool,
    period_s: float,
    backlog: int | None,
    lag_s: float | None,
) -> None:
    found = known(
        is_connected=is_connected, told_s=told_s, heard_s=heard_s, period_s=period_s, backlog=backlog, lag_s=lag_s
    )
    if found.lag_s is not None or found.backlog is not None:
        assert is_connected
        assert told_s is not None
        assert told_s <= patience_s(period_s)
    elif told_s is not None and not found.is_known:
        assert found.lag_at_least_s is not None
        assert found.lag_at_least_s >= min(told_s, told_s if heard_s is None else heard_s)
