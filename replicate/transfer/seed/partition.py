"""Rows of whole partitions are loaded into a secondary that has others, and those go on.

    begun: the stream brings their changes, which are journalled and passed over · the copy, at transaction N · all is
    applied up to N · the copy is rolled forward from the secondary's own journal · the Update Process stands aside: the
    rest, and the rows put in, one transaction a region · held

Guarantees: they are held only with all rows, level with the others; readers see none of them before, or all. What is
received goes on meanwhile; what is applied pauses while rows are put in. Killed anywhere, the same command goes on, or
begins again; nothing of it is held then.
Leaves to others: where the copy comes from (make.py, request.py), and how rows are put in
(region/sqlite/partition_rows.py).
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.compare.last_compare import note_seeded
from replicate.daemon.last_run import start_again
from replicate.door.door import Door
from replicate.door.recovery.opening import close_door, make_chain, require_seeded
from replicate.door.recovery.redo_region import newest_of
from replicate.door.recovery.roll_forward import roll_forward
from replicate.door.secondary import open_apply_session
from replicate.door.snapshot import door_of
from replicate.errors import (
    AlreadyExistsError,
    CopyTooOldError,
    TryAgainError,
    UsageError,
)
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.instance.kept_journal import journal_kept
from replicate.model.elements import elements_in
from replicate.pool import control as word
from replicate.region.kind import KIND
from replicate.region.protocol import ScrRow
from replicate.region.sqlite.adopt_copy import adopt_at
from replicate.region.sqlite.functions import set_init
from replicate.region.sqlite.take_out_rows import take_out
from replicate.system.failpoint import hit
from replicate.transfer.container import SeedHeader
from replicate.transfer.seed.file import SeedReader, require_free
from replicate.transfer.seed.filtered import refuse_beside
from replicate.transfer.seed.incoming import Incoming, seed_directory
from replicate.transfer.seed.install import check_header, copies_directory, ends_in, extract, seed_lock, silent
from replicate.transfer.seed.make import make_seed, require_partitions
from replicate.transfer.seed.only_secondary import require_secondary
from replicate.transfer.seed.rows import check_rows, definitions_here, require_wanted, shares_of, tables_by_partition
from replicate.transfer.seed.some_regions import Told, prove_same_past, update_aside, wait_for_applied

STREAM_WAIT_S: Final = 60.0
LOOK_S: Final = 0.1
WAITING: Final = "waiting for a stream that brings them"
ROLLING: Final = "bringing the copy forward"
PUTTING_IN: Final = "putting rows in"


class Loaded(Struct, frozen=True):
    """`seqno`: of the copy; `held_from`: the place at which its rows were put in; `tables`: how many there are."""

    seqno: int
    held_from: int
    partitions: tuple[str, ...]
    tables: int


class _Copy(Struct, frozen=True):
    name: str
    path: Path
    uuid: bytes


@contextmanager
def loading(secondary: Instance, numbers: Sequence[int]) -> Iterator[None]:
    """For the time in which the copy comes and is put in: the stream brings these partitions, what is applied passes
    over them, and what is journalled here stays.

    Raises PermissionRefusedError, UsageError (it has all, one is not wanted, a filter, a condition that does not fit),
    AlreadyExistsError (one is
    here), TryAgainError (a region waits for its seed), BusyError and what the Update Process's standing aside raises;
    nothing was changed then."""
    with seed_lock(secondary):
        secondary.reload()
        _check(secondary, numbers)
        if not set(numbers) <= set(secondary.content.choice.loading):
            tables = tables_by_partition(secondary)
            check_rows(secondary, [table for number in numbers for table in tables.get(number, ())])
            Incoming(seed_directory(secondary.path)).discard()  # of a time before
            hit("partition.discarded")
            with update_aside(secondary):  # it knows what is held when it begins
                secondary.change_subscription(lambda now: now.begun(numbers, tables))
                hit("partition.begun")
        with door_of(secondary) as door:
            last = int(door.words[word.LAST_SEQNO])
        with journal_kept(secondary, last):
            yield


def _check(secondary: Instance, numbers: Sequence[int]) -> None:
    where, choice = str(secondary.path), secondary.content.choice
    name = secondary.partitions_now().name
    require_secondary(secondary)
    require_seeded(secondary)
    for number in numbers:
        if choice.held is None or choice.holds(number):
            raise AlreadyExistsError(
                f"partition {name(number)} is here",
                where=where,
                do=f"To load it again: replicate -i {secondary.named} subscription remove {name(number)}; then add it, "
                "and the same command again",
            )
        if not choice.wants(number):
            raise UsageError(
                f"partition {name(number)} is not wanted here",
                where=where,
                do=f"Say so first: replicate -i {secondary.named} subscription add {name(number)}",
            )
        for element in elements_in(secondary.content.partitions.elements, number):
            raise UsageError(
                f"{element} is in partition {name(number)}: what the schema here lacks of it comes with no rows",
                where=where,
                do=f"Seed all of it: replicate -i {secondary.named} {secondary.content.bringing([number])}",
            )
    if secondary.waiting:
        raise TryAgainError(
            f"region {secondary.waiting[0]} waits for its seed",
            where=where,
            do=f"Seed it first: replicate -i {secondary.named} seed --region {secondary.waiting[0]}",
        )
    refuse_beside(secondary, "Switch the filter off first")


def give_up(secondary: Instance, numbers: Sequence[int]) -> None:
    """The stream is asked for without these again: it is refused with them. They stay wanted."""
    secondary.change_subscription(lambda now: now.given_up(numbers))


# Where the copy comes from.


def load_from_instance(
    primary: Instance, secondary: Instance, numbers: Sequence[int], *, told: Told = silent
) -> Loaded:
    """Load these partitions from `primary`, which is on this host, live; its stream must run. Raises what `loading`,
    `make_seed` and `take_in` raise; nothing was changed where `primary` does not give them."""
    require_partitions(primary, secondary.name, numbers)
    if primary.content.held_rows:
        wanted, where = (tuple(numbers), secondary.content.rows), str(secondary.path)
        require_wanted(secondary, primary.content.held_rows, wanted, definitions_here(primary), where)
    with loading(secondary, numbers):
        wait_for_stream(secondary, numbers, told)
        path = seed_directory(secondary.path) / "incoming.seed"
        try:
            rows = secondary.content.held_rows
            make_seed(primary, secondary.name, path, replace=True, partitions=numbers, rows=rows, progress=told)
            return take_in(secondary, path, numbers, told=told)
        finally:
            path.unlink(missing_ok=True)


def load_from_file(secondary: Instance, path: Path, numbers: Sequence[int], *, told: Told = silent) -> Loaded:
    """Load these partitions from a seed file that has them. Raises what `loading` and `take_in` raise, and what reading
    a seed file raises."""
    with SeedReader(path) as reader:
        check_header(secondary, reader, str(path), wanted=tuple(numbers))
    with loading(secondary, numbers):
        wait_for_stream(secondary, numbers, told)
        return take_in(secondary, path, numbers, told=told)


def wait_for_stream(secondary: Instance, numbers: Sequence[int], told: Told) -> None:
    """Until a stream has begun that brings them: a copy from before that lacks what would come between. TryAgainError
    where none has within STREAM_WAIT_S."""
    deadline_s = time.monotonic() + STREAM_WAIT_S
    while True:
        secondary.look_again()
        if all(secondary.content.streamed.get(number) for number in numbers):
            return
        if time.monotonic() >= deadline_s:
            name = secondary.content.partitions.name
            raise TryAgainError(
                f"no stream has begun within {STREAM_WAIT_S:g} s that brings {', '.join(map(name, numbers))}",
                where=str(secondary.path),
                do=f"{start_again(secondary, 'receiver')}; there: replicate -i PRIMARY source status. Where packets "
                "come: import the next one; then load it from a file that is made after that one",
            )
        told(WAITING, 0, 0)
        time.sleep(LOOK_S)


# Putting its rows in.


def take_in(secondary: Instance, path: Path, numbers: Sequence[int], *, told: Told = silent) -> Loaded:
    """Hold these partitions, in `loading`, by the rows of the seed file. Raises CopyTooOldError (older than the stream
    that brings them, or than a table that came to them), TryAgainError (the Update Process does not run, and this
    secondary lacks what the copy has), DivergedError, JournalMissingError, DiskFullError, and what reading a seed file
    raises: they are being loaded then, as before."""
    keeps = frozenset(numbers)
    with SeedReader(path) as reader:
        header = reader.header
        check_header(secondary, reader, str(path), wanted=tuple(numbers))
        _check_begun(secondary, header, numbers, str(path))
        require_free(secondary.path / "regions", 3 * sum(one.bytes for one in header.regions), "the copy, and its rows")
        directory = copies_directory(secondary)
        try:
            extract(reader, directory, told)
            copies = [_adopt(secondary, reader, directory, one.name, keeps) for one in header.regions]
            hit("partition.copied")
            wait_for_applied(secondary, header.seqno, told)
            prove_same_past(make_chain(secondary), header.position, secondary)
            with door_of(secondary) as door:  # most of it beside the Update Process
                _roll(secondary, door, copies, int(door.words[word.LAST_SEQNO]), keeps, told)
            hit("partition.rolled")
            with update_aside(secondary):
                held_from, tables = _put_in(secondary, copies, keeps, told)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    note_seeded(secondary)
    return Loaded(header.seqno, held_from, tuple(map(secondary.content.partitions.name, numbers)), tables)


def _check_begun(secondary: Instance, header: SeedHeader, numbers: Sequence[int], where: str) -> None:
    secondary.reload()  # the Receiver Server notes where a stream begins
    late = secondary.content.choice.lacking_below(numbers, header.seqno + 1)
    begun = secondary.content.streamed
    if late or not all(begun.get(number) for number in numbers):
        raise CopyTooOldError(
            f"the copy is of transaction {header.seqno}, and the stream brings "
            f"{', '.join(map(secondary.content.partitions.name, numbers))} from {max(begun.values(), default=0)} on",
            where=where,
        )


def _adopt(secondary: Instance, seed: SeedReader, directory: Path, name: str, keeps: frozenset[int]) -> _Copy:
    content, header, path = secondary.content, seed.header, directory / f"{name}.db"
    if content.held_rows or header.partitions is None or not keeps.issuperset(header.partitions):
        take_out(path, keeps.__contains__, shares=shares_of(content.held_rows))
    set_init(path, secondary.config.region.init, name)
    copy = _Copy(name, path, uuid.uuid4().bytes)
    adopt_at(
        path,
        network=content.network,
        instance=content.uuid,
        region=copy.uuid,
        name=name,
        position=header.position,
        csn=header.csn,
        ends=ends_in(secondary, seed.catalogue, header.position),
    )
    return copy


def _roll(
    secondary: Instance, door: Door, copies: Sequence[_Copy], seqno: int, keeps: frozenset[int], told: Told
) -> list[ScrRow]:
    """Bring the copies to transaction `seqno`, from the journal here; their checkpoint records then."""
    rows: list[ScrRow] = []
    for done, copy in enumerate(copies):
        told(ROLLING, done, len(copies))
        entry = RegionEntry(0, copy.name, copy.uuid, copy.path)
        with closing(KIND.mended(copy.path, region=copy.uuid)) as opened:
            newest, own = partial(newest_of, door, None), door.words[word.OWN_ORIGIN]
            roll_forward(secondary, make_chain(secondary), entry, opened, seqno, own, newest, only=keeps)
            rows = opened.checkpoint()
    return rows


def _put_in(secondary: Instance, copies: Sequence[_Copy], keeps: frozenset[int], told: Told) -> tuple[int, int]:
    """While no Update Process runs: where the regions stand, and how many tables were filled."""
    session = open_apply_session(secondary)
    try:
        seqno = session.position.last_seqno
        rows = _roll(secondary, session.door, copies, seqno, keeps, told)
        tables = session.take_rows(
            keeps.__contains__,
            {one.name: one.path for one in copies},
            rows,
            lambda _table, done, whole: told(PUTTING_IN, done, whole),
        )
        hit("partition.put_in")
    finally:
        session.close()
        close_door(session.door)
    made = secondary.change_subscription(lambda now: now.loaded(keeps))
    hit("partition.held")
    if gone := [secondary.content.partitions.name(one) for one in sorted(keeps) if not made.holds(one)]:
        raise TryAgainError(
            f"partition {', '.join(gone)} was removed from the subscription meanwhile",
            where=str(secondary.path),
            do="Add it again, if it is wanted, and load it again",
        )
    return seqno, tables
