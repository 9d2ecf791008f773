"""Counters that become one event per period: what happened since the last one, in total, how fast, and how bad it was.

Guarantees: nothing counted is lost between two reports; the sum over all reports is the total; rates are over the time
that really passed, so a late report is still right. What was bad for a while within the period stands in its report,
however well all is at its end.
Leaves to others: the clock (every call is given `now_s`, any monotonic seconds), and where the report is written.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import pairwise

from msgspec import Struct, field


class Report(Struct, frozen=True):
    """One period. `counts` are since the last report, `totals` since the start; rates are per second. `peaks`: the
    most that was seen of a value, None where it was not known all along; `lasted`: for how long something was so, in
    seconds.
    """

    seconds: float
    starting_seqno: int
    current_seqno: int
    counts: Mapping[str, int]
    totals: Mapping[str, int]
    peaks: Mapping[str, float | None] = field(default_factory=dict)
    lasted: Mapping[str, float] = field(default_factory=dict)

    def rate(self, name: str) -> float:
        """How many of `name` per second in this period (0.0 for an empty period)."""
        return self.counts.get(name, 0) / self.seconds if self.seconds > 0 else 0.0

    def fields(self) -> dict[str, int | float | None]:
        """Flat fields for a log event: `transactions`, `transactions_total`, `transactions_per_s` and so on; of a peak
        `lag_s_max`."""
        made: dict[str, int | float | None] = {
            "period_s": round(self.seconds, 3),
            "starting_seqno": self.starting_seqno,
            "current_seqno": self.current_seqno,
        }
        for name, total in self.totals.items():
            made[name] = self.counts.get(name, 0)
            made[f"{name}_total"] = total
            made[f"{name}_per_s"] = round(self.rate(name), 1)
        made |= {f"{name}_max": short(value) for name, value in self.peaks.items()}
        return made | {name: round(value, 3) for name, value in self.lasted.items()}


def short(value: float | None) -> float | None:
    """As people and logs have use for: milliseconds of seconds, and whole numbers as they are."""
    return round(value, 3) if isinstance(value, float) else value


class Statistics:
    """Counters of one daemon. `transactions` and `bytes` are always there; any further name may be counted.

    Usage: `count` as things happen, `sample` about once a second and before a report; when it `is_due`, `report` once
    and log its `fields()`. Look again at `next_look_s`.
    """

    __slots__ = (
        "_counts", "_each", "_lasted", "_lasting", "_peaked", "_peaks", "_sampled_s", "_since_s", "_starting_seqno",
        "_totals", "deadline_s", "period_s",
    )  # fmt: skip
    LOOK_S = 1.0
    """Where the number of transactions counts too it is looked at so often, which is the most reports there are."""

    def __init__(
        self,
        period_s: float | None,
        now_s: float,
        *,
        seqno: int = 0,
        counters: Iterable[str] = (),
        each: int = 0,
    ) -> None:
        """`counters` stand in each report, also before the first of what they count. No report is due without a
        `period_s`; with `each`, one is due after so many transactions too."""
        self.period_s = period_s
        """Between two reports; None: none is due."""
        self._each = each
        self._since_s = now_s
        self._starting_seqno = seqno
        self._counts: dict[str, int] = {"transactions": 0, "bytes": 0, **dict.fromkeys(counters, 0)}
        self._totals: dict[str, int] = {"transactions": 0, "bytes": 0}
        self._peaks: dict[str, float | None] = {}
        self._peaked: tuple[str, ...] = ()  # what had a peak before: it is in each report
        self._lasted: dict[str, float] = {}
        self._lasting: Mapping[str, bool] = {}
        self._sampled_s = now_s
        self.deadline_s = now_s + (math.inf if period_s is None else period_s)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for a report."""
        if self.period_s is None:
            return False
        return now_s >= self.deadline_s or (self._each > 0 and self._counts["transactions"] >= self._each)

    def next_look_s(self, now_s: float) -> float:
        """When a report may be due next, if nothing changes but counters."""
        if self._each and self.period_s is not None:
            return min(self.deadline_s, now_s + self.LOOK_S)
        return self.deadline_s

    def change_period(self, period_s: float | None, now_s: float) -> None:
        """From now on a report is due every `period_s`, or none is (None). What was counted is not lost."""
        self.period_s = period_s
        self.deadline_s = now_s + (math.inf if period_s is None else period_s)

    def count(self, name: str, number: int = 1) -> None:
        """Add `number` to a counter."""
        self._counts[name] = self._counts.get(name, 0) + number

    def batch(self, transactions: int, bytes_: int) -> None:
        """Count one batch of so many transactions and bytes."""
        self._counts["transactions"] += transactions
        self._counts["bytes"] += bytes_

    def sample(self, now_s: float, *, peaks: Mapping[str, float | None], lasting: Mapping[str, bool]) -> None:
        """How things stand at `now_s`: of `peaks` the report has the most, or None if one sample did not know it, and
        each of `lasting` counts from the sample that says so to the next one."""
        for name, value in peaks.items():
            before = self._peaks.get(name, value)
            self._peaks[name] = None if value is None or before is None else max(before, value)
        for name in lasting:
            was_so = self._lasting.get(name, False)
            self._lasted[name] = self._lasted.get(name, 0.0) + (max(0.0, now_s - self._sampled_s) if was_so else 0.0)
        self._lasting, self._sampled_s = dict(lasting), now_s

    def total(self, name: str) -> int:
        """All of `name` so far, the running period included."""
        return self._totals.get(name, 0) + self._counts.get(name, 0)

    def report(self, now_s: float, seqno: int) -> Report:
        """Close the period at `now_s` and begin the next one, which starts after `seqno`."""
        for name, number in self._counts.items():
            self._totals[name] = self._totals.get(name, 0) + number
        peaks = dict.fromkeys(self._peaked) | self._peaks
        made = Report(
            seconds=max(0.0, now_s - self._since_s),
            starting_seqno=self._starting_seqno,
            current_seqno=seqno,
            counts=dict(self._counts),
            totals=dict(self._totals),
            peaks=peaks,
            lasted=dict(self._lasted),
        )
        self._peaked, self._peaks = tuple(peaks), {}
        self._lasted = dict.fromkeys(self._lasted, 0.0)
        self._counts = dict.fromkeys(self._counts, 0)
        self._since_s = now_s
        self._starting_seqno = seqno
        self.change_period(self.period_s, now_s)
        return made


