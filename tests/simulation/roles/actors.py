"""The processes of a world of roles: the product's daemons as they are, on every site, and writers wherever they may.

A daemon stands aside when it is asked, as daemon.py has it. Each command of an operator is a process of its own.
Guarantees: a writer writes where its instance says that it is primary, tells the oracle what it was told, and no more.
Leaves to others: faults, and what operators want.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import receiver_server.process
import replicate.roles.encounters
import source_server.process
import update_process.process
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.errors import NotPrimaryError, ReplicateError
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges
from tests.simulation.actors import AnyWriter, Context
from tests.simulation.base import Main
from tests.simulation.draft import Draft
from tests.simulation.host import SimulatedInstance
from tests.simulation.replaced import replaced
from tests.simulation.roles.machine import DaemonLock, is_asked_aside
from tests.simulation.roles.template import PARTITION, table
from tests.simulation.watching import watched_frames

LOOK_S: Final = 0.1
STOP_S: Final = 5.0
"""So long a daemon may take to end what it does."""


class RoleContext(Context):
    """DaemonContext of one that can stand aside. Its status file is the host's."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.kind = name.partition("-")[0]
        self.text = ""
        self.asks_aside = False
        self.stop_deadline_s = STOP_S
        self._told = world.kernel.process.host.told

    def status(self, text: str | None = None, **facts: Any) -> None:
        self.text = self.text if text is None else text
        self.facts.update(facts)
        self._told[self.name] = dict(self.facts)


def daemon(name: str, serve: Callable[[RoleContext], Coroutine[Any, Any, None]]) -> Main:
    """One that runs until it is killed, but for the times in which it stands aside."""

    async def main(world: Any) -> None:
        host = world.kernel.process.host
        lock = DaemonLock(host.path, name)
        while True:
            if is_asked_aside(host, host.path) or lock.probe() is not None:
                await world.kernel.sleep(LOOK_S)
                continue
            with lock.kept_down(""):
                await _until_aside(world, RoleContext(world, name), serve)

    return main


async def _until_aside(world: Any, context: RoleContext, serve: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    trio, host = world.trio, world.kernel.process.host

    async def watch(scope: Any) -> None:
        while context.asks_aside or not is_asked_aside(host, host.path):
            await trio.sleep(LOOK_S)
        context.stop_requested.set()
        await trio.sleep(context.stop_deadline_s)
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        await serve(context)
        nursery.cancel_scope.cancel()


def source(peer: str) -> Main:
    """The Source Server to that peer."""
    return daemon(f"source-{peer}", lambda context: source_server.process.serve(context, peer))  # type: ignore[arg-type]


receiver: Final[Main] = daemon("receiver", receiver_server.process.serve)  # type: ignore[arg-type]
update: Final[Main] = daemon("update", update_process.process.serve)  # type: ignore[arg-type]


def command(what: Callable[[Any], Coroutine[Any, Any, None]], name: str) -> Main:
    """A command that an operator gives: refused, it changes nothing more."""

    async def main(world: Any) -> None:
        try:
            await what(world)
        except ReplicateError as error:
            world.log("is refused", name, error.code, error)
            world.figures[f"command refused: {name}: {error.code}"] += 1
        else:
            world.figures[f"command done: {name}"] += 1

    return main


class RoleWriter(AnyWriter):
    """One of a primary's: changes rows of its table, as long as it is primary."""

    def __init__(self, world: Any, instance: SimulatedInstance) -> None:
        super().__init__(world, RegionSession(open_door(instance), "main"))
        self._name = world.kernel.process.host.name
        self.is_over = False
        """Another site is primary."""

    async def work(self) -> None:
        """Until it is healed, or its instance takes no writes."""
        world = self.world
        world.writers.append(self)
        try:
            while not world.is_healed and not self.is_over:
                self.is_idle = True
                if world.left_to_write <= 0:
                    await world.kernel.sleep(1.0)
                    continue
                await world.kernel.sleep(world.dice.expovariate(1 / world.climate.pace_s))
                self.is_idle = False
                if world.left_to_write > 0:
                    self.commit()
        finally:
            world.writers.remove(self)
            if not self.process.is_dead:
                self.session.close()
                self.session.door.close()

    def commit(self, *, beside: bool = False) -> None:
        """As any writer does. It waits outside of a door that is closed."""
        if self.is_over or self.session.door.words[word.CLOSING]:
            return
        try:
            super().commit(beside=beside)
        except NotPrimaryError:
            self.is_over = True

    def acknowledged(self, rows: list[int]) -> None:
        """They are committed."""
        self.world.oracle.on_acknowledged(self._name, rows)

    def make(self, rows: list[int], *, beside: bool) -> CapturedChanges:
        """Some changes of rows, all of which bear the transaction's name."""
        world = self.world
        by = world.next_row()
        rows.append(by)
        is_large = not beside and world.dice.random() < world.climate.large_share
        draft = Draft(world, lambda _region: self.session.connection.working(), by, is_large=is_large)
        draft.change_some(table(), world.climate.sizes, is_small=beside)
        world.oracle.on_submitted(self._name, by, draft.flat)
        payload = draft.payload
        world.log("commits", by, draft.kinds, len(payload), "large" * is_large)
        if is_large:
            spool = self.spooled(payload)
            world.oracle.spooled[spool.origin, spool.token] = by
            return CapturedChanges(b"", draft.elements, (PARTITION,), False, spool, False)
        return CapturedChanges(payload, draft.elements, (PARTITION,), False, None, False)


async def writer(world: Any) -> None:
    """An application: it connects wherever it is let."""
    host = world.kernel.process.host
    while not world.is_healed:
        instance = SimulatedInstance.open(host.path)
        if instance.takes_writes and world.left_to_write > 0:
            with contextlib.suppress(NotPrimaryError):
                await RoleWriter(world, instance).work()
        await world.kernel.sleep(0.3)


@contextlib.contextmanager
def watched(world: Any) -> Iterator[None]:
    """The oracle sees what hosts append, what sources send and hear, and who is fenced."""
    kept = replicate.roles.encounters.meet

    def meet(instance: Any, other: Any) -> Any:
        found = kept(instance, other)
        if found is not None and found.is_fenced:
            world.oracle.on_fenced(str(world.kernel.process.host.name))
        return found

    with watched_frames(world), replaced((replicate.roles.encounters, "meet", meet)):
        yield
