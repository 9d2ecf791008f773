"""The locks under which an instance's regions and its journal are written: one of each region, and the commit lock.

Guarantees: the name of each lock file stands here only; several are taken in one order, that of the regions' numbers,
the commit lock last, so that no two processes wait for each other; what was taken is given up when the block ends.
Leaves to others: what is done under them (door/), and how a lock works (system/locks.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.system.locks import FileLock


def region_lock(instance: Instance, entry: RegionEntry) -> FileLock:
    """A handle of its own on the region's lock."""
    return FileLock(instance.locks_directory / f"region-{entry.region_id}.lock")


def commit_lock_path(instance: Instance) -> Path:
    """Who has that lock, and nobody else, writes the journal."""
    return instance.locks_directory / "commit.lock"


def all_locks(instance: Instance) -> Iterator[FileLock]:
    """Handles of all of them, in the order in which they are taken."""
    for entry in instance.regions:
        yield region_lock(instance, entry)
    yield FileLock(commit_lock_path(instance))


@contextmanager
def region_locked(instance: Instance, entry: RegionEntry, timeout_s: float) -> Iterator[None]:
    """Nobody else writes the region in the block. BusyError after `timeout_s` seconds."""
    lock = region_lock(instance, entry)
    try:
        lock.acquire(timeout_s, what=f"region {entry.name}")
        yield
    finally:
        lock.close()


@contextmanager
def regions_locked(instance: Instance, timeout_s: float) -> Iterator[None]:
    """The same of all its regions, `timeout_s` seconds for all of them together."""
    deadline_s = time.monotonic() + timeout_s
    with ExitStack() as stack:
        for entry in instance.regions:
            stack.enter_context(region_locked(instance, entry, max(0.0, deadline_s - time.monotonic())))
        yield


@contextmanager
def commit_locked(instance: Instance, timeout_s: float) -> Iterator[None]:
    """Nobody commits in the block. BusyError after `timeout_s` seconds."""
    lock = FileLock(commit_lock_path(instance))
    try:
        lock.acquire(timeout_s, what="the commit lock")
        yield
    finally:
        lock.close()
