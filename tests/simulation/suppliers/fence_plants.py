"""The worlds in which the schema changes proved on planted bugs, as ../plants.py has it: each must be found.

Guarantees: as there. Refuses to know: how a bug is found. (That the second word of all is waited for is tried by
model/test_schema_fences.py: rows that give way at that moment are rare in worlds.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from replicate.model.schema_fences import Fences
from tests.simulation.content import Content
from tests.simulation.replaced import Change


def _waits_for_nobody() -> list[Change]:
    """Who fences takes the others to stand aside at once."""
    return [(Fences, "awaited", lambda *_: frozenset())]


def _writes_meanwhile() -> list[Change]:
    """A supplier writes on until it has said that it stands aside."""

    def bars(self: Fences, own: bytes, known: Any, retired: Any) -> bytes | None:
        found = kept(self, own, known, retired)
        if found is None or found == own:
            return found
        return None

    kept = Fences.bars
    return [(Fences, "bars", bars)]


def _stamps_stay_wrong() -> list[Change]:
    """After a change of the schema the next transactions stamp nothing."""

    def schema_changed(self: Content, seqno: int) -> None:
        kept(self, seqno)
        self.absorbed += 3

    kept = Content.schema_changed
    return [(Content, "schema_changed", schema_changed)]


PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    "who fences waits for nobody": _waits_for_nobody,
    "who stands aside writes on": _writes_meanwhile,
    "stamps are taken to be there after a change of the schema": _stamps_stay_wrong,
}
FOUND: Final[Mapping[str, tuple[str, int]]] = {
    "stamps are taken to be there after a change of the schema": ("fencing-safety", 36),
}
"""Worlds that find what few others find, to be lived first."""
