"""What transactions of several suppliers must come to, and which of their values must be kept aside: told by nothing
but who wrote what when, and who had seen what.

Guarantees: no row, stamp or decision of the product is asked; a value that is named must have been kept by every site
that ended with these transactions, whatever order they came in. Not all that some site must keep is named: what one
of them meets only after somebody has written over it who had seen it, is not, nor is a value that was given twice.
Leaves to others: where transactions come from, what a site has kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Key = tuple[str, Any]
"""A table, and the key of one of its rows."""
Value = tuple[Key, int, Any]
"""Of a row, the value that somebody gave the column with that ordinal."""


@dataclass(frozen=True, slots=True)
class Change:
    """Of one row. `image`: after it; None where it deletes the row. `written`: the ordinals that it writes."""

    row: Key
    image: tuple[Any, ...] | None
    written: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Event:
    """One transaction. `seen`: of each origin the last one that its writer had."""

    csn: int
    origin: int
    number: int
    seen: Mapping[int, int]
    changes: tuple[Change, ...]

    def knows(self, other: Event) -> bool:
        """Whether its writer had seen that one."""
        if other.origin == self.origin:
            return other.number < self.number
        return self.seen.get(other.origin, 0) >= other.number


Touch = tuple[Event, Change]


def in_time(events: Iterable[Event]) -> list[Event]:
    """One after the other by time, of one time the greater origin last."""
    return sorted(events, key=lambda one: (one.csn, one.origin, one.number))


def folded(events: Iterable[Event]) -> dict[Key, tuple[Any, ...]]:
    """The rows that they come to, one after the other, no matter who had seen what."""
    values: dict[Key, list[Any]] = {}
    there: set[Key] = set()
    for event in in_time(events):
        for change in event.changes:
            if change.image is None:
                there.discard(change.row)
                continue
            row = values.setdefault(change.row, list(change.image))
            for ordinal in change.written:
                row[ordinal] = change.image[ordinal]
            there.add(change.row)
    return {row: tuple(values[row]) for row in there}


def to_keep(events: Iterable[Event]) -> set[Value]:
    """The values that every site must have kept: somebody wrote a later one who had not seen them, and all who have
    written there since had seen both; or nobody has who had seen them, and they are in no row."""
    in_rows: dict[Key, list[Touch]] = {}
    ordered = in_time(events)
    for event in ordered:
        for change in event.changes:
            in_rows.setdefault(change.row, []).append((event, change))
    shown = folded(ordered)
    found: set[Value] = set()
    for row, touches in in_rows.items():
        here = shown.get(row)
        for ordinal in frozenset(at for _, change in touches for at in change.written):
            touching = [one for one in touches if one[1].image is None or ordinal in one[1].written]
            given = Counter(change.image[ordinal] for _, change in touching if change.image is not None)
            lost = _lost(touching)
            found |= {
                (row, ordinal, value)
                for change in lost
                if change.image is not None
                and given[value := change.image[ordinal]] == 1
                and (here is None or here[ordinal] != value)
            }
    return found


def _lost(touching: Sequence[Touch]) -> Iterator[Change]:
    """Of all that gave one column of one row a value, or deleted the row, in time: those whose value was lost."""
    of_origin: dict[int, list[int]] = {}
    for at, (event, _) in enumerate(touching):
        of_origin.setdefault(event.origin, []).append(at)
    for at, (event, change) in enumerate(touching):
        knowing = list(_first_knowing(at, touching, of_origin))
        beside = range(at + 1, min(knowing, default=at + 1))
        if not knowing or any(
            touching[other][1].image is not None
            and not touching[other][0].knows(event)
            and all(touching[one][0].knows(touching[other][0]) for one in knowing)
            for other in beside
        ):
            yield change


def _first_knowing(at: int, touching: Sequence[Touch], of_origin: Mapping[int, list[int]]) -> Iterator[int]:
    """Of each origin the first one that had seen this one: all that follow had, too."""
    event, _ = touching[at]
    for origin, places in of_origin.items():
        if origin == event.origin:
            first = bisect_right(places, at)
        else:
            first = bisect_left(places, True, key=lambda one: touching[one][0].knows(event))
        if first < len(places):
            yield places[first]
