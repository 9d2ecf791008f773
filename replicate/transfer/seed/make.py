"""Making a seed file: all regions of a live instance at one sequence number, for one registered consumer.

Guarantees: writers go on; the file is whole, or not there; whatever comes after its sequence number is kept in the
journal until the consumer has begun after it (a hold, set before the moment is chosen); what is in the file is durable
here too, so the secondary is never ahead of us.
Leaves to others: how the file gets to the secondary, and the layout of its bytes (transfer/seed/file.py).

SQLite gives the pages of one moment only by its backup, so each region is first copied aside, one at a time: the disk
needs room for the file and the largest region; where rows stay here, for the file and twice all regions.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

import replicate
from replicate.daemon.files import DaemonFiles
from replicate.door.door import Door
from replicate.door.snapshot import Snapshot, door_of, take_absorbed
from replicate.errors import (
    AlreadyRunningError,
    DamagedError,
    FormatUnknownError,
    NotFoundError,
    RegionDamagedError,
    ReplicateError,
    TryAgainError,
    UsageError,
)
from replicate.instance.consumer_positions import positions_locked
from replicate.instance.consumers import Consumer, read_consumer, read_hold, write_consumer, write_hold
from replicate.instance.instance import Instance
from replicate.limits import PARTITION_NONE
from replicate.model.column_list import WHOLE
from replicate.model.elements import elements_in
from replicate.model.subscription import Rows
from replicate.pool import control as word
from replicate.region.sqlite.snapshot import copy_pages, size_of
from replicate.region.sqlite.take_out_rows import Shares, take_out
from replicate.transfer.container import NO_ID, SeedHeader, SeedRegion, file_bytes, pack_catalogue
from replicate.transfer.seed.file import SPARE_BYTES, SeedWriter, read_header, require_absent, require_free
from replicate.transfer.seed.filtered import refuse_from
from replicate.transfer.seed.rows import place_rows_in, rows_to_cut, shares_of
from replicate.wire.introduction import refusal
from replicate.wire.message import RefuseCode

LOCK_TIMEOUT_S = 30.0

Progress = Callable[[str, int, int], None]
"""Called with a region's name, pages done and pages of all regions; whatever it raises ends the making."""


def _silent(_region: str, _done: int, _pages: int) -> None:
    pass


class MadeSeed(Struct, frozen=True):
    """A seed file that stands at `path`. `seqno`: the last transaction in it."""

    path: Path
    seqno: int
    regions: tuple[str, ...]
    pages: int
    bytes: int
    consumer: str


def register_consumer(primary: Instance, name: str, uuid_hex: str, door: Door) -> Consumer:
    """Make the primary keep everything from here on for the secondary. What it kept already, it keeps."""
    directory = primary.consumers_directory
    with positions_locked(directory):
        known = read_consumer(directory, name)
        last_seqno = int(door.words[word.LAST_SEQNO])
        kept = last_seqno if known is None or known.needs_seed else min(known.acknowledged_seqno, last_seqno)
        since_ns = 0 if known is None or known.needs_seed else known.acknowledged_wall_ns
        consumer = Consumer(name, kept, uuid_hex, since_ns)
        write_consumer(directory, consumer)
    return consumer


def _as_before(directory: Path, registered: Consumer, known: Consumer | None) -> None:
    """There is no seed: what was registered for it says nothing of what the consumer has."""
    with positions_locked(directory):
        if read_consumer(directory, registered.name) == registered:
            write_consumer(directory, known or Consumer(registered.name, 0, registered.uuid))


def forget_seed(primary: Instance, consumer: str) -> int | None:
    """Give up the seed that is on its way to `consumer`; where it stood, None when there was none.

    A seed file that was taken elsewhere cannot be used any more once the journal after it has been pruned. Raises
    NotFoundError (no such peer), AlreadyRunningError (its Source Server, which may be sending it).
    """
    primary.peer(consumer)
    if DaemonFiles(primary.path, f"source-{consumer}").lock.probe() is not None:
        raise AlreadyRunningError(
            f"the Source Server of peer {consumer} runs",
            where=str(primary.path),
            do=f"Stop it first: replicate -i INSTANCE source stop --peer {consumer}",
        )
    try:
        held = read_hold(primary.consumers_directory, consumer)
    except DamagedError:
        held = 0
    known = read_consumer(primary.consumers_directory, consumer)
    if known is not None and not known.acknowledged_wall_ns and held is not None:
        _as_before(primary.consumers_directory, known, None)
    write_hold(primary.consumers_directory, consumer, None)
    kept = kept_seed(primary, consumer)
    for path in (kept, *kept.parent.glob(f".{kept.name}.*")):
        path.unlink(missing_ok=True)
    return held


