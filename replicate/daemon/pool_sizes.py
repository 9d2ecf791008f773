"""Sizes of pools that are asked for and do not count, because a pool of another size is there already.

Guarantees: only looks; every warning names the size in force, why it is that one, and how to get the other; nothing is
said of a size that nobody has asked for (the default).
Leaves to others: who makes a pool, and when (the Receiver Server; recovery).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from typing import Final

from replicate.daemon.last_run import stop_and_start_again
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.model.start_command import text_of
from replicate.pool.receive_pool import ReceivePool
from replicate.pool.shared_memory import PoolKind, SharedMemory, whole_pages
from replicate.settings.load import SETTINGS, Config, shown
from replicate.settings.table import Scalar

RECEIVE: Final = "receiver.pool_bytes"
JOURNAL: Final = "journal.pool_bytes"


def void_pool_sizes(instance: Instance, name: str, config: Config, given: Collection[str] = ()) -> tuple[str, ...]:
    """What to tell at a start of the daemon `name` with `config`, of which the command line gave `given`, or after a
    change of these settings."""
    return (*_journal(instance, config, given), *(_receive(instance, name, config, given)))


def _journal(instance: Instance, config: Config, given: Collection[str]) -> Iterator[str]:
    wanted = config.journal.pool_bytes
    if not _is_asked_for(JOURNAL, wanted, given):
        return
    with suppress(ReplicateError), closing(SharedMemory.attach(PoolKind.JOURNAL, instance.content.uuid)) as memory:
        if memory.bytes == whole_pages(wanted):
            return
        text = f"{JOURNAL} = {_shown(JOURNAL, wanted)} does not count: the journal pool has {_size(memory.bytes)}"
        if JOURNAL in given and instance.config.journal.pool_bytes != wanted:
            text += ", as it is made by the process that comes first, the application too, and never by a flag"
            keep = f"replicate -i {instance.named} config set {JOURNAL} {shlex.quote(text_of(JOURNAL, wanted))}; "
        else:
            text, keep = f"{text}, as when it was made (at most a quarter of what was free there)", ""
        yield (
            f"{text}. For another size: {keep}then stop every process that uses the instance, rm "
            f"{shlex.quote(str(memory.path))}, and start them again: the pool is a cache, and nothing is lost"
        )


def _receive(instance: Instance, name: str, config: Config, given: Collection[str]) -> Iterator[str]:
    wanted = config.receiver.pool_bytes
    if name != "receiver" or not _is_asked_for(RECEIVE, wanted, given):
        return
    with suppress(ReplicateError), closing(ReceivePool.attach(instance.content.uuid)) as pool:
        if pool.memory.bytes == whole_pages(wanted):
            return
        text = f"{RECEIVE} = {_shown(RECEIVE, wanted)} does not count: the receive pool has {_size(pool.memory.bytes)}"
        if not pool.is_empty or pool.received_parts:
            yield (
                f"{text}, and holds what is not applied yet. For the other size: when replicate -i {instance.named} "
                f"status says that the receiver backlog is 0: {stop_and_start_again(instance, name)}"
            )
        else:
            yield (
                f"{text}: it is empty, but a pool takes at most a quarter of what is free in "
                f"{pool.memory.path.parent}. Make that larger, then {stop_and_start_again(instance, name)}"
            )


def _is_asked_for(key: str, wanted: Scalar, given: Collection[str]) -> bool:
    return key in given or wanted != SETTINGS[key].default


def _shown(key: str, value: Scalar) -> str:
    return shown(SETTINGS[key], value)


def _size(value: int) -> str:
    return _shown(JOURNAL, value).strip('"')
