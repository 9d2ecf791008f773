"""How a secondary that is far behind is brought up to date soonest: by the live stream, or by a replay. Pure.

Guarantees: `ways` is an estimate of each way's time from a backlog's size; `quickest` says that another way than the
stream is worth it only where it is at least twice as quick, and the stream would take WORTH_S or longer: daemons are
stopped for it, and a backlog that changes each row once only gains nothing. Our own rate for the stream is one of rows
that lie in memory, with which no replay competes: so a replay is recommended only where a slower rate was measured.
Refuses to know: where the numbers come from, and the words of the finding (status/report.py).

Costs are CPU time that tests/benchmarks/bench_replay.py has given, of updates of rows of 100 bytes in random order,
each row changed ten times on the average; commit 064cbaa, AMD EPYC, two cores, other work on them (load 17): what
counts is how they stand to one another. Run it (`--changes`, `--no-spark`, `--table`) to compute them anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Way = Literal["live", "local", "spark"]

LIVE_CHANGE_US: Final = 3.3
"""Of the Update Process, which is what a stream waits for when it catches up (`one_by_one`, 500,000 changes)."""
LOCAL_CHANGE_US: Final = 5.8
"""A replay with --engine local: a change read, verified, folded, its share of a row applied (`replay_local`)."""
HERE_CHANGE_US: Final = 2.6
"""A replay with --engine spark, in its own process, on one core: `replay_local` without the fold alone (3.2)."""
SPARK_CHANGE_US: Final = 6.5
"""The same in Spark, on as many cores as there are: the net change found and staged (`net_spark`, warm, 1 million)."""
SPARK_START_S: Final = 20.0
"""Java, its session, and code that is not compiled yet (`net_spark`, cold less warm)."""
CHANGE_BYTES: Final = 130
"""Of journal for a change of the benchmark: a backlog's bytes say how many changes it holds, if more than one each."""
WORTH_S: Final = 120.0
"""A stream that needs less than this is left alone."""
TIMES_QUICKER: Final = 2.0
"""A replay that is not so much quicker than the stream is not worth stopping it."""
SPARK_TIMES_QUICKER: Final = 1.25
"""Nor is Spark, which needs Java and an archive, without this much over the local engine."""


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


def quickest(found: Ways) -> Way:
    """The way to recommend."""
    if found.live_s < WORTH_S:
        return "live"
    replay: Way = "spark" if found.spark_s * SPARK_TIMES_QUICKER <= found.local_s else "local"
    return replay if found.of(replay) * TIMES_QUICKER <= found.live_s else "live"
