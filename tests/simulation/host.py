"""A host: its disk, its shared memory, its locks, its clock.

Guarantees: what a process of a host sees of another is what one machine would show it; after a power loss only what the
disk has is left.
Leaves to others: how the product's modules come to use it (stage.py), and what happens in a world.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from msgspec.structs import replace

import replicate.door.barrier
import replicate.door.interval_sync
import replicate.door.primary
import replicate.door.pruning
import replicate.door.recovery.opening
import replicate.door.recovery.recovery
import replicate.instance.instance
import replicate.instance.private_files
import replicate.journal.durable
import replicate.pool.doorbell
import replicate.pool.shared_memory
import replicate.security.authenticate
import replicate.system.failpoint
import replicate.system.locks
from replicate.errors import (
    AlreadyExistsError,
    BusyError,
    InternalError,
    NotFoundError,
    PoolReplacedError,
    ReplicateError,
)
from replicate.instance.file import RegionEntry, read_file
from replicate.limits import READERS_MAX
from replicate.pool.control import (
    CONTROL_BYTES,
    POOL_EPOCH,
    POOL_STATE,
    STATE_BUILDING,
    STATE_CLOSED,
    STATE_READY,
)
from replicate.pool.doorbell import Doorbell, Doorbells
from replicate.pool.shared_memory import PoolKind
from replicate.settings.load import Address, Config
from tests.simulation import regions as model
from tests.simulation.disk import Disk
from tests.simulation.kernel import Process

WALL_NS: Final = 1_700_000_000_000_000_000
DIRECTORIES: Final = ("journal", "locks", "run", "log", "regions", "consumers", "conflict")
LOOP_S: Final = 0.0001
"""What one turn of a loop that finds its condition true at once takes at least: a reader may turn for STALLED_S after
a writer that was killed between two words."""

RING: Final = "a ring"
"""As if a ring had a failpoint: the sleeper's byte is cleared, and nothing has come into its FIFO."""
REGIONS: Final = ("main", "side")
"""Names of regions; a world has the first one, or both."""
RING_SLOTS: Final = 5
BATCH_BYTES: Final = 2048


class Memory:
    """A pool's bytes: what every process of the host that maps it sees."""

    __slots__ = ("bytes", "claimed", "data", "is_linked", "sleeping")

    def __init__(self, size: int) -> None:
        self.bytes = size
        self.claimed: dict[int, Process] = {}
        """Which process has which doorbell."""
        self.data = bytearray(size)
        self.is_linked = True
        self.sleeping: dict[int, Any] = {}


class SimulatedMemory:
    """SharedMemory of the process that runs. Unmapped when that dies: nothing of it is written any more."""

    world: Any

    def __init__(self, kind: PoolKind, memory: Memory, instance: bytes) -> None:
        self._memory = memory
        self._process: Process = self.world.kernel.process
        self._process.mappings.append(self)
        self.kind = kind
        self.path = Path(f"/pool/{kind.value}")
        self.fd = 1
        self.bytes = memory.bytes
        self.instance = instance
        self.map = memory.data
        self.view = memoryview(memory.data)
        self.words = self.view[:CONTROL_BYTES].cast("Q")
        self.epoch = self.words[POOL_EPOCH]
        self.home = ""

    @classmethod
    def create(
        cls, kind: PoolKind, instance: bytes, *, configured_bytes: int, minimum_bytes: int, replace: bool = False
    ) -> SimulatedMemory:
        host = cls.world.kernel.process.host
        if replace:
            cls.retire(kind, instance)
        if kind in host.memory:
            raise AlreadyExistsError("the pool is there already")
        memory = host.memory[kind] = Memory(CONTROL_BYTES + configured_bytes)
        made = cls(kind, memory, instance)
        made.words[POOL_STATE] = STATE_BUILDING
        made.words[POOL_EPOCH] = made.epoch = cls.world.dice.getrandbits(60) + 1
        return made

    @classmethod
    def attach(
        cls, kind: PoolKind, instance: bytes, *, owner_uid: int | None = None, building: bool = False
    ) -> SimulatedMemory:
        memory = cls.world.kernel.process.host.memory.get(kind)
        if memory is None:
            raise NotFoundError("the pool does not exist")
        made = cls(kind, memory, instance)
        if made.state != STATE_READY and not building:
            made.close()
            raise PoolReplacedError("the pool is closed, or half made")
        return made

    @classmethod
    def retire(cls, kind: PoolKind, instance: bytes) -> bool:
        host = cls.world.kernel.process.host
        memory = host.memory.pop(kind, None)
        if memory is None:
            return False
        with memoryview(memory.data)[:CONTROL_BYTES].cast("Q") as words:
            words[POOL_STATE] = STATE_CLOSED
        memory.is_linked = False
        return True

    @property
    def state(self) -> int:
        return int(self.words[POOL_STATE])

    def mark_ready(self) -> None:
        self.words[POOL_STATE] = STATE_READY

    def note_home(self, directory: Path) -> None:
        pass

    def is_current(self) -> bool:
        return self.words[POOL_STATE] != STATE_CLOSED and self._memory.is_linked

    was_current = is_current
    look_again_s = math.nan
    """Unequal to itself: each look is one."""

    def check_current(self) -> None:
        if not self.is_current():
            raise PoolReplacedError("the pool was replaced or removed")

    def unmap(self) -> None:
        self.words.release()

    def close(self) -> None:
        if self in self._process.mappings:
            self._process.mappings.remove(self)
            self.words.release()
            self.fd = -1


