"""The processes of a world of roles: the product's daemons as they are, on every site, and writers wherever they may.

A daemon stands aside when it is asked, as daemon.py has it. Each command of an operator is a process of its own.
Guarantees: a writer writes where its instance says that it is primary, tells the oracle what it was told, and no more.
Refuses to know: faults, and what operators want.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, Final

import receiver_server.process
import replicate.door.door
import replicate.roles.encounters
import source_server.consumer_state
import source_server.link
import source_server.process
import update_process.process
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.errors import NotPrimaryError, ReplicateError
from replicate.journal.segment import SegmentFile
from replicate.model.transaction import Op
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges
from tests.simulation.actors import AnyWriter, Context, replaced, watched_links
from tests.simulation.base import Main
from tests.simulation.host import SimulatedInstance
from tests.simulation.roles.machine import DaemonLock, is_asked_aside
from tests.simulation.roles.template import PARTITION, table
from tests.simulation.suppliers.content import Content, Image
from tests.simulation.template import change

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
        self._pieces: list[bytes] = []
        self._flat: list[Any] = []
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
        world, dice = self.world, self.world.dice
        by = world.next_row()
        rows.append(by)
        self._pieces, self._flat = [], []
        content: Content = self.session.connection.working()
        is_large = not beside and dice.random() < world.climate.large_share
        count = dice.randrange(4, 9) if is_large else dice.choice([1, 1, 1, 2, 4])
        size = 400 if is_large else dice.choice([8, 8, 40, 150] if count > 1 or beside else world.climate.sizes)
        for number in range(count):
            self._change(content, by, size, is_first=not number)
        world.oracle.on_submitted(self._name, by, self._flat)
        payload, changes = b"".join(self._pieces), 4 * len(self._pieces)
        world.log("commits", by, "".join("?IUD"[op] for op in self._flat[0::4]), len(payload), "large" * is_large)
        if is_large:
            spool = self.spooled(payload)
            world.oracle.spooled[spool.origin, spool.token] = by
            return CapturedChanges(b"", changes, (PARTITION,), False, spool, False)
        return CapturedChanges(payload, changes, (PARTITION,), False, None, False)

    def _change(self, content: Content, by: int, size: int, *, is_first: bool) -> None:
        """A row more, or another one, or one less: of what this transaction has not touched."""
        dice = self.world.dice
        rows = content.rows["t"]
        body = bytes(dice.randrange(size + 1))
        lot = dice.random()
        old = [row for row in rows.values() if row[1] != by]
        if lot < 0.6 or not old:
            self._put(content, None, (self.world.next_row(), by, body))
            return
        before = dice.choice(old)
        self._put(content, before, (before[0], by, body) if lot < 0.85 or is_first else None)

    def _put(self, content: Content, before: Image | None, after: Image | None) -> None:
        argument, values = 0, list(after or before or ())
        op = Op.INSERT if before is None else Op.DELETE
        if before is not None and after is not None:
            op = Op.UPDATE
            changed = [at for at, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
            argument, values = sum(1 << at for at in changed), [*(after[at] for at in changed), *before]
        content.change(table(), op, argument, values)
        self._pieces.append(change(op, table().table_id, argument, values))
        self._flat += [int(op), table().table_id, argument, values]


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
    """The oracle sees what hosts append, and what sources send and hear."""
    oracle = world.oracle
    state_class, link_class = source_server.consumer_state.ConsumerState, source_server.link.SourceLink
    kept = SimpleNamespace(
        acknowledged=state_class.acknowledged, send_batch=link_class.send_batch, send_large=link_class.send_large,
        append=SegmentFile.append, adopt=replicate.door.door.adopt, meet=replicate.roles.encounters.meet,
    )  # fmt: skip

    def here() -> str:
        return str(world.kernel.process.host.name)

    def acknowledged(self: Any, event: Any) -> None:
        oracle.on_reported(here(), self.peer_name, event.reply.last_durable_seqno)
        kept.acknowledged(self, event)

    def send_batch(self: Any, batch: Any) -> None:
        kept.send_batch(self, batch)
        oracle.on_sent(here(), batch.data)

    def send_large(self: Any, seqno: int, token: int, parts: int, frame: bytes) -> None:
        kept.send_large(self, seqno, token, parts, frame)
        oracle.on_sent(here(), frame)

    def append(self: Any, offset: int, data: Any) -> int:
        frames = data if isinstance(data, bytes) else b"".join(map(bytes, data))
        name, has_failed = here(), False
        try:
            return int(kept.append(self, offset, data))
        except Exception:
            has_failed = True
            raise
        finally:  # also where it was killed: some of it may be there
            if any(frames[:1]) and not has_failed:  # zeros: what stood there is taken out
                oracle.on_appended(name, frames)

    def adopt(spool: Any, header: Any, frame: bytes, catalogue: Any, **more: Any) -> str:
        oracle.on_appended(here(), frame)
        return str(kept.adopt(spool, header, frame, catalogue, **more))

    def meet(instance: Any, other: Any) -> Any:
        found = kept.meet(instance, other)
        if found is not None and found.is_fenced:
            oracle.on_fenced(here())
        return found

    watching = replaced(
        (state_class, "acknowledged", acknowledged),
        (link_class, "send_batch", send_batch),
        (link_class, "send_large", send_large),
        (SegmentFile, "append", append),
        (replicate.door.door, "adopt", adopt),
        (replicate.roles.encounters, "meet", meet),
    )
    with watched_links(world), watching:
        yield
