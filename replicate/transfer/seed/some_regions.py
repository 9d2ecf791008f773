"""Some regions of a secondary are filled alone, while the others go on: a copy at transaction N, and what the
secondary's own journal has of them since.

    the journal is kept · a region that is here is left, and waits · the copy · the others have applied N · the Update
    Process stands aside: pool retired · file in its place · registered · rolled forward from the journal

Guarantees: the copy is taken only where the secondary's journal proves that it had the same transactions up to N. A
region waits, or it stands where the others do; killed anywhere, the same command begins again, and what is in between
the next opening rolls forward. One that cannot be rolled forward waits again.
Leaves to others: where the copy comes from (make.py, request.py); roll-forward (door/recovery).
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.compare.last_compare import note_seeded
from replicate.daemon.files import SEED, DaemonFiles
from replicate.daemon.last_run import start_again
from replicate.daemon.standing_aside import asked_aside
from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain, require_seeded
from replicate.door.snapshot import door_of, take_snapshot
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    CopyTooOldError,
    DivergedError,
    GapError,
    JournalMissingError,
    NotFoundError,
    ReplicateError,
    TryAgainError,
    UsageError,
)
from replicate.instance.instance import Instance
from replicate.instance.kept_journal import journal_kept
from replicate.journal.catalogue import catalogue_before
from replicate.journal.chain import Chain
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import changes_of, decode_batch
from replicate.journal.walk import walk
from replicate.limits import BATCH_BYTES_MAX
from replicate.model.region_record import read_added
from replicate.model.transaction import Catalogue, Op
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, retire
from replicate.region.sqlite.adopt_copy import adopt_at
from replicate.region.sqlite.snapshot import copy_pages
from replicate.region.sqlite.take_out_rows import take_out
from replicate.system.failpoint import hit
from replicate.transfer.seed.file import SeedReader, require_free
from replicate.transfer.seed.filtered import refuse_beside
from replicate.transfer.seed.install import (
    Seeded,
    check_header,
    check_partitions,
    check_places,
    copies_directory,
    ends_in,
    extract,
    put_into_places,
    refuse_to_lose_tables,
    seed_lock,
    silent,
)
from replicate.transfer.seed.kept_back import keep_aside
from replicate.transfer.seed.make import held_of, leaves, leaving, require_held_as_before, require_regions
from replicate.transfer.seed.only_secondary import require_secondary
from replicate.transfer.seed.rows import definitions_here, require_wanted, shares_of

UPDATE: Final = "update"
LOOK_S: Final = 0.1
LOCK_TIMEOUT_S: Final = 30.0
_ADDS: Final = bytes([Op.REGION])
"""With this the changes begin that add a region."""
WAITING: Final = "waiting until that transaction is applied"

Told = Callable[[str, int, int], None]
"""Called with what is done (a label), how much of it, and how much there is of it; what it raises ends the command."""


class Copies(Struct, frozen=True):
    """Of regions of one moment, each NAME.db in `directory`."""

    directory: Path
    names: tuple[str, ...]
    position: Position
    csn: int
    catalogue: Catalogue
    pages: int


@contextmanager
def filling(secondary: Instance, names: Sequence[str], *, restart: bool) -> Iterator[tuple[str, ...]]:
    """For the time in which the copies come and are put into their places: these regions wait, and what is journalled
    here of them stays. Given is what `keep_aside` has kept of them.

    Raises PermissionRefusedError, NotFoundError (not seeded; a region of which nothing is known), AlreadyExistsError
    (it is here, and `restart` was not asked for), UsageError (all regions, or a filtered stream), BusyError and what
    the Update Process's standing aside raises; nothing was changed then."""
    with seed_lock(secondary):
        secondary.reload()
        _check(secondary, names, restart=restart)
        kept = [file for name in names if name not in secondary.waiting for file in _leave(secondary, name)]
        with door_of(secondary) as door:
            last = int(door.words[word.LAST_SEQNO])
        with journal_kept(secondary, last):
            yield tuple(kept)