class SimulatedLock:
    """FileLock. Held by a process; free as soon as that is dead."""

    world: Any

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held = False
        self._process: Process = self.world.kernel.process
        self._process.check()
        self._locks: dict[str, SimulatedLock] = self._process.host.locks

    def fileno(self) -> int:
        return -1

    def try_acquire(self) -> bool:
        self._process.check()
        if self.held:
            raise InternalError("a lock was taken twice by one holder", where=str(self.path))
        holder = self._locks.get(str(self.path))
        if holder is not None and not holder._process.is_dead:
            return False
        self._locks[str(self.path)] = self
        self.held = True
        return True

    def acquire(
        self,
        timeout_s: float,
        *,
        what: str = "the lock",
        unless: Callable[[], bool] | None = None,
        pause_s_max: float = 0.0,
    ) -> bool:
        if self.try_acquire():
            return True
        is_held = self.world.wait_for_lock(self, timeout_s, unless)
        if is_held is not None:
            return bool(is_held)
        raise BusyError(f"{what} was held by another process for {timeout_s:g} s", where=str(self.path))

    def release(self) -> None:
        self._process.check()
        self.held = False
        if self._locks.get(str(self.path)) is self:
            del self._locks[str(self.path)]

    def close(self) -> None:
        self.release()


class _Sleeper:
    """The byte by which writers learn that a reader sleeps. A dead reader leaves it as it is."""

    def __init__(self, memory: SimulatedMemory, place: int) -> None:
        self._memory, self._place = memory, place

    def __setitem__(self, _: int, value: int) -> None:
        if not self._memory._process.is_dead:
            self._memory.view[self._place] = value

    def __getitem__(self, _: int) -> int:
        return self._memory.view[self._place]


