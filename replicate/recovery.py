"""What happens before the first commit after a boot, a lost pool or a failed disk: journal and regions are made to
agree.

Guarantees: afterwards every region holds exactly the transactions of the journal, and the journal everything that any
region held without a hole before it; bytes that should verify and do not are named and nothing is changed; a torn
tail is cut and its numbers are never used again (a new incarnation). Running it again after a crash in its middle
gives the same result. Refuses to know: who opened the instance. It runs in whichever process is first, with every
lock held.

After a power loss neither file is ahead by law (design §7): a checkpoint may have made the region durable first. So
the union of the journal and the regions' rings is taken. Numbers behind the first hole in that union can only be
there with several regions under a relaxed policy; they are taken back by their before-images and kept in a file,
never dropped silently.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import apsw

from replicate.consumers import read_consumer
from replicate.database.bookkeeping import (
    RingSlot,
    check_region_identity,
    read_ring,
    region_seqno,
    stored_schema_version,
)
from replicate.database.rows import RowApplier
from replicate.database.sqlite import open_region, translate
from replicate.errors import (
    DamagedError,
    JournalDamagedError,
    JournalMissingError,
    NotFoundError,
    TryAgainError,
)
from replicate.failpoint import hit
from replicate.instance import Instance
from replicate.instance_file import RegionEntry, io_error
from replicate.journal.catalogue import catalogue_with
from replicate.journal.chain import Chain, Segment
from replicate.journal.durable import DurableSidecar
from replicate.journal.header import SegmentHeader
from replicate.journal.record import FIXED_ELEMENTS, chain_of, check_frame, decode_batch
from replicate.journal.segment import SegmentFile, read_exactly
from replicate.journal.spool import remove_orphans
from replicate.journal.tail import Damaged, ScanResult, Torn, classify_tail
from replicate.locks import FileLock
from replicate.pool import control as word
from replicate.pool.journal_pool import JournalPool
from replicate.redo import roll_forward
from replicate.transaction import Catalogue
from replicate.unapply import inverse

LOCK_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class _Journal:
    """The newest segment while it is being recovered. Invariant: everything before `end` verifies."""

    segment: SegmentFile
    end: int
    last_seqno: int
    chains: dict[int, tuple[int, int]]
    last_csn: int
    definition_frames: tuple[int, ...]
    sealed: bool
    forked: str = ""
    notes: dict[str, object] = field(default_factory=dict)


def attach_or_recover(instance: Instance, chain: Chain) -> JournalPool:
    """The instance's journal pool with valid control words: the one that is there, or a new one after recovery.

    Raises BusyError (a writer holds a lock), NotFoundError (nothing to recover), JournalDamagedError,
    JournalMissingError, RegionDamagedError, RegionReplacedError, ConflictError, DiskFullError.
    """
    pool = _attach(instance)
    if pool is not None:
        return pool
    with _all_locks(instance):
        pool = _attach(instance)  # somebody may have been quicker
        if pool is not None:
            return pool
        instance.reload()
        return _recover(instance, chain)


def _attach(instance: Instance) -> JournalPool | None:
    try:
        pool = JournalPool.attach(instance.content.uuid)
    except (NotFoundError, TryAgainError, DamagedError):
        return None
    if pool.words[word.FATAL]:
        pool.close()
        return None
    return pool


@contextlib.contextmanager
def _all_locks(instance: Instance) -> Iterator[None]:
    names = [f"region-{entry.region_id}" for entry in instance.regions] + ["commit"]
    held: list[FileLock] = []
    try:
        for name in names:
            lock = FileLock(instance.locks_directory / f"{name}.lock")
            held.append(lock)
            lock.acquire(LOCK_TIMEOUT_S, what=f"lock {name}, which recovery needs,")
        yield
    finally:
        for lock in reversed(held):
            lock.close()


def _recover(instance: Instance, chain: Chain) -> JournalPool:
    began = time.monotonic()
    remove_orphans(chain.directory)
    regions = _open_regions(instance)
    try:
        journal = _journal(instance, chain, regions)
        try:
            _complete_from_rings(journal, regions)
            _take_back_beyond(instance, journal, regions)
            _rewrite(journal)
            _note_durable(instance, journal)
            hit("recovery.journal_done")
            if instance.role == "primary" and (journal.forked or instance.was_copied):
                journal.notes["incarnation"] = journal.forked or "the journal directory is a copy"
                instance.raise_incarnation()
            pool = _make_pool(instance, journal, regions)
            try:
                _bring_regions_forward(instance, chain, pool, regions)
            except BaseException:
                pool.close()
                raise
            pool.mark_ready()
            _report(instance, journal, time.monotonic() - began)
            return pool
        finally:
            journal.segment.close()
    finally:
        for region in regions:
            region.connection.close(True)


# The regions.


@dataclass(slots=True)
class _Region:
    entry: RegionEntry
    connection: apsw.Connection
    seqno: int
    ring: list[RingSlot]
    schema: int


def _open_regions(instance: Instance) -> list[_Region]:
    opened: list[_Region] = []
    try:
        for entry in instance.regions:
            connection = open_region(entry.path, applier=True)
            opened.append(_Region(entry, connection, 0, [], 0))
            check_region_identity(
                connection,
                region=entry.uuid,
                network=instance.content.network,
                instance=instance.content.uuid,
                where=str(entry.path),
            )
            opened[-1].seqno = region_seqno(connection)
            opened[-1].ring = read_ring(connection)
            opened[-1].schema = stored_schema_version(connection)
    except BaseException as error:
        for region in opened:
            region.connection.close(True)
        if isinstance(error, apsw.Error):
            raise translate(error, where=opened[-1].connection.filename if opened else "") from error
        raise
    return opened


# The journal.


def _journal(instance: Instance, chain: Chain, regions: list[_Region]) -> _Journal:
    """The newest segment, its end found and judged; a first one is made for a new primary."""
    if not chain.first_seqnos():
        _begin_new(instance, chain, regions)
    last, scan = chain.scan_last()
    _check_incarnation(instance, last)
    acknowledged = [read_consumer(instance.consumers_directory, peer.name) for peer in instance.peers]
    durable = DurableSidecar(instance.journal_directory / "durable")
    try:
        verdict = classify_tail(
            scan,
            last_durable_seqno=durable.read(),
            region_seqno_max=max((region.seqno for region in regions), default=0),
            acknowledged_max=max((one.acknowledged_seqno for one in acknowledged if one is not None), default=0),
            power_lost=not durable.is_of_this_boot(),
        )
    finally:
        durable.close()
    if isinstance(verdict, Damaged):
        raise JournalDamagedError(
            f"transaction {verdict.seqno} can not be read: {verdict.reason}",
            where=f"{last.path}, offset {verdict.offset}",
            do="Nothing was changed. Run: replicate journal verify; then restore the file, or seed from the peer",
            seqno=verdict.seqno,
        )
    segment = chain.open(last.first_seqno, writable=not last.header.adopted)
    journal = _Journal(
        segment,
        scan.end_offset,
        scan.last_seqno,
        dict(scan.chains),
        scan.last_csn,
        scan.definition_frames,
        sealed=last.header.adopted,
    )
    if isinstance(verdict, Torn):
        _cut(journal, scan)
    return journal


def _begin_new(instance: Instance, chain: Chain, regions: list[_Region]) -> None:
    held = [region for region in regions if region.seqno]
    if held:
        raise JournalMissingError(
            f"the journal is gone, but region {held[0].entry.name} holds transactions up to {held[0].seqno}",
            where=chain.directory,
            do="Restore the journal directory, or release the region and begin anew",
        )
    if instance.role != "primary":
        raise NotFoundError(
            "this secondary has not been seeded yet", where=str(instance.path), do="Run: replicate seed --from PRIMARY"
        )
    content = instance.content
    header = SegmentHeader(content.network, content.uuid, content.incarnation, 1, time.time_ns())
    DurableSidecar.create(instance.journal_directory / "durable").close()
    chain.create_first(header, Catalogue()).close()


def _check_incarnation(instance: Instance, last: Segment) -> None:
    if last.header.incarnation > instance.content.incarnation:
        raise DamagedError(
            f"the journal was written by incarnation {last.header.incarnation}, the instance file says "
            f"{instance.content.incarnation}: it is an old copy",
            where=str(instance.path),
            do="Restore instance file, journal and regions from one and the same backup",
        )


def _cut(journal: _Journal, scan: ScanResult) -> None:
    """Cut a torn tail, durably, before anything else is written. What stood there was never acknowledged or sent."""
    hit("recovery.before_cut")
    journal.segment.cut(scan.end_offset)
    journal.sealed = True
    journal.forked = f"a torn tail was cut behind transaction {scan.last_seqno}"
    journal.notes["torn_tail_cut_at"] = scan.end_offset


def _complete_from_rings(journal: _Journal, regions: list[_Region]) -> None:
    """Append what regions hold and the journal lost, as far as there is no hole."""
    records = {slot.seqno: slot.record for region in regions for slot in region.ring}
    added = 0
    while journal.last_seqno + 1 in records:
        seqno = journal.last_seqno + 1
        frame = records[seqno]
        if frame is None:
            raise JournalDamagedError(
                f"transaction {seqno} is in a region and was synced before that, but the journal does not hold it",
                where=journal.segment.path,
                do="Restore the journal, or promote or seed from the peer",
            )
        head = check_frame(frame)
        previous = journal.chains.get(head.origin, (0, 0))
        if head.seqno != seqno or chain_of(frame, previous[1]) != head.chain or journal.segment.header.adopted:
            raise JournalDamagedError(
                f"the record of transaction {seqno} in a region's ring does not follow the journal's end",
                where=journal.segment.path,
                do="Restore the journal, or promote or seed from the peer",
            )
        journal.end = journal.segment.append(journal.end, frame)
        journal.last_seqno = seqno
        journal.last_csn = max(journal.last_csn, head.csn)
        journal.chains[head.origin] = (head.origin_seqno, head.chain)
        added += 1
    if added:
        journal.notes["completed_from_rings"] = added


def _take_back_beyond(instance: Instance, journal: _Journal, regions: list[_Region]) -> None:
    """Roll back, newest first, what regions hold behind the first hole."""
    beyond = sorted({s.seqno for r in regions for s in r.ring if s.seqno > journal.last_seqno}, reverse=True)
    if not beyond:
        ahead = [region for region in regions if region.seqno > journal.last_seqno]
        if ahead:
            raise JournalMissingError(
                f"region {ahead[0].entry.name} holds transactions up to {ahead[0].seqno}, the journal ends with "
                f"{journal.last_seqno}",
                where=journal.segment.path,
                do="Restore the journal, or seed this instance anew",
            )
        return
    known = catalogue_with(journal.segment.read_catalogue()[0], journal.segment, journal.definition_frames)
    frames = {s.seqno: s.record for r in regions for s in r.ring if s.seqno > journal.last_seqno}
    path = instance.conflict_directory / f"rolled-back-{min(beyond)}-{max(beyond)}.frames"
    try:
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as file:
            file.writelines(frames[seqno] or b"" for seqno in sorted(beyond))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise io_error(error, "could not keep what must be rolled back", str(path)) from error
    for region in regions:
        _take_back(region, journal.last_seqno, known)
    journal.sealed = True
    journal.forked = f"{len(beyond)} transactions behind a hole after {journal.last_seqno} were rolled back"
    journal.notes["rolled_back"] = sorted(beyond)
    journal.notes["rolled_back_file"] = str(path)


def _take_back(region: _Region, last_seqno: int, known: Catalogue) -> None:
    here = {key: one for key, one in known.definitions.items() if one.region == region.entry.name}
    rows = RowApplier(region.connection, here, region=region.entry.name)
    connection = region.connection
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            rows.begin()
            for slot in reversed(region.ring):
                if slot.seqno <= last_seqno:
                    continue
                if slot.record is None:
                    raise JournalDamagedError(
                        f"transaction {slot.seqno} is missing in the journal", where=str(region.entry.path)
                    )
                rows.seqno = slot.seqno
                changes = decode_batch(slot.record)[2][FIXED_ELEMENTS:]
                ours = [
                    element
                    for place in range(0, len(changes), 4)
                    if changes[place + 1] in here
                    for element in changes[place : place + 4]
                ]
                rows.apply_all(inverse(ours))
            connection.execute(
                "UPDATE main._replicate_ring SET seqno = 0, record = NULL WHERE seqno > ?", (last_seqno,)
            )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except apsw.Error as error:
        raise translate(error, where=str(region.entry.path)) from error
    region.ring = [slot for slot in region.ring if slot.seqno <= last_seqno]
    region.seqno = min(region.seqno, last_seqno)


def _rewrite(journal: _Journal) -> None:
    """Write the frames once more and sync: after a failed fsync the kernel calls pages clean that the disk has not
    got."""
    segment = journal.segment
    if segment.header.adopted:
        return
    begin = segment.read_catalogue()[1]
    step = 1024 * 1024
    for offset in range(begin, journal.end, step):
        data = read_exactly(segment.fd, min(step, journal.end - offset), offset, segment.path)
        segment.append(offset, data)
    segment.sync()


def _note_durable(instance: Instance, journal: _Journal) -> None:
    sidecar = DurableSidecar(instance.journal_directory / "durable")
    try:
        sidecar.write(journal.last_seqno)
        sidecar.sync()
    finally:
        sidecar.close()


# The control block.


def _make_pool(instance: Instance, journal: _Journal, regions: list[_Region]) -> JournalPool:
    pool = JournalPool.create(
        instance.content.uuid,
        configured_bytes=instance.config.journal.pool_bytes,
        last_seqno=journal.last_seqno,
        replace=True,
    )
    words = pool.words
    origin = instance.content.origin.key
    words[word.SEGMENT_FIRST_SEQNO] = journal.segment.header.first_seqno
    words[word.END_OFFSET] = journal.end
    words[word.ZEROED_OFFSET] = journal.segment.zeroed_offset
    words[word.SEGMENT_SEALED] = int(journal.sealed)
    words[word.LAST_SEQNO] = words[word.LAST_DURABLE_SEQNO] = journal.last_seqno
    words[word.LAST_CSN] = journal.last_csn
    words[word.OWN_ORIGIN] = origin
    words[word.OWN_ORIGIN_SEQNO], words[word.OWN_CHAIN] = journal.chains.get(origin, (0, 0))
    words[word.DEFINITION_COUNT] = len(journal.definition_frames)
    for place, offset in enumerate(journal.definition_frames):
        words[word.DEFINITION_OFFSET + place] = offset
    words[word.CATALOGUE_GENERATION] = 1
    began = journal.segment.read_catalogue()[0].chains
    moved = {key for key, place in journal.chains.items() if began.get(key) != place}
    words[word.SEGMENT_FOREIGN] = int(instance.role == "primary" and bool(moved - {origin}))
    words[word.LAST_COMMIT_WALL_NS] = time.time_ns()
    for region in regions:
        words[word.REGION_SCHEMA + region.entry.region_id] = region.schema
    return pool


def _bring_regions_forward(instance: Instance, chain: Chain, pool: JournalPool, regions: list[_Region]) -> None:
    words = pool.words
    last_seqno = words[word.LAST_SEQNO]
    own_origin = words[word.OWN_ORIGIN]
    for region in regions:
        hit("recovery.before_redo")
        try:
            roll_forward(instance, chain, region.entry, region.connection, last_seqno, own_origin)
            words[word.REGION_SCHEMA + region.entry.region_id] = stored_schema_version(region.connection)
        except apsw.Error as error:
            raise translate(error, where=str(region.entry.path)) from error
        words[word.REGION_APPENDED + region.entry.region_id] = last_seqno
        words[word.REGION_DONE + region.entry.region_id] = last_seqno


def _report(instance: Instance, journal: _Journal, seconds: float) -> None:
    """One line in log/recovery.log: what was found, what was done. A full disk does not stop recovery."""
    line = {
        "event": "recovery",
        "wall": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pid": os.getpid(),
        "last_seqno": journal.last_seqno,
        "seconds": round(seconds, 3),
        **journal.notes,
    }
    with contextlib.suppress(OSError):
        fd = os.open(
            instance.log_directory / "recovery.log",
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o600,
        )
        with os.fdopen(fd, "a") as file:
            file.write(json.dumps(line) + "\n")
