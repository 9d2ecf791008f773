"""The faults of a world of suppliers: those of every world, on some lines or hosts of it.

Guarantees: as ../faults.py. Refuses to know: what the faults must not do (oracle.py).
"""

from __future__ import annotations

from typing import Any, Final

from tests.simulation.faults import Faults

CLOCK_S_MAX: Final = 10 * 3600
"""No clock is further off: from a day on, what it writes is rightly refused."""


class SupplierFaults(Faults):
    """Lines fail one by one, or all that lead to one site."""

    def lines(self) -> list[Any]:
        """One, all of one host's, or all."""
        dice, lines = self.dice, list(self.world.network.lines.values())
        lot = dice.random()
        if lot < 0.5:
            return [dice.choice(lines)]
        if lot < 0.8:
            name = dice.choice(self.world.hosts).name
            return [line for line in lines if name in line.ends]
        return lines

    def _away(self, name: str = "") -> None:
        """A daemon of a host, or all of that kind, is killed, and nobody starts it for a while."""
        world, dice = self.world, self.dice
        kind = name or dice.choice(["source", "source", "update", "receiver"])
        until = world.kernel.now + dice.choice([1.0, 4.0, 10.0])
        hosts = world.hosts if name or dice.random() < 0.3 else [dice.choice(world.hosts)]
        for host in hosts:
            for one, _ in world.actors_of(host):
                if one.startswith(kind):
                    world.away[one] = until
            for process in list(host.processes):
                if process.name.startswith(kind) and not process.is_dead:
                    world.kill(process)

    def _clock(self) -> None:
        host = self._host()
        moved_ns = host.wall_offset_ns + self.dice.choice([-7200, 10800, -1, 2]) * 1_000_000_000
        if abs(moved_ns) <= CLOCK_S_MAX * 1_000_000_000:
            host.wall_offset_ns = moved_ns