def kept_seed(primary: Instance, consumer: str) -> Path:
    """Where the Source Server keeps the seed that it sends over the connection."""
    return primary.path / "seed" / f"{consumer}.seed"


def drop_kept_seeds(primary: Instance, region: str) -> None:
    """What was made for a peer and has that region in it: it is none of ours any more, whatever gets its name."""
    for peer in primary.peers:
        path = kept_seed(primary, peer.name)
        with suppress(NotFoundError, DamagedError, FormatUnknownError):
            if any(one.name == region for one in read_header(path).regions):
                path.unlink(missing_ok=True)


def require_whole(primary: Instance) -> None:
    """TryAgainError while a region waits for its seed here: a copy of this instance would lack it, and not know. Reads
    the instance file again: a Source Server has opened it long ago."""
    primary.reload()
    if primary.waiting:
        raise TryAgainError(
            f"region {primary.waiting[0]} is not in {primary.name} yet, and waits for its own seed",
            where=str(primary.path),
            do=f"Seed it first: replicate -i {primary.named} seed --region {primary.waiting[0]}",
        )


def require_regions(primary: Instance, names: Sequence[str]) -> None:
    """NotFoundError unless it has all of these. Reads the instance file again."""
    primary.reload()
    here = [entry.name for entry in primary.regions]
    for name in names:
        if name not in here:
            raise NotFoundError(
                f"instance {primary.name} has no region {name}; it has {', '.join(here)}",
                where=str(primary.path),
                do="Name one of these",
            )


def _refused(what: str) -> ReplicateError:
    return refusal(RefuseCode.PARTITION_REFUSED, what)


def require_partitions(primary: Instance, consumer: str, numbers: Sequence[int]) -> None:
    """The refusal PARTITION_REFUSED unless they are there, the peer may have their rows, and those are all of it."""
    known, may_go = primary.partitions_now(), leaving(primary, consumer)
    for number in numbers:
        if number not in known.names and number not in (primary.content.held or ()):  # nobody may have told its name
            raise _refused(f"{primary.name} has no partition {number}; it has {', '.join(known.names.values())}")
        if not leaves(may_go)(number):
            raise _refused(f"rows of partition {known.name(number)} of {primary.name} do not go to {consumer}")
        for element in elements_in(known.elements, number):  # the secondary may not have been told
            raise _refused(
                f"partition {known.name(number)} of {primary.name} has {element}, which only a seed of all brings"
            )


def held_of(instance: Instance) -> tuple[object, ...]:
    """`InstanceFile.held_from` of now: reads the instance file again."""
    instance.reload()
    return instance.content.held_from


def require_held_as_before(source: Instance, before: tuple[object, ...]) -> None:
    """TryAgainError where that is not what it was `before` the moment was taken that is copied: what was removed
    meanwhile is as it was then, or half deleted, and would pass for whole."""
    if held_of(source) != before:
        raise TryAgainError(
            f"what {source.name} holds of the partitions has changed while the copy was begun",
            where=str(source.path),
            do="Give the same command again",
        )


def _regions_of(snapshot: Snapshot, partitions: Sequence[int]) -> tuple[str, ...]:
    """The regions that have tables of them; all, where none has."""
    of_them = {one.region for one in snapshot.catalogue.in_force().values() if one.partition in partitions}
    return tuple(name for name in snapshot.regions.connections if name in of_them or not of_them)


