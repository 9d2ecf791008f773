"""What happens before the first commit after a boot, a lost pool or a failed disk: journal and regions are made to
agree.

Guarantees: afterwards every region holds exactly the transactions of the journal, and the journal everything that any
region held without a hole before it; bytes that should verify and do not are named and nothing is changed; a torn
tail is cut and its numbers are never used again (a new incarnation). Running it again after a crash in its middle
gives the same result. Leaves to others: who opened the instance. It runs in whichever process is first, with every
lock held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Final

from replicate.door.recovery.journal_end import changes_catalogue
from replicate.door.recovery.region_rings import (
    Journal,
    Region,
    complete_from_rings,
    open_regions,
    region_witness,
    repair_from_rings,
    take_back_beyond,
)
from replicate.door.recovery.roll_forward import InForce, check_reach, note_region, roll_forward
from replicate.errors import (
    ConfigurationError,
    DamagedError,
    JournalDamagedError,
    JournalMissingError,
    NotFoundError,
    TryAgainError,
)
from replicate.instance.consumers import read_consumer
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import all_locks
from replicate.journal.catalogue import catalogue_with
from replicate.journal.chain import Chain, Segment
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.header import SegmentHeader
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import decode_batch, read_head, removes_rows, resolved_of
from replicate.journal.segment import SegmentFile, read_exactly
from replicate.journal.spool import remove_orphans
from replicate.journal.tail import Damaged, ScanResult, Torn, classify_tail
from replicate.journal.walk import walk
from replicate.limits import BATCH_BYTES_MAX
from replicate.model.transaction import Catalogue
from replicate.pool import control as word
from replicate.pool.journal_pool import JournalPool
from replicate.pool.shared_memory import outlast_looks
from replicate.region.kind import KIND
from replicate.system.failpoint import hit
from replicate.system.files import sync_directory

LOCK_TIMEOUT_S: Final = 30.0
NOTE_BEHIND: Final = 100_000
"""A primary's region in which nothing was written for so many transactions is told that it lacks none of them, so that
they are not looked through again at the next start."""


def attach_or_recover(instance: Instance, chain: Chain, deadline_s: float | None = None) -> JournalPool:
    """The instance's journal pool with valid control words: the one that is there, or a new one after recovery.
    `deadline_s`: until when, on the monotonic clock, locks are waited for; None: LOCK_TIMEOUT_S seconds.

    Raises BusyError (a writer holds a lock), NotFoundError (nothing to recover), JournalDamagedError,
    JournalMissingError, RegionDamagedError, RegionReplacedError, ConflictError, DiskFullError.
    """
    pool, _ = _attach(instance)
    if pool is not None:
        return pool
    instance.reload()
    with _all_locks(instance, time.monotonic() + LOCK_TIMEOUT_S if deadline_s is None else deadline_s):
        pool, is_restored = _attach(instance)  # somebody may have been quicker
        if pool is not None:
            return pool
        instance.reload()  # it may have another role since we began to wait
        return _recover(instance, chain, is_restored=is_restored)


def _attach(instance: Instance) -> tuple[JournalPool | None, bool]:
    """The pool that is there and can be used; whether there is one that knows of more than the files do."""
    try:
        pool = JournalPool.attach(instance.content.uuid)
    except (NotFoundError, TryAgainError, DamagedError):
        return None, False
    is_restored = False
    try:
        mark_used(pool)
        if (pool.words[word.JOURNAL_DEVICE], pool.words[word.JOURNAL_INODE]) != _journal_inode(instance):
            refuse_if_used(instance, pool)
        elif is_restored := _is_restored(instance, pool):
            refuse_if_used(
                instance,
                pool,
                what="the journal was replaced by an older copy while processes use it",
                do="Stop every process of this instance, then start again: recovery runs first",
            )
        elif not pool.words[word.FATAL]:
            pool.memory.note_home(instance.path)  # it may have been moved
            return pool, False
    except BaseException:
        pool.close()
        raise
    pool.close()
    return None, is_restored


def _is_restored(instance: Instance, pool: JournalPool) -> bool:
    """Whether files of a backup have been put into the journal's directory: its durable mark is older than the pool
    knows it. Nothing may be appended after what the pool says then: there would be a hole before it."""
    counted = pool.words[word.SIDECAR_COUNTER]  # first: the process that writes the mark counts after that
    sidecar = DurableSidecar(instance.journal_directory / SIDECAR_NAME)
    try:
        return sidecar.counter() < counted
    except (JournalDamagedError, JournalMissingError):
        return False  # the process that needs the mark says so
    finally:
        sidecar.close()


def mark_used(pool: JournalPool) -> None:
    """Have the kernel know that a process uses the pool, until it ends."""
    fcntl.flock(pool.memory.fd, fcntl.LOCK_SH)


def refuse_if_used(
    instance: Instance,
    pool: JournalPool,
    *,
    what: str = "another copy of this instance is in use on this machine",
    do: str = "Stop the processes of the other one; for a second site make an instance of its own and seed it",
) -> None:
    """ConfigurationError when the pool is not of what lies here (of a copy, say), and a process uses it."""
    try:
        fcntl.flock(pool.memory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(what, where=str(instance.path), do=do) from None


def _journal_inode(instance: Instance) -> tuple[int, int]:
    facts = os.stat(instance.journal_directory)
    return facts.st_dev, facts.st_ino


@contextlib.contextmanager
def _all_locks(instance: Instance, deadline_s: float) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        for lock in all_locks(instance):
            held.callback(lock.close)
            lock.acquire(max(0.0, deadline_s - time.monotonic()), what=f"lock {lock.path.stem}, which recovery needs,")
        yield


def _recover(instance: Instance, chain: Chain, *, is_restored: bool) -> JournalPool:
    began = time.monotonic()
    outlast_looks()  # or a process that has a pool without a name could append after a recovery that is killed
    remove_orphans(chain.directory)
    regions = open_regions(instance)
    try:
        if chain.first_seqnos():
            for region in regions:
                check_reach(instance, chain, region.entry, region.opened)
        journal = _open_journal(instance, chain, regions)
        try:
            complete_from_rings(instance, journal, regions)
            _rewrite(journal)
            take_back_beyond(instance, journal, regions)
            _note_durable(instance, journal)
            hit("recovery.journal_done")
            if instance.was_copied:
                journal.fork(instance, "the journal directory is a copy", is_restored=True)
            elif is_restored:
                journal.fork(instance, "the journal was replaced by an older copy", is_restored=True)
            pool = _make_pool(instance, journal, regions)
            try:
                _bring_regions_forward(instance, chain, pool, journal, regions)
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
            region.opened.close()


# The journal.


def _open_journal(instance: Instance, chain: Chain, regions: list[Region]) -> Journal:
    """The newest segment, its end found and judged; a first one is made for a new primary.

    After a power loss neither file is ahead by law (design §7): a checkpoint may have made the region durable first. So
    the union of the journal and the regions' rings is taken. Numbers after the first hole in that union can only be
    there with several regions under a relaxed policy; they are taken back by their before-images and kept in a file,
    never dropped silently.
    """
    if not chain.first_seqnos():
        _begin_new(instance, chain, regions)
    last, scan = chain.scan_last()
    _check_incarnation(instance, last)
    if last.header.incarnation < instance.content.incarnation:
        # What raised it may have died before the file's name was durable; what is written now must not outlive it.
        sync_directory(os.fspath(instance.path))
    consumers = [read_consumer(instance.consumers_directory, peer.name) for peer in instance.peers]
    durable = DurableSidecar(instance.journal_directory / SIDECAR_NAME)
    try:
        last_durable = durable.read()
        power_lost = not durable.is_of_this_boot()
    finally:
        durable.close()
    acknowledged = max((one.acknowledged_seqno for one in consumers if one is not None), default=0)
    repaired = 0
    if instance.is_supplier:
        scan = _without_unsaid(chain, last, scan, regions)
    if not last.header.adopted:
        scan, repaired = repair_from_rings(chain, last, scan, regions, max(last_durable, acknowledged))
    verdict = classify_tail(
        scan,
        last_durable_seqno=last_durable,
        region_seqno_max=region_witness(regions, scan.last_seqno),
        acknowledged_max=acknowledged,
        # Then what was not synced may be missing in the middle too, before what is there.
        power_lost=power_lost,
        marks_are_ours=instance.told_role == "primary",
    )
    if isinstance(verdict, Damaged):
        raise JournalDamagedError(
            f"transaction {verdict.seqno} cannot be read: {verdict.reason}",
            where=f"{last.path}, offset {verdict.offset}",
            do=f"Nothing was changed. Run: replicate -i {instance.named} journal verify; then restore the file, or "
            f"begin again: {instance.way_out}",
            seqno=verdict.seqno,
        )
    segment = chain.open(last.first_seqno, writable=not last.header.adopted)
    try:
        journal = Journal(
            segment,
            scan.end_offset,
            scan.last_seqno,
            dict(scan.chains),
            max([scan.last_csn, _csn_before(chain, last, regions), *(region.last_csn for region in regions)]),
            _definitions(segment, scan),
            sealed=last.header.adopted,
        )
        if repaired:
            journal.notes["repaired_from_rings"] = repaired
        if isinstance(verdict, Torn):
            _cut(instance, journal, scan)
    except BaseException:
        segment.close()
        raise
    return journal


def _without_unsaid(chain: Chain, last: Segment, scan: ScanResult, regions: list[Region]) -> ScanResult:
    """A supplier's transaction that was merged, whose rows gave way for unique values, and its word on them, which has
    all others remove them, are one batch (update_process/merging.py). Where the word did not come onto the disk, nor
    did the batch into the region: the transaction is taken for torn, too, and comes again."""
    if scan.restated is None or (scan.damaged is not None and scan.damaged.whole_frame):
        return scan
    if max((region.seqno for region in regions), default=0) >= scan.last_seqno:
        return scan
    with chain.open(last.first_seqno) as segment:
        resolved = resolved_of(decode_batch(segment.read_frame(scan.restated[0]))[2])
    if resolved is None or removes_rows(resolved) or not KIND.gave_way(resolved.losses):
        return scan
    return scan.without_restated("rows gave way in it, and the word on them does not follow")


def _csn_before(chain: Chain, last: Segment, regions: list[Region]) -> int:
    """The highest csn of what the segments before the newest one hold and no region has; 0: there is nothing. What is
    written from now on comes after it, also where it is another supplier's, whose clock is ahead."""
    first_seqno = max((region.seqno for region in regions), default=0) + 1
    if not 1 < first_seqno < last.first_seqno:
        return 0  # of a region that is being added nothing is old
    found = 0
    reader = ChainReader(chain, max(first_seqno, chain.oldest_seqno()))  # what no region lacks may be pruned
    try:
        while (read := reader.read(BATCH_BYTES_MAX, last.first_seqno - 1)) is not None:
            data = read.commit_frame if isinstance(read, LargeTransaction) else read.data
            found = max(found, *(head.csn for _, head in walk(data)))
    finally:
        reader.close()
    return found