def _check(secondary: Instance, names: Sequence[str], *, restart: bool) -> None:
    where = str(secondary.path)
    require_secondary(secondary)
    require_seeded(secondary)
    here = [entry.name for entry in secondary.regions]
    for name in names:
        if name not in here and name not in secondary.waiting:
            raise NotFoundError(
                f"{secondary.name} knows no region {name}; here: {', '.join(here)}"
                + (f"; waiting: {', '.join(secondary.waiting)}" if secondary.waiting else ""),
                where=where,
                do="Name one of these; a region that was added there waits here as soon as its transaction has come",
            )
        if name in here and not restart:
            raise AlreadyExistsError(
                f"region {name} is here",
                where=str(secondary.region(name).path),
                do=f"To replace it: replicate -i INSTANCE seed --region {name} --restart",
            )
    if not set(here) - set(names):
        raise UsageError(
            "no other region is here that could go on",
            where=where,
            do=f"Seed all of them: {secondary.way_out}",
        )
    refuse_beside(
        secondary, "Switch the filter off, or make the region from a script: replicate -i INSTANCE region upgrade"
    )
    for name in set(names) & set(here):
        if secondary.is_feed:
            refuse_to_lose_tables(secondary.region(name))


def _leave(secondary: Instance, name: str) -> tuple[str, ...]:
    """A region that is here waits from now on; what `keep_aside` has kept of it."""
    with update_aside(secondary):
        kept = keep_aside(secondary, [secondary.region(name)])
        secondary.note_waiting(name)
        hit("alone.left")
    return kept


@contextmanager
def update_aside(secondary: Instance) -> Iterator[None]:
    """The Update Process does not run in the block; one that does, stands aside. AlreadyRunningError when it has not
    within LOCK_TIMEOUT_S."""
    lock = DaemonFiles(secondary.path, UPDATE).lock
    with ExitStack() as stack:
        stack.enter_context(asked_aside(secondary.path, LOCK_TIMEOUT_S, daemon=UPDATE))
        deadline_s = time.monotonic() + LOCK_TIMEOUT_S
        while (running := lock.probe()) is not None and not running.instead and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
        if running is not None and not running.instead:
            raise AlreadyRunningError(
                f"the Update Process runs (process {running.pid}), and has not stood aside within {LOCK_TIMEOUT_S:g} s",
                where=str(secondary.path),
                do="Stop it first: replicate -i INSTANCE update stop",
            )
        stack.enter_context(lock.kept_down(SEED))
        yield


# Where the copies come from.


def seed_alone(
    primary: Instance, secondary: Instance, names: Sequence[str], *, restart: bool = False, told: Told = silent
) -> Seeded:
    """Fill these regions of `secondary` from `primary`, which is on this host, live. Raises what `filling` and
    `take_in` raise, NotFoundError (no such region there), and what SQLite says."""
    require_regions(primary, names)
    before = held_of(primary)
    partitions = leaving(primary, secondary.name)
    check_partitions(secondary, partitions, secondary.content.held, str(secondary.path))
    wanted, where = (secondary.content.held, secondary.content.held_rows), str(secondary.path)
    require_wanted(secondary, primary.content.held_rows, wanted, definitions_here(primary), where)
    with filling(secondary, names, restart=restart) as kept:
        check_places(secondary, names)
        directory = copies_directory(secondary)
        with door_of(primary) as door:
            with take_snapshot(door, timeout_s=LOCK_TIMEOUT_S) as snapshot:
                assert snapshot is not None
                require_held_as_before(primary, before)
                pages = 0
                for name in names:
                    connection, done = snapshot.regions.connections[name], pages
                    pages += copy_pages(
                        connection,
                        directory / f"{name}.db",
                        lambda at, total, name=name, done=done: told(name, done + at, done + total),  # type: ignore[misc]
                    )
                    take_out(directory / f"{name}.db", leaves(partitions), snapshot.catalogue)
            # What the secondary has must not be lost by a crash of the primary: then it would be ahead of it.
            door.wait_durable(snapshot.seqno)
        copies = Copies(directory, tuple(names), snapshot.position, snapshot.csn, snapshot.catalogue, pages)
        return replace(take_in(secondary, copies, told=told), kept_back=kept)


