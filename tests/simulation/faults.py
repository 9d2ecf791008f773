"""The faults of one world: which, when, and at which failpoint, as its dice say.

Guarantees: after `heal` nothing fails any more, and what was broken works; what was lost stays lost.
Refuses to know: what the faults must not do (oracle.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.simulation.kernel import Killed, Process

NESTED: Final = frozenset({"sync.before", "sync.after"})
"""Failpoints at which another writer may commit: no commit lock is held there when a writer waits for its sync."""


@dataclass(slots=True)
class Fuse:
    """At the `left`-th failpoint from now (of that name, on that host; "" for any) its process dies, or its host."""

    name: str
    host: str
    left: int
    is_power: bool


class Faults:
    """Planned at the beginning; `reached` is asked at every failpoint."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.dice = world.dice
        self.ends_s = 1.0 + self.dice.random() * 5.0
        self.is_over = False
        self._fuses: list[Fuse] = []
        self.seen: dict[str, int] = {}
        """Failpoints that were reached, in the order of their first time."""
        self._is_nested = False
        world.left_to_write = self.dice.choice([8, 20, 40])
        world.sizes = self.dice.choice([(8, 40), (8, 40, 300, 700, 1300), (700, 1300)])
        world.is_even = self.dice.random() < 0.35
        """All frames are of one length: what is left of an old one may stand exactly where a new one ends."""
        world.large_share = self.dice.choice([0.0, 0.05, 0.3])
        world.version = 1
        world.writers = []
        world.rows_made = 1000  # so that every number takes three bytes
        self._nested_share = self.dice.choice([0.0, 0.3])
        network = world.network
        network.base_delay_s = self.dice.choice([0.0005, 0.01, 0.2])
        network.jitter_s = self.dice.choice([0.0, 0.05])
        network.piece_bytes = self.dice.choice([0, 0, 7, 100])

        def next_row() -> int:
            world.rows_made += 1
            return int(world.rows_made)

        world.next_row = next_row

    def plan(self) -> None:
        """Put the faults into the world's future."""
        kinds: list[tuple[int, Callable[[], None]]] = [
            (3, self._kill), (12, self._light_fuse), (4, self._power), (8, self._power_in_commit),
            (3, self._cut), (2, self._part),
            (2, self._stall), (2, self._freeze), (3, self._sync_fails), (1, self._write_fails), (1, self._full),
            (1, self._short), (1, self._slow), (1, self._clock), (2, self._checkpoint), (1, self._commit_fails),
        ]  # fmt: skip
        weights = [weight for weight, _ in kinds]
        calls = [call for _, call in kinds]
        count = self.dice.choice([0, 2, 3, 5, 8, 12])
        for _ in range(count):
            call = self.dice.choices(calls, weights)[0]
            self.world.kernel.at(self.dice.random() * self.ends_s, lambda call=call: self._now(call))

    def _now(self, call: Callable[[], None]) -> None:
        if not self.is_over:
            self.world.figures[f"fault: {call.__name__.strip('_')}"] += 1
            self.world.log("fault", call.__name__)
            call()

    def heal(self) -> None:
        """No more faults."""
        world = self.world
        self.is_over = True
        self._fuses.clear()
        world.network.stalled_until = world.network.apart_until = 0.0
        for host in world.hosts:
            disk = host.disk
            disk.failures.clear()
            disk.is_full, disk.short_in, disk.slow_s = False, 0, 0.0
            host.region.fails_in = 0
            for process in host.processes:
                process.frozen_until = 0.0

    # Failpoints.

    def reached(self, name: str, process: Process) -> None:
        """May not return."""
        self.seen[name] = self.seen.get(name, 0) + 1
        for fuse in self._fuses:
            if fuse.host in ("", process.host.name) and fuse.name in ("", name):
                fuse.left -= 1
                if not fuse.left:
                    self._fuses.remove(fuse)
                    self._fire(fuse, name, process)
                break
        if name in NESTED and self._nested_share and not self._is_nested and not self.is_over:
            self._other_writer(process)

    def _fire(self, fuse: Fuse, name: str, process: Process) -> None:
        world = self.world
        world.figures["died at a failpoint"] += 1
        world.figures[f"died: {name}"] += 1
        world.log("dies at", name)
        if fuse.is_power:
            world.power_loss(process.host, self._back_after_s())
        elif process.name == "checker":
            process.die()
        else:
            world.kill(process)
        raise Killed

    def _other_writer(self, process: Process) -> None:
        world = self.world
        if self.dice.random() > self._nested_share or "/paris/locks/commit.lock" in process.host.locks:
            return
        idle = [one for one in world.writers if one.is_idle and not one.process.is_dead and one.process is not process]
        if process.host is world.primary and idle and world.left_to_write > 0:
            self._is_nested = True
            try:
                world.figures["commits beside a sync"] += 1
                world.call_as(idle[0].process, lambda: idle[0].commit(beside=True))
            finally:
                self._is_nested = False
            process.check()

    def _light_fuse(self) -> None:
        is_power = self.dice.random() < 0.4
        if self.seen and self.dice.random() < 0.7:
            name = self.dice.choice(list(self.seen))
            self._fuses.append(Fuse(name, "", self.dice.randrange(1, 3), is_power))
        else:
            host = self.dice.choice(["", "paris", "oslo"])
            self._fuses.append(Fuse("", host, self.dice.randrange(1, self.dice.choice([8, 60, 300])), is_power))

    def _power_in_commit(self) -> None:
        """With frames that nobody has synced yet; several of them, when no source is there to sync them."""
        if self.dice.random() < 0.5:
            self._part()
        name = self.dice.choice(["append.after_write", "commit.after_commit", "publish.after_written", "sync.before"])
        host = self.dice.choice(["paris", "paris", "oslo"])
        for _ in range(self.dice.choice([1, 1, 2, 3])):  # and again, soon after the recovery
            self._fuses.append(Fuse(name, host, self.dice.randrange(1, 7), True))

    # Faults.

    def _host(self) -> Any:
        return self.dice.choice(self.world.hosts)

    def _some_process(self) -> Process | None:
        processes = self._host().processes
        return self.dice.choice(processes) if processes else None

    def _back_after_s(self) -> float:
        return float(self.dice.choice([0.1, 1.0, 4.0]))

    def _kill(self) -> None:
        process = self._some_process()
        if process is not None and not process.is_dead:
            self.world.kill(process)

    def _power(self) -> None:
        self.world.power_loss(self._host(), self._back_after_s())
        if self.dice.random() < 0.2:
            for host in self.world.hosts:
                self.world.power_loss(host, self._back_after_s())

    def _cut(self) -> None:
        self.world.network.cut()

    def _part(self) -> None:
        until = self.world.kernel.now + self.dice.choice([0.5, 3.0, 10.0])
        self.world.network.part(until, one_way=self.dice.choice([None, 0, 1]))

    def _stall(self) -> None:
        self.world.network.stall(self.world.kernel.now + self.dice.choice([0.3, 2.0, 9.0]))

    def _freeze(self) -> None:
        process = self._some_process()
        if process is not None:
            process.frozen_until = self.world.kernel.now + self.dice.choice([0.5, 4.0, 20.0])

    def _sync_fails(self) -> None:
        disk = self._host().disk
        disk.failures[self.dice.choice(["fsync", "fdatasync", "fdatasync"])] = self.dice.randrange(1, 8)

    def _write_fails(self) -> None:
        self._host().disk.failures[self.dice.choice(["pwrite", "rename"])] = self.dice.randrange(1, 12)

    def _full(self) -> None:
        disk = self._host().disk
        disk.is_full = True

        def room() -> None:
            disk.is_full = False

        self.world.kernel.at(self.world.kernel.now + 1.0, room)

    def _short(self) -> None:
        self._host().disk.short_in = self.dice.randrange(1, 10)

    def _slow(self) -> None:
        self._host().disk.slow_s = self.dice.choice([0.05, 0.5])

    def _clock(self) -> None:
        self._host().wall_offset_ns += self.dice.choice([-7200, 86400, -1]) * 1_000_000_000

    def _checkpoint(self) -> None:
        self._host().region.checkpoint(self.dice)

    def _commit_fails(self) -> None:
        self._host().region.fails_in = self.dice.randrange(1, 5)
