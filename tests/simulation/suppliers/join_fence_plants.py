"""The worlds in which a supplier joins beside changes of the schema proved on planted bugs, as ../plants.py has it.

Guarantees: as there. Leaves to others: how a bug is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from replicate.model import schema_fences
from replicate.model.schema_fences import Fences
from replicate.model.writers import Writers
from tests.simulation.host import SimulatedInstance
from tests.simulation.replaced import Change
from tests.simulation.template import uuid_of


def _known_by_its_record() -> list[Change]:
    """One that was let write is waited for only once the record that opens its incarnation has come."""

    def known(_self: Writers, begun: Iterable[bytes]) -> frozenset[bytes]:
        return frozenset(begun)

    return [(Writers, "known", known)]


def _not_waited_for() -> list[Change]:
    """Nobody waits for the one that joins."""

    def others(fencer: bytes, known: Any, retired: Any) -> frozenset[bytes]:
        return frozenset(kept(fencer, known, retired) - {uuid_of(SimulatedInstance.world.climate.joiner)})

    kept = schema_fences._others
    return [(schema_fences, "_others", others)]


def _joiner_writes_on() -> list[Change]:
    """The one that joins writes on while others stand aside."""

    def bars(self: Fences, own: bytes, known: Any, retired: Any) -> bytes | None:
        return None if own == uuid_of(SimulatedInstance.world.climate.joiner) else kept(self, own, known, retired)

    kept = Fences.bars
    return [(Fences, "bars", bars)]


PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    "who was let write is waited for by its record alone": _known_by_its_record,
    "a fence does not wait for who joins": _not_waited_for,
    "who joins writes on while others stand aside": _joiner_writes_on,
}
FOUND: Final[Mapping[str, tuple[str, int]]] = {
    "who was let write is waited for by its record alone": ("joining-fenced-liveness", 1),
    "a fence does not wait for who joins": ("joining-fenced-safety", 23),
    "who joins writes on while others stand aside": ("joining-fenced-safety", 6),
}
"""Worlds that find what few others find, to be lived first."""