def install_alone(
    secondary: Instance, path: Path, names: Sequence[str], *, restart: bool = False, told: Told = silent
) -> Seeded:
    """Fill these regions from a seed file that holds them. Raises what `filling` and `take_in` raise, UsageError (the
    file holds others), and what reading a seed file raises."""
    with SeedReader(path) as reader:
        check_part(secondary, reader, names, str(path))
        with filling(secondary, names, restart=restart) as kept:
            return replace(install_checked_alone(secondary, reader, names, told=told), kept_back=kept)


def check_part(secondary: Instance, seed: SeedReader, names: Sequence[str], where: str) -> None:
    """Is this a file with just these regions for this secondary? UsageError, WrongNetworkError, WrongInstanceError."""
    check_header(secondary, seed, where)
    header = seed.header
    held = [region.name for region in header.regions]
    if not header.is_part or sorted(held) != sorted(names):
        given = "".join(f" --region {name}" for name in held)
        raise UsageError(
            f"the file holds {'region' if header.is_part else 'all regions:'} {', '.join(held)}",
            where=where,
            do=f"Install that: replicate -i INSTANCE seed --from-file FILE{given if header.is_part else ''}",
        )


def install_checked_alone(
    secondary: Instance, reader: SeedReader, names: Sequence[str], *, told: Told = silent
) -> Seeded:
    """The same, in `filling`, of a file that was checked."""
    header = reader.header
    check_places(secondary, names)
    require_free(secondary.path / "regions", sum(region.bytes for region in header.regions), "the copy of the regions")
    directory = copies_directory(secondary)
    try:
        extract(reader, directory, told)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    copies = Copies(directory, tuple(names), header.position, header.csn, reader.catalogue, header.pages)
    return take_in(secondary, copies, told=told)


# Putting them where the others are.


def take_in(secondary: Instance, copies: Copies, *, told: Told = silent) -> Seeded:
    """Go on with these regions, in `filling`. Raises TryAgainError (the Update Process does not run, and the others
    lack what the copies have), DivergedError (the copies are of another history), JournalMissingError (the journal here
    does not reach back to them), CopyTooOldError, and what roll-forward raises: they wait then, as before."""
    seqno = copies.position.last_seqno
    try:
        wait_for_applied(secondary, seqno, told)
        with update_aside(secondary):
            chain = make_chain(secondary)
            with door_of(secondary) as door:
                last = int(door.words[word.LAST_SEQNO])
            prove_same_past(chain, copies.position, secondary)
            _refuse_from_before_a_load(secondary, seqno)
            _refuse_added_again(chain, copies, last, secondary)
            _take(secondary, copies)
    finally:
        shutil.rmtree(copies.directory, ignore_errors=True)
    note_seeded(secondary)
    return Seeded(seqno, copies.names, copies.pages)


def wait_for_applied(secondary: Instance, seqno: int, told: Told) -> None:
    """Until the secondary has applied transaction `seqno`."""
    lock = DaemonFiles(secondary.path, UPDATE).lock
    while (last := _last_seqno(secondary)) < seqno:
        if lock.probe() is None:
            raise TryAgainError(
                f"the copy is of transaction {seqno}, {secondary.name} has applied up to {last}, and its Update "
                "Process does not run",
                where=str(secondary.path),
                do=f"{start_again(secondary, UPDATE)}; then the same command again",
            )
        told(WAITING, last, seqno)
        time.sleep(LOOK_S)


def _last_seqno(secondary: Instance) -> int:
    with door_of(secondary) as door:
        return int(door.words[word.LAST_SEQNO])