def _definitions(segment: SegmentFile, scan: ScanResult) -> tuple[int, ...]:
    """The frames that change the catalogue; the scan also names those that only look so."""
    found = []
    for offset in scan.definition_frames:
        frame = segment.read_frame(offset)
        if changes_catalogue(read_head(frame), frame):
            found.append(offset)
    if len(found) > word.DEFINITIONS_MAX:
        raise JournalDamagedError(f"{len(found)} frames of the segment define tables", where=segment.path)
    return tuple(found)


def _begin_new(instance: Instance, chain: Chain, regions: list[Region]) -> None:
    held = [region for region in regions if region.seqno]
    if held:
        raise JournalMissingError(
            f"the journal is gone, but region {held[0].entry.name} holds transactions up to {held[0].seqno}",
            where=chain.directory,
            do=f"Restore the journal directory; or begin again: {instance.way_out}",
        )
    with contextlib.suppress(JournalMissingError):
        if (known := DurableSidecar(instance.journal_directory / SIDECAR_NAME)).read():
            raise JournalDamagedError(
                f"the journal's segments are gone; they held transactions up to {known.read()} at least",
                where=chain.directory,
                do="Restore the journal directory, or make a new instance",
            )
    if instance.role != "primary":
        raise NotFoundError(
            "this secondary has not been seeded yet",
            where=str(instance.path),
            do=f"Run: replicate -i {instance.named} seed",
        )
    content = instance.content
    header = SegmentHeader(content.network, content.uuid, content.incarnation, 1, time.time_ns())
    DurableSidecar.create(instance.journal_directory / SIDECAR_NAME).close()
    chain.create_first(header, Catalogue()).close()


