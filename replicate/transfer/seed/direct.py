"""Seeding: a secondary brought up from a live primary of the same host, at one known sequence number.

Guarantees: the copy of every region is of the same moment N, page by page, while writers go on; the secondary's journal
begins after N with the definitions and history in force; nothing is pruned on the primary that the secondary will need
(it is a registered consumer before the moment is chosen); what the secondary holds is durable on the primary too. An
interrupted seed leaves nothing that looks like a seeded secondary: run it again. Data that is there already is only
replaced when `restart` says so.
Leaves to others: networks and files (request.py, make.py), and of daemons all but whether they run.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from replicate.compare.last_compare import forget_compared
from replicate.door.door import Door
from replicate.door.recovery.opening import ROLLBACK_MARKER, make_chain
from replicate.door.snapshot import door_of, take_absorbed
from replicate.errors import NotFoundError, PoolReplacedError, TryAgainError, UsageError, WrongNetworkError
from replicate.instance.consumer_positions import positions_locked
from replicate.instance.consumers import Consumer, write_consumer, write_hold
from replicate.instance.instance import Instance
from replicate.model.vector import Position
from replicate.region.sqlite.snapshot import copy_pages
from replicate.region.sqlite.take_out_rows import take_out
from replicate.transfer.seed.filtered import refuse_from, refuse_into
from replicate.transfer.seed.install import (
    Progress,
    Seeded,
    begin,
    check_partitions,
    check_places,
    check_secondary,
    copies_directory,
    finish,
    no_update_process,
    seed_lock,
    settle,
)
from replicate.transfer.seed.make import (
    held_of,
    leaves,
    leaving,
    register_consumer,
    require_held_as_before,
    require_whole,
)
from replicate.transfer.seed.rows import definitions_here, place_rows_in, require_wanted
from replicate.transfer.seed.some_regions import is_past

LOCK_TIMEOUT_S: Final = 30.0


def seed(primary: Instance, secondary: Instance, *, restart: bool = False, progress: Progress | None = None) -> Seeded:
    """Fill `secondary` with the regions of `primary`, live.

    Raises UsageError (also for rows, and a filter on the way), WrongNetworkError, PermissionRefusedError (roles),
    NotFoundError (no region, or the secondary is not a registered peer), AlreadyRunningError (Update Process),
    AlreadyExistsError (it has data, and `restart` was not asked for), BusyError, TryAgainError (the primary's journal
    was taken back meanwhile), DiskFullError and what SQLite says.
    After a failure the secondary is as it was, or marked as being seeded, and the same call does it again.
    """
    _check(primary, secondary)
    with seed_lock(secondary):
        check_secondary(secondary, restart=restart)
        check_places(secondary, [entry.name for entry in primary.regions])
        with no_update_process(secondary):
            return _seed(primary, secondary, progress)


def seed_from_instance(
    secondary: Instance, primary: Path, *, restart: bool = False, progress: Progress | None = None
) -> Seeded:
    """`seed`, as the command line has it: this instance, from the one in the directory `primary`."""
    return seed(Instance.open(primary), secondary, restart=restart, progress=progress)


def _check(primary: Instance, secondary: Instance) -> None:
    where = str(secondary.path)
    if primary.content.uuid == secondary.content.uuid:
        raise UsageError("an instance cannot be seeded from itself", where=where, do="Name its primary with --from")
    if primary.content.network != secondary.content.network:
        raise WrongNetworkError(
            f"{secondary.name} belongs to another network than {primary.name}",
            where=where,
            do=f"Make it again: instance create --network {uuid.UUID(bytes=primary.content.network)}",
        )
    check_secondary(secondary, restart=True)
    if not primary.regions:
        raise NotFoundError(
            f"instance {primary.name} has no region yet",
            where=str(primary.path),
            do=f"Run: replicate -i {primary.named} region add PATH",
        )
    require_whole(primary)
    if all(peer.name != secondary.name for peer in primary.peers):
        raise NotFoundError(
            f"{secondary.name} is no peer of {primary.name}",
            where=str(primary.path),
            do=f"Run: replicate -i {primary.named} peer add {secondary.name} HOST:PORT",
        )


def _seed(primary: Instance, secondary: Instance, progress: Progress | None) -> Seeded:
    before = held_of(primary)
    partitions = leaving(primary, secondary.name)
    check_partitions(secondary, partitions, secondary.content.subscription, str(secondary.path))
    wanted, where = (secondary.content.subscription, secondary.content.rows), str(secondary.path)
    require_wanted(secondary, primary.content.held_rows, wanted, definitions_here(primary), where)
    with door_of(primary) as door:
        consumer = register_consumer(primary, secondary.name, secondary.content.uuid.hex(), door)
        copied: dict[str, int] = {}
        with take_absorbed(door, timeout_s=LOCK_TIMEOUT_S) as snapshot:
            require_held_as_before(primary, before)
            refuse_from(primary, snapshot.regions.connections)
            refuse_into(secondary, snapshot.regions.connections)
            place_rows_in(secondary.content.rows, snapshot.regions.connections)
            kept = begin(secondary, primary.name)
            copies = copies_directory(secondary)
            for name, connection in snapshot.regions.connections.items():
                told = None if progress is None else _named(progress, name)
                copied[name] = copy_pages(connection, copies / f"{name}.db", told)
                take_out(copies / f"{name}.db", leaves(partitions), snapshot.catalogue)
        # What the secondary has must not be lost by a crash of the primary: then the secondary would be ahead of it.
        door.wait_durable(snapshot.seqno)
        settle(secondary, snapshot.position, snapshot.csn, snapshot.catalogue, copies, list(copied))
        with positions_locked(primary.consumers_directory):
            _require_past(door, primary, snapshot.position)
            write_consumer(
                primary.consumers_directory,
                Consumer(secondary.name, snapshot.seqno, secondary.content.uuid.hex(), consumer.acknowledged_wall_ns),
            )
        write_hold(primary.consumers_directory, secondary.name, None)
    forget_compared(primary, secondary.name)
    finish(secondary)
    return Seeded(snapshot.seqno, tuple(copied), sum(copied.values()), kept)


def _require_past(door: Door, primary: Instance, position: Position) -> None:
    """What the secondary has of a journal that was taken back is no witness of what that must hold: its recovery would
    miss it for ever. TryAgainError. The caller holds the positions' lock: a rollback lowers them after its cut."""
    try:
        door.pool.check_current()
    except PoolReplacedError as error:  # by a change of roles, which has changed nothing of this, or by a rollback
        if (primary.path / ROLLBACK_MARKER).exists() or not is_past(make_chain(primary), position):
            raise TryAgainError(
                f"the journal of {primary.name} was taken back while it was copied as of transaction "
                f"{position.last_seqno}",
                where=str(primary.path),
                do="Give the same command again, to copy from the primary of now",
            ) from error


def _named(progress: Progress, name: str) -> Callable[[int, int], None]:
    return lambda done, pages: progress(name, done, pages)
