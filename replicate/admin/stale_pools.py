"""Pools in shared memory, looked at from outside: whose they are, whether a process uses one, and which are stale.

A pool is stale when its instance is gone: its directory was removed by hand, without `instance remove`.

Guarantees: only files of our own user and name are looked at; a pool is removed only if it says which directory it
belongs to, that directory holds its instance no more, and no process uses the pool (the kernel knows, by a lock that
every user of a pool holds until it ends). Removing one loses nothing: a pool is a cache, and an instance that turns up
again recovers as after a restart of the machine.
Leaves to others: what is in a pool.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

from replicate.errors import NotFoundError, ReplicateError
from replicate.instance.file import read_file
from replicate.instance.instance import FILE_NAME
from replicate.pool.control import POOL_STATE, STATE_CLOSED
from replicate.pool.shared_memory import PoolKind, SharedMemory, pool_path, shared_memory_directory

_NAME: Final = re.compile(r"dualsite-(\d+)-([0-9a-f]{32})-(journal|receive)")


def remove_stale_pools() -> tuple[Path, ...]:
    """Remove them; returns which. What cannot be looked at stays: it is somebody else's, or not ours to mend."""
    removed = []
    for kind, instance in _pools():
        with contextlib.suppress(OSError, ReplicateError):
            if _remove_if_stale(kind, instance):
                removed.append(pool_path(kind, instance))
    return tuple(removed)


def is_used(instance: bytes) -> bool:
    """Whether a process (a daemon, an application) uses a pool of the instance."""
    for kind in PoolKind:
        try:
            memory = SharedMemory.attach(kind, instance, building=True)
        except ReplicateError:
            continue  # none that anybody could use
        try:
            if not _locked(memory):
                return True
        finally:
            memory.close()
    return False


def is_used_from(home: Path) -> bool:
    """Whether a process uses a pool of an instance in the directory `home`, whichever instance that is; also one that
    may be: a pool in use that does not say where its instance is, or names a directory that is gone."""
    for kind, instance in _pools():
        try:
            memory = SharedMemory.attach(kind, instance, building=True)
        except ReplicateError:
            continue
        try:
            if _may_be_of(memory.home, home) and not _locked(memory):
                return True
        finally:
            memory.close()
    return False


def home_of(instance: bytes) -> Path | None:
    """The directory of an instance, by its UUID, when it has been opened since the machine started and is there."""
    for kind in PoolKind:
        with contextlib.suppress(ReplicateError):
            memory = SharedMemory.attach(kind, instance, building=True)
            home = memory.home
            memory.close()
            if home and not _is_gone(home, instance):
                return Path(home)
    return None


def _pools() -> Iterator[tuple[PoolKind, bytes]]:
    try:
        names = os.listdir(shared_memory_directory())
    except OSError:
        return
    for name in names:
        found = _NAME.fullmatch(name)
        if found is not None and int(found[1]) == os.geteuid():
            yield PoolKind(found[3]), bytes.fromhex(found[2])


def _remove_if_stale(kind: PoolKind, instance: bytes) -> bool:
    memory = SharedMemory.attach(kind, instance, building=True)
    try:
        if not _is_gone(memory.home, instance) or not _locked(memory) or not memory.is_current():
            return False
        memory.words[POOL_STATE] = STATE_CLOSED  # the process that has opened it just now learns it by this
        os.unlink(memory.path)
    finally:
        memory.close()
    return True


def _locked(memory: SharedMemory) -> bool:
    """Whether nobody else uses it; then nobody begins to, until it is closed."""
    try:
        flock(memory.fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _may_be_of(noted: str, home: Path) -> bool:
    try:
        return os.path.samefile(noted, home)
    except (OSError, ValueError):
        return True


def _is_gone(home: str, instance: bytes) -> bool:
    if not os.path.isabs(home):
        return False
    try:
        return read_file(Path(home) / FILE_NAME).uuid != instance
    except NotFoundError:
        return True
