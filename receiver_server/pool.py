"""The receive pool at the start of the daemon, and what is applied as soon as the regions can be read.

Guarantees: what has arrived and fits is kept; a pool that cannot be used is made again, after what is applied.
Leaves to others: what is in the pool (position.py), when it has to be replaced later (source_state.py).
"""

from __future__ import annotations

from typing import Final

import trio

from receiver_server.position import find_applied
from replicate.daemon.daemon import DaemonContext
from replicate.errors import (
    BusyError,
    DamagedError,
    FormatUnknownError,
    NotFoundError,
    PoolReplacedError,
    TryAgainError,
    WrongInstanceError,
)
from replicate.instance.instance import Instance
from replicate.model.vector import Position
from replicate.pool.receive_pool import ReceivePool

REGION_BUSY_S: Final = 30.0
"""A WAL of 64 MiB is recovered in less than a second, and checkpointed within some, by a slow disk."""
BUSY_LOOK_S: Final = 1.0
_UNUSABLE: Final = (PoolReplacedError, TryAgainError, DamagedError, FormatUnknownError, WrongInstanceError)


async def open_pool(context: DaemonContext, instance: Instance) -> ReceivePool:
    """The pool that is there, with all that has arrived; a new one when there is none, or none that can be used, or an
    empty one of another size than is configured."""
    try:
        pool = ReceivePool.open_producer(instance.content.uuid)
    except NotFoundError:
        replace = False
    except _UNUSABLE as error:
        context.log.warning("receive pool made again", error=str(error), code=error.code)
        replace = True
    else:
        context.log.info("receive pool found", pool_bytes=pool.memory.bytes, used_bytes=pool.used_bytes)
        configured_bytes = context.config.receiver.pool_bytes
        if not pool.can_be_remade(configured_bytes):
            return pool
        context.log.info("receive pool made again", pool_bytes=pool.memory.bytes, configured_bytes=configured_bytes)
        pool.close()
        replace = True
    applied = await find_applied_soon(context, instance)
    return ReceivePool.create(
        instance.content.uuid,
        configured_bytes=context.config.receiver.pool_bytes,
        last_seqno=applied.last_seqno if applied is not None and not instance.is_supplier else 0,
        replace=replace,
    )


async def find_applied_soon(context: DaemonContext, instance: Instance) -> Position | None:
    """What is applied, as soon as a region can be read: a process that opens it first after a crash, or closes
    it last, keeps readers out while it goes through the WAL. BusyError when that takes longer than REGION_BUSY_S."""
    limit_s = trio.current_time() + REGION_BUSY_S
    while True:
        try:
            return await trio.to_thread.run_sync(find_applied, instance)
        except BusyError as error:
            if trio.current_time() >= limit_s:
                raise
            context.status("waiting for a region that another process keeps to itself")
            context.log.warning("a region cannot be read yet", error=str(error), code=error.code)
        await trio.sleep(BUSY_LOOK_S)
