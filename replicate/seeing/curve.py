"""A figure over time, as a small curve: stretches that a log tells of, and samples taken while somebody looks.

Guarantees: memory is bounded, however long it goes on: what is older is told in longer stretches. The most of a lag or
a backlog stands in its stretch, however long that is made; a rate is the mean. Where nothing is known there is no
value. What was known to be "that or more" stays so.
Leaves to others: clocks, and where figures come from (history.py). Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct, field

SPANS_MAX: Final = 3000
"""Of the past, and of the samples, each."""

CurveKind = Literal["most", "mean"]


class CurveSpan(Struct, frozen=True):
    """From when to when the figure was so. `is_at_least`: that, or more."""

    from_us: int
    until_us: int
    value: float
    is_at_least: bool = False


class CurvePoint(Struct, frozen=True):
    """A column of a drawn curve; `value` None: not known."""

    value: float | None
    is_at_least: bool = False


NOT_KNOWN: Final = CurvePoint(None)


class Curve(Struct):
    """One figure. `kind`: how stretches are put together: by the most (a lag), or by the mean (a rate)."""

    kind: CurveKind = "most"
    past: list[CurveSpan] = field(default_factory=list)
    """By the logs."""
    seen: list[CurveSpan] = field(default_factory=list)
    """By looking. Where both tell of a moment, this counts: it is finer."""

    def tell(self, span: CurveSpan) -> None:
        """A stretch that a log tells of. One that ends before the last one did (a clock was set back) is left out."""
        self._add(self.past, span)

    def see(self, span: CurveSpan) -> None:
        """A stretch between two looks."""
        self._add(self.seen, span)

    def _add(self, spans: list[CurveSpan], span: CurveSpan) -> None:
        if span.until_us <= span.from_us or (spans and span.until_us <= spans[-1].until_us):
            return
        if spans and span.from_us < spans[-1].until_us:
            span = CurveSpan(spans[-1].until_us, span.until_us, span.value, span.is_at_least)
        spans.append(span)
        if len(spans) > SPANS_MAX:
            self._thin(spans)

    def _thin(self, spans: list[CurveSpan]) -> None:
        """Put each two of the older half together, where no gap is between them."""
        half = len(spans) // 2
        old, made = spans[:half], list[CurveSpan]()
        while old:
            one = old.pop(0) if len(old) == 1 or old[0].until_us != old[1].from_us else None
            made.append(one if one is not None else self._both(old.pop(0), old.pop(0)))
        # Gaps everywhere, and nothing to put together: the oldest go.
        spans[:half] = made if len(made) < half else made[half // 2 :]

    def _both(self, one: CurveSpan, other: CurveSpan) -> CurveSpan:
        value = max(one.value, other.value)
        if self.kind == "mean":
            first, second = one.until_us - one.from_us, other.until_us - other.from_us
            value = (one.value * first + other.value * second) / (first + second)
        return CurveSpan(one.from_us, other.until_us, value, one.is_at_least or other.is_at_least)

    def columns(self, from_us: int, until_us: int, count: int) -> tuple[CurvePoint, ...]:
        """The figure in so many columns of equal length."""
        told = self._columns(self.past, from_us, until_us, count)
        seen = self._columns(self.seen, from_us, until_us, count)
        return tuple(t if s.value is None else s for t, s in zip(told, seen, strict=True))

    def _columns(self, spans: list[CurveSpan], from_us: int, until_us: int, count: int) -> list[CurvePoint]:
        width_us = max(1, until_us - from_us) / count
        sums, weights, is_at_least = [0.0] * count, [0.0] * count, [False] * count
        for span in spans[bisect_right(spans, from_us, key=_until) :]:
            if span.from_us >= until_us:
                break
            first = max(0, int((span.from_us - from_us) / width_us))
            last = min(count - 1, int((span.until_us - 1 - from_us) / width_us))
            for column in range(first, last + 1):
                begin_us = from_us + column * width_us
                part = min(span.until_us, begin_us + width_us) - max(span.from_us, begin_us)
                if self.kind == "mean":
                    sums[column] += span.value * max(part, 1.0)
                else:
                    sums[column] = max(sums[column], span.value)
                weights[column] += max(part, 1.0)
                is_at_least[column] = is_at_least[column] or span.is_at_least
        values = zip(sums, weights, is_at_least, strict=True)
        return [
            CurvePoint(total / weight if self.kind == "mean" else total, least) if weight else NOT_KNOWN
            for total, weight, least in values
        ]

    def lately(self, now_us: int) -> CurvePoint:
        """The newest value, as long as it is not older than twice the stretch that it is of."""
        for spans in (self.seen, self.past):
            if spans and now_us - spans[-1].until_us <= 2 * (spans[-1].until_us - spans[-1].from_us):
                return CurvePoint(spans[-1].value, spans[-1].is_at_least)
        return NOT_KNOWN


def _until(span: CurveSpan) -> int:
    return span.until_us


def most_of(points: Iterable[CurvePoint]) -> CurvePoint:
    """The highest of them."""
    known = [point for point in points if point.value is not None]
    return max(known, key=lambda point: point.value or 0.0) if known else NOT_KNOWN