def _check_incarnation(instance: Instance, last: Segment) -> None:
    if last.header.incarnation > instance.content.incarnation:
        raise DamagedError(
            f"the journal was written by incarnation {last.header.incarnation}, the instance file says "
            f"{instance.content.incarnation}: it is an old copy",
            where=str(instance.path),
            do="Restore instance file, journal and regions from one and the same backup",
        )


def _cut(instance: Instance, journal: Journal, scan: ScanResult) -> None:
    """Cut a torn tail, durably, before anything else is written. What stood there was never acknowledged or sent."""
    # First, so that a kill in between cannot lead to the same numbers in the same incarnation.
    journal.fork(instance, f"a torn tail was cut after transaction {scan.last_seqno}")
    hit("recovery.before_cut")
    journal.segment.cut(scan.end_offset)
    hit("recovery.after_cut")
    journal.sealed = True
    journal.notes["torn_tail_cut_at"] = scan.end_offset


def _rewrite(journal: Journal) -> None:
    """Write the frames once more and sync: after a failed fsync the kernel calls pages clean that the disk has not
    got."""
    segment = journal.segment
    if segment.header.adopted:
        return
    begin = segment.read_catalogue()[1]
    step = 1024 * 1024
    for offset in range(begin, journal.end, step):
        data = read_exactly(segment.fd, min(step, journal.end - offset), offset, segment.path)
        segment.rewrite(offset, data)  # never `append`, which would take back what is durable when a write fails
    segment.sync()


