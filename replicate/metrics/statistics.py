"""Counters that become one event per period: what happened since the last one, in total, and how fast.

Guarantees: nothing counted is lost between two reports; the sum over all reports is the total; rates are over the time
that really passed, so a late report is still right.
Refuses to know: the clock (every call is given `now_s`, any monotonic seconds), and where the report is written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """One period. `counts` are since the last report, `totals` since the start; rates are per second."""

    seconds: float
    starting_seqno: int
    current_seqno: int
    counts: Mapping[str, int]
    totals: Mapping[str, int]

    def rate(self, name: str) -> float:
        """How many of `name` per second in this period (0.0 for an empty period)."""
        return self.counts.get(name, 0) / self.seconds if self.seconds > 0 else 0.0

    def fields(self) -> dict[str, int | float]:
        """Flat fields for a log event: `transactions`, `transactions_total`, `transactions_per_s` and so on."""
        made: dict[str, int | float] = {
            "period_s": round(self.seconds, 3),
            "starting_seqno": self.starting_seqno,
            "current_seqno": self.current_seqno,
        }
        for name, total in self.totals.items():
            made[name] = self.counts.get(name, 0)
            made[f"{name}_total"] = total
            made[f"{name}_per_s"] = round(self.rate(name), 1)
        return made


class Statistics:
    """Counters of one daemon. `transactions` and `bytes` are always there; any further name may be counted.

    Usage: `count` as things happen; when `now_s >= deadline_s`, `report` once and log its `fields()`.
    """

    __slots__ = ("_counts", "_period_s", "_since_s", "_starting_seqno", "_totals", "deadline_s")

    def __init__(self, period_s: float, now_s: float, *, seqno: int = 0) -> None:
        self._period_s = period_s
        self._since_s = now_s
        self._starting_seqno = seqno
        self._counts: dict[str, int] = {"transactions": 0, "bytes": 0}
        self._totals: dict[str, int] = {"transactions": 0, "bytes": 0}
        self.deadline_s = now_s + period_s

    def count(self, name: str, number: int = 1) -> None:
        """Add `number` to a counter."""
        self._counts[name] = self._counts.get(name, 0) + number

    def batch(self, transactions: int, bytes_: int) -> None:
        """Count one batch of so many transactions and bytes."""
        self._counts["transactions"] += transactions
        self._counts["bytes"] += bytes_

    def total(self, name: str) -> int:
        """All of `name` so far, the running period included."""
        return self._totals.get(name, 0) + self._counts.get(name, 0)

    def report(self, now_s: float, seqno: int) -> Report:
        """Close the period at `now_s` and begin the next one, which starts after `seqno`."""
        for name, number in self._counts.items():
            self._totals[name] = self._totals.get(name, 0) + number
        made = Report(
            seconds=max(0.0, now_s - self._since_s),
            starting_seqno=self._starting_seqno,
            current_seqno=seqno,
            counts=dict(self._counts),
            totals=dict(self._totals),
        )
        self._counts = dict.fromkeys(self._counts, 0)
        self._since_s = now_s
        self._starting_seqno = seqno
        self.deadline_s = now_s + self._period_s
        return made


class Lag:
    """How many seconds a consumer is behind, from samples of how far its source was at what time.

    Right while nothing is written too: what was committed at noon and is not applied at one is an hour behind, however
    quiet it was between. Never more than the truth, and less by no more than the time between two samples. Memory is
    bounded: when there are too many samples every second one is dropped.
    """

    __slots__ = ("_samples",)
    SAMPLES_MAX = 1024

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []  # (last seqno of the source, wall ns), both rising

    def observed(self, source_last_seqno: int, wall_ns: int) -> None:
        """This transaction was there at `wall_ns`. Call it about once a second with the source's newest one, and for
        every batch that passes: then the lag is right to the batch. What tells nothing new is dropped."""
        samples = self._samples
        place = bisect_left(samples, (source_last_seqno, 0))
        if place < len(samples) and (samples[place][0] == source_last_seqno or samples[place][1] <= wall_ns):
            return  # it, or a later one, was there before
        samples.insert(place, (source_last_seqno, wall_ns))
        if len(samples) > self.SAMPLES_MAX:
            del samples[1:-1:2]

    def seconds(self, last_applied_seqno: int, now_wall_ns: int) -> float:
        """Seconds since the oldest transaction that is not applied was seen, in milliseconds, rounded up: 0.0 only when
        all are (or the clock went back)."""
        samples = self._samples
        first_behind = next((i for i, (seqno, _) in enumerate(samples) if seqno > last_applied_seqno), len(samples))
        if first_behind == len(samples):
            del samples[:-1]
            return 0.0
        del samples[: max(0, first_behind - 1)]
        behind = next(wall_ns for seqno, wall_ns in samples if seqno > last_applied_seqno)
        return max(0, -((behind - now_wall_ns) // 1_000_000)) / 1000