def prove_same_past(chain: Chain, position: Position, secondary: Instance) -> None:
    """The journal here has the same transactions up to the copy's moment, by the hashes over all of them."""
    seqno = position.last_seqno
    if seqno + 1 < chain.oldest_seqno():
        raise JournalMissingError(
            f"the copy is of transaction {seqno}, and the journal here begins with {chain.oldest_seqno()}",
            where=str(chain.directory),
            do="Make a newer one: the same command again",
            seqno=seqno + 1,
        )
    if not is_past(chain, position):
        raise DivergedError(
            f"the copy of transaction {seqno} is of another history than {secondary.name} has",
            where=str(secondary.path),
            do=f"Seed all regions: {secondary.way_out}",
        )


def is_past(chain: Chain, position: Position) -> bool:
    """Whether that journal has been at `position`, by the hashes over all transactions up to it. JournalDamagedError
    and its kin."""
    try:
        return catalogue_before(chain, position.last_seqno + 1).chains == position.chains
    except GapError:
        return False


def _refuse_from_before_a_load(secondary: Instance, seqno: int) -> None:
    """CopyTooOldError where the journal here has a partition that is held from later on (partition.py)."""
    content = secondary.content
    if late := content.choice.lacking_below(content.held or (), seqno + 1):
        raise CopyTooOldError(
            f"the copy is of transaction {seqno}, and the journal here has partition "
            f"{', '.join(map(content.partitions.name, late))} from {max(content.streamed[one] for one in late)} on",
            where=str(secondary.path),
        )


def _refuse_added_again(chain: Chain, copies: Copies, last: int, secondary: Instance) -> None:
    """TryAgainError where a region was released and added again since: what was written in between is in no journal."""
    first = copies.position.last_seqno + 1
    if first > last:
        return
    reader = ChainReader(chain, first)
    try:
        while (found := reader.read(BATCH_BYTES_MAX, last)) is not None:
            if isinstance(found, LargeTransaction):
                continue
            for offset, head in walk(found.data):
                frame = found.data[offset : offset + head.frame_bytes]
                if frame[FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + 1] != _ADDS:
                    continue
                (body,) = decode_batch(frame)[2::3]
                added = read_added(changes_of(body))
                if added is not None and added.name in copies.names:
                    raise TryAgainError(
                        f"region {added.name} was added again by transaction {head.seqno}, after the copy's "
                        f"{copies.position.last_seqno}",
                        where=str(secondary.path),
                        do="Make a newer copy: the same command again",
                    )
    finally:
        reader.close()


def _take(secondary: Instance, copies: Copies) -> None:
    content = secondary.content
    made = [(name, uuid.uuid4().bytes, secondary.path / "regions" / f"{name}.db") for name in copies.names]
    for name, region, _ in made:
        if content.told_held:
            take_out(copies.directory / f"{name}.db", content.holds, shares=shares_of(content.held_rows))
        adopt_at(
            copies.directory / f"{name}.db",
            network=content.network,
            instance=content.uuid,
            region=region,
            name=name,
            position=copies.position,
            csn=copies.csn,
            ends=ends_in(secondary, copies.catalogue, copies.position),
        )
    # The process that opens the instance next rolls every region forward, wherever we are killed.
    retire(PoolKind.JOURNAL, content.uuid)
    hit("alone.retired")
    put_into_places(copies.directory, made)
    hit("alone.placed")
    for name, region, place in made:
        secondary.register_region(name, region, place)
        hit("alone.registered")
    try:
        with door_of(secondary) as door:
            _require_level(door)
    except ReplicateError:
        for name in copies.names:
            secondary.note_waiting(name)
        retire(PoolKind.JOURNAL, content.uuid)
        raise


def _require_level(door: Door) -> None:
    """What is asked of an opening that has recovered: nothing is left to redo."""
    words = door.words
    for entry in door.instance.regions:
        if words[word.REGION_APPENDED + entry.region_id] != words[word.REGION_DONE + entry.region_id]:
            raise TryAgainError(f"region {entry.name} could not be rolled forward", where=str(entry.path))
