"""A host: its disk, its shared memory, its locks, its clock. And the product's modules taught to run on one.

`installed(world)` puts simulated things in the places of `os`, `time`, `trio`, `fcntl`, locks, shared memory, doorbells
and SQLite, in every module of the product, by what stands there now; the modules themselves are unchanged. Sizes that
are megabytes in the product are some kilobytes here, so that rings wrap and pools overflow within a few transactions.

Guarantees: whatever was replaced is put back.
Refuses to know: what happens in a world.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import trio

import receiver_server.seed
import receiver_server.server
import replicate.authenticate
import replicate.barrier
import replicate.commit
import replicate.failpoint
import replicate.instance
import replicate.interval_sync
import replicate.journal.durable
import replicate.locks
import replicate.opening
import replicate.pool.doorbell
import replicate.pool.shared_memory
import replicate.private_files
import replicate.pruning
import replicate.recovery
import update_process.applier
import update_process.beside
import update_process.conflict
import update_process.process
from replicate.config import Address, Config
from replicate.database import bookkeeping, rows, sqlite
from replicate.errors import AlreadyExistsError, BusyError, InternalError, NotFoundError, PoolReplacedError
from replicate.instance_file import RegionEntry, read_file
from replicate.pool.control import (
    CONTROL_BYTES,
    POOL_EPOCH,
    POOL_STATE,
    STATE_BUILDING,
    STATE_CLOSED,
    STATE_READY,
)
from replicate.pool.doorbell import Doorbells
from replicate.pool.shared_memory import PoolKind
from tests.simulation import regions as model
from tests.simulation.disk import Disk
from tests.simulation.kernel import Process

WALL_NS: Final = 1_700_000_000_000_000_000
PACKAGES: Final = ("replicate", "source_server", "receiver_server", "update_process")
DIRECTORIES: Final = ("journal", "locks", "run", "log", "regions", "consumers", "conflict")
REAL: Final = (
    "replicate.failpoint", "replicate.database", "replicate.dbapi", "replicate.cli", "replicate.log",
    "replicate.daemon", "replicate.tls", "replicate.metrics_", "update_process.replay",
)  # fmt: skip
"""Modules that stay as they are: not used in a world, or by everybody else in this process too."""
LOOP_S: Final = 0.0001
"""What one turn of a loop that finds its condition true at once takes at least: a reader may turn for STALLED_S behind
a writer that was killed between two words."""
STALE: Final = ("replicate.stale_wal",)

RING_SLOTS: Final = 5
BATCH_BYTES: Final = 2048
PART_BYTES: Final = 512
SIZES: Final[dict[str, dict[str, Any]]] = {
    "replicate.commit": {"RING_SLOTS": RING_SLOTS, "RING_RECORD_BYTES_MAX": 500},
    "replicate.redo": {"RING_RECORD_BYTES_MAX": 500},
    "replicate.recovery_rings": {"RING_SLOTS": RING_SLOTS},
    "replicate.journal.spool": {"PART_BYTES": PART_BYTES},
    "replicate.journal.spool_format": {"PART_BYTES": PART_BYTES},
    "replicate.pool.journal_pool": {"BATCH_BYTES_MAX": BATCH_BYTES},
    "receiver_server.flow": {
        "BATCH_BYTES_MAX": BATCH_BYTES, "_HEADS_BYTES": 9 * 1024, "RECEIVE_POOL_BYTES_MIN": 8 * 1024,
    },
    "receiver_server.connection": {"BATCH_BYTES_MAX": BATCH_BYTES},
    "receiver_server.server": {"LOOK_S": 1.0, "UPDATE_DEAD_AFTER_S": 3.0},
    "source_server.server": {"PRUNE_PERIOD_S": 3.0},
    "update_process.process": {
        "PRUNE_PERIOD_S": 3.0,
        "ALIVE_PERIOD_S": 1.0,
        "sys": SimpleNamespace(setswitchinterval=model.check_nothing),
        "gc": SimpleNamespace(freeze=model.check_nothing, set_threshold=model.check_nothing),
    },
    "update_process.applier": {"WINDOW_BYTES": 1500},
}  # fmt: skip


class Memory:
    """A pool's bytes: what every process of the host that maps it sees."""

    __slots__ = ("bytes", "data", "is_linked", "sleeping")

    def __init__(self, size: int) -> None:
        self.bytes = size
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
        if unless is not None and unless():
            return False
        raise BusyError(f"{what} was held by another process for {timeout_s:g} s", where=str(self.path))

    def release(self) -> None:
        self._process.check()
        self.held = False
        if self._locks.get(str(self.path)) is self:
            del self._locks[str(self.path)]

    def close(self) -> None:
        self.release()


