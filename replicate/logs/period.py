"""What one daemon did in one period, from its lines of statistics; and periods made longer.

Guarantees: counts add up, whatever periods they are put together in; the worst of a period stands in it, however long
it is made; what was not known for a while is called "at least". Leaves to others: which lines (story.py). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from replicate.logs.line import LogLine

WIDTHS_MS: Final = (
    100, 500, 1000, 5000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000,
    604_800_000, 2_419_200_000, 29_030_400_000, 290_304_000_000, 2_903_040_000_000, 290_304_000_000_000,
)  # fmt: skip
"""Periods that a person would choose; each goes into the next one without a rest, so that periods can be put
together."""


class PeriodRow(Struct):
    """Of one daemon. `seconds` is the time that its lines speak of, which may not be the whole period."""

    lines: int = 0
    seconds: float = 0.0
    transactions: int = 0
    bytes: int = 0
    last_seqno: int = 0
    last_acknowledged_seqno: int = 0
    backlog: float | None = None
    """The most; None: no line says."""
    lag_s: float | None = None
    is_at_least: bool = False
    """Backlog and lag were not known for a while."""
    cuts: int = 0
    cut_s: float = 0.0
    pauses: int = 0
    paused_s: float = 0.0
    silent_s: float = 0.0

    @property
    def per_s(self) -> float | None:
        """Transactions a second; None where no line speaks of any time."""
        return self.transactions / self.seconds if self.seconds > 0 else None

    @property
    def bytes_per_s(self) -> float | None:
        return self.bytes / self.seconds if self.seconds > 0 else None

    def add(self, other: PeriodRow) -> None:
        """Make this row one for both."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("backlog", "lag_s"):
            known = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            setattr(self, name, max(known, default=None))
        self.last_seqno = max(self.last_seqno, other.last_seqno)
        self.last_acknowledged_seqno = max(self.last_acknowledged_seqno, other.last_acknowledged_seqno)
        self.is_at_least = self.is_at_least or other.is_at_least


_SUMS: Final = tuple(
    name
    for name in PeriodRow.__struct_fields__
    if name not in ("last_seqno", "last_acknowledged_seqno", "backlog", "lag_s", "is_at_least")
)


def row_of(line: LogLine) -> PeriodRow:
    """What a line of statistics says."""
    backlogs = [line.number(name) for name in ("backlog_max", "backlog_at_least_max")]
    if "backlog_max" not in line.fields:  # a line of this moment alone
        backlogs = [line.number("backlog")]
    lags = [line.number(name) for name in ("lag_s_max", "lag_s", "lag_at_least_s")]
    return PeriodRow(
        lines=1,
        seconds=line.number("period_s") or 0.0,
        transactions=line.count("transactions"),
        bytes=line.count("bytes"),
        last_seqno=line.count("current_seqno"),
        last_acknowledged_seqno=line.count("last_acknowledged_seqno"),
        backlog=max((value for value in backlogs if value is not None), default=None),
        lag_s=max((value for value in lags if value is not None), default=None),
        is_at_least="backlog_max" in line.fields and line.fields["backlog_max"] is None,
        cuts=line.count("cuts"),
        cut_s=line.number("cut_s") or 0.0,
        pauses=line.count("xoff"),
        paused_s=line.number("paused_s") or 0.0,
        silent_s=line.number("silent_s") or 0.0,
    )


class Periods:
    """The rows of one daemon by the moment at which their period begins, bounded in number.

    Without a fixed `every_us` the periods are made longer when there are more than ROWS_MAX."""

    __slots__ = ("rows", "width_us")
    ROWS_MAX: Final = 2000

    def __init__(self, width_us: int = WIDTHS_MS[0] * 1000) -> None:
        self.width_us = width_us
        self.rows: dict[int, PeriodRow] = {}

    def add(self, at_us: int, row: PeriodRow) -> None:
        """A line that was written at that moment."""
        place = at_us // self.width_us * self.width_us
        known = self.rows.get(place)
        if known is None:
            self.rows[place] = row
        else:
            known.add(row)

    def widen(self, width_us: int) -> None:
        """Put periods together to longer ones."""
        rows, self.rows, self.width_us = self.rows, {}, width_us
        for at_us, row in rows.items():
            self.add(at_us, row)


def next_width_us(width_us: int) -> int:
    """The next longer period."""
    return next((ms * 1000 for ms in WIDTHS_MS if ms * 1000 > width_us), width_us * 10)


def fitting_width_us(moments: Iterable[int], width_us: int, most: int) -> int:
    """The shortest period from `width_us` on with which there are at most so many."""
    places = {at_us // width_us for at_us in moments}
    while len(places) > max(1, most):
        wider = next_width_us(width_us)
        places = {place * width_us // wider for place in places}
        width_us = wider
    return width_us
