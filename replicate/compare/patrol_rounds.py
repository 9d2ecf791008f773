"""The patrol's way through the regions: which range of which table is next, and how soon.

Guarantees: a round visits each region by name, in it the schema and each table by name, in it one range after another;
what is added or dropped meanwhile neither ends a round early nor makes one endless. A patrol takes no more of a core,
and reads no more a second, than it was given.
Leaves to others: reading (range_check.py), clocks. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace


class Place(Struct, frozen=True):
    """Where a patrol stands: what is next begins after the key `after` (None: with the first row) of `table`.

    `round_wall_ns`: when its round began, which is the round's name; `told`: how many ranges it has told of."""

    round_wall_ns: int
    told: int = 0
    region: str = ""
    table: str = ""
    after: tuple[Any, ...] | None = None

    def ended_at(self, upto: tuple[Any, ...] | None, tables: Sequence[str], regions: Sequence[str]) -> Place | None:
        """After a range that ended at that key; None when the round is over. `tables`: of the region."""
        if upto is not None:
            return replace(self, told=self.told + 1, after=upto)
        return replace(self, told=self.told + 1).past_table(tables, regions)

    def past_table(self, tables: Sequence[str], regions: Sequence[str]) -> Place | None:
        """At the next table, or the next region."""
        rest = sorted(name for name in tables if name > self.table)
        if rest:
            return replace(self, table=rest[0], after=None)
        return self.past_region(regions)

    def past_region(self, regions: Sequence[str]) -> Place | None:
        """At the next region."""
        rest = sorted(name for name in regions if name > self.region)
        return replace(self, region=rest[0], table="", after=None) if rest else None

    def among(self, names: Sequence[str], *, are_regions: bool) -> Place | None:
        """Where it stands, or if that is not among the regions or the region's tables, at the next that is there."""
        mine = self.region if are_regions else self.table
        if mine in names:
            return self
        return self.past_region(names) if are_regions else self.past_table(names, ())


def pause_s(*, busy_s: float, size: int, percent: float, mb_per_s: float) -> float:
    """How long to rest after `busy_s` seconds of a core and `size` bytes: `percent` of a core, so many MB a second."""
    return max(busy_s * (100.0 / percent - 1.0), size / (mb_per_s * 1e6) - busy_s, 0.0)


def is_within(hours: tuple[int, int] | None, hour: int) -> bool:
    """Whether that hour of the day (0 to 23) is among them."""
    if hours is None:
        return True
    first, last = hours
    return first <= hour < last if first < last else hour >= first or hour < last
