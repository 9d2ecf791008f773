"""Putting a seed into its place: copies of regions become this secondary's, and its journal begins after them.

Guarantees: the regions, their bookkeeping and the journal stand at one position, or the instance is marked as being
seeded, and nobody uses it until a seed has been done again. A seed file is verified whole before anything that the
secondary holds is touched. A database that is not this secondary's region is never replaced. One seed at a time, and no
Update Process beside it.
Leaves to others: where the copies come from.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.compare.index_found import forget_indexes
from replicate.compare.last_compare import note_seeded
from replicate.daemon.files import SEED, DaemonFiles, forget_failures
from replicate.door.recovery.opening import ROLLBACK_MARKER, SEEDING_MARKER, begin_journal
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    BusyError,
    RegionDamagedError,
    ReplicateError,
    UsageError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.filters.whose_words import forget_content
from replicate.instance.file import RegionEntry
from replicate.instance.instance import REBUILDING_MARKER, Instance
from replicate.model.transaction import Catalogue
from replicate.model.vector import Position
from replicate.pool.shared_memory import PoolKind, retire
from replicate.region.protocol import ends_of
from replicate.region.sqlite.adopt_copy import adopt_at
from replicate.region.sqlite.bookkeeping import is_region, read_identity
from replicate.region.sqlite.data_feed import others_tables
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.take_out_rows import take_out
from replicate.system.failpoint import hit
from replicate.system.files import remove_file, replace_file, sync_directory
from replicate.system.locks import FileLock
from replicate.system.os_errors import io_error
from replicate.transfer.container import NO_ID, SeedHeader
from replicate.transfer.seed.file import SeedReader, require_free
from replicate.transfer.seed.filtered import refuse_copies_into
from replicate.transfer.seed.kept_back import keep_aside
from replicate.transfer.seed.only_secondary import require_secondary
from replicate.transfer.seed.rows import place_rows, require_wanted, shares_of

COPIES: Final = "seed"
"""Directory (in the instance's regions) of the copies that are not yet in their places."""

Progress = Callable[[str, int, int], None]
"""Called with a region's name, pages done and pages in all; whatever it raises ends the seed."""

LOOK_S: Final = 0.02


def silent(_region: str, _done: int, _pages: int) -> None:
    """A Progress that tells nobody."""


class Seeded(Struct, frozen=True):
    """What a seed has made. `seqno`: the last transaction that the secondary holds."""

    seqno: int
    regions: tuple[str, ...]
    pages: int
    kept_back: tuple[str, ...] = ()
    """Files with what only this site had, of tables in NONE."""


@contextmanager
def seed_lock(secondary: Instance, *, timeout_s: float = 0.0) -> Iterator[None]:
    """One seed, replay or rebuild at a time. BusyError while another one is under way, for `timeout_s` seconds."""
    lock = FileLock(secondary.locks_directory / "seed.lock")
    deadline_s = time.monotonic() + timeout_s
    try:
        while not lock.try_acquire():
            if time.monotonic() < deadline_s:
                time.sleep(LOOK_S)
                continue
            raise BusyError(
                f"another seed, replay, rebuild or change of role of {secondary.name} is under way",
                where=str(lock.path),
                do="Wait for its end; `fuser -v` on that file says which process it is",
            )
        yield
    finally:
        lock.close()


def no_update_process(secondary: Instance) -> AbstractContextManager[None]:
    """For a block in which the regions are replaced: the Update Process cannot be started, and lose them under its
    hands. AlreadyRunningError when it runs by now."""
    return DaemonFiles(secondary.path, "update").lock.kept_down(SEED)


def check_secondary(secondary: Instance, *, restart: bool, command: str = "seed", instead: str = "") -> None:
    """May this instance be seeded now? PermissionRefusedError, AlreadyRunningError (its Update Process),
    AlreadyExistsError (it has data, whole, and `restart` was not asked for). `instead`: what else there is to do then.
    """
    where = str(secondary.path)
    require_secondary(secondary)
    files = DaemonFiles(secondary.path, "update")
    running = files.lock.probe()
    if running is not None and running.instead:
        raise files.lock.running_error(running)
    if running is not None:
        raise AlreadyRunningError(
            f"the Update Process of {secondary.name} runs (process {running.pid})",
            where=where,
            do="Stop it first: replicate -i INSTANCE update stop",
        )
    if secondary.is_feed and restart:
        for entry in secondary.regions:
            refuse_to_lose_tables(entry)
    if secondary.regions and not restart and not (secondary.path / SEEDING_MARKER).exists():
        raise AlreadyExistsError(
            f"{secondary.name} has regions already: {', '.join(entry.name for entry in secondary.regions)}",
            where=where,
            do=f"{instead}To replace all of them: replicate -i INSTANCE {command} --restart",
        )


def refuse_to_lose_tables(entry: RegionEntry) -> None:
    """UsageError where a data feed has tables of its own in a region: no seed has them."""
    others: tuple[str, ...] = ()
    with suppress(ReplicateError, OSError):  # what cannot be read is not lost by a seed
        others = others_tables(entry.path)
    if others:
        raise UsageError(
            f"region {entry.name} has tables of its own, which no seed has: {', '.join(others)}",
            where=str(entry.path),
            do="Copy them elsewhere and drop them, then seed again",
        )


def check_places(secondary: Instance, names: Iterable[str]) -> None:
    """AlreadyExistsError if what lies where a region of the seed is to go is not this secondary's: a region that was
    released here is the user's own database, and may be a region of another instance by now. BusyError if that cannot
    be told at this moment."""
    ours = {entry.path for entry in secondary.regions}
    for name in names:
        place = secondary.path / "regions" / f"{name}.db"
        if place in ours or not os.path.lexists(place):
            continue
        if whose := _whose(place, secondary):
            raise AlreadyExistsError(
                f"{whose} is where region {name} of the seed is to go",
                where=str(place),
                do="Move it away first, with its -wal if there is one; a seed replaces only what is a region here",
            )


def _whose(place: Path, secondary: Instance) -> str:
    """Of whom the file is, for an error; '' if an earlier seed of this secondary has left it."""
    try:
        connection = open_region(place, readonly=True, plain=True, bare=True, opening_s=0)
        try:
            if not is_region(connection):
                return "a database that is no region"
            if read_identity(connection, where=str(place)).instance != secondary.content.uuid:
                return "a region of another instance"
        finally:
            connection.close(True)
    except RegionDamagedError:
        return "" if (secondary.path / SEEDING_MARKER).exists() else "a file that is no whole database"
    return ""


def copies_directory(secondary: Instance) -> Path:
    """An empty directory for the copies, named NAME.db each."""
    copies = secondary.path / "regions" / COPIES
    shutil.rmtree(copies, ignore_errors=True)
    try:
        copies.mkdir(mode=0o700)
    except OSError as error:
        raise io_error(error, "the directory for the copies could not be made", str(copies)) from error
    return copies


def begin(secondary: Instance, source: str) -> tuple[str, ...]:
    """From here on the instance is not seeded: what it held is given up, and what it has received and not applied: that
    may be of another history. A Receiver Server that runs makes a new pool. What `keep_aside` has kept, and raises."""
    kept = keep_aside(secondary, secondary.regions)
    replace_file(secondary.path / SEEDING_MARKER, f"from {source}\n".encode())
    retire(PoolKind.RECEIVE, secondary.content.uuid)
    for marker in (REBUILDING_MARKER, ROLLBACK_MARKER):
        (secondary.path / marker).unlink(missing_ok=True)
    forget_content(secondary.run_directory)
    note_seeded(secondary)
    for entry in secondary.regions:
        secondary.unregister_region(entry.name)
    secondary.forget_waiting()
    return kept


def settle(
    secondary: Instance, position: Position, csn: int, catalogue: Catalogue, copies: Path, names: list[str]
) -> None:
    """Make the copies regions of the secondary, begin its journal after them, then put both into their places.

    Raises RegionDamagedError, DiskFullError, BusyError and what SQLite says; the instance stays marked then.
    """
    made: list[tuple[str, bytes, Path]] = []
    choice = secondary.change_subscription(lambda now: replace(now, rows=place_rows(now.rows, copies)).seeded())
    shares = shares_of(choice.held_rows)
    for name in names:
        take_out(copies / f"{name}.db", secondary.content.wants, catalogue, shares=shares)
        region = uuid.uuid4().bytes
        adopt_at(
            copies / f"{name}.db",
            network=secondary.content.network,
            instance=secondary.content.uuid,
            region=region,
            name=name,
            position=position,
            csn=csn,
            ends=ends_in(secondary, catalogue, position),
        )
        made.append((name, region, secondary.path / "regions" / f"{name}.db"))
    secondary.raise_incarnation()  # its numbers stand for other transactions now: a lost file says of whose it is
    begin_journal(secondary, position, catalogue)
    hit("seed.journal_begun")
    put_into_places(copies, made)
    for name, region, place in made:
        secondary.register_region(name, region, place)
    try:
        copies.rmdir()
    except OSError as error:
        raise io_error(error, "the directory of the copies could not be removed", str(copies)) from error


def ends_in(secondary: Instance, catalogue: Catalogue, position: Position) -> Mapping[int, int]:
    """Where the origins of a copy at that position have ended, by its catalogue; among suppliers they have not."""
    return {} if secondary.is_supplier else ends_of(catalogue.histories, position.last_seqno)


def put_into_places(copies: Path, made: list[tuple[str, bytes, Path]]) -> None:
    """The copies (name, UUID, place of each), under their names for certain, with nothing of what was there before."""
    directory = os.fspath(copies.parent)
    try:
        for _, _, place in made:
            for suffix in ("-wal", "-shm", "-journal"):
                Path(f"{place}{suffix}").unlink(missing_ok=True)
        sync_directory(directory)  # else an old WAL might come back beside the new database
        for name, _, place in made:
            (copies / f"{name}.db").replace(place)
    except OSError as error:
        raise io_error(error, "the regions could not be put into their places", directory) from error
    sync_directory(directory)  # before anything says that they are there


def finish(secondary: Instance) -> None:
    """The instance is seeded from here on. (What was found meanwhile is of what was here before.)"""
    forget_indexes(secondary.path)
    remove_file(secondary.path / SEEDING_MARKER, "the mark of a seed under way could not be removed")
    forget_failures(secondary.path, "seed")


# From a file.


def install_file(secondary: Instance, path: Path, *, restart: bool = False, progress: Progress = silent) -> Seeded:
    """Fill `secondary` from the seed file at `path`.

    Raises what `check_secondary` raises, NotFoundError, DamagedError and FormatUnknownError (the file),
    WrongNetworkError, WrongInstanceError (made for another secondary), DiskFullError, UsageError (rows, and a filter
    before this secondary). What the secondary held is untouched until the whole file has been verified and its pages
    are on the disk; after that, the same call does it again.
    """
    with seed_lock(secondary):
        return install_file_locked(secondary, path, restart=restart, progress=progress)


def install_file_locked(secondary: Instance, path: Path, *, restart: bool, progress: Progress = silent) -> Seeded:
    """The same for a caller that holds the `seed_lock` already."""
    check_secondary(secondary, restart=restart)
    with SeedReader(path) as reader:
        require_all_regions(reader.header, str(path))
        check_header(secondary, reader, str(path))
    with no_update_process(secondary):
        return install_checked(
            secondary, path, progress=progress, came=lambda copies: refuse_copies_into(secondary, copies)
        )


def install_checked(
    secondary: Instance,
    path: Path,
    *,
    progress: Progress = silent,
    came: Callable[[Path], object] | None = None,
    settled: Callable[[], object] | None = None,
) -> Seeded:
    """The same once it has been checked that this secondary may be filled from this file; the `seed_lock` is held, and
    its Update Process cannot start.

    `came`: called with the directory of the copies, before anything here is given up; what it raises ends the seed.
    `settled`: called when all is in its place, while the instance still counts as not seeded."""
    with SeedReader(path) as reader:
        header = reader.header
        names = [region.name for region in header.regions]
        check_places(secondary, names)
        directory = secondary.path / "regions"
        require_free(directory, sum(region.bytes for region in header.regions), "the copy of the regions")
        copies = copies_directory(secondary)
        try:
            extract(reader, copies, progress)
            place_rows(secondary.content.rows, copies)
            if came is not None:
                came(copies)
        except BaseException:
            shutil.rmtree(copies, ignore_errors=True)
            raise
        kept = begin(secondary, f"{header.primary_name}, file {path}")
        settle(secondary, header.position, header.csn, reader.catalogue, copies, names)
    if settled is not None:
        settled()
    finish(secondary)
    return Seeded(header.seqno, tuple(names), header.pages, kept)


def require_all_regions(header: SeedHeader, where: str) -> None:
    """UsageError for a file that holds some of the regions."""
    if header.is_part:
        names = [region.name for region in header.regions]
        given = " ".join(f"--region {name}" for name in names)
        raise UsageError(
            f"the file holds only region {', '.join(names)}",
            where=where,
            do=f"Where the others are: replicate -i INSTANCE seed --from-file FILE {given}; else make one of all",
        )


def check_header(secondary: Instance, seed: SeedReader, where: str, *, wanted: tuple[int, ...] | None = None) -> None:
    """Was this seed made for this secondary? `wanted`: the partitions that it must have (None: those that are to be
    here). UsageError, CopyTooOldError (some rows, and others are wanted), WrongNetworkError, WrongInstanceError."""
    content, header = secondary.content, seed.header
    check_base(secondary, seed, where, wanted=wanted)
    is_other = header.secondary_uuid not in (NO_ID, content.uuid)
    if header.secondary_name != secondary.name or is_other:
        whom = f"another instance named {secondary.name}" if is_other else header.secondary_name
        raise WrongInstanceError(
            f"the seed was made for {whom}; {header.primary_name} keeps no journal for this {secondary.name} after it",
            where=where,
            do=f"Make one there: replicate -i {header.primary_name} seed --to-file FILE --for {secondary.name}",
        )


def check_partitions(
    secondary: Instance, partitions: tuple[int, ...] | None, wanted: tuple[int, ...] | None, where: str
) -> None:
    """UsageError for a copy with the rows of some partitions only, where others are `wanted` (None: all)."""
    if partitions is None or (wanted is not None and set(wanted) <= set(partitions)):
        return
    name = secondary.content.partitions.name
    raise UsageError(
        f"the copy has the rows of {', '.join(map(name, partitions)) or 'no partition'}; {secondary.name} wants "
        + (", ".join(map(name, wanted)) if wanted is not None else "all"),
        where=where,
        do=f"Say what is wanted: replicate -i {secondary.named} subscription set NAME…; or have the peer given more "
        "there: replicate -i PRIMARY peer add NAME HOST:PORT --replace",
    )


def check_base(secondary: Instance, seed: SeedReader, where: str, *, wanted: tuple[int, ...] | None = None) -> None:
    """Is this a seed of its network, for whichever instance it was made? UsageError, WrongNetworkError."""
    content, header = secondary.content, seed.header
    if header.primary == content.uuid:
        raise UsageError("an instance cannot be seeded from itself", where=where, do="Name another secondary with -i")
    is_beside = header.is_part or wanted is not None
    if wanted is None:
        wanted = content.held if header.is_part else content.subscription
    check_partitions(secondary, header.partitions, wanted, where)
    rows = content.held_rows if is_beside else content.rows
    require_wanted(secondary, header.rows, (wanted, rows), seed.catalogue.in_force().values(), where)
    if header.network != content.network:
        raise WrongNetworkError(
            f"the seed is of network {uuid.UUID(bytes=header.network)}, {secondary.name} belongs to "
            f"{uuid.UUID(bytes=content.network)}",
            where=where,
            do=f"Make the instance again: instance create --network {uuid.UUID(bytes=header.network)}",
        )


def extract(reader: SeedReader, copies: Path, progress: Progress) -> None:
    """All regions of a seed file, NAME.db each, synced. What reading it raises, DiskFullError, JournalIOError."""
    done, pages, directory = 0, reader.header.pages, os.fspath(copies)
    with ExitStack() as stack:
        opened: dict[str, int] = {}
        try:
            for piece in reader.pages():
                region = piece.region
                if region.name not in opened:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    fd = os.open(copies / f"{region.name}.db", flags, 0o600)
                    stack.callback(os.close, fd)
                    opened[region.name] = fd
                data, at = piece.data, (piece.first_page - 1) * region.page_bytes
                while data:
                    count = os.pwrite(opened[region.name], data, at)
                    data, at = data[count:], at + count
                done += len(piece.data) // region.page_bytes
                progress(region.name, done, pages)
            for fd in opened.values():
                os.fsync(fd)
        except OSError as error:
            raise io_error(error, "the copy of a region could not be written", directory) from error
    sync_directory(directory)
