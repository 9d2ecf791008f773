"""status/catching_up.py and the finding that follows from it: which way is quicker, at its borders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicate.status import catching_up
from replicate.status.catching_up import CHANGE_BYTES, Took, Way, Ways, quickest, ways
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


def test_the_stream_takes_what_was_measured() -> None:
    found = ways(10 * MILLION, 0, live_per_s=20_000.0, cores=2)
    assert found.of("live") == found.live_s == 500.0
    assert found.of("local") == found.local_s == pytest.approx(10 * catching_up.LOCAL_CHANGE_US)
    spark_us = catching_up.HERE_CHANGE_US + catching_up.SPARK_CHANGE_US / 2
    assert found.of("spark") == found.spark_s == pytest.approx(catching_up.SPARK_START_S + 10 * spark_us)
    assert found.measured == ()


def test_a_replay_takes_what_the_last_one_here_took() -> None:
    took: dict[Way, Took] = {"local": Took(200_000, 2.0)}
    found = ways(10 * MILLION, 0, live_per_s=20_000.0, cores=2, took=took)
    assert found == replace(ways(10 * MILLION, 0, live_per_s=20_000.0, cores=2), local_s=100.0, measured=("local",))
    took["spark"] = Took(4 * MILLION, 8.0, 30.0)
    for cores in (1, 64):  # it had as many as it had
        assert ways(10 * MILLION, 0, live_per_s=20_000.0, cores=cores, took=took).spark_s == 50.0
    assert quickest(ways(10 * MILLION, 0, live_per_s=20_000.0, cores=2, took=took)) == "spark"
    assert quickest(ways(10 * MILLION, 0, live_per_s=100_000.0, cores=2, took=took)) == "live"


def test_bytes_say_how_many_changes_a_transaction_has() -> None:
    one = ways(MILLION, MILLION * CHANGE_BYTES, live_per_s=1.0, cores=1)
    assert one == ways(MILLION, 0, live_per_s=1.0, cores=1)
    ten = ways(MILLION, 10 * MILLION * CHANGE_BYTES, live_per_s=1.0, cores=1)
    assert ten == replace(ways(10 * MILLION, 0, live_per_s=1.0, cores=1), live_s=MILLION)


def test_cores_are_sparks_and_its_start_is_not_paid_by_little() -> None:
    few, many = (ways(100 * MILLION, 0, live_per_s=10_000.0, cores=cores) for cores in (1, 64))
    assert (few.live_s, few.local_s) == (many.live_s, many.local_s)
    assert few.spark_s > many.spark_s
    small = ways(200_000, 0, live_per_s=1000.0, cores=64)
    assert small.live_s == 200.0
    assert small.spark_s > catching_up.SPARK_START_S > small.local_s
    assert quickest(small) == "local"


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_nothing_is_recommended_where_nobody_knows_how_quick_the_stream_is(cores: int) -> None:
    took: dict[Way, Took] = {"local": Took(MILLION, 0.1), "spark": Took(MILLION, 0.1)}
    for rate in (None, 0.0):
        behind = replace(RECEIVING, backlog=1000 * MILLION, applied_per_s=rate)
        assert not findings("secondary", JOURNAL, (REGION,), (), behind, cores=cores, took=took)


def test_status_names_the_command_and_from_where_it_knows() -> None:
    # 500,000 transactions at 100 a second: 83 minutes. A replay: seconds.
    behind = replace(RECEIVING, backlog=500_000, applied_per_s=100.0)
    took: dict[Way, Took] = {"local": Took(100_000, 1.0)}
    (found,) = findings("secondary", JOURNAL, (REGION,), (), behind, took=took)
    assert (found.code, found.severity, found.subject) == ("REPLAY_IS_QUICKER", "info", "")
    assert found.text == (
        "this secondary is 500000 transactions behind: the stream would take about 83 min, a replay about 5 s (as the "
        "last one here has taken)"
    )
    assert found.do == (
        "replicate -i INSTANCE receiver stop; replicate -i INSTANCE update stop; "
        "replicate -i INSTANCE replay --journal PRIMARY --engine local"
    )
    (estimated,) = findings("secondary", JOURNAL, (REGION,), (), behind)
    assert estimated.text.endswith(" s (estimated from another machine)")
    for other in (replace(behind, backlog=None), replace(behind, backlog=11_999)):
        assert not findings("secondary", JOURNAL, (REGION,), (), other, took=took)


def test_the_average_length_here_tells_of_more_changes() -> None:
    """A million transactions of a hundred changes each, at 2000 a second: 500 seconds, and a replay no less."""
    wide = replace(JOURNAL, last_written_seqno=100_000, bytes=100_000 * 100 * CHANGE_BYTES)
    behind = replace(RECEIVING, backlog=MILLION, applied_per_s=2000.0)
    took: dict[Way, Took] = {"local": Took(MILLION, 5.0), "spark": Took(MILLION, 4.0, 10.0)}
    assert not findings("secondary", wide, (REGION,), (), behind, took=took)
    fewer = replace(wide, last_written_seqno=99_999)
    assert findings("secondary", fewer, (REGION,), (), behind, took=took)
    took["spark"] = Took(MILLION, 2.0, 10.0)
    (found,) = findings("secondary", wide, (REGION,), (), behind, took=took)
    assert found.do.endswith("replicate -i INSTANCE replay --journal ARCHIVE --journal PRIMARY --engine spark")
