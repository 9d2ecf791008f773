"""The worlds in which partitions are released proved on planted bugs, as ../plants.py has it: each must be found.

Guarantees: as there. Leaves to others: how a bug is found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import replicate.instance.file
from replicate.admin import dropping_rows, partition_release, subscriptions
from tests.simulation.parts import releasing
from tests.simulation.replaced import Change

InstanceFile = replicate.instance.file.InstanceFile


def _not_aside() -> list[Change]:
    """What is released is removed while it is being applied."""
    return [(releasing, "update_aside", lambda _instance: nullcontext())]


def _released_unfinished() -> list[Change]:
    """What a killed Update Process left unfinished is left so."""
    return [(partition_release, "finish_regions", lambda *_: None)]


def _removed_before_it_is_on_the_disk() -> list[Change]:
    return [(subscriptions, "_sync_what_stays", lambda _instance: None)]


def _applied_after_it_was_removed() -> list[Change]:
    def passes_over(self: Any, number: int) -> bool:
        return bool(kept(self, number)) and number not in self.choice.frozen

    kept = InstanceFile.passes_over
    return [(InstanceFile, "passes_over", passes_over)]


def _frozen_is_not_released() -> list[Change]:
    """A release that was killed cannot be done again."""
    return [(partition_release, "FROZEN", partition_release.HERE)]


def _copied_before_it_is_removed() -> list[Change]:
    """The moment of the copy is that at which the command begins."""

    def begun(paths: Any) -> Any:
        made = kept(paths)
        made.begin()
        made.begin = lambda: None
        return made

    kept = releasing.Moment.open
    return [(releasing.Moment, "open", begun)]


def _dropped_rows_come_back() -> list[Change]:
    """What was deleted is not on the disk when the command returns."""
    return [(dropping_rows, "_sync", lambda _entry: None)]


def _others_are_dropped() -> list[Change]:
    """Rows of what stays are deleted, too."""

    def drop_some(secondary: Any, entry: Any, gone: frozenset[int]) -> int:
        return kept(secondary, entry, gone | {min(secondary.content.held)})

    kept = dropping_rows._drop_some
    return [(dropping_rows, "_drop_some", drop_some)]


PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    "release: it is still being applied": _not_aside,
    "release: regions are at different transactions": _released_unfinished,
    "release: what is removed is not on the disk by then": _removed_before_it_is_on_the_disk,
    "release: what was removed is applied again": _applied_after_it_was_removed,
    "release: one that was killed is refused": _frozen_is_not_released,
    "release: it is copied before it is removed": _copied_before_it_is_removed,
    "release: rows that were dropped come back": _dropped_rows_come_back,
    "release: rows of what stays are dropped": _others_are_dropped,
}

FOUND: Final[dict[str, tuple[str, int]]] = {
    "release: it is still being applied": ("releasing-safety", 2),
    "release: regions are at different transactions": ("releasing-liveness", 6),
    "release: what is removed is not on the disk by then": ("releasing-safety", 4),
    "release: what was removed is applied again": ("releasing-safety", 4),
    "release: one that was killed is refused": ("releasing-liveness", 3),
    "release: it is copied before it is removed": ("releasing-liveness", 6),
    "release: rows that were dropped come back": ("releasing-liveness", 4),
    "release: rows of what stays are dropped": ("releasing-safety", 2),
}
"""The first world that finds each."""
