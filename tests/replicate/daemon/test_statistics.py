"""daemon/statistics.py: nothing counted is lost, and rates are over the time that passed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicate.daemon.statistics import BusyRate, Lag, Statistics, was_there_ns


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


def test_an_outage_leaves_its_trace_in_the_line_of_its_period_though_all_is_well_at_the_end() -> None:
    """Two minutes of five; and the next line knows nothing of it any more."""
    statistics = Statistics(300.0, 0.0)

    def sample(now_s: float, lag_s: float, backlog: int | None, *, cut: bool = False) -> None:
        statistics.sample(now_s, peaks={"lag_s": lag_s, "backlog": backlog}, lasting={"cut_s": cut, "paused_s": False})

    sample(0.0, 0.0, 0)
    for second in range(60, 180):
        sample(float(second), second - 60.0, 10 * second, cut=True)
    sample(180.0, 0.0, 0)
    sample(299.0, 0.1, 3)
    found = statistics.report(300.0, 1).fields()
    assert (found["lag_s_max"], found["backlog_max"], found["cut_s"], found["paused_s"]) == (119.0, 1790, 120.0, 0.0)
    sample(300.5, 0.5, 1)
    sample(301.5, 0.6, None)
    sample(302.5, 0.7, 2)
    found = statistics.report(600.0, 1).fields()
    assert (found["lag_s_max"], found["backlog_max"], found["cut_s"]) == (0.7, None, 0.0), "nobody knew it for a while"
    sample(600.5, 0.5, 3)
    assert statistics.report(900.0, 1).fields()["backlog_max"] == 3
    assert statistics.report(1200.0, 1).fields()["backlog_max"] is None, "nobody has looked"


def test_what_lasts_over_the_end_of_a_period_is_shared_by_both() -> None:
    statistics = Statistics(10.0, 0.0)
    lasted = []
    for now_s in (4.0, 10.0, 15.0, 20.0):
        statistics.sample(now_s, peaks={}, lasting={"cut_s": now_s < 15.0})
        if now_s in (10.0, 20.0):
            lasted.append(statistics.report(now_s, 0).fields()["cut_s"])
    assert lasted == [6.0, 5.0]


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


def check_lag(lag: Lag, first_ns: dict[int, int], applied: int, now_ns: int) -> None:
    """Against all that was observed: `first_ns` has since when each number is known to be there, rising."""
    told_s = lag.seconds(applied, now_ns)
    truth_s = next(((now_ns - at_ns) / 1e9 for seqno, at_ns in first_ns.items() if seqno > applied), 0.0)
    assert told_s <= truth_s + 0.001001  # rounded up to milliseconds
    assert truth_s <= told_s * (1 + Lag.PART) + Lag.RESOLUTION_NS / 1e9
    assert (told_s > 0) == (applied < lag.newest_seqno)


@pytest.mark.parametrize("period_ns", [1_000, 2_500_000, SECOND_NS, HOUR_NS])
def test_lag_keeps_few_samples_and_stays_near_the_truth(period_ns: int) -> None:
    """Nothing is applied, and samples come at any rate, far more of them than are kept."""
    lag, first_ns = Lag(), {}
    for seqno in range(1, 40_001):
        first_ns[seqno] = seqno * period_ns
        lag.observed(seqno, first_ns[seqno])
        if seqno % 5_000 == 0:
            check_lag(lag, first_ns, 0, first_ns[seqno])
            assert len(lag._samples) <= Lag.SAMPLES_MAX
    for applied in range(0, 40_001, 4_000):  # and all along the way, when it is applied at last
        check_lag(lag, first_ns, applied, 40_000 * period_ns)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 3 * SECOND_NS), st.integers(1, 3_000), st.integers(0, 2_500), st.integers(0, HOUR_NS)),
        min_size=2,
        max_size=8,
    )
)
def test_lag_at_any_rate_is_that_of_all_samples(runs: list[tuple[int, int, int, int]]) -> None:
    """Runs of samples at a rate of their own, some of them applied after each, and a pause."""
    lag, first_ns = Lag(), {}
    seqno = applied = now_ns = 0
    for period_ns, number, done, pause_ns in runs:
        for _ in range(number):
            seqno, now_ns = seqno + 1, now_ns + period_ns
            first_ns[seqno] = now_ns
            lag.observed(seqno, now_ns)
        applied = min(seqno, applied + done)
        now_ns += pause_ns
        check_lag(lag, first_ns, applied, now_ns)
        assert len(lag._samples) <= Lag.SAMPLES_MAX


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