class SimulatedDoorbell:
    """Doorbell: the reader's side. Its sleeper byte is real, so writers ring when they should, or not."""

    world: Any

    def __init__(self, pool: Any, slot: int) -> None:
        from replicate.pool.control import SLEEPERS_OFFSET

        self._place = SLEEPERS_OFFSET + slot
        self._memory = pool.memory
        self._slot = slot

    @classmethod
    def claim(cls, pool: Any, run_directory: Path, slot: int | None = None) -> SimulatedDoorbell:
        return cls(pool, 0 if slot is None else slot)

    async def wait(self, ready: Callable[[], object], timeout_s: float | None = None) -> bool:
        kernel = self.world.kernel
        await kernel.sleep(LOOP_S)
        deadline_s = kernel.now + (float("inf") if timeout_s is None else timeout_s)
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
            finally:
                if not memory._process.is_dead:
                    memory.view[self._place] = 0

    def close(self) -> None:
        pass


class SimulatedDoorbells(Doorbells):
    """Doorbells: who is rung is decided by the product's own `ring`."""

    def _ring(self, kind: PoolKind, slot: int) -> int:
        world = SimulatedMemory.world
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
        self._is_due = False

    def wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            kernel = self.world.kernel
            kernel.at(kernel.now + self._pause_s, self._run)

    def _run(self) -> None:
        self._is_due = False
        if not self._process.is_dead:
            self.world.call_as(self._process, self._sync)

    def close(self) -> None:
        pass


class SimulatedInstance(replicate.instance.Instance):
    """Instance: opened on the disk of whoever opens it."""

    world: Any

    @classmethod
    def open(cls, path: Any) -> SimulatedInstance:
        host = cls.world.kernel.process.host
        return cls(Path(path), read_file(Path(path) / replicate.instance.FILE_NAME), host.config)


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
        return replicate.authenticate.Authenticated(stream, frozenset({entry.name}))

    async def source(self, stream: Any, *, is_tls: bool, deadline: float) -> Any:
        return replicate.authenticate.Authenticated(stream, frozenset({"paris"}))


class SimulatedSeeds:
    """Seeds: nobody asks for one."""

    is_wanted = False

    def __init__(self, _receiver: Any) -> None:
        pass

    async def listen(self) -> None:
        pass

    async def serve(self) -> None:
        pass

    def heard(self, event: Any) -> None:
        raise AssertionError(f"nobody has asked for a seed: {event}")

    def closed(self, *_: Any) -> None:
        pass


class Host:
    """One machine. `boot` is another number after each power loss."""

    def __init__(self, name: str, disk: Disk, region: model.Region, config: Config) -> None:
        self.name = name
        self.disk = disk
        self.region = region
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

    def power_loss(self, dice: random.Random) -> None:
        """Nothing but what the disk has is left."""
        self.disk.power_loss(dice)
        self.region.power_loss(dice)
        self.memory.clear()
        self.locks.clear()
        self.listener = None
        self.boot += 1


def directories(name: str) -> tuple[str, ...]:
    """Of an instance, and itself."""
    return (f"/{name}", *(f"/{name}/{one}" for one in DIRECTORIES))