def make_seed(
    primary: Instance,
    consumer: str,
    path: Path,
    *,
    request: bytes = NO_ID,
    replace: bool = False,
    progress: Progress = _silent,
    regions: Sequence[str] = (),
    partitions: Sequence[int] = (),
    rows: Rows | None = None,
) -> MadeSeed:
    """Write the seed of the registered peer `consumer` to `path`.
    `regions`: some of them, for a secondary that has the others; `partitions`: the rows of these alone. Nothing more is
    kept in the journal then, since that secondary's own has what comes after. `rows`: of these tables the secondary
    wants these rows, and others stay here.

    Raises NotFoundError (no such peer, no region, no directory), the refusal of a partition (`require_partitions`),
    AlreadyExistsError (`path`, and not `replace`), UsageError (`path` is the instance's own; rows, and a
    `source.filter`), TryAgainError (a region waits for its own seed), BusyError, DiskFullError and what SQLite says.
    After a failure no new file is at `path`, nothing is left beside it, and nothing more is kept in the journal than
    before.
    """
    primary.peer(consumer)
    if not primary.regions:
        raise NotFoundError(
            f"instance {primary.name} has no region yet",
            where=str(primary.path),
            do=f"Run there: replicate -i {primary.named} region add PATH",
        )
    if regions:
        require_regions(primary, regions)
    else:
        require_whole(primary)
    before = held_of(primary)
    require_partitions(primary, consumer, partitions)
    require_absent(path, replace=replace)
    if any(path.parent.resolve() == entry.path.parent.resolve() and path.name == entry.path.name
           for entry in primary.regions):  # fmt: skip
        raise UsageError("this is a region of the instance", where=str(path), do="Name another file")
    with door_of(primary) as door:
        directory = primary.consumers_directory
        held = read_hold(directory, consumer)
        known = read_consumer(directory, consumer)
        uuid_hex = known.uuid if known is not None else ""
        if regions or partitions:
            with take_absorbed(door, timeout_s=LOCK_TIMEOUT_S) as snapshot:
                require_held_as_before(primary, before)
                to, parts = known or Consumer(consumer), tuple(sorted(partitions))
                only = regions or _regions_of(snapshot, parts)
                return _write(primary, to, snapshot, path, request, progress, door, rows or {}, only, parts)
        registered = register_consumer(primary, consumer, uuid_hex, door)
        last_seqno = int(door.words[word.LAST_SEQNO])
        write_hold(directory, consumer, last_seqno if held is None else min(held, last_seqno))
        try:
            with take_absorbed(door, timeout_s=LOCK_TIMEOUT_S) as snapshot:
                require_held_as_before(primary, before)
                made = _write(primary, registered, snapshot, path, request, progress, door, rows or {})
        except BaseException:
            write_hold(directory, consumer, held)
            if held is None:
                _as_before(directory, registered, known)
            raise
        write_hold(directory, consumer, made.seqno)
    return made


def _write(
    primary: Instance,
    consumer: Consumer,
    snapshot: Snapshot,
    path: Path,
    request: bytes,
    progress: Progress,
    door: Door,
    rows: Rows,
    only: Sequence[str] = (),
    parts: tuple[int, ...] = (),
) -> MadeSeed:
    connections = {
        name: connection for name, connection in snapshot.regions.connections.items() if not only or name in only
    }
    refuse_from(primary, connections)
    partitions, spare_bytes = parts or leaving(primary, consumer.name), _spare_bytes(primary, path.parent)
    cut_rows = place_rows_in(rows_to_cut(primary, rows, connections), connections)
    with ExitStack() as stack:
        keeps, shares = leaves(partitions), shares_of(cut_rows)
        cut = _cut_copies(stack, connections, snapshot, path, keeps, shares, spare_bytes, progress)
        regions = tuple(
            SeedRegion(name, *size_of(connection)) if name not in cut else cut[name]
            for name, connection in connections.items()
        )
        header = SeedHeader(
            network=primary.content.network,
            primary=primary.content.uuid,
            primary_name=primary.name,
            secondary_name=consumer.name,
            secondary_uuid=bytes.fromhex(consumer.uuid) if consumer.uuid else NO_ID,
            seed=uuid.uuid4().bytes,
            request=request,
            csn=snapshot.csn,
            created_wall_ns=time.time_ns(),
            release=replicate.__version__,
            position=snapshot.position,
            regions=regions,
            is_part=bool(only),
            partitions=partitions,
            rows={**primary.content.held_rows, **cut_rows},
        )
        packed, catalogue = header.pack(), pack_catalogue(snapshot.catalogue.newest(), header.seqno)
        total_bytes = file_bytes(packed, catalogue, regions)
        needed_bytes = total_bytes + (0 if cut else max(region.bytes for region in regions))
        require_free(path.parent, needed_bytes, "the seed file", spare_bytes=spare_bytes)
        done = 0
        with SeedWriter(path) as writer:
            writer.begin(packed, catalogue, header.version)
            for region in regions:
                pages = (
                    writer.region(region, _aside(path, region.name))
                    if cut
                    else _region(writer, region, snapshot, path, progress, done, header.pages)
                )
                for page in pages:
                    progress(region.name, done + page, header.pages)
                done += region.pages
            # What the secondary will have must not be lost by a crash of this host: it would be ahead of us.
            door.wait_durable(snapshot.seqno)
            size = writer.finish()
    assert size == total_bytes
    return MadeSeed(path, header.seqno, tuple(r.name for r in regions), header.pages, size, consumer.name)


