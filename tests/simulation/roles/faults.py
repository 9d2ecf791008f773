"""The faults of a world of roles: those of every world, and deaths in the middle of a change of roles.

Guarantees: as ../faults.py. Leaves to others: what the faults must not do (oracle.py).
"""

from __future__ import annotations

from typing import Final

from tests.simulation.faults import Fuse, SiteFaults
from tests.simulation.kernel import Process

RENAMED: Final = "replace.renamed"
CHANGING: Final = (
    ("role.region_turned", "role.pool_retired", "role.changed", RENAMED),
    ("fence.pool_retired", "fence.noted"),
    (
        "handover.before_check", "handover.checked", "handover.closed", "handover.before_proof", "handover.proved",
        "handover.given", "handover.before_tell", "handover.before_take", "handover.taken",
    ),
    (
        "rollback.lost_written", "rollback.marked", "rollback.piece_undone", "rollback.region_undone",
        "rollback.unlinked", "rollback.before_cut", "rollback.cut", "rollback.before_end",
    ),
)  # fmt: skip
"""Failpoints on the way of a change of roles, of a fence, of a switchover, of a rollback."""


class RoleFaults(SiteFaults):
    """Those of every site, and deaths on the way of a change."""

    def _fire(self, fuse: Fuse, name: str, process: Process) -> None:
        """Power may go soon after somebody was killed in a change: what is left of that is durable by then, or gone."""
        world, host = self.world, process.host
        if not fuse.is_power and any(fuse.name in names for names in CHANGING) and self.dice.random() < 0.5:
            at = world.kernel.now + 0.2 + 0.8 * self.dice.random()
            world.kernel.at(at, lambda: None if self.is_over else world.power_loss(host, self._back_after_s()))
        super()._fire(fuse, name, process)

    def reached(self, name: str, process: Process) -> None:
        """Where a change stands before the file that says so, somebody may die after its rename; where something is
        about to be taken back, on that way."""
        if name in ("role.pool_retired", "fence.pool_retired") and not self.is_over and self.dice.random() < 0.1:
            self._fuses.insert(0, Fuse(RENAMED, process.host.name, 1, self.dice.random() < 0.3))
        if name == "rollback.lost_written" and not self.is_over and self.dice.random() < 0.3:
            place = self.dice.choice(CHANGING[-1])
            self._fuses.insert(0, Fuse(place, process.host.name, self.dice.choice([1, 1, 2]), self.dice.random() < 0.3))
        super().reached(name, process)

    def plan(self) -> None:
        """The usual ones, and fuses that wait for a change."""
        super().plan()
        for _ in range(self.world.climate.fuses):
            name = self.dice.choice(self.dice.choice(CHANGING))
            self._fuses.append(Fuse(name, "", self.dice.choice([1, 1, 1, 2, 3]), self.dice.random() < 0.4))
