"""status/catching_up.py and the finding that follows from it: which way is quicker, at its borders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicate.status import catching_up
from replicate.status.catching_up import CHANGE_BYTES, Way, Ways, quickest, ways
from replicate.status.report import findings
from tests.replicate.status.test_collect import JOURNAL, RECEIVING, REGION

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Ways(119.9, 1.0, 1.0), "live"),  # whatever replays would take: it is not worth stopping daemons
        (Ways(120.0, 60.0, 60.0), "local"),
        (Ways(120.0, 60.1, 60.0), "live"),  # Spark is no quarter quicker, and the local engine not twice
        (Ways(120.0, 60.0, 48.0), "spark"),
        (Ways(120.0, 60.0, 48.1), "local"),
        (Ways(120.0, 119.0, 60.0), "spark"),
        (Ways(120.0, 119.0, 60.1), "live"),
    ],
)
def test_the_borders(found: Ways, expected: Way) -> None:
    assert quickest(found) == expected


def test_a_measured_rate_counts_more_than_ours() -> None:
    ours = ways(10 * MILLION, 0, live_per_s=None, cores=2)
    assert ours.live_s == pytest.approx(10 * catching_up.LIVE_CHANGE_US)
    measured = ways(10 * MILLION, 0, live_per_s=20_000.0, cores=2)
    assert measured == replace(ours, live_s=500.0)
    assert measured.of("live") == 500.0
    assert (measured.of("local"), measured.of("spark")) == (ours.local_s, ours.spark_s)


def test_bytes_say_how_many_changes_a_transaction_has() -> None:
    one = ways(MILLION, MILLION * CHANGE_BYTES, live_per_s=None, cores=1)
    assert one == ways(MILLION, 0, live_per_s=None, cores=1)
    ten = ways(MILLION, 10 * MILLION * CHANGE_BYTES, live_per_s=None, cores=1)
    assert ten == ways(10 * MILLION, 0, live_per_s=None, cores=1)


def test_cores_are_sparks_and_its_start_is_not_paid_by_little() -> None:
    few, many = (ways(100 * MILLION, 0, live_per_s=10_000.0, cores=cores) for cores in (1, 64))
    assert (few.live_s, few.local_s) == (many.live_s, many.local_s)
    assert few.spark_s > few.local_s > many.spark_s
    assert (quickest(few), quickest(many)) == ("local", "spark")
    small = ways(200_000, 0, live_per_s=1000.0, cores=64)
    assert small.live_s == 200.0
    assert small.spark_s > catching_up.SPARK_START_S > small.local_s
    assert quickest(small) == "local"


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_nothing_is_recommended_by_our_own_rates_alone(cores: int) -> None:
    for transactions in (0, MILLION, 1000 * MILLION):
        assert quickest(ways(transactions, 0, live_per_s=None, cores=cores)) == "live"


def test_status_names_the_command() -> None:
    # 500,000 transactions at 100 a second: 83 minutes. A replay: seconds.
    behind = replace(RECEIVING, backlog=500_000, applied_per_s=100.0)
    (found,) = findings("secondary", JOURNAL, (REGION,), (), behind)
    assert (found.code, found.severity, found.subject) == ("REPLAY_IS_QUICKER", "info", "")
    assert found.text == (
        "this secondary is 500000 transactions behind: the stream would take about 83 min, a replay about 3 s"
    )
    assert found.do == (
        "replicate receiver stop; replicate update stop; replicate replay --journal PRIMARY --engine local"
    )
    for other in (replace(behind, applied_per_s=None), replace(behind, backlog=None), replace(behind, backlog=11_999)):
        assert not findings("secondary", JOURNAL, (REGION,), (), other)


def test_the_average_length_here_tells_of_more_changes() -> None:
    """A million transactions of a hundred changes each, at 2000 a second: 500 seconds, and 580 by a local replay."""
    wide = replace(JOURNAL, last_written_seqno=100_000, bytes=100_000 * 100 * CHANGE_BYTES)
    behind = replace(RECEIVING, backlog=MILLION, applied_per_s=2000.0)
    assert not findings("secondary", wide, (REGION,), (), behind, cores=2)
    assert findings("secondary", replace(wide, last_written_seqno=99_999), (REGION,), (), behind, cores=2)
    (found,) = findings("secondary", wide, (REGION,), (), replace(behind, applied_per_s=1000.0), cores=64)
    assert found.do.endswith("replicate replay --journal ARCHIVE --journal PRIMARY --engine spark")