def _cut_copies(
    stack: ExitStack,
    connections: Mapping[str, Any],
    snapshot: Snapshot,
    path: Path,
    keeps: Callable[[int], bool],
    shares: Shares,
    spare_bytes: int,
    progress: Progress,
) -> dict[str, SeedRegion]:
    """All regions copied aside, without the rows that stay here, and what stands in the file for each; nothing where
    all rows go. They are smaller then, so they are made before the file is begun. `stack` removes them."""
    if all(keeps(one.partition) and shares(one) == WHOLE for one in snapshot.catalogue.in_force().values()):
        return {}
    made: dict[str, SeedRegion] = {}
    all_pages = sum(size_of(connection)[1] for connection in connections.values())
    for name, connection in connections.items():
        page_bytes, pages = size_of(connection)
        require_free(path.parent, 2 * page_bytes * pages, "a region's copy", spare_bytes=spare_bytes)
        copy = _aside(path, name)
        stack.callback(copy.unlink, missing_ok=True)
        copy.unlink(missing_ok=True)
        copy_pages(connection, copy, lambda _done, _all, name=name: progress(name, 0, all_pages))  # type: ignore[misc]
        take_out(copy, keeps, shares=shares)
        made[name] = SeedRegion(name, page_bytes, os.stat(copy).st_size // page_bytes)
    return made


def _aside(path: Path, region: str) -> Path:
    """Where a region is copied, beside the seed file."""
    return path.with_name(f".{path.name}.{region}.copy")


def leaving(primary: Instance, consumer: str) -> tuple[int, ...] | None:
    """The partitions whose rows go to that peer with a seed, ascending; None: all, but NONE. NotFoundError."""
    held, bound = primary.content.held, primary.peer(consumer).partitions
    if held is None or bound is None:
        return bound if held is None else held
    return tuple(number for number in held if number in bound)


def leaves(partitions: tuple[int, ...] | None) -> Callable[[int], bool]:
    """Whether the rows of a partition, by its number, are among them. NONE never is."""
    if partitions is None:
        return lambda number: number != PARTITION_NONE
    return partitions.__contains__


def _spare_bytes(primary: Instance, directory: Path) -> int:
    """What must stay free there: a seed must not take the room that the next commits need for their journal."""
    is_shared = os.stat(directory).st_dev == os.stat(primary.journal_directory).st_dev
    return max(SPARE_BYTES, 2 * primary.config.journal.segment_bytes) if is_shared else SPARE_BYTES


def _region(
    writer: SeedWriter, region: SeedRegion, snapshot: Snapshot, path: Path, progress: Progress, done: int, pages: int
) -> Iterator[int]:
    """Copy one region aside and append it; yields the pages done."""
    copy = _aside(path, region.name)
    copy.unlink(missing_ok=True)
    try:
        copied = copy_pages(
            snapshot.regions.connections[region.name], copy, lambda _done, _all: progress(region.name, done, pages)
        )
        if copied != region.pages or os.stat(copy).st_size != region.bytes:
            raise RegionDamagedError(
                f"region {region.name} has {region.pages} pages of {region.page_bytes} bytes, its copy {copied}",
                where=str(copy),
                do="Check the database: PRAGMA integrity_check",
            )
        yield from writer.region(region, copy)
    finally:
        copy.unlink(missing_ok=True)
