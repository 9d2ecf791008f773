"""The faults of one world: which, when, and at which failpoint, as its dice say.

Guarantees: after `heal` nothing fails any more, and what was broken works; what was lost stays lost.
Leaves to others: what the faults must not do (oracle.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.simulation.climate import Climate
from tests.simulation.host import RING
from tests.simulation.kernel import Killed, Process
from tests.simulation.stage import BETWEEN

NESTED: Final = frozenset({"sync.before", "sync.after"})
"""Failpoints at which another writer may commit: no commit lock is held there when a writer waits for its sync."""


@dataclass(slots=True)
class Fuse:
    """At the `left`-th failpoint from now (of that name, on that host; "" for any) its process dies, or its host."""

    name: str
    host: str
    left: int
    is_power: bool


WRITING: Final = (
    "commit.before_append", "append.before_write", "append.after_write", "append.after_write", "commit.after_commit",
    "commit.after_commit", "finish.before_publish", "publish.after_early", "publish.after_data", "publish.after_head",
    "publish.after_published", "adopt.before_rename", "adopt.renamed", "adopt.after_rename", "switch.after_create",
    "switch.between_words", "mend.begin", "sync.before", "sync.after", "apply.after_commit", BETWEEN, BETWEEN, RING,
)  # fmt: skip
"""On the way of a commit, where a kill leaves something for the next one to mend."""

CLOCK_S_MAX: Final = 10 * 3600
"""No clock is further off: from a day on, what it writes is rightly refused."""


class Faults:
    """Planned at the beginning; `reached` is asked at every failpoint."""

    def __init__(self, world: Any, climate: Climate) -> None:
        self.world = world
        self.dice = world.dice
        self.climate = climate
        self.ends_s = climate.ends_s
        self.is_over = False
        self._fuses: list[Fuse] = []
        self.seen: dict[str, int] = {}
        """Failpoints that were reached, in the order of their first time."""
        self._is_nested = False
        network = world.network
        network.window_bytes = climate.window_bytes
        network.base_delay_s = self.dice.choice([0.0005, 0.01, 0.2])
        network.jitter_s = self.dice.choice([0.0, 0.05])
        network.piece_bytes = self.dice.choice([0, 0, 7, 100])

    def plan(self) -> None:
        """Put the faults into the world's future."""
        climate, dice = self.climate, self.dice
        names, weights = list(climate.weights), list(climate.weights.values())
        if climate.is_source_away:
            self._away("source")
        for _ in range(climate.count):
            name = dice.choices(names, weights)[0]
            self.world.kernel.at(dice.random() * self.ends_s, lambda name=name: self._now(name))

    def _now(self, name: str) -> None:
        if not self.is_over:
            self.world.figures[f"fault: {name}"] += 1
            self.world.log("fault", name)
            getattr(self, f"_{name}")()

    def heal(self) -> None:
        """No more faults."""
        world = self.world
        self.is_over = True
        self._fuses.clear()
        world.network.heal()
        world.away.clear()
        for host in world.hosts:
            disk = host.disk
            disk.failures.clear()
            disk.then_write_in = 0
            disk.is_full, disk.short_in, disk.slow_s = False, 0, 0.0
            for region in host.regions:
                region.fails_in = 0
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
        if name in NESTED and self.climate.nested_share and not self._is_nested and not self.is_over:
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
        held = f"/{process.host.name}/locks/commit.lock" in process.host.locks
        if self.dice.random() > self.climate.nested_share or held:
            return
        here = [one for one in world.writers if one.process.host is process.host and one.process is not process]
        idle = [one for one in here if one.is_idle and not one.process.is_dead]
        if idle and world.left_to_write > 0:
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
            host = self.dice.choice(["", *(host.name for host in self.world.hosts)])
            self._fuses.append(Fuse("", host, self.dice.randrange(1, self.dice.choice([8, 60, 300])), is_power))

    def _power_in_commit(self) -> None:
        """With frames that nobody has synced yet; several of them, when no source is there to sync them."""
        if self.dice.random() < 0.5:
            self._part()
        places = ["append.after_write", "commit.after_commit", "publish.after_written", "sync.before"]
        if self.climate.regions > 1:
            places += [BETWEEN, BETWEEN]
        name = self.dice.choice(places)
        host = self.dice.choice(self.world.committing(2))
        for _ in range(self.dice.choice([1, 1, 2, 3])):  # and again, soon after the recovery
            self._fuses.append(Fuse(name, host, self.dice.randrange(1, 7), True))

    def _kill_in_commit(self) -> None:
        """A writer, or who applies, on its way; and perhaps the next one, who mends that."""
        host = self.dice.choice(self.world.committing(3))
        for _ in range(self.dice.choice([1, 1, 2, 3])):
            self._fuses.append(Fuse(self.dice.choice(WRITING), host, self.dice.randrange(1, 4), False))

    # Faults.

    def lines(self) -> list[Any] | None:
        """Those to which the next fault of the network happens; None: to all."""
        return None

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

    def _away(self, name: str = "") -> None:
        """A daemon is killed, and nobody starts it for a while: what is committed is not synced, or not freed."""
        name = name or self.dice.choice(["source", "source", "update", "receiver"])
        world = self.world
        world.away[name] = world.kernel.now + self.dice.choice([1.0, 4.0, 10.0])
        for host in world.hosts:
            for process in list(host.processes):
                if process.name == name and not process.is_dead:
                    world.kill(process)

    def _harm(self) -> None:
        """A byte of what is sent next is another one, is missing, or comes twice."""
        self.world.network.harm(self.lines())

    def _cut(self) -> None:
        self.world.network.cut(self.lines())

    def _part(self) -> None:
        until = self.world.kernel.now + self.dice.choice([0.5, 3.0, 10.0])
        self.world.network.part(until, one_way=self.dice.choice([None, 0, 1]), lines=self.lines())

    def _stall(self) -> None:
        self.world.network.stall(self.world.kernel.now + self.dice.choice([0.3, 2.0, 9.0]), self.lines())

    def _freeze(self) -> None:
        process = self._some_process()
        if process is not None:
            process.frozen_until = self.world.kernel.now + self.dice.choice([0.5, 4.0, 20.0])

    def _sync_fails(self) -> None:
        disk = self._host().disk
        disk.failures[self.dice.choice(["fsync", "fdatasync", "fdatasync"])] = self.dice.randrange(1, 8)
        disk.then_write_in = self.dice.choice([0, 1, 2, 3])

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
        self.dice.choice(self._host().regions).checkpoint(self.dice)

    def _commit_fails(self) -> None:
        self.dice.choice(self._host().regions).fails_in = self.dice.randrange(1, 5)


class SiteFaults(Faults):
    """Where every site has all daemons: lines fail one by one, or all that lead to one site; daemons of one host, or of
    all."""

    def plan(self) -> None:
        """As there."""
        if self.climate.is_update_away:
            self._away("update")
        super().plan()

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

    def _between(self) -> None:
        """Who commits in two regions dies after the first one, or his machine does; and perhaps the next one, too."""
        host = self.dice.choice(self.world.hosts).name
        for _ in range(self.dice.choice([1, 1, 2])):
            self._fuses.append(Fuse(BETWEEN, host, self.dice.randrange(1, 8), self.dice.random() < 0.4))

    def _hole(self) -> None:
        """SQLite has synced what one region has committed, and nothing else has: then power goes."""
        host = self._host()
        self.dice.choice(host.regions).sync()
        self.world.power_loss(host, self._back_after_s())

    def _clock(self) -> None:
        host = self._host()
        moved_ns = host.wall_offset_ns + self.dice.choice([-7200, 10800, -1, 2]) * 1_000_000_000
        if abs(moved_ns) <= CLOCK_S_MAX * 1_000_000_000:
            host.wall_offset_ns = moved_ns
