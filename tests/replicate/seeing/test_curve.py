"""seeing/curve.py: stretches and samples as columns, in bounded memory, and nothing where nothing is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from replicate.seeing.curve import NOT_KNOWN, SPANS_MAX, Curve, CurvePoint, CurveSpan, most_of


def values(points: tuple[CurvePoint, ...]) -> list[float | None]:
    return [point.value for point in points]


def test_a_stretch_fills_its_columns_and_no_others() -> None:
    curve = Curve()
    curve.tell(CurveSpan(20, 40, 7.0))
    assert values(curve.columns(0, 60, 6)) == [None, None, 7.0, 7.0, None, None]
    assert values(curve.columns(0, 60, 3)) == [None, 7.0, None]
    assert values(curve.columns(30, 31, 2)) == [7.0, 7.0]
    assert curve.columns(100, 200, 2) == (NOT_KNOWN, NOT_KNOWN)


def test_of_a_lag_a_column_has_the_most_and_of_a_rate_the_mean() -> None:
    lag, rate = Curve("most"), Curve("mean")
    for curve in (lag, rate):
        curve.tell(CurveSpan(0, 30, 10.0))
        curve.tell(CurveSpan(30, 40, 2.0))
    assert values(lag.columns(0, 40, 1)) == [10.0]
    assert values(rate.columns(0, 40, 1)) == [8.0]


def test_what_was_seen_counts_before_what_a_log_says_of_the_same_time() -> None:
    curve = Curve()
    curve.see(CurveSpan(10, 20, 1.0))
    curve.tell(CurveSpan(0, 30, 9.0))
    assert values(curve.columns(0, 30, 3)) == [9.0, 1.0, 9.0]


def test_or_more_stays_or_more() -> None:
    curve = Curve()
    curve.tell(CurveSpan(0, 10, 5.0, is_at_least=True))
    curve.tell(CurveSpan(10, 20, 3.0))
    assert [point.is_at_least for point in curve.columns(0, 20, 2)] == [True, False]
    assert curve.columns(0, 20, 1) == (CurvePoint(5.0, True),)


def test_a_clock_that_was_set_back_draws_nothing_twice() -> None:
    curve = Curve()
    curve.tell(CurveSpan(100, 200, 1.0))
    curve.tell(CurveSpan(50, 150, 9.0))
    curve.tell(CurveSpan(150, 250, 2.0))
    curve.tell(CurveSpan(250, 250, 2.0))
    assert [(span.from_us, span.until_us) for span in curve.past] == [(100, 200), (200, 250)]


def test_a_year_of_samples_takes_no_more_room_and_loses_no_peak() -> None:
    curve = Curve()
    for second in range(4 * SPANS_MAX):
        curve.see(CurveSpan(second, second + 1, 99.0 if second == 17 else 1.0))
    assert len(curve.seen) <= SPANS_MAX
    assert most_of(curve.columns(0, 4 * SPANS_MAX, 50)) == CurvePoint(99.0)
    assert None not in values(curve.columns(0, 4 * SPANS_MAX, 50))


def test_where_gaps_are_everywhere_the_oldest_go() -> None:
    curve = Curve()
    for second in range(4 * SPANS_MAX):
        curve.see(CurveSpan(2 * second, 2 * second + 1, 1.0))
    assert len(curve.seen) <= SPANS_MAX
    assert curve.seen[-1].from_us == 2 * (4 * SPANS_MAX - 1)


def test_the_newest_value_is_not_told_when_it_is_old() -> None:
    curve = Curve()
    assert curve.lately(5) == NOT_KNOWN
    curve.tell(CurveSpan(0, 100, 4.0))
    assert curve.lately(300) == CurvePoint(4.0)
    assert curve.lately(301) == NOT_KNOWN
    curve.see(CurveSpan(300, 301, 6.0))
    assert curve.lately(302) == CurvePoint(6.0)
    assert most_of([NOT_KNOWN]) == NOT_KNOWN


@given(some.lists(some.tuples(some.integers(0, 50), some.integers(0, 9), some.floats(0, 1e9)), max_size=40))
def test_a_mean_is_never_outside_of_what_it_is_of(found: list[tuple[int, int, float]]) -> None:
    curve, at = Curve("mean"), 0
    for gap, length, value in found:
        curve.see(CurveSpan(at + gap, at + gap + length, value))
        at += gap + length
    known = [value for _, length, value in found if length]
    for point in curve.columns(0, max(1, at), 7):
        if point.value is not None:
            assert min(known) * 0.999999 <= point.value <= max(known) * 1.000001
