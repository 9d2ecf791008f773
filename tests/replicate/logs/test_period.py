"""logs/period.py: periods put together hold what the lines said, in any order and of any length."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from replicate.logs.period import WIDTHS_MS, PeriodRow, Periods, fitting_width_us, next_width_us, row_of
from tests.harness.logs import RECEIVER, SOURCE, line

ROWS = st.builds(
    PeriodRow,
    lines=st.just(1),
    transactions=st.integers(0, 1000),
    seconds=st.integers(0, 100).map(float),
    backlog=st.none() | st.integers(0, 50).map(float),
    lag_s=st.none() | st.integers(0, 50).map(float),
    is_at_least=st.booleans(),
    cuts=st.integers(0, 3),
    last_seqno=st.integers(0, 99),
)


def test_the_widths_go_into_each_other() -> None:
    for shorter, longer in pairwise(WIDTHS_MS):
        assert longer % shorter == 0
        assert next_width_us(shorter * 1000) == longer * 1000


@given(st.lists(st.tuples(st.integers(0, 10**13), ROWS), max_size=30), st.permutations(range(30)), st.integers(1, 5))
def test_however_they_are_put_together(found: list[tuple[int, PeriodRow]], order: list[int], times: int) -> None:
    def put(rows: list[tuple[int, PeriodRow]], *, early: bool) -> Periods:
        periods = Periods()
        widths = [ms * 1000 for ms in WIDTHS_MS[1 : times + 1]]
        for number, (at_us, row) in enumerate(rows):
            copy = PeriodRow()
            copy.add(row)
            periods.add(at_us, copy)
            if early and number < len(widths):
                periods.widen(widths[number])
        for width in widths:
            if width > periods.width_us:
                periods.widen(width)
        return periods

    rest = [found[place] for place in order if place < len(found)]
    one, other = put(found, early=False), put(rest, early=True)
    assert one.rows == other.rows
    assert sum(row.transactions for row in one.rows.values()) == sum(row.transactions for _, row in found)
    known = [row.lag_s for _, row in found if row.lag_s is not None]
    assert max((row.lag_s for row in one.rows.values() if row.lag_s is not None), default=None) == max(
        known, default=None
    )


@given(st.sets(st.integers(0, 10**15), max_size=50), st.integers(1, 10))
def test_a_width_by_which_there_are_few(moments: set[int], most: int) -> None:
    width_us = fitting_width_us(moments, 100_000, most)
    assert len({at_us // width_us for at_us in moments}) <= most


def test_what_a_line_says() -> None:
    row = row_of(line(0, SOURCE, "statistics", transactions=30, period_s=10.0, lag_s_max=2.5, lag_s=0.1, backlog_max=9,
                      cuts=1, cut_s=3.5, xoff=2, paused_s=1.0, last_acknowledged_seqno=8, current_seqno=9))  # fmt: skip
    assert (row.per_s, row.lag_s, row.backlog, row.is_at_least) == (3.0, 2.5, 9, False)
    assert (row.cuts, row.cut_s, row.pauses, row.paused_s, row.last_acknowledged_seqno) == (1, 3.5, 2, 1.0, 8)


def test_what_was_not_known_is_at_least_and_an_old_line_says_what_it_does() -> None:
    row = row_of(line(0, RECEIVER, "statistics", backlog_max=None, backlog_at_least_max=7, lag_s=None, lag_s_max=60.0))
    assert (row.backlog, row.lag_s, row.is_at_least, row.per_s) == (7, 60.0, True, None)
    row = row_of(line(0, RECEIVER, "statistics", backlog=5, lag_s=1.0))
    assert (row.backlog, row.lag_s, row.is_at_least) == (5, 1.0, False)
    assert row_of(line(0, RECEIVER, "statistics")).backlog is None