class SimulatedDoorbell:
    """Doorbell: the reader's side. Its sleeper byte is real, so writers ring when they should, or not; how a sleep
    under trio ends is the product's own code."""

    world: Any

    def __init__(self, pool: Any, slot: int) -> None:
        from replicate.pool.control import SLEEPERS_OFFSET

        self._place = SLEEPERS_OFFSET + slot
        self._memory = pool.memory
        self._slot = slot
        self._fd = self  # what is waited for
        self._sleeper = _Sleeper(pool.memory, self._place)
        self.is_looked_after = self._is_asleep = False

    @classmethod
    def claim(cls, pool: Any, run_directory: Path, slot: int | None = None) -> SimulatedDoorbell:
        claimed, process = pool.memory._memory.claimed, cls.world.kernel.process
        if slot is None:
            slot = next(one for one in range(READERS_MAX) if one not in claimed or claimed[one].is_dead)
        claimed[slot] = process
        return cls(pool, slot)

    async def sleep(self, ready: Callable[[], object]) -> None:
        await self.world.kernel.sleep(LOOP_S)
        await self._as_product("sleep")(self, ready)

    async def keep_looking(self) -> None:
        await self._as_product("keep_looking")(self)

    def _as_product(self, name: str) -> Any:
        """A method of the product's doorbell, which imports trio where it needs it: the world's here."""

        def imported(name: str, *rest: Any) -> Any:
            return self.world.trio if name == "trio" else __import__(name, *rest)

        method = getattr(Doorbell, name)
        seen = {**method.__globals__, "__builtins__": {**vars(builtins), "__import__": imported}}
        return FunctionType(method.__code__, seen, name, method.__defaults__, method.__closure__)

    async def rung(self) -> None:
        """Until somebody rings, or wakes us."""
        kernel = self.world.kernel
        self._memory._memory.sleeping[self._slot] = kernel.me()
        await kernel.suspend()

    def _drain(self) -> None:
        """A ring that has found nobody asleep has left nothing."""

    async def wait(
        self,
        ready: Callable[[], object],
        timeout_s: float,
        on_ring: Callable[[], float] | None = None,
    ) -> bool:
        kernel = self.world.kernel
        await kernel.sleep(LOOP_S)
        deadline_s = kernel.now + timeout_s
        memory = self._memory
        while True:
            memory.view[self._place] = 1
            try:
                if ready():
                    return True
                left_s = deadline_s - kernel.now
                if left_s <= 0:
                    return False
                memory._memory.sleeping[self._slot] = kernel.me()
                await kernel.sleep(min(left_s, replicate.pool.doorbell.CAP_S))
                rung = memory._memory.sleeping.get(self._slot) is None
            finally:
                if not memory._process.is_dead:
                    memory.view[self._place] = 0
            if rung and on_ring is not None and not ready():
                deadline_s = min(deadline_s, kernel.now + await self.world.trio.to_thread.run_sync(on_ring))

    async def wait_and_call(
        self,
        ready: Callable[[], object],
        timeout_s: float,
        call: Callable[[], Any],
        on_ring: Callable[[], float] | None = None,
    ) -> Any:
        if not ready():
            await self.wait(ready, timeout_s, on_ring)
        return await self.world.trio.to_thread.run_sync(call)

    def wake(self) -> None:
        sleeper = self._memory._memory.sleeping.pop(self._slot, None)
        if sleeper is not None:
            self.world.kernel.wake(*sleeper)

    def close(self) -> None:
        self._memory._memory.claimed.pop(self._slot, None)


class SimulatedDoorbells(Doorbells):
    """Doorbells: who is rung is decided by the product's own `ring`."""

    def _ring(self, kind: PoolKind, slot: int) -> int:
        world = SimulatedMemory.world
        world.hit(RING)  # its byte is cleared
        memory = world.kernel.process.host.memory.get(kind)
        sleeper = memory.sleeping.pop(slot, None) if memory is not None else None
        if sleeper is not None:
            world.kernel.wake(*sleeper)
        return 1

    def close(self) -> None:
        pass


class SimulatedInterval:
    """IntervalSync: one callback at a time instead of a thread."""

    world: Any

    def __init__(self, sync: Callable[[], object], interval_s: float) -> None:
        self._sync, self._pause_s = sync, interval_s / 2
        self._process: Process = self.world.kernel.process
        self._is_due = self._is_closed = False

    def wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            kernel = self.world.kernel
            kernel.at(kernel.now + self._pause_s, self._run)

    def _run(self) -> None:
        self._is_due = False
        if not self._process.is_dead and not self._is_closed:
            self.world.call_as(self._process, self._sync)

    def close(self) -> None:
        if self._is_due and not self._is_closed and not self._process.is_dead:
            with contextlib.suppress(ReplicateError):
                self._sync()
        self._is_closed = True


class SimulatedPath(type(Path())):  # type: ignore[misc]
    """A path that looks for its file on the disk of the one that asks."""

    def exists(self) -> bool:
        return bool(SimulatedInstance.world.os.path.exists(self))


class SimulatedInstance(replicate.instance.instance.Instance):
    """Instance: opened on the disk of the one that opens it."""

    world: Any

    @property
    def conflict_directory(self) -> Path:
        return SimulatedPath(super().conflict_directory)

    @classmethod
    def open(cls, path: Any) -> SimulatedInstance:
        host = cls.world.kernel.process.host
        where = cls.world.path_kind(path)
        return cls(where, read_file(where / replicate.instance.instance.FILE_NAME), host.config)


