"""How a secondary that is far behind is brought up to date soonest: by the live stream, or by a replay. Pure.

Guarantees: `ways` is an estimate of each way's time from a backlog's size; `quickest` says that another way than the
stream is worth it only where it is at least twice as quick, and the stream would take WORTH_S or longer: daemons are
stopped for it, and a backlog that changes each row once only gains nothing. The stream's time is always measured: where
nobody knows how quickly it is applied here, nothing is to be said.
Refuses to know: where the numbers come from, and the words of the finding (status/report.py).

What a replay takes is what the last one here has taken (`Took`), where there was one. Else it is an estimate from one
run of tests/benchmarks/bench_replay.py on another machine, CPU seconds for BENCHED_CHANGES updates of rows of 100 bytes
in random order, each row changed ten times; how they stand to one another is all that they say of this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Way = Literal["live", "local", "spark"]

BENCHED_CHANGES: Final = 20_000_000
BENCHED_CPU_S: Final = {
    "replay_local": 93.6,
    "replay_spark": 86.7,
    "net_spark, cold": 55.7,
    "net_spark, warm": 42.7,
    "session": 18.0,
}
"""Measured: bench_replay --changes 20000000, commit d582e88, AMD EPYC, two cores, load 1 to 5; a session of local[2]
made, used for one query and ended, there, at load 8. Of five million changes, whose rows fit into the caches, a change
took half as much in a replay's own process; a backlog worth a replay is rather of the larger kind."""


def _each_us(cpu_s: float) -> float:
    return cpu_s * 1e6 / BENCHED_CHANGES


LOCAL_CHANGE_US: Final = _each_us(BENCHED_CPU_S["replay_local"])
"""A replay with --engine local."""
SPARK_CHANGE_US: Final = _each_us(BENCHED_CPU_S["net_spark, warm"])
"""A replay with --engine spark, what Spark does of it, on as many cores as there are."""
HERE_CHANGE_US: Final = _each_us(BENCHED_CPU_S["replay_spark"] - BENCHED_CPU_S["net_spark, warm"])
"""An estimate: the rest of it, in its own process on one core. Nobody has measured it by itself."""
SPARK_START_S: Final = BENCHED_CPU_S["session"] + BENCHED_CPU_S["net_spark, cold"] - BENCHED_CPU_S["net_spark, warm"]
"""An estimate, on the safe side: Java, its session and code that is not compiled yet use more than one core."""
CHANGE_BYTES: Final = 130
"""Of journal for a change of the benchmark: a backlog's bytes say how many changes it holds, if more than one each."""
WORTH_S: Final = 120.0
"""A stream that needs less than this is left alone."""
TIMES_QUICKER: Final = 2.0
"""A replay that is not so much quicker than the stream is not worth stopping it."""
SPARK_TIMES_QUICKER: Final = 1.25
"""Nor is Spark, which needs Java and an archive, without this much over the local engine."""


@dataclass(frozen=True, slots=True)
class Took:
    """What a replay into this instance has taken: `seconds` for `changes`, behind a start of `start_s` seconds."""

    changes: int
    seconds: float
    start_s: float = 0.0

    def of(self, changes: int) -> float:
        """Seconds for so many changes."""
        return self.start_s + changes * self.seconds / self.changes


@dataclass(frozen=True, slots=True)
class Ways:
    """Seconds that each way would take, about. `measured`: the replays of which we know it from this machine."""

    live_s: float
    local_s: float
    spark_s: float
    measured: tuple[Way, ...] = ()

    def of(self, way: Way) -> float:
        """Of one way."""
        return {"live": self.live_s, "local": self.local_s, "spark": self.spark_s}[way]


def ways(
    transactions: int,
    journal_bytes: int,
    *,
    live_per_s: float,
    cores: int,
    took: Mapping[Way, Took] = MappingProxyType({}),
) -> Ways:
    """The time of each way for a backlog of so many transactions and (about) bytes of journal.

    `live_per_s`: transactions a second, above 0, that the Update Process applies while it has work without a pause.
    `cores`: of the machine that would replay. `took`: the last replays there, of each engine.
    """
    changes = max(transactions, journal_bytes // CHANGE_BYTES)
    measured = {way: one.of(changes) for way, one in took.items()}
    spark_us = HERE_CHANGE_US + SPARK_CHANGE_US / max(1, cores)
    return Ways(
        transactions / live_per_s,
        measured.get("local", changes * LOCAL_CHANGE_US / 1e6),
        measured.get("spark", SPARK_START_S + changes * spark_us / 1e6),
        tuple(measured),
    )


def quickest(found: Ways) -> Way:
    """The way to recommend."""
    if found.live_s < WORTH_S:
        return "live"
    replay: Way = "spark" if found.spark_s * SPARK_TIMES_QUICKER <= found.local_s else "local"
    return replay if found.of(replay) * TIMES_QUICKER <= found.live_s else "live"
