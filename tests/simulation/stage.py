"""The product's modules taught to run on simulated hosts.

`installed(world)` puts simulated things in the places of `os`, `time`, `trio`, `fcntl`, locks, shared memory, doorbells
and SQLite, in every module of the product, by what stands there now; the modules themselves are unchanged. Sizes that
are megabytes in the product are some kilobytes here, so that rings wrap and pools overflow within a few transactions.

Guarantees: whatever was replaced is put back.
Leaves to others: what happens in a world.
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
from types import SimpleNamespace
from typing import Any, Final

import trio

import receiver_server.process
import receiver_server.seed
import replicate.daemon.listening
import replicate.daemon.order_socket
import replicate.door.barrier
import replicate.door.interval_sync
import replicate.door.known_to_all
import replicate.door.primary
import replicate.door.pruning
import replicate.door.recovery.opening
import replicate.door.recovery.recovery
import replicate.instance.instance
import replicate.journal.durable
import replicate.pool.doorbell
import replicate.pool.shared_memory
import replicate.region.kind
import replicate.roles.retired_supplier
import replicate.roles.rollback
import replicate.security.authenticate
import replicate.status.roles
import replicate.system.boot
import replicate.system.failpoint
import replicate.system.files
import replicate.system.locks
import replicate.system.os_errors
import replicate.system.standard_streams
import replicate.transfer.packet.epochs_file
import replicate.transfer.seed.incoming
import replicate.transfer.seed.request
import update_process.applier
import update_process.conflict_file
import update_process.own_thread
import update_process.process
import update_process.supplied_transactions
from replicate.pool.control import CONTROL_BYTES
from replicate.settings.load import Address
from tests.simulation import regions as model
from tests.simulation.host import (
    BATCH_BYTES,
    RING_SLOTS,
    SimulatedAuthenticator,
    SimulatedCommands,
    SimulatedDoorbell,
    SimulatedDoorbells,
    SimulatedInstance,
    SimulatedInterval,
    SimulatedLock,
    SimulatedMemory,
    SimulatedSeeds,
)
from tests.simulation.replaced import Change, replaced


def check_nothing(*_: Any, **__: Any) -> None:
    """What a model cannot fail."""


PACKAGES: Final = ("replicate", "source_server", "receiver_server", "update_process")
REAL: Final = (
    "replicate.system.failpoint", "replicate.region.sqlite", "replicate.dbapi", "replicate.cli", "replicate.daemon.log",
    "replicate.daemon.daemon", "replicate.daemon.files", "replicate.security.tls",
    "replicate.daemon.lock_file", "replicate.daemon.status_file",
    "replicate.daemon.http", "replicate.daemon.metrics_port", "update_process.replay",
)  # fmt: skip
"""Modules that stay as they are: not used in a world, or by everybody else in this process too."""

BETWEEN: Final = "sqlite.between_files"
"""As if SQLite had a failpoint: one file of a transaction is committed, and the next is not."""
PART_BYTES: Final = 512
LANE_BYTES_MIN: Final = 20 * 1024
SIZES: Final[dict[str, dict[str, Any]]] = {
    "replicate.door.primary": {"RING_SLOTS": RING_SLOTS, "RING_RECORD_BYTES_MAX": 500},
    "replicate.door.recovery.roll_forward": {"RING_RECORD_BYTES_MAX": 500},
    "replicate.door.recovery.region_rings": {"RING_SLOTS": RING_SLOTS},
    "replicate.journal.spool": {"PART_BYTES": PART_BYTES},
    "replicate.journal.spool_format": {"PART_BYTES": PART_BYTES},
    "replicate.pool.journal_pool": {"BATCH_BYTES_MAX": BATCH_BYTES},
    "replicate.pool.receive_pool": {"RECEIVE_POOL_BYTES_MIN": LANE_BYTES_MIN},
    "receiver_server.flow": {
        "BATCH_BYTES_MAX": BATCH_BYTES, "_HEADS_BYTES": 9 * 1024, "RECEIVE_POOL_BYTES_MIN": 8 * 1024,
    },
    "receiver_server.connection": {"BATCH_BYTES_MAX": BATCH_BYTES},
    "receiver_server.process": {"LOOK_S": 1.0, "UPDATE_DEAD_AFTER_S": 3.0},
    "source_server.process": {"PRUNE_PERIOD_S": 3.0},
    "update_process.process": {
        "PRUNE_PERIOD_S": 3.0,
        "ALIVE_PERIOD_S": 1.0,
        "sys": SimpleNamespace(setswitchinterval=check_nothing),
        "gc": SimpleNamespace(freeze=check_nothing, set_threshold=check_nothing),
    },
    "update_process.applier": {"WINDOW_BYTES": 1500},
    "update_process.supplied_transactions": {"WINDOW_BYTES": 1500, "BATCH_BYTES": 4096, "RECORDS_MAX": 8},
    "update_process.merging": {"LAG_MAX": 10, "PURGE_MIN": 2},
    "update_process.unstamped": {"ROWS_MAX": 40, "PART_ROWS": 3},
    "update_process.supplier_upkeep": {"TOLD_MAX": 12},
    "replicate.door.absorb_stamps": {"AT_ONCE": 3},
}  # fmt: skip


def _replacements(world: Any) -> list[tuple[Any, Any]]:
    for one in (SimulatedMemory, SimulatedLock, SimulatedDoorbell, SimulatedInterval, SimulatedInstance):
        one.world = world
    kernel = world.kernel

    async def listen(_text: str, *, where: str) -> tuple[list[Any], Address]:
        await kernel.sleep(0)
        return [world.network.listen(kernel.process)], Address("127.0.0.1", 7430)

    def beside(call: Callable[[], None], meanwhile: Callable[[], bool], *, name: str) -> None:
        while world.dice.random() < 0.6 and meanwhile():
            pass
        call()

    def stopped(error: Exception, *_: Any, **__: Any) -> Exception:
        return error

    def facts(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(st_ino=model.INODE, st_dev=7, st_mtime_ns=0)

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
        (time.monotonic, simulated_time.monotonic),
        (random, world.dice),
        (uuid, simulated_uuid),
        (trio, world.trio),
        (fcntl, SimpleNamespace(flock=world.os.flock, LOCK_EX=2, LOCK_NB=4, LOCK_SH=1, LOCK_UN=8)),
        (fcntl.flock, world.os.flock),
        (replicate.system.files.read_private, lambda path: world.os.read(path)),
        (replicate.system.files.open_to_read, lambda path: world.os.fdopen(world.os.open(path, os.O_RDONLY), "rb")),
        (replicate.system.boot.boot_word, lambda: kernel.process.host.boot),
        (replicate.system.os_errors.lacking_descriptors, lambda: None),
        (replicate.system.standard_streams.hold_standard_descriptors, lambda: None),
        (replicate.system.locks.FileLock, SimulatedLock),
        (replicate.pool.shared_memory.SharedMemory, SimulatedMemory),
        (replicate.pool.shared_memory.retire, SimulatedMemory.retire),
        # What SimulatedMemory takes, which is never just what is wanted: so no receive pool is made again for its size.
        (replicate.pool.shared_memory.affordable_bytes, lambda _directory, wanted, _least: CONTROL_BYTES + wanted),
        (replicate.pool.doorbell.Doorbell, SimulatedDoorbell),
        (replicate.pool.doorbell.Doorbells, SimulatedDoorbells),
        (replicate.door.interval_sync.IntervalSync, SimulatedInterval),
        (replicate.instance.instance.Instance, SimulatedInstance),
        (replicate.security.authenticate.Authenticator, SimulatedAuthenticator),
        (replicate.daemon.order_socket.CommandSocket, SimulatedCommands),
        (receiver_server.seed.Seeds, SimulatedSeeds),
        (replicate.daemon.listening.listen, listen),
        (update_process.own_thread.run_beside, beside),
        (update_process.conflict_file.stopped, stopped),
        (replicate.region.kind.KIND, world.make_kind()),
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
    changes: list[Change] = [(module, name, new_by_id[key]) for module, name, key in _places]
    for name, values in (*SIZES.items(), *world.sizes.items()):
        changes += [(sys.modules[name], key, value) for key, value in values.items()]
    changes += [
        (replicate.door.primary, "CHECK_CAPTURE", False),  # the model's connections are no SQLite
        (replicate.system.failpoint, "_armed", True),
        (replicate.system.failpoint, "_take", world.hit),
        (replicate.journal.durable, "_BOOT", 1000),
    ]
    try:
        with replaced(*changes):
            yield
    finally:
        replicate.door.recovery.opening._doors.clear()
        replicate.door.recovery.opening._given_up.clear()


def _modules() -> list[Any]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if module is not None and name.partition(".")[0] in PACKAGES and not name.startswith(REAL)
    ]
