"""How a secondary that is far behind is brought up to date soonest: by the live stream, or by a replay. Pure.

Guarantees: `ways` is an estimate of each way's time from a backlog's size; `quickest` says that another way than the
stream is worth it only where it is at least twice as quick, and the stream would take WORTH_S or longer: daemons are
stopped for it, and a row that is changed once only gains nothing. A rate that was measured here counts more than ours.
Refuses to know: where the numbers come from, and the words of the finding (status/report.py).

Costs are what tests/benchmarks/bench_replay.py gives (`--table`; README, "How fast it is" says on which machine):
updates of rows of 100 bytes in random order, ten to a transaction, each key changed ten times on the average. They are
CPU time of one core; the way to compute them anew is to run that benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Way = Literal["live", "local", "spark"]

LIVE_CHANGE_US: Final = 8.0
"""Of the Update Process, which is what a stream waits for when it catches up; rows come in random order."""
LOCAL_CHANGE_US: Final = 4.8
"""A replay with --engine local: a change read, verified and folded, and its share of a row that is applied."""
HERE_CHANGE_US: Final = 2.5
"""A replay with --engine spark, in its own process: read, verified, copied, and the share of applying. One core."""
SPARK_CHANGE_US: Final = 3.0
"""The same in Spark: the net change found and staged. As many cores as there are."""
SPARK_START_S: Final = 12.0
"""Java, its session, and code that is not compiled yet."""
CHANGE_BYTES: Final = 130
"""Of journal for a change of the benchmark: a backlog's bytes say how many changes it holds, if more than one each."""
WORTH_S: Final = 120.0
"""A stream that needs less than this is left alone."""
TIMES_QUICKER: Final = 2.0
"""A replay that is not so much quicker than the stream is not worth stopping it."""
SPARK_TIMES_QUICKER: Final = 1.25
"""Nor is Spark, with Java and an archive, without this much over the local engine."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Seconds that each way would take, about."""

    live_s: float
    local_s: float
    spark_s: float

    def of(self, way: Way) -> float:
        """Of one way."""
        return {"live": self.live_s, "local": self.local_s, "spark": self.spark_s}[way]


def ways(transactions: int, journal_bytes: int, *, live_per_s: float | None, cores: int) -> Ways:
    """The time of each way for a backlog of so many transactions and (about) bytes of journal.

    `live_per_s`: transactions a second that the Update Process has applied lately while it was behind; None: unknown.
    `cores`: of the machine that would replay.
    """
    changes = max(transactions, journal_bytes // CHANGE_BYTES)
    live_s = transactions / live_per_s if live_per_s else changes * LIVE_CHANGE_US / 1e6
    spark_us = HERE_CHANGE_US + SPARK_CHANGE_US / max(1, cores)
    return Ways(live_s, changes * LOCAL_CHANGE_US / 1e6, SPARK_START_S + changes * spark_us / 1e6)


def quickest(found: Ways, *, has_archive: bool) -> Way:
    """The way to recommend. `has_archive`: only then has Spark its rows as it wants them."""
    if found.live_s < WORTH_S:
        return "live"
    replay: Way = "local"
    if has_archive and found.spark_s * SPARK_TIMES_QUICKER <= found.local_s:
        replay = "spark"
    return replay if found.of(replay) * TIMES_QUICKER <= found.live_s else "live"
