"""The operators of a world of roles: what they want, by the dice, and how they mend what has become of it.

They look at the instance files of all sites, as `status` shows them, and give the commands of the manual. The commands
are the product's own functions (roles/promote_demote.py, roles/rollback.py, the order that `switchover` gives to a
daemon); alone works as it does, over locks of processes that do not exist. A command that was killed is given again.

Guarantees: they are sane. Nobody takes over from a site that is known to live but by force, in a world that has such;
of two primaries that have parted one is chosen, and the other one goes back to where both are the same.
Leaves to others: whether that was right (oracle.py).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from replicate.cli.switchover import _whom
from replicate.daemon.orders import SWITCH_OVER, order_with
from replicate.errors import NotFoundError, ReplicateError
from replicate.roles.promote_demote import demote, promote
from replicate.roles.rollback import rollback
from tests.simulation.host import Host, SimulatedInstance
from tests.simulation.roles.actors import command
from tests.simulation.roles.machine import Answer
from update_process.process import finish_received

LOOK_S: Final = 1.0
GIVEN_S: Final = 100.0
"""So long an operator waits for the end of a command."""
LASTS_S: Final = 30.0
"""So long a refusal lasts before what it says last is done."""
HANGS_S: Final = 6.0
"""A switchover that has not come to its end by itself is asked for again after this time."""
PARTED_S: Final = 12.0
"""So long two primaries have to find out by themselves which of them is superseded."""
BY_ITSELF_S: Final = 15.0
"""So long a site has to go back by itself."""
TRIES: Final = 3


@dataclass
class Given:
    """What became of a command. `is_done` False: it was refused, or was killed."""

    is_done: bool = False
    value: Any = None
    error: ReplicateError | None = None


class Operators:
    """Of one world. `run` is their process's main."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.dice = world.dice
        self.has_forced = False
        """Somebody has taken over without the other one's word."""
        self._since: dict[str, float] = {}
        self._number = 0

    async def run(self, world: Any) -> None:
        """What they want, then mending, for ever."""
        kernel = world.kernel
        for at, move in world.climate.moves:
            while kernel.now < at and not world.is_healed:
                await kernel.sleep(min(at - kernel.now, LOOK_S * (1 + self.dice.random())))
                if kernel.now < at and self.dice.random() < 0.4:
                    await self.mend()
            if world.is_healed:
                break
            world.log("operators want", move)
            world.figures[f"move: {move}"] += 1
            await getattr(self, f"_{move}")()
        while True:
            await kernel.sleep(LOOK_S)
            await self.mend()

    # What they see.

    def file(self, host: Host) -> dict[str, Any]:
        """The instance file."""
        return dict(self.world.file_of(host.name))

    def is_fenced(self, host: Host) -> bool:
        """Superseded, and not settled."""
        successor = self.file(host).get("successor")
        return bool(successor and successor.get("fenced"))

    def is_pending(self, host: Host) -> bool:
        """It has given its role, and does not know that it was taken."""
        return bool((self.file(host).get("successor") or {}).get("pending"))

    def primaries(self) -> list[Host]:
        """Those that take writes, by their files."""
        return [host for host in self.world.hosts if self.world.takes_writes(host.name)]

    def _lasts(self, what: str, *, is_so: bool) -> float:
        """How long something has been so."""
        if not is_so:
            self._since.pop(what, None)
            return 0.0
        return float(self.world.kernel.now - self._since.setdefault(what, self.world.kernel.now))

    def _furthest(self, hosts: list[Host]) -> Host:
        """Who has seen most changes of the role, and of those has most: what the others lack is lost least there."""
        sites = self.world.oracle.sites
        return max(hosts, key=lambda host: (sites[host.name].eras, sites[host.name].seqno))

    # Commands.

    async def give(
        self, host: Host, name: str, what: Callable[[Any], Coroutine[Any, Any, Any]], *, tries: int = TRIES
    ) -> Given:
        """Have a command run there, again where it was killed; what became of it."""
        world, given = self.world, Given()

        async def main(_world: Any) -> None:
            try:
                given.value = await what(world)
                given.is_done = True
            except ReplicateError as error:
                given.error = error
                raise

        for _ in range(tries):
            if not host.is_up or world.is_judging:
                break
            self._number += 1
            title = f"{name}-{self._number}@{host.name}"
            world.start(host, title, command(main, name), again=False)
            process = next((one for one in host.processes if one.name == title), None)
            if process is None:
                break
            process.restart = lambda: None  # type: ignore[attr-defined]  # it is given again here
            until = world.kernel.now + GIVEN_S
            while process in host.processes and not process.is_dead and world.kernel.now < until:
                await world.kernel.sleep(0.05)
            if given.is_done or given.error is not None:
                break
            await world.kernel.sleep(0.3)
        return given

    async def switch_over(self, host: Host, to: str) -> Given:
        """`replicate switchover --to`, on either site."""
        timeout_s = self.dice.choice([2.0, 10.0, 30.0])

        async def what(world: Any) -> dict[str, Any] | None:
            daemon, is_there = _whom(SimulatedInstance.open(host.path), to)
            if is_there:
                return None
            answer = Answer(world, host, daemon, order_with(SWITCH_OVER, {"timeout_s": timeout_s, "dry_run": False}))  # type: ignore[arg-type]
            while not answer.is_over:
                await world.kernel.sleep(0.05)
            told = answer.taken(daemon)
            if told is None:
                raise NotFoundError(f"{daemon} does not run")
            world.log("switchover says", told)
            world.figures["switchovers barred" if told["problems"] else "switchovers done"] += 1
            return told

        return await self.give(host, "switchover", what)

    async def promote(self, host: Host, *, force: bool = False, expect: int | None = None) -> Given:
        """`replicate promote`."""
        timeout_s = self.dice.choice([5.0, 20.0])
        self.has_forced |= force
        self.world.oracle.may_part |= force

        async def what(world: Any) -> Any:
            instance = SimulatedInstance.open(host.path)

            def finish() -> int:
                return finish_received(instance, timeout_s=timeout_s)

            made = promote(instance, finish=finish, timeout_s=timeout_s, force=force, expect=expect)
            world.log("promoted", made)
            return made

        return await self.give(host, "promote", what)

    async def demote(self, host: Host) -> Given:
        """`replicate demote`."""

        async def what(world: Any) -> Any:
            made = demote(SimulatedInstance.open(host.path), timeout_s=20.0)
            world.log("demoted", made)
            return made

        return await self.give(host, "demote", what)

    async def roll_back(self, host: Host, to: int | None = None) -> Given:
        """`replicate rollback`."""

        async def what(world: Any) -> Any:
            made = rollback(SimulatedInstance.open(host.path), to, timeout_s=20.0)
            world.log("rolled back", made.to, made.last, made.because)
            world.figures["rollbacks by command"] += made.last > made.to
            return made

        return await self.give(host, "rollback", what)

    # Moves.

    async def _switch(self) -> None:
        found = self.primaries()
        if len(found) != 1:
            return
        (primary,) = found
        to = self.dice.choice([host for host in self.world.hosts if host is not primary])
        await self.switch_over(self.dice.choice([primary, primary, to]), to.name)

    async def _turn_round(self) -> None:
        """There and back again, and perhaps there again."""
        for _ in range(self.dice.choice([2, 3])):
            await self._switch()

    async def _step_by_step(self) -> None:
        found = self.primaries()
        if len(found) != 1:
            return
        (primary,) = found
        to = self.dice.choice([host for host in self.world.hosts if host is not primary])
        made = await self.demote(primary)
        if not made.is_done:
            return
        await self.world.kernel.sleep(self.dice.choice([0.0, 1.0]))
        given = await self.promote(to, expect=made.value.seqno)
        if not given.is_done and not self.world.takes_writes(to.name):
            await self.promote(primary)

    async def _disaster(self) -> None:
        """The primary is lost, for a while; somebody takes over."""
        found = self.primaries()
        if len(found) != 1:
            return
        (primary,) = found
        world = self.world
        if self.dice.random() < 0.6:  # the line goes first
            world.network.part(world.kernel.now + 2.0, lines=self._lines_of(primary))
            await world.kernel.sleep(self.dice.choice([0.3, 1.0, 2.0]))
        world.figures["disasters"] += 1
        if self.dice.random() < 0.7:
            world.power_loss(primary, self.dice.choice([1.0, 6.0, 15.0]))
        else:
            for process in list(primary.processes):
                if not process.is_dead:
                    world.kill(process)
            world.network.part(world.kernel.now + self.dice.choice([1.0, 6.0]), lines=self._lines_of(primary))
        await self._take_over(primary)

    def _lines_of(self, host: Host) -> list[Any]:
        return [line for line in self.world.network.lines.values() if host.name in line.ends]

    async def _split(self) -> None:
        """The line is cut, and somebody takes over beside a primary that lives."""
        found = self.primaries()
        if len(found) != 1:
            return
        (primary,) = found
        world = self.world
        world.network.part(world.kernel.now + self.dice.choice([2.0, 6.0, 12.0]), lines=self._lines_of(primary))
        world.figures["split brains"] += 1
        await self._take_over(primary)

    async def _take_over(self, primary: Host) -> None:
        world = self.world
        world.left_to_write += self.dice.choice([0, 10, 20])  # on both sides, where both live
        await world.kernel.sleep(self.dice.choice([0.1, 1.0, 4.0]))
        others = [host for host in world.hosts if host is not primary and host.is_up]
        if not others:
            return
        to = self._furthest(others)
        force = self.dice.random() < 0.7
        for _ in range(TRIES):
            world.oracle.may_part = self.has_forced = True
            given = await self.promote(to, force=force)
            if given.is_done or force:
                return
            await world.kernel.sleep(3.0)

    async def _take_back(self) -> None:
        """One that is superseded takes its role back, as soon as it knows; or one that has given it away."""
        world = self.world
        for _ in range(20):
            fenced = [host for host in world.hosts if host.is_up and self.is_fenced(host)]
            given = [host for host in world.hosts if host.is_up and self.is_pending(host)]
            if fenced or given:
                world.figures["roles taken back"] += 1
                await self.promote((fenced or given)[0], force=True)
                return
            await world.kernel.sleep(0.3)

    # Mending.

    async def mend(self) -> None:
        """One look at all sites, and what the manual says to do."""
        world = self.world
        if not all(host.is_up for host in world.hosts) or world.is_judging:
            return
        primaries = self.primaries()
        none_s = self._lasts("none", is_so=not primaries)
        many_s = self._lasts("many", is_so=len(primaries) > 1)
        if not primaries:
            await self._mend_none(none_s)
        elif len(primaries) > 1:
            if many_s > PARTED_S:
                world.figures["primaries that parted"] += 1
                loser = next(host for host in primaries if host is not self._furthest(primaries))
                await self.demote(loser)
        else:
            for host in world.hosts:
                if host is not primaries[0]:
                    await self._mend_follower(host, primaries[0])

    async def _mend_none(self, lasts_s: float) -> None:
        world = self.world
        for host in world.hosts:
            if self.is_pending(host):
                if lasts_s > HANGS_S:
                    self._since.pop("none", None)
                    await self.switch_over(host, self.file(host)["successor"]["name"])
                return
        if lasts_s < HANGS_S / 2:
            return
        for host in world.hosts:
            if world.is_going_back(host.name):
                await self.roll_back(host)
        free = [host for host in world.hosts if not self.is_fenced(host)] or list(world.hosts)
        to = self._furthest(free)
        given = await self.promote(to)
        if not given.is_done and lasts_s > 2 * HANGS_S:
            await self.promote(to, force=True)

    async def _mend_follower(self, host: Host, primary: Host) -> None:
        world, what = self.world, f"back {host.name}"
        is_due = world.is_going_back(host.name) or world.is_refused(host.name) or self.is_fenced(host)
        lasts_s = self._lasts(what, is_so=is_due and self.file(host)["role"] == "secondary")
        if not lasts_s or (world.climate.auto_rollback and lasts_s < BY_ITSELF_S):
            return
        given = await self.roll_back(host)
        if given.is_done:
            self._since.pop(what, None)
        elif given.error is not None and lasts_s > BY_ITSELF_S / 2 and given.error.code in ("USAGE", "DIVERGED"):
            world.figures["rollbacks to a named point"] += 1
            given = await self.roll_back(host, world.oracle.common(host.name, primary.name))
            if given.error is not None and given.error.code == "PERMISSION" and lasts_s > LASTS_S:
                await self._give_up_followed(host, primary)

    async def _give_up_followed(self, host: Host, primary: Host) -> None:
        """It follows one that has lost a split, and went back by itself: what it has of that one nobody else has. The
        refusal says that it becomes primary for a moment, so that what it has may go by its own word."""
        self.world.figures["what a loser had written given up"] += 1
        if (await self.promote(host, force=True)).is_done and (await self.demote(host)).is_done:
            await self.roll_back(host, self.world.oracle.common(host.name, primary.name))
