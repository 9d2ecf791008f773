"""Seeding: a secondary brought up from a live primary of the same host, at one known sequence number.

Guarantees: the copy of every region is of the same moment N, page by page, while writers go on; the secondary's journal
begins behind N with the definitions and history in force; nothing is pruned on the primary that the secondary will need
(it is a registered consumer before the moment is chosen); what the secondary holds is durable on the primary too. An
interrupted seed leaves nothing that looks like a seeded secondary: run it again. Data that is there already is only
replaced when `restart` says so.
Refuses to know: networks (a copy over one, or by file, is made elsewhere), and of daemons all but whether they run.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replicate.consumers import Consumer, read_consumer, write_consumer
from replicate.daemon_files import DaemonFiles
from replicate.database.copied import adopt_at
from replicate.database.snapshot import copy_pages
from replicate.door import Door
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    NotFoundError,
    PermissionRefusedError,
    UsageError,
    WrongNetworkError,
)
from replicate.instance import Instance
from replicate.instance_file import replace_file
from replicate.journal.segment import sync_directory
from replicate.locks import FileLock
from replicate.opening import SEEDING_MARKER, begin_journal
from replicate.pool import control as word
from replicate.snapshot import Snapshot, door_of, take_snapshot

COPIES: Final = "seed"
"""Directory (in the instance's regions) of the copies that are not yet in their places."""
LOCK_TIMEOUT_S: Final = 30.0

Progress = Callable[[str, int, int], None]
"""Called with a region's name, pages copied and pages in all; whatever it raises ends the seed."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """What a seed has made. `seqno`: the last transaction that the secondary holds."""

    seqno: int
    regions: tuple[str, ...]
    pages: int


def seed(
    primary: Instance,
    secondary: Instance,
    *,
    restart: bool = False,
    progress: Progress | None = None,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> Seeded:
    """Fill `secondary` with the regions of `primary`, live. `timeout_s` bounds only the waiting for locks.

    Raises UsageError, WrongNetworkError, PermissionRefusedError (roles), NotFoundError (no region, or the secondary is
    not a registered peer), AlreadyRunningError (Update Process), AlreadyExistsError (it has data, and `restart`
    was not asked for), BusyError, DiskFullError and what SQLite says. After a failure the secondary is empty or marked
    as being seeded, and the same call does it again.
    """
    _check(primary, secondary)
    lock = FileLock(secondary.locks_directory / "seed.lock")
    try:
        lock.acquire(0, what="the seed of this instance")
        return _seed(primary, secondary, restart, progress, timeout_s)
    finally:
        lock.close()


def seed_from_instance(
    secondary: Instance, primary: Path, *, restart: bool = False, progress: Progress | None = None
) -> Seeded:
    """`seed`, as the command line has it: this instance, from the one in the directory `primary`."""
    return seed(Instance.open(primary), secondary, restart=restart, progress=progress)


def _check(primary: Instance, secondary: Instance) -> None:
    where = str(secondary.path)
    if primary.content.uuid == secondary.content.uuid:
        raise UsageError("an instance can not be seeded from itself", where=where)
    if primary.content.network != secondary.content.network:
        raise WrongNetworkError(
            f"{secondary.name} belongs to another network than {primary.name}",
            where=where,
            do=f"Make it anew: instance create --network {uuid.UUID(bytes=primary.content.network)}",
        )
    if secondary.role != "secondary":
        raise PermissionRefusedError(
            f"instance {secondary.name} is {secondary.role}: only a secondary is seeded", where=where
        )
    if not primary.regions:
        raise NotFoundError(
            f"instance {primary.name} has no region yet", where=str(primary.path), do="Run there: replicate region add"
        )
    if all(peer.name != secondary.name for peer in primary.peers):
        raise NotFoundError(
            f"{secondary.name} is no peer of {primary.name}",
            where=str(primary.path),
            do=f"Run there: replicate peer add {secondary.name} HOST:PORT",
        )
    running = DaemonFiles(secondary.path, "update").probe()
    if running is not None:
        raise AlreadyRunningError(
            f"the Update Process of {secondary.name} runs (process {running.pid})",
            where=where,
            do="Stop it first: replicate update stop",
        )


def _seed(primary: Instance, secondary: Instance, restart: bool, progress: Progress | None, timeout_s: float) -> Seeded:
    marker = secondary.path / SEEDING_MARKER
    if secondary.regions and not restart and not marker.exists():
        raise AlreadyExistsError(
            f"{secondary.name} has regions already: {', '.join(entry.name for entry in secondary.regions)}",
            where=str(secondary.path),
            do="To replace all of them: replicate seed --restart",
        )
    replace_file(marker, f"from {primary.name}\n".encode())
    for entry in secondary.regions:
        secondary.unregister_region(entry.name)
    copies = secondary.path / "regions" / COPIES
    shutil.rmtree(copies, ignore_errors=True)
    copies.mkdir(mode=0o700)
    with door_of(primary) as door:
        consumer = _register(primary, secondary, door)
        copied: dict[str, int] = {}
        with take_snapshot(door, timeout_s=timeout_s) as snapshot:
            assert snapshot is not None
            for name, connection in snapshot.regions.connections.items():
                told = None if progress is None else _named(progress, name)
                copied[name] = copy_pages(connection, copies / f"{name}.db", told)
        # What the secondary has must not be lost by a crash of the primary: then the secondary would be ahead of it.
        door.wait_durable(snapshot.seqno)
        _settle(secondary, snapshot, copies, list(copied))
        write_consumer(
            primary.consumers_directory,
            Consumer(secondary.name, snapshot.seqno, secondary.content.uuid.hex(), consumer.acknowledged_wall_ns),
        )
    marker.unlink()
    sync_directory(os.fspath(secondary.path))
    return Seeded(snapshot.seqno, tuple(copied), sum(copied.values()))


def _named(progress: Progress, name: str) -> Callable[[int, int], None]:
    return lambda done, pages: progress(name, done, pages)


def _register(primary: Instance, secondary: Instance, door: Door) -> Consumer:
    """Make the primary keep everything from here on for the secondary. What it kept already, it keeps."""
    known = read_consumer(primary.consumers_directory, secondary.name)
    last_seqno = int(door.words[word.LAST_SEQNO])
    kept = last_seqno if known is None or known.needs_seed else min(known.acknowledged_seqno, last_seqno)
    consumer = Consumer(secondary.name, kept, secondary.content.uuid.hex())
    write_consumer(primary.consumers_directory, consumer)
    return consumer


def _settle(secondary: Instance, snapshot: Snapshot, copies: Path, names: list[str]) -> None:
    """Make the copies regions of the secondary, begin its journal behind them, then put both into their places."""
    made: list[tuple[str, bytes, Path]] = []
    for name in names:
        region = uuid.uuid4().bytes
        adopt_at(
            copies / f"{name}.db",
            network=secondary.content.network,
            instance=secondary.content.uuid,
            region=region,
            name=name,
            position=snapshot.position,
            csn=snapshot.csn,
        )
        made.append((name, region, secondary.path / "regions" / f"{name}.db"))
    begin_journal(secondary, snapshot.position, snapshot.catalogue)
    for name, region, place in made:
        for suffix in ("-wal", "-shm", "-journal"):
            Path(f"{place}{suffix}").unlink(missing_ok=True)
        (copies / f"{name}.db").replace(place)
        secondary.register_region(name, region, place)
    copies.rmdir()
