"""The worlds of suppliers with two regions proved on planted bugs, as ../plants.py has it: each must be found.

Guarantees: as there. Leaves to others: how a bug is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

import replicate.door.absorb_stamps
import replicate.door.merging_regions
import replicate.roles.schema_fence
from replicate.door.merging_regions import MergedRegion, MergingRegions
from replicate.door.secondary import ApplySession
from tests.simulation.host import REGIONS
from tests.simulation.merging import ModelMerging
from tests.simulation.replaced import Change


def _merged_in_one() -> list[Change]:
    """Of a transaction the rows of the second region are applied as they are."""

    def take(self: Any, changes: Any, stamp: Any, told: Any, is_shared: Any, removing: Any, **more: Any) -> Any:
        def of_first(table_id: int) -> bool:
            return self.regions[0].has(table_id) and is_shared(table_id)

        return kept(self, changes, stamp, told, of_first, removing, **more)

    kept = MergingRegions.take
    return [(MergingRegions, "take", take)]


def _lost_in_each() -> list[Change]:
    """What is lost in a merge names no region."""

    def merging(self: Any) -> Any:
        opened = [(one.region, one.entry.name, self.rows[one.entry.name]) for one in self._open]
        if len(opened) == 1:
            return kept(self)
        return MergingRegions([MergedRegion(name, rows, region.merging(rows)) for region, name, rows in opened])

    kept = ApplySession.merging
    return [(ApplySession, "merging", merging)]


def _stamps_up_to_the_furthest() -> list[Change]:
    """Rows have their stamps up to where those of one region have them."""
    return [(MergingRegions, "absorbed", property(lambda self: max(one.merging.absorbed for one in self.regions)))]


def _no_stamps_in_the_second() -> list[Change]:
    """What our journal has written in the second region stamps no rows."""

    def absorb(rows: Any, *arguments: Any, **more: Any) -> None:
        if not (isinstance(rows, ModelMerging) and rows._rows.name == REGIONS[1]):
            kept(rows, *arguments, **more)

    kept = replicate.door.absorb_stamps.absorb
    return [(replicate.door.absorb_stamps, "absorb", absorb)]


def _nobody_is_met_in_the_second() -> list[Change]:
    """Rows with stamps in the second region are met by nobody."""

    def may_meet(self: Any, rows: Any, told: Any, writer: int) -> bool:
        return kept(SimpleNamespace(regions=self.regions[:1]), rows, told, writer)  # type: ignore[arg-type]

    kept = MergingRegions.may_meet
    return [(MergingRegions, "may_meet", may_meet)]


def _removed_in_one() -> list[Change]:
    """What gives way for its name in the second region does so here alone."""
    return [(MergingRegions, "removed", property(lambda self: self.regions[0].merging.removed))]


def _told_in_one() -> list[Change]:
    """What is said of fences is said in the first region alone."""

    def say(door: Any, session: Any, number: int, values: Any) -> int:
        parts, session.parts = session.parts, session.parts[:1]
        try:
            return kept(door, session, number, values)
        finally:
            session.parts = parts

    kept = replicate.roles.schema_fence.say
    return [(replicate.roles.schema_fence, "say", say)]


PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    "a transaction over two regions is merged in one": _merged_in_one,
    "what was lost in one region is kept in each": _lost_in_each,
    "rows have stamps up to where the furthest region has them": _stamps_up_to_the_furthest,
    "rows of the second region get no stamps": _no_stamps_in_the_second,
    "rows of the second region are met by nobody": _nobody_is_met_in_the_second,
    "rows of the second region give way here alone": _removed_in_one,
}
FENCE_PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    "fences are told in one region alone": _told_in_one,
}
FOUND: Final[Mapping[str, tuple[str, int]]] = {
    "rows of the second region are met by nobody": ("suppliers-liveness", 91),
    "rows have stamps up to where the furthest region has them": ("suppliers-liveness", 155),
}
"""Worlds that find them, to be lived first: of others only a fifth has two regions."""
