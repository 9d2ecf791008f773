"""Who loads a partition into the secondary of a world, as `subscription add` and `seed --partition` do.

Real: the subscription and its moves, the stream that brings it, the copy's way forward by the journal, the rows' taking
in. A model: the copy, which is taken from the primary's regions at a moment of its commit lock, and comes at once; and
that the Update Process stands aside, which is killed here.
Guarantees: killed anywhere it goes on, or begins again, as the command does. Leaves to others: faults.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from replicate.admin.subscriptions import add
from replicate.door.recovery.opening import make_chain, open_door
from replicate.door.snapshot import door_of, take_snapshot
from replicate.errors import BusyError, JournalMissingError
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.region.protocol import scr_rows
from replicate.transfer.seed import partition
from replicate.transfer.seed.some_regions import prove_same_past
from tests.simulation.host import REGIONS, RING_SLOTS, SimulatedInstance
from tests.simulation.kernel import Process
from tests.simulation.regions import Region

LOOK_S: Final = 0.2
FINISHING_S: Final = 1.0
"""Of which none passes: what a killed writer left is finished, as the command does it."""
ASIDE_S: Final = 0.001
"""Less than a process that was killed takes to start again."""


class _Copy(NamedTuple):
    seqno: int
    position: Position
    regions: list[Region]


async def loader(world: Any) -> None:
    """Until it is held; then nothing more."""
    await world.kernel.sleep(max(0.0, world.climate.loads_s - world.kernel.now))
    await _Loader(world).run()
    await world.kernel.suspend()


class _Loader:
    def __init__(self, world: Any) -> None:
        self._world = world
        self._number: int = world.climate.loads
        self._keeps = frozenset((self._number,))
        self._instance = SimulatedInstance.open("/oslo")
        self._here = world.kernel.process.host
        self._here.copies.clear()

    async def run(self) -> None:
        choice = self._instance.content.choice
        if not choice.wants(self._number):
            await self._retried(lambda: add(self._instance, [str(self._number)]))
        if not choice.holds(self._number) and self._number not in choice.loading:
            self._world.oracle.is_asked = True
            await self._aside()
            self._instance.change_subscription(lambda now: now.begun(self._keeps))
        elif self._number in choice.loading:
            self._world.figures["loads gone on with"] += 1
        while not self._instance.content.choice.holds(self._number):
            await self._streamed()
            if (copy := self._copied()) is not None:
                await self._take_in(copy)
            await self._pause()
        self._world.oracle.is_held = True
        self._world.figures["partitions loaded"] += 1

    async def _pause(self) -> None:
        await self._world.kernel.sleep(LOOK_S)
        self._instance.reload()

    async def _retried(self, call: Callable[[], None]) -> None:
        while True:
            try:
                return call()
            except BusyError:
                await self._pause()

    async def _aside(self) -> None:
        """The Update Process stands aside for a moment."""
        for process in self._here.processes:
            if process.name == "update":
                self._world.kill(process)
        await self._world.kernel.sleep(ASIDE_S)

    async def _streamed(self) -> None:
        """Until a stream has begun that brings it."""
        while not self._instance.content.streamed.get(self._number):
            await self._pause()

    def _copied(self) -> _Copy | None:
        """What the primary has of it now; None while nobody can say."""
        world, found = self._world, list[_Copy]()
        host = world.primary
        if not host.is_up:
            return None
        process = Process(world.kernel, "maker", host, lambda _error: None)
        process.restart = lambda: None  # type: ignore[attr-defined]
        host.processes.append(process)
        world.call_as(process, lambda: found.append(self._made(host)))
        if not process.is_dead:
            process.die()
        if process in host.processes:
            host.processes.remove(process)
        world.os.close_all(process.pid)
        if not found:
            return None
        world.oracle.on_copied()
        return found[0]

    def _made(self, host: Any) -> _Copy:
        door = open_door(SimulatedInstance.open("/paris"))
        try:
            with take_snapshot(door, timeout_s=FINISHING_S) as snapshot:
                assert snapshot is not None
                regions = [self._region(region) for region in host.regions]
            door.sync_to_end()
        finally:
            door.close()
        for region in regions:
            region.scr = {(row.origin, row.partition): row for row in scr_rows(snapshot.position, snapshot.csn)}
            region.seqno = snapshot.seqno
        return _Copy(snapshot.seqno, snapshot.position, regions)

    def _region(self, there: Region) -> Region:
        made = Region(RING_SLOTS, there.number)
        made.rows = [row for row in there.rows if self._is_of_it(row)]
        made.present = set(made.rows)
        made.schema = made.stored_schema = there.schema
        made.state = {"is_of_it": self._is_of_it}
        return made

    def _is_of_it(self, row: int) -> bool:
        return bool(self._world.oracle.is_loaded(row))

    async def _take_in(self, copy: _Copy) -> None:
        """Hold it by the rows of the copy. Nothing is held where the journal here does not reach back to it any
        more."""
        paths = [Path(f"/oslo/copies/{REGIONS[region.number]}.db") for region in copy.regions]
        self._here.copies.update({str(path): region for path, region in zip(paths, copy.regions, strict=True)})
        copies = [partition._Copy(path.stem, path, bytes(16)) for path in paths]
        if self._instance.content.choice.lacking_below(self._keeps, copy.seqno + 1):
            return
        while min(region.seqno for region in self._here.regions) < copy.seqno:
            await self._pause()
        prove_same_past(make_chain(self._instance), copy.position, self._instance)
        try:
            with door_of(self._instance) as door:
                last = int(door.words[word.LAST_SEQNO])
                partition._roll(self._instance, door, copies, last, self._keeps, lambda *_: None)
            await self._aside()
            if any(process.name == "update" for process in self._here.processes):
                return  # it was started in between
            self._world.oracle.is_put_in = True
            partition._put_in(self._instance, copies, self._keeps, lambda *_: None)
        except JournalMissingError:
            self._world.figures["copies that were too old"] += 1
