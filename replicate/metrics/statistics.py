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


class BusyRate:
    """How many a second are done while there is more to do all along: how fast it is done, not how much there was.

    A pause of any kind (nothing left, a barrier, a lock, a part that has not come) begins it anew, and until there was
    no pause for LEAST_S nobody knows; so a rate of an idle night, or of what a barrier let pass, is none.
    """

    __slots__ = ("_count", "_since_s", "per_s")
    LEAST_S = 10.0

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._count = 0
        self.per_s: float | None = None
        """Of the last stretch of LEAST_S or a little more, while there has been no pause since; else None."""

    def worked(self, now_s: float, number: int, *, has_more: bool) -> None:
        """`number` were done since the last call; `has_more`: and there is more to do at once, at `now_s` (monotonic
        seconds)."""
        if not has_more:
            self._since_s = self.per_s = None
            return
        if self._since_s is None:  # what was done until now may have had to be waited for
            self._since_s, self._count = now_s, 0
            return
        self._count += number
        if now_s - self._since_s >= self.LEAST_S:
            self.per_s = round(self._count / (now_s - self._since_s), 1)
            self._since_s, self._count = now_s, 0


class Lag:
    """How many seconds a consumer is behind, from samples of how far its source was at what time.

    All times are nanoseconds of one clock that never steps (`time.monotonic_ns`): a wall clock that is set, in either
    direction, moves no lag. `was_there_ns` brings a time of the wall clock over.
    Right while nothing is written too: what was committed at noon and is not applied at one is an hour behind, however
    quiet it was between. Never more than the truth, but where a wall clock said so that stepped before we looked the
    first time; less by no more than the time between two samples. Memory is bounded: when there are too many samples
    every second one is dropped.
    """

    __slots__ = ("_looked", "_samples")
    SAMPLES_MAX = 1024

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []  # (last seqno of the source, since when it is there), both rising
        self._looked = (0, -(2**63))
        """This transaction was the source's last one at that time."""

    @property
    def newest_seqno(self) -> int:
        """The last transaction that was observed; 0 for none."""
        return self._samples[-1][0] if self._samples else 0

    def observed(self, source_last_seqno: int, at_ns: int) -> None:
        """This transaction was there at `at_ns`. Call it about once a second with the source's newest one, and for
        every batch that passes: then the lag is right to the batch. What tells nothing new is dropped."""
        samples = self._samples
        place = bisect_left(samples, (source_last_seqno, -(2**63)))
        if place < len(samples) and (samples[place][0] == source_last_seqno or samples[place][1] <= at_ns):
            return  # it, or a later one, was there before
        if source_last_seqno > self._looked[0]:
            at_ns = max(at_ns, self._looked[1])
        if place:
            at_ns = max(at_ns, samples[place - 1][1])
        samples.insert(place, (source_last_seqno, at_ns))
        if len(samples) > self.SAMPLES_MAX:
            del samples[1:-1:2]

    def looked(self, source_last_seqno: int, at_ns: int) -> None:
        """Nothing behind this transaction was there at `at_ns`: whatever a wall clock says of it later, it is
        younger. After `observed`."""
        self._looked = (source_last_seqno, at_ns)

    def seconds(self, last_applied_seqno: int, now_ns: int) -> float:
        """Seconds since the oldest transaction that is not applied was seen, in milliseconds, rounded up: 0.0 only when
        all are."""
        samples = self._samples
        first_behind = next((i for i, (seqno, _) in enumerate(samples) if seqno > last_applied_seqno), len(samples))
        if first_behind == len(samples):
            del samples[:-1]
            return 0.0
        del samples[: max(0, first_behind - 1)]
        behind = next(at_ns for seqno, at_ns in samples if seqno > last_applied_seqno)
        return max(1, -((behind - now_ns) // 1_000_000)) / 1000


def was_there_ns(wall_ns: int, now_wall_ns: int, now_ns: int) -> int:
    """What a wall clock dates `wall_ns`, on the clock of `now_ns`; now, where that is still to come (the clock has been
    set back since)."""
    return now_ns - max(0, now_wall_ns - wall_ns)