def _replacements(world: Any) -> list[tuple[Any, Any]]:
    for one in (SimulatedMemory, SimulatedLock, SimulatedDoorbell, SimulatedInterval, SimulatedInstance):
        one.world = world
    kernel = world.kernel

    def open_region(_path: Any, **_: Any) -> model.Connection:
        process = kernel.process
        process.check()
        return model.Connection(process.host.region, process)

    def note_held(_path: Any, *, region: bytes, below: int) -> None:
        kernel.process.host.region.state["held_below"] = below

    def sync_wal(_path: Any) -> None:
        kernel.process.check()
        kernel.process.host.region.sync()

    async def listen(_text: str) -> tuple[list[Any], Address]:
        await kernel.sleep(0)
        return [world.network.listen(kernel.process)], Address("127.0.0.1", 7430)

    def beside(call: Callable[[], None], meanwhile: Callable[[], bool], *, name: str) -> None:
        while world.dice.random() < 0.6 and meanwhile():
            pass
        call()

    def stopped(error: Exception, _seqno: int, _directory: Path) -> Exception:
        return error

    def facts(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(st_ino=model.INODE, st_dev=7)

    simulated_time = SimpleNamespace(
        monotonic=lambda: kernel.now + 1000.0,
        monotonic_ns=lambda: int((kernel.now + 1000.0) * 1e9),
        time_ns=world.wall_ns,
        time=lambda: world.wall_ns() / 1e9,
        sleep=world.pass_time,
        strftime=time.strftime,
        gmtime=time.gmtime,
    )
    simulated_uuid = SimpleNamespace(UUID=uuid.UUID, uuid4=lambda: uuid.UUID(bytes=world.dice.randbytes(16), version=4))
    return [
        (os, world.os),
        (os.getpid, world.os.getpid),
        (os.stat, facts),
        (time, simulated_time),
        (random, world.dice),
        (uuid, simulated_uuid),
        (trio, world.trio),
        (fcntl, SimpleNamespace(flock=world.os.flock, LOCK_EX=2, LOCK_NB=4, LOCK_SH=1, LOCK_UN=8)),
        (fcntl.flock, world.os.flock),
        (replicate.private_files.read_private, lambda path: world.os.read(path)),
        (replicate.locks.FileLock, SimulatedLock),
        (replicate.pool.shared_memory.SharedMemory, SimulatedMemory),
        (replicate.pool.shared_memory.retire, SimulatedMemory.retire),
        (replicate.pool.doorbell.Doorbell, SimulatedDoorbell),
        (replicate.pool.doorbell.Doorbells, SimulatedDoorbells),
        (replicate.interval_sync.IntervalSync, SimulatedInterval),
        (replicate.instance.Instance, SimulatedInstance),
        (replicate.authenticate.Authenticator, SimulatedAuthenticator),
        (receiver_server.seed.Seeds, SimulatedSeeds),
        (receiver_server.server.listen, listen),
        (update_process.beside.run_beside, beside),
        (update_process.conflict.stopped, stopped),
        (sqlite.open_region, open_region),
        (sqlite.region_facts, model.region_facts),
        (sqlite.check_same_file, model.check_nothing),
        (sqlite.note_held, note_held),
        (replicate.pruning._sync_wal, sync_wal),
        (rows.RowApplier, model.Rows),
        *(
            (getattr(bookkeeping, name), getattr(model, name))
            for name in (
                "write_slot", "slot_writer", "write_scr", "read_scr", "read_ring", "region_seqno", "held_below",
                "read_state", "write_state",
                "schema_version", "stored_schema_version", "store_schema_version", "check_schema_version",
            )
        ),
        (bookkeeping.check_region_identity, model.check_nothing),
        *((sys.modules[name].refuse_stale, model.check_nothing) for name in STALE if name in sys.modules),
    ]  # fmt: skip


_places: list[tuple[Any, str, int]] = []
"""(module, name, what stands there by its id), looked for once."""


@contextlib.contextmanager
def installed(world: Any) -> Iterator[None]:
    """The product runs in this world, for a block."""
    pairs = _replacements(world)
    new_by_id = {id(old): new for old, new in pairs}
    if not _places:
        _places.extend(
            (module, name, id(value))
            for module in _modules()
            for name, value in vars(module).items()
            if id(value) in new_by_id and not name.startswith("__")
        )
    changed: list[tuple[Any, str, Any]] = []

    def put(module: Any, name: str, value: Any) -> None:
        changed.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    try:
        for module, name, key in _places:
            put(module, name, new_by_id[key])
        for name, values in SIZES.items():
            for key, value in values.items():
                put(sys.modules[name], key, value)
        put(replicate.failpoint, "_armed", True)
        put(replicate.failpoint, "_take", world.hit)
        put(replicate.journal.durable, "_BOOT", 1000)
        yield
    finally:
        for module, name, value in reversed(changed):
            setattr(module, name, value)
        replicate.opening._doors.clear()
        replicate.opening._given_up.clear()


def _modules() -> list[Any]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if module is not None and name.partition(".")[0] in PACKAGES and not name.startswith(REAL)
    ]


def entry_of(host_name: str) -> RegionEntry:
    """The one region of a host."""
    return RegionEntry(0, "main", b"r" * 16, Path(f"/{host_name}/regions/main.db"))


def config_of(dice: random.Random, durability: str) -> Config:
    """Settings that make short work: small pools, small segments, short periods."""
    default = Config()
    return replace(
        default,
        journal=replace(
            default.journal,
            durability=durability,  # type: ignore[arg-type]
            sync_interval_s=1.0,
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
        ),
        receiver=replace(
            default.receiver,
            heartbeat_period_s=2.0,
            dead_after_s=6.0,
            hello_timeout_s=2.0,
            pool_bytes=dice.choice([12, 16, 24]) * 1024,
        ),
        update=replace(default.update, batch_transactions=dice.choice([1, 3, 50]), batch_bytes=4096),
    )