class BusyRate:
    """How many a second are done while there is more to do all along: how fast it is done, not how much there was.

    A pause of any kind (nothing left, a barrier, a lock, a part that has not come) begins it again, and until there was
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
    """How many seconds a consumer lags, from samples of how far its source was at what time.

    All times are nanoseconds of one clock that never steps (`time.monotonic_ns`): a wall clock that is set, in either
    direction, moves no lag. `was_there_ns` brings a time of the wall clock over.
    Right while nothing is written too: what was committed at noon and is not applied at one is an hour old, however
    quiet it was between. Never more than the truth, but where a wall clock said so that stepped before we looked the
    first time; less by no more than the time between two samples, and a PART of what it says. Memory is bounded, at any
    rate and for any backlog: the older samples are, the farther apart they may be.
    """

    __slots__ = ("_looked", "_samples")
    SAMPLES_MAX = 4096
    """After thinning there are 2 ln(age of the oldest / (RESOLUTION_NS / PART)) / ln(1 + PART) + 2 / PART at most: 2600
    for a hundred years."""
    PART = 1 / 50
    RESOLUTION_NS = 1_000_000

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
            self._thin()

    def look_back(self, times: Iterable[tuple[int, int]]) -> None:
        """What is not applied when a daemon begins, and since when each was there, rising: before the first
        `observed`, to which it would be new."""
        for seqno, at_ns in times:
            self.observed(seqno, at_ns)

    def looked(self, source_last_seqno: int, at_ns: int) -> None:
        """Nothing after this transaction was there at `at_ns`: whatever a wall clock says of it later, it is
        younger. After `observed`."""
        self._looked = (source_last_seqno, at_ns)

    def seconds(self, last_applied_seqno: int, now_ns: int) -> float:
        """Seconds since the oldest transaction that is not applied was seen, in milliseconds, rounded up: 0.0 only when
        all are."""
        samples = self._samples
        first_behind = bisect_left(samples, (last_applied_seqno + 1, -(2**63)))
        if first_behind == len(samples):
            del samples[:-1]
            return 0.0
        behind_ns = samples[first_behind][1]
        del samples[: max(0, first_behind - 1)]
        return max(1, -((behind_ns - now_ns) // 1_000_000)) / 1000

    def _thin(self) -> None:
        """Drop each sample whose neighbours are near enough to each other, for their age: an answer by the later
        one is told less by that gap. Ages only grow, so what was near enough stays so. (To drop every second one would
        thin the oldest each time: they would go, and the lag would stand still under a load that fills the list.)"""
        samples = self._samples
        now_ns = samples[-1][1]
        kept = samples[:1]
        for sample, (_, next_ns) in pairwise(samples[1:]):
            if next_ns - kept[-1][1] > max(self.RESOLUTION_NS, (now_ns - next_ns) * self.PART):
                kept.append(sample)
        samples[:] = [*kept, samples[-1]]


def was_there_ns(wall_ns: int, now_wall_ns: int, now_ns: int) -> int:
    """What a wall clock dates `wall_ns`, on the clock of `now_ns`; now, where that is still to come (the clock has been
    set back since)."""
    return now_ns - max(0, now_wall_ns - wall_ns)
