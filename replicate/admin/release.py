"""Releasing a region: replication ends there, and what stays is a plain SQLite database. Also the way to uninstall.

Guarantees: what was received is applied first; then guards and bookkeeping go in one SQLite transaction, and the entry
goes from the instance file; the user's tables, rows, indexes and triggers stay as they are. An interrupted release is
ended by running it again. Refused while a daemon of the instance runs, or anybody holds the region's lock. With the
last region go the instance's pools in shared memory, which nobody needs any more.
Refuses to know: what other regions the instance has, and what the secondaries make of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from replicate.admin.stale_pools import home_of
from replicate.daemon.files import DaemonFiles, daemon_names
from replicate.database.bookkeeping import check_region_identity, is_region, read_identity
from replicate.database.sqlite import open_region, remove
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    JournalDamagedError,
    JournalMissingError,
    NotFoundError,
    RegionDamagedError,
    RegionReplacedError,
)
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.locks import FileLock
from replicate.pool.shared_memory import PoolKind, retire
from replicate.recovery.stale_wal import refuse_stale
from replicate.snapshot import door_of, finish_regions


def release_region(
    instance: Instance,
    name: str,
    *,
    timeout_s: float,
    finish: Callable[[], object] | None = None,
    force: bool = False,
) -> str:
    """Make the region `name` plain SQLite again. `finish` applies what a secondary has received and not yet applied.

    `force`: do not ask the journal, which may be damaged or gone, and do not `finish`; what a killed writer left undone
    stays undone. A file that is gone, damaged or another's is left as it is, and only the entry goes: else the instance
    could never be begun anew. Returns what is wrong with such a file, '' in all other cases.

    Raises NotFoundError (no such region), AlreadyRunningError (a daemon runs), BusyError (an application writes, for
    longer than `timeout_s` seconds), RegionReplacedError, and what `finish` raises. The region is untouched after any
    of them.
    """
    entry = instance.region(name)
    check_nothing_runs(instance.path, instance.named)
    left = ""
    update = DaemonFiles(instance.path, "update")
    with update.kept_down("release") if instance.role == "secondary" else nullcontext():
        if force:
            left = _release(instance, entry, timeout_s, force=True)
        else:
            try:
                if finish is not None:
                    finish()
                with door_of(instance) as door:
                    finish_regions(door, timeout_s)
                    _release(instance, entry, timeout_s)
            except (JournalDamagedError, JournalMissingError) as error:
                do = f"To release it as it is: replicate -i {instance.named} region release {name} --force. {error.do}"
                raise type(error)(error.what, where=error.where, do=do, **error.facts) from error
    if not instance.regions:
        for kind in PoolKind:
            retire(kind, instance.content.uuid)
    return left


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


def _release(instance: Instance, entry: RegionEntry, timeout_s: float, *, force: bool = False) -> str:
    lock, left = FileLock(instance.locks_directory / f"region-{entry.region_id}.lock"), ""
    try:
        lock.acquire(timeout_s, what=f"region {entry.name}")
        try:
            _make_plain(instance, entry, check=not force)
        except (NotFoundError, RegionDamagedError, RegionReplacedError) as error:
            if not force:
                raise
            left = error.what
        instance.unregister_region(entry.name)
    finally:
        lock.close()
    return left


def _make_plain(instance: Instance, entry: RegionEntry, *, check: bool) -> None:
    connection = open_region(entry.path)
    try:
        if check:
            refuse_stale(instance, entry, connection)
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
        running = files.probe()
        if running is not None and running.instead:
            raise files.running_error(running)
        if running is not None:
            name, _, peer = daemon.partition("-")
            verb = f"{name} stop" + (f" --peer {peer}" if peer else "")
            raise AlreadyRunningError(
                f"{daemon} runs (process {running.pid})",
                where=str(path),
                do=f"Stop it first: replicate -i {named} {verb}",
            )
