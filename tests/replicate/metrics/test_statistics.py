"""metrics/statistics.py: nothing counted is lost, and rates are over the time that passed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.metrics.statistics import BusyRate, Lag, Statistics, was_there_ns


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


SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS


class Site:
    """A source's look at its journal, as the Source Server makes it, under a wall clock that can be set."""

    def __init__(self) -> None:
        self.lag = Lag()
        self.now_ns, self.wall_ns = 5 * SECOND_NS, 1_700_000_000 * SECOND_NS
        self.committed: dict[int, int] = {}

    def commit(self, seqno: int) -> None:
        self.committed[seqno] = self.wall_ns

    def look(self) -> None:
        newest = max(self.committed)
        self.sent(newest)
        self.lag.looked(newest, self.now_ns)

    def sent(self, seqno: int) -> None:
        """A batch that begins with it goes out: its own time counts."""
        self.lag.observed(seqno, was_there_ns(self.committed[seqno], self.wall_ns, self.now_ns))

    def wait(self, seconds: float, *, clock_is_set_by_h: int = 0) -> None:
        self.now_ns += int(seconds * SECOND_NS)
        self.wall_ns += int(seconds * SECOND_NS) + clock_is_set_by_h * HOUR_NS

    def told(self, applied: int) -> float:
        return self.lag.seconds(applied, self.now_ns)


@pytest.mark.parametrize("hours", [-2, 24])
def test_a_wall_clock_that_is_set_moves_no_lag(hours: int) -> None:
    site = Site()
    site.commit(1)
    site.look()
    site.wait(10)
    site.commit(2)
    site.look()
    site.wait(1, clock_is_set_by_h=hours)
    assert site.told(0) == 11.0
    assert site.told(1) == 1.0
    site.commit(3)
    site.look()
    site.wait(4, clock_is_set_by_h=-hours)
    assert (site.told(1), site.told(2), site.told(3)) == (5.0, 4.0, 0.0)


def test_lag_goes_on_when_the_clock_is_a_day_ahead_of_itself() -> None:
    """It was set ahead and back: commits of between have times that are to come."""
    site = Site()
    site.wait(0, clock_is_set_by_h=24)
    site.commit(1)
    site.wait(0, clock_is_set_by_h=-24)
    site.sent(1)
    site.look()
    assert site.told(0) == 0.001
    site.wait(3)
    site.commit(2)
    site.look()
    site.wait(3)
    assert (site.told(0), site.told(1), site.told(2)) == (6.0, 3.0, 0.0)


def test_what_was_not_there_at_the_last_look_is_no_older_whatever_the_clock_says() -> None:
    site = Site()
    site.commit(1)
    site.look()
    site.wait(100)
    site.look()
    site.wait(1)
    site.commit(2)
    site.wait(2, clock_is_set_by_h=24)
    site.sent(2)
    assert site.told(1) == 3.0


def test_lag_keeps_few_samples_and_stays_near_the_truth() -> None:
    lag = Lag()
    for number in range(1, 20_000):
        lag.observed(number, number * 1_000_000_000)
    assert len(lag._samples) <= Lag.SAMPLES_MAX
    assert lag.seconds(0, 20_000 * 1_000_000_000) == 19_999.0


def test_a_rate_is_of_time_without_a_pause() -> None:
    """An idle night, a burst in it, and what a barrier let pass are none."""
    rate = BusyRate()
    now_s = 0.0
    for _ in range(3600):
        now_s += 10.0
        rate.worked(now_s, 5, has_more=False)
        assert rate.per_s is None
    rate.worked(now_s + 1.0, 70_000, has_more=True)  # who knows since when it was there
    rate.worked(now_s + 10.9, 9_900, has_more=True)
    assert rate.per_s is None
    rate.worked(now_s + 11.0, 100, has_more=True)
    assert rate.per_s == 1000.0
    rate.worked(now_s + 20.0, 90, has_more=True)
    assert rate.per_s == 1000.0
    rate.worked(now_s + 31.0, 110, has_more=True)
    assert rate.per_s == 10.0
    rate.worked(now_s + 31.1, 4, has_more=False)  # a barrier
    assert rate.per_s is None
    rate.worked(now_s + 500.0, 1, has_more=True)
    rate.worked(now_s + 509.9, 1, has_more=True)
    assert rate.per_s is None
    rate.worked(now_s + 510.0, 3, has_more=True)
    assert rate.per_s == 0.4