class SimulatedAuthenticator:
    """Everybody is who it should be."""

    def __init__(self, instance: Any, config: Config, log: Any) -> None:
        self._instance = instance

    def needs_tls(self, _address: Address) -> bool:
        return False

    def check(self, _address: Address, *, where: str, is_receiver: bool) -> None:
        pass

    def warn_of_expiry(self, _now_s: float) -> None:
        pass

    def close(self) -> None:
        pass

    async def receiver(self, stream: Any, entry: Any, *, deadline: float) -> Any:
        return replicate.security.authenticate.Authenticated(stream, frozenset({entry.name}))

    async def source(self, stream: Any, *, is_tls: bool, deadline: float, answers: Any = None) -> Any:
        return replicate.security.authenticate.Authenticated(stream, frozenset({stream.far}))


class SimulatedCommands:
    """The socket on which a daemon takes orders: nobody gives any."""

    def __init__(self, *_: Any) -> None:
        pass

    async def listen(self) -> None:
        pass

    async def serve(self, _heard: Any) -> None:
        pass


class SimulatedSeeds:
    """Seeds: nobody asks for one."""

    is_wanted = False

    def __init__(self, _receiver: Any) -> None:
        pass

    async def listen(self) -> None:
        pass

    async def serve(self) -> None:
        pass

    async def beside(self, _connection: Any) -> None:
        pass

    def heard(self, event: Any) -> None:
        raise AssertionError(f"nobody has asked for a seed: {event}")

    def waiting(self, _connection: Any) -> int:
        return 0

    def closed(self, *_: Any) -> None:
        pass


class Host:
    """One machine. `boot` is another number after each power loss."""

    def __init__(self, name: str, disk: Disk, regions: list[model.Region], config: Config) -> None:
        self.name = name
        self.disk = disk
        self.regions = regions
        self.copies: dict[str, model.Region] = {}
        """By their path: regions of another host's that have come here, to be put into ours."""
        self.config = config
        self.memory: dict[PoolKind, Memory] = {}
        self.locks: dict[str, SimulatedLock] = {}
        self.boot = 1000
        self.wall_offset_ns = 0
        self.is_up = True
        self.is_reached = True
        self.processes: list[Process] = []
        self.listener: Any = None

    @property
    def path(self) -> Path:
        return Path(f"/{self.name}")

    def region_at(self, path: Any) -> model.Region:
        """The region whose file is there, or the copy of one."""
        if (copy := self.copies.get(str(path))) is not None:
            return copy
        return self.regions[REGIONS.index(Path(path).stem)]

    def power_loss(self, dice: random.Random) -> None:
        """Nothing but what the disk has is left."""
        self.disk.power_loss(dice)
        for region in self.regions:
            region.power_loss(dice)
        self.copies.clear()
        self.memory.clear()
        self.locks.clear()
        self.listener = None
        self.boot += 1


def directories(name: str) -> tuple[str, ...]:
    """Of an instance, and itself."""
    return (f"/{name}", *(f"/{name}/{one}" for one in DIRECTORIES))


def entry_of(host_name: str, number: int) -> RegionEntry:
    """One region of a host."""
    name = REGIONS[number]
    return RegionEntry(number, name, name[:1].encode() * 16, Path(f"/{host_name}/regions/{name}.db"))


def config_of(dice: random.Random, durability: str) -> Config:
    """Settings that make short work: small pools, small segments, short periods."""
    default = Config()
    return replace(
        default,
        journal=replace(
            default.journal,
            durability=durability,  # type: ignore[arg-type]
            sync_interval_s=1.0,
            rollback_bytes=0,
            reserve_bytes=0,
            segment_bytes=dice.choice([8, 10, 16]) * 1024,
            pool_bytes=dice.choice([1, 2, 6]) * 1024,
        ),
        source=replace(
            default.source,
            heartbeat_period_s=2.0,
            dead_after_s=6.0,
            hard_tries=3,
            hard_period_s=0.2,
            soft_period_s=1.0,
            connect_timeout_s=2.0,
            compression=dice.choice(["none", "none", "zstd"]),  # type: ignore[arg-type]
            batch_bytes=dice.choice([400, 1000, BATCH_BYTES]),
            patrol_percent=0.0,  # a region here is no database
        ),
        receiver=replace(
            default.receiver,
            heartbeat_period_s=2.0,
            dead_after_s=6.0,
            hello_timeout_s=2.0,
            pool_bytes=dice.choice([12, 16, 24]) * 1024,
            patrol_percent=0.0,
        ),
        update=replace(default.update, batch_transactions=dice.choice([1, 3, 50]), batch_bytes=4096),
    )
