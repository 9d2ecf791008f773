"""Releasing a region: replication ends there, and what stays is a plain SQLite database. Also the way to uninstall.

Guarantees: what was received is applied first; then guards and bookkeeping go in one SQLite transaction, and the entry
goes from the instance file; the user's tables, rows, indexes and triggers stay as they are. An interrupted release is
ended by running it again. Refused while a daemon of the instance runs, or anybody holds the region's lock. The last
region's release ends the stream: refused, too, while a peer has not got all (lost/keep.py); with it go the instance's
pools in shared memory. While another region stays, so do journal and stream, and what was not sent is still sent.
Leaves to others: what the secondaries make of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

from msgspec import Struct

from replicate.admin.stale_pools import home_of
from replicate.daemon.files import DaemonFiles
from replicate.daemon.lock_file import daemon_names
from replicate.door.door import Door
from replicate.door.recovery.opening import close_door, open_door
from replicate.door.recovery.stale_wal import refuse_stale
from replicate.door.snapshot import door_of, finish_regions
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    JournalDamagedError,
    JournalMissingError,
    NotFoundError,
    RegionDamagedError,
    RegionReplacedError,
    ReplicateError,
)
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import region_lock
from replicate.lost.keep import Kept, keep_lost
from replicate.model.start_command import stop_command
from replicate.pool.shared_memory import PoolKind, retire
from replicate.region.sqlite.bookkeeping import check_region_identity, is_region, read_identity
from replicate.region.sqlite.open import open_region, remove
from replicate.region.sqlite.open_region import OpenedFile
from replicate.transfer.seed.make import drop_kept_seeds


class Released(Struct, frozen=True):
    """`left`: what is wrong with a file that was left as it is, '' in all other cases. `kept`: where the transactions
    stand that no peer has."""

    left: str = ""
    kept: Kept | None = None


def release_region(
    instance: Instance,
    name: str,
    *,
    timeout_s: float,
    finish: Callable[[], object] | None = None,
    force: bool = False,
) -> Released:
    """Make the region `name` plain SQLite again. `finish` applies what a secondary has received and not yet applied.

    `force`: go on without a journal that is damaged or gone, and do not `finish`; what a killed writer left undone
    stays undone then. What no peer has is written to a file first. A region's file that is gone, damaged or another's
    is left as it is, and only the entry goes: else the instance could never be begun again.

    Raises NotFoundError (no such region), AlreadyRunningError (a daemon runs), BusyError (an application writes, for
    longer than `timeout_s` seconds), RegionReplacedError, what `finish` raises, and what `keep_lost` does. The region
    is untouched after any of them.
    """
    entry = instance.region(name)
    if len(instance.regions) > 1:
        instance.refuse_supplier(
            "all suppliers have the same regions",
            f"To take the whole instance out: replicate -i {instance.named} instance remove; or make it a secondary "
            f"first: replicate -i {instance.named} instance convert --role secondary",
        )
    check_nothing_runs(instance.path, instance.named)
    update = DaemonFiles(instance.path, "update")
    with update.lock.kept_down("release") if instance.role == "secondary" else nullcontext():
        if force:
            finish_what_can_be(instance, timeout_s)
            released = _release(instance, entry, timeout_s, force=True)
        else:
            try:
                if finish is not None:
                    finish()
                with door_of(instance) as door:
                    finish_regions(door, timeout_s)
                    released = _release(instance, entry, timeout_s, door=door)
            except (JournalDamagedError, JournalMissingError) as error:
                do = f"To release it as it is: replicate -i {instance.named} region release {name} --force. {error.do}"
                raise type(error)(error.what, where=error.where, do=do, **error.facts) from error
    drop_kept_seeds(instance, name)
    if not instance.regions:
        for kind in PoolKind:
            retire(kind, instance.content.uuid)
    return released


def finish_what_can_be(instance: Instance, timeout_s: float) -> None:
    """Bring journal and regions together as far as they are well: what else is only in one of them goes with that one.
    Whatever is wrong is left for the forced release that follows."""
    with suppress(ReplicateError):
        door = open_door(instance, timeout_s)
        try:
            finish_regions(door, timeout_s)
            door.sync_to_end()
        finally:
            close_door(door)


def release_copy(file: Path) -> None:
    """Make a copy of a region (a backup, or one whose instance is gone) plain SQLite.

    Raises NotFoundError, RegionReplacedError (it is no region's copy), AlreadyExistsError (it is the region itself, of
    an instance that was opened since the machine started), BusyError (somebody writes).
    """
    connection = open_region(file, plain=True)
    try:
        if not is_region(connection):
            raise RegionReplacedError(
                "the database carries no bookkeeping of ours: it is plain SQLite already",
                where=str(file),
                do="Use it as it is",
            )
        identity = read_identity(connection, where=str(file))
        _refuse_the_region_itself(identity.instance, file)
        remove(connection)
    finally:
        connection.close(True)


def _refuse_the_region_itself(instance: bytes, file: Path) -> None:
    home = home_of(instance)
    if home is None:
        return
    for entry in Instance.open(home).regions:
        if entry.path.exists() and entry.path.samefile(file):
            raise AlreadyExistsError(
                f"this is the region {entry.name} itself, no copy of it",
                where=str(file),
                do=f"To give it back: replicate -i {shlex.quote(str(home))} region release {entry.name}",
            )


def _release(
    instance: Instance, entry: RegionEntry, timeout_s: float, *, door: Door | None = None, force: bool = False
) -> Released:
    lock, left, kept = region_lock(instance, entry), "", None
    try:
        lock.acquire(timeout_s, what=f"region {entry.name}")  # from here on nothing more is committed
        if door is not None:
            door.sync_to_end()  # what only the region's ring would bring back after a power loss
        if len(instance.regions) == 1:
            again = f"replicate -i {instance.named} region release {entry.name} --force"
            kept = keep_lost(instance, cause=f"region release {entry.name}", again=again, force=force)
        try:
            _make_plain(instance, entry, check=not force)
        except (NotFoundError, RegionDamagedError, RegionReplacedError) as error:
            if not force:
                raise
            left = error.what
        instance.unregister_region(entry.name)
    finally:
        lock.close()
    return Released(left, kept)


def _make_plain(instance: Instance, entry: RegionEntry, *, check: bool) -> None:
    connection = open_region(entry.path)
    try:
        if check:
            refuse_stale(instance, entry, OpenedFile(connection, entry.path, entry.uuid))
        # Not a region any more: an earlier release got so far and no further.
        if is_region(connection):
            check_region_identity(connection, region=entry.uuid, instance=instance.content.uuid, where=str(entry.path))
            remove(connection)
    finally:
        connection.close(True)


def check_nothing_runs(path: Path, named: str) -> None:
    """AlreadyRunningError, naming the first daemon of the instance in the directory `path` that runs, or what is at
    work in its place. `named`: how a command names the instance."""
    for daemon in daemon_names(path):
        files = DaemonFiles(path, daemon)
        running = files.lock.probe()
        if running is not None and running.instead:
            raise files.lock.running_error(running)
        if running is not None:
            raise AlreadyRunningError(
                f"{daemon} runs (process {running.pid})",
                where=str(path),
                do=f"Stop it first: {stop_command(daemon, of=named)}",
            )
