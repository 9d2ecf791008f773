"""metrics/statistics.py: nothing counted is lost, and rates are over the time that passed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicate.metrics.statistics import Lag, Statistics


def test_one_event_per_period() -> None:
    statistics = Statistics(10.0, 100.0, seqno=5)
    assert statistics.deadline_s == 110.0
    statistics.batch(20, 3000)
    statistics.count("from_pool", 18)
    statistics.count("from_files", 2)
    assert statistics.total("from_pool") == 18
    report = statistics.report(114.0, 25)
    assert report.rate("transactions") == 20 / 14.0
    assert report.fields() == {
        "period_s": 14.0,
        "starting_seqno": 5,
        "current_seqno": 25,
        "transactions": 20,
        "transactions_total": 20,
        "transactions_per_s": 1.4,
        "bytes": 3000,
        "bytes_total": 3000,
        "bytes_per_s": 214.3,
        "from_pool": 18,
        "from_pool_total": 18,
        "from_pool_per_s": 1.3,
        "from_files": 2,
        "from_files_total": 2,
        "from_files_per_s": 0.1,
    }
    assert statistics.deadline_s == 124.0
    again = statistics.report(114.0, 25)
    assert (again.starting_seqno, again.counts["transactions"], again.totals["from_pool"]) == (25, 0, 18)
    assert again.rate("transactions") == 0.0


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "transactions"]), st.integers(0, 100), st.booleans())))
def test_reports_add_up_to_the_total(steps: list[tuple[str, int, bool]]) -> None:
    statistics = Statistics(1.0, 0.0)
    counted: dict[str, int] = {}
    reported: dict[str, int] = {}
    for now, (name, number, closes) in enumerate(steps):
        statistics.count(name, number)
        counted[name] = counted.get(name, 0) + number
        if closes:
            for key, value in statistics.report(float(now), now).counts.items():
                reported[key] = reported.get(key, 0) + value
    last = statistics.report(float(len(steps)), 0)
    for name, number in counted.items():
        assert reported.get(name, 0) + last.counts[name] == number == last.totals[name] == statistics.total(name)


def test_lag_is_the_age_of_the_oldest_that_is_not_applied() -> None:
    lag = Lag()
    assert lag.seconds(0, 5) == 0.0
    for number in range(1, 11):
        lag.observed(number * 100, number * 1_000_000_000)
        lag.observed(number * 100, 77_000_000_000)  # nothing new: the first time counts
    assert lag.seconds(0, 10_000_000_000) == 9.0
    assert lag.seconds(450, 10_000_000_000) == 5.0
    assert lag.seconds(450, 3_610_000_000_000) == 3605.0
    assert lag.seconds(1000, 3_610_000_000_000) == 0.0
    lag.observed(1001, 20_000_000_000)
    assert lag.seconds(1000, 19_000_000_000) == 0.0  # a clock that was set back
    assert lag.seconds(1000, 21_500_000_000) == 1.5


def test_lag_is_never_0_while_something_is_behind() -> None:
    """Not even when it was seen in this very moment of the sampling, and less than half a millisecond ago."""
    lag = Lag()
    lag.observed(7, 5_000_000_000)
    assert lag.seconds(6, 5_000_100_000) == 0.001
    assert lag.seconds(7, 5_000_100_000) == 0.0


def test_lag_knows_of_batches_between_two_samples() -> None:
    lag = Lag()
    lag.observed(100, 1_000_000_000)
    lag.observed(900, 2_000_000_000)  # a second later; the batches in between have passed meanwhile
    lag.observed(101, 1_200_000_000)
    lag.observed(500, 1_500_000_000)
    lag.observed(400, 1_900_000_000)  # told late: 500 was there before
    assert lag.seconds(100, 3_000_000_000) == 1.8
    assert lag.seconds(101, 3_000_000_000) == 1.5
    assert lag.seconds(450, 3_000_000_000) == 1.5
    assert lag.seconds(500, 3_000_000_000) == 1.0
    lag.observed(450, 1_000_000_000)  # of what is applied already
    assert lag.seconds(899, 3_000_000_000) == 1.0


def test_lag_keeps_few_samples_and_stays_near_the_truth() -> None:
    lag = Lag()
    for number in range(1, 20_000):
        lag.observed(number, number * 1_000_000_000)
    assert len(lag._samples) <= Lag.SAMPLES_MAX
    assert lag.seconds(0, 20_000 * 1_000_000_000) == 19_999.0
