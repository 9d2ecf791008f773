"""status/catching_up.py and the finding that follows from it: which way is quicker, at its borders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicate.status import catching_up
from replicate.status.catching_up import CHANGE_BYTES, Way, Ways, quickest, ways
from replicate.status.report import findings
from tests.replicate.status.test_collect import JOURNAL, PEER, RECEIVING, REGION

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("found", "has_archive", "expected"),
    [
        (Ways(119.9, 1.0, 1.0), True, "live"),  # whatever replays would take: it is not worth stopping daemons
        (Ways(120.0, 60.0, 60.0), True, "local"),
        (Ways(120.0, 60.1, 60.0), True, "live"),  # Spark is no quarter quicker, and the local engine not twice
        (Ways(120.0, 60.0, 48.0), True, "spark"),
        (Ways(120.0, 60.0, 48.1), True, "local"),
        (Ways(120.0, 60.0, 48.0), False, "local"),
        (Ways(120.0, 119.0, 59.0), True, "spark"),
        (Ways(120.0, 119.0, 59.0), False, "live"),
    ],
)
def test_the_borders(found: Ways, has_archive: bool, expected: Way) -> None:
    assert quickest(found, has_archive=has_archive) == expected


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


def test_cores_are_sparks_and_a_small_backlog_never_pays_its_start() -> None:
    few, many = (ways(100 * MILLION, 0, live_per_s=None, cores=cores) for cores in (1, 64))
    assert (few.live_s, few.local_s) == (many.live_s, many.local_s)
    assert many.spark_s < few.spark_s
    assert few.spark_s > few.local_s
    assert quickest(few, has_archive=True) != "spark"
    small = ways(1000, 0, live_per_s=None, cores=64)
    assert small.spark_s > catching_up.SPARK_START_S > small.live_s
    assert quickest(small, has_archive=True) == "live"


def test_status_names_the_command_on_either_site() -> None:
    # 500,000 transactions at 100 a second: 83 minutes. A replay: seconds.
    behind = replace(RECEIVING, backlog=500_000, applied_per_s=100.0)
    (found,) = findings("secondary", JOURNAL, (REGION,), (), behind)
    assert (found.code, found.severity, found.subject) == ("REPLAY_IS_QUICKER", "info", "")
    assert "this secondary is 500000 transactions behind: the stream would take about 83 min, a replay" in found.text
    assert found.do.endswith("replicate replay --journal PRIMARY --engine local")
    assert "replicate receiver stop; replicate update stop" in found.do

    # The average length here tells of ten times as many changes.
    full = replace(
        JOURNAL, archive="/srv/archive", archive_lag_bytes=2**40, last_written_seqno=10 * MILLION,
        bytes=10 * MILLION * 10 * CHANGE_BYTES,
    )  # fmt: skip
    assert not findings(
        "primary", full, (REGION,), (replace(PEER, backlog=1000, last_durable_seqno=9 * MILLION),), None
    )
    west = replace(PEER, backlog=9 * MILLION, last_durable_seqno=MILLION)
    (found,) = findings("primary", full, (REGION,), (west,), None, cores=64)
    assert (found.code, found.subject) == ("REPLAY_IS_QUICKER", "west")
    assert found.do.startswith("there: ")
    assert "--journal /srv/archive --engine spark" in found.do
    assert not findings("primary", full, (REGION,), (replace(west, backlog=None),), None)
    assert [one.code for one in findings("primary", full, (REGION,), (replace(west, needs_seed=True),), None)] == [
        "PEER_DROPPED"
    ]
