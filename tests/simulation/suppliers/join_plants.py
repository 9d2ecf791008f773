"""The worlds in which a supplier joins proved on planted bugs, as ../plants.py has it: each must be found.

Guarantees: as there. Leaves to others: how a bug is found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import replicate.door.absorb_stamps
import update_process.merging
from tests.simulation.host import SimulatedInstance
from tests.simulation.replaced import Change
from tests.simulation.template import uuid_of

Merging = update_process.merging.Merging


def _copied_as_it_is() -> list[Change]:
    """The copy has no stamps of what the source had not looked at."""

    @contextlib.contextmanager
    def held(*_: Any, **__: Any) -> Iterator[None]:
        yield

    return [(replicate.door.absorb_stamps, "held_absorbed", held)]


def _not_waited_for() -> list[Change]:
    """Stamps go that the new one's transactions may yet meet: nobody counts it among those that have to have all."""

    def members(self: Any) -> Any:
        joiner = uuid_of(SimulatedInstance.world.climate.joiner)
        return {instance: origins for instance, origins in kept(self).items() if instance != joiner}

    kept = Merging._members
    return [(Merging, "_members", members)]


PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    "a copy lacks the stamps of what was not looked at": _copied_as_it_is,
    "who joins is not waited for": _not_waited_for,
}
FOUND: Final[Mapping[str, tuple[str, int]]] = {
    "a copy lacks the stamps of what was not looked at": ("joining-liveness", 2),
    "who joins is not waited for": ("joining-liveness", 6),
}
"""Worlds that find what few others find, to be lived first."""
