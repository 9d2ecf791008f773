"""The worlds in which suppliers send packets proved on planted bugs, as ../plants.py has it: each must be found.

Guarantees: as there. Leaves to others: how a bug is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import source_server.unseen_transactions
from replicate.transfer.packet import vector_order
from replicate.transfer.packet.epochs import Epochs
from tests.simulation.replaced import Change
from tests.simulation.suppliers.plants import PLANTS as PLANTS_OF_LINES


def _as_they_come() -> list[Change]:
    """Packets are taken in the order in which they lie there, whatever they need."""
    return [(vector_order, "_fits", lambda *_: True)]


def _never_taken_back() -> list[Change]:
    """What was exported is taken for what has arrived, whatever its target says."""

    def confirmed(self: Epochs, _name: str) -> Epochs:
        return self

    def heard(self: Epochs, name: str, row: Any, *, is_newest: bool = False) -> Epochs:
        return self if self.of(name).estimated is not None else kept(self, name, row, is_newest=is_newest)

    kept = Epochs.heard
    return [(Epochs, "confirmed", confirmed), (Epochs, "heard", heard)]


def _merged_is_sent() -> list[Change]:
    """What a transaction came to here goes into a packet, not what its writer wrote."""
    return [(source_server.unseen_transactions, "as_written", lambda *_: None)]


PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    "packets are taken as they come": _as_they_come,
    "what a packet brings once more is taken once more": PLANTS_OF_LINES["a transaction of another one is taken twice"],
    "what was exported is taken for what arrived": _never_taken_back,
    "what a merge came to goes into a packet": _merged_is_sent,
}
FOUND: Final[Mapping[str, tuple[str, int]]] = {
    "packets are taken as they come": ("posting-safety", 2),
    "what was exported is taken for what arrived": ("posting-liveness", 12),
    "what a merge came to goes into a packet": ("posting-liveness", 10),
}
"""Worlds that find what few others find, to be lived first."""