def _note_durable(instance: Instance, journal: Journal) -> None:
    # A segment that was adopted or begun by a killed process may have a name that the disk has not got.
    sync_directory(os.fspath(instance.journal_directory))
    sidecar = DurableSidecar(instance.journal_directory / SIDECAR_NAME)
    try:
        sidecar.settle(journal.last_seqno)
    finally:
        sidecar.close()


# The control block.


def _make_pool(instance: Instance, journal: Journal, regions: list[Region]) -> JournalPool:
    pool = JournalPool.create(
        instance.content.uuid,
        configured_bytes=instance.config.journal.pool_bytes,
        last_seqno=journal.last_seqno,
        replace=True,
    )
    mark_used(pool)
    pool.memory.note_home(instance.path)
    words = pool.words
    origin = instance.content.origin.key
    words[word.SEGMENT_FIRST_SEQNO] = journal.segment.header.first_seqno
    words[word.END_OFFSET] = journal.end
    words[word.ZEROED_OFFSET] = journal.segment.zeroed_offset
    words[word.SEGMENT_SEALED] = int(journal.sealed)
    words[word.LAST_SEQNO] = words[word.LAST_DURABLE_SEQNO] = journal.last_seqno
    words[word.LAST_CSN] = journal.last_csn
    words[word.ROLE] = word.ROLE_PRIMARY if instance.takes_writes else word.ROLE_SECONDARY
    words[word.FROZEN] = max(1, journal.last_seqno) if instance.content.frozen is not None else 0
    words[word.OWN_ORIGIN] = origin
    words[word.OWN_ORIGIN_SEQNO], words[word.OWN_CHAIN] = journal.chains.get(origin, (0, 0))
    words[word.DEFINITION_COUNT] = len(journal.definition_frames)
    for place, offset in enumerate(journal.definition_frames):
        words[word.DEFINITION_OFFSET + place] = offset
    words[word.CATALOGUE_GENERATION] = words[word.SEGMENT_GENERATION] = 1
    words[word.JOURNAL_DEVICE], words[word.JOURNAL_INODE] = _journal_inode(instance)
    began = journal.segment.read_catalogue()[0].chains
    moved = {key for key, place in journal.chains.items() if began.get(key) != place}
    foreign = sorted(moved - {origin}) if instance.role == "primary" else []
    if instance.is_supplier and len(foreign) <= word.FOREIGN_MAX:
        for place, key in enumerate(foreign):
            at = word.FOREIGN + word.FOREIGN_WORDS * place
            words[at], words[at + 1], words[at + 2] = key, *journal.chains[key]
        words[word.FOREIGN_COUNT] = len(foreign)
    else:
        words[word.SEGMENT_FOREIGN] = int(bool(foreign))
    words[word.LAST_COMMIT_WALL_NS] = time.time_ns()
    for region in regions:
        words[word.REGION_SCHEMA + region.entry.region_id] = region.schema
    return pool


def _bring_regions_forward(
    instance: Instance, chain: Chain, pool: JournalPool, journal: Journal, regions: list[Region]
) -> None:
    words = pool.words
    last_seqno = words[word.LAST_SEQNO]
    own_origin = words[word.OWN_ORIGIN]
    segment = journal.segment

    def newest() -> InForce:
        known = catalogue_with(segment.read_catalogue()[0], segment, journal.definition_frames)
        return InForce(segment.header.first_seqno, known)

    for region in regions:
        hit("recovery.before_redo")
        opened = region.opened
        with KIND.naming(opened.where):
            if instance.role == "primary":
                opened.forget_held(last_seqno)  # before the journal gives these numbers again, whatever is read here
            have = roll_forward(instance, chain, region.entry, opened, last_seqno, own_origin, newest)
            if instance.role == "primary" and last_seqno + 1 - opened.may_lack_from() >= NOTE_BEHIND:
                opened.note_held(last_seqno + 1)  # all of it is durable now
            note_region(words, region.entry, opened, have)


def _report(instance: Instance, journal: Journal, seconds: float) -> None:
    facts = {"last_seqno": journal.last_seqno, "seconds": round(seconds, 3), **journal.notes}
    log_recovery(instance, "recovery", facts)


def log_recovery(instance: Instance, event: str, facts: Mapping[str, object]) -> None:
    """One line in log/recovery.log: what was found, what was done. A full disk does not stop recovery."""
    line = {
        "event": event,
        "wall": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pid": os.getpid(),
        **facts,
    }
    with contextlib.suppress(OSError):
        fd = os.open(
            instance.log_directory / "recovery.log",
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o600,
        )
        with os.fdopen(fd, "a") as file:
            file.write(json.dumps(line) + "\n")
