"""The faults of a world of roles: those of every world, and deaths in the middle of a change of roles.

Guarantees: as ../faults.py. Refuses to know: what the faults must not do (oracle.py).
"""

from __future__ import annotations

from typing import Final

from tests.simulation.faults import Fuse
from tests.simulation.suppliers.faults import SupplierFaults

CHANGING: Final = (
    "role.region_turned", "role.pool_retired", "role.changed", "fence.pool_retired", "fence.noted",
    "handover.before_check", "handover.checked", "handover.closed", "handover.before_proof", "handover.proved",
    "handover.given", "handover.before_tell", "handover.before_take", "handover.taken",
    "rollback.lost_written", "rollback.marked", "rollback.piece_undone", "rollback.region_undone",
    "rollback.unlinked", "rollback.before_cut", "rollback.cut", "rollback.before_end", "replace.before_rename",
    "replace.renamed",
)  # fmt: skip
"""On the way of a change of roles, or of a rollback."""


class RoleFaults(SupplierFaults):
    """Lines fail one by one, or all that lead to one site."""

    def plan(self) -> None:
        """The usual ones, and fuses that wait for a change."""
        super().plan()
        for _ in range(self.world.climate.fuses):
            fuse = Fuse(self.dice.choice(CHANGING), "", self.dice.choice([1, 1, 2, 3]), self.dice.random() < 0.4)
            self._fuses.append(fuse)
