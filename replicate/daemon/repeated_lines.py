"""Lines that would be written again and again: each of them once, then once a period with a count.

Guarantees: the first line of every reason is written at once; the same reason again is counted, and told at most once a
period; a peer that invents new reasons gets REASONS_MAX lines a period, and memory is bounded so.
Leaves to others: the clock (every call is given `now_s`, any monotonic seconds), and where the lines are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

ALERT_PERIOD_S: Final = 30.0


class _Told(Struct):
    at_s: float
    kept_back: int = 0


class Repetitions:
    """What was written lately. One for all the connections of a daemon."""

    __slots__ = ("_others", "_period_s", "_told")
    REASONS_MAX: Final = 64

    def __init__(self, period_s: float = ALERT_PERIOD_S) -> None:
        self._period_s = period_s
        self._told: dict[str, _Told] = {}  # the newest line stands last
        self._others = 0

    def line(self, write: Callable[..., Any], now_s: float, event: str, *reason: object, **fields: object) -> bool:
        """Call `write(event, **fields)`, unless the same event was written for the same reason within the period.

        `repeated` is added: how often it was kept back since; and `others`: how many of further reasons were, because
        there were REASONS_MAX within the period. False: kept back. A `reason` holds no counters or port numbers, or
        nothing is ever the same again. What `write` raises is raised; the line counts as written.
        """
        key = repr((event, reason))
        told = self._told.get(key)
        if told is not None and now_s - told.at_s < self._period_s:
            told.kept_back += 1
            return False
        if told is None and len(self._told) >= self.REASONS_MAX:
            oldest = next(iter(self._told))
            if now_s - self._told[oldest].at_s < self._period_s:
                self._others += 1
                return False
            del self._told[oldest]
        self._told.pop(key, None)
        self._told[key] = _Told(now_s)
        if told is not None and told.kept_back:
            fields["repeated"] = told.kept_back
        if self._others:
            fields["others"], self._others = self._others, 0
        write(event, **fields)
        return True

    def forget(self) -> None:
        """All is well again: the next line of every reason is written at once."""
        self._told.clear()
