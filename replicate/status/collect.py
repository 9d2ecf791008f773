"""Collects what `replicate status` shows, from the control words, the daemons' status files and the regions.

Guarantees: takes no lock that a writer needs, waits for nobody, changes nothing; a part that can not be read becomes a
finding, and the rest is still reported. The journal's numbers are of this moment, those of daemons up to a second old.
Refuses to know: what the numbers mean for an operator (status/report.py).

Facts that daemons put into their status, by name; what is not there counts as unknown. The Source Server: state,
last_sent_seqno, last_received_seqno, last_applied_seqno, lag_s, last_heard_monotonic_ns, transactions_from_pool,
transactions_from_files, last_error. The Receiver Server: is_connected, source, source_last_seqno, last_received_seqno,
pool_percent, lag_s. The Update Process: applied_per_s, while it has had work without a pause, of the last ten seconds
or so.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from replicate.archived import look_at_archive
from replicate.barrier import is_held
from replicate.daemon.files import DaemonFiles, DaemonStatus
from replicate.database.look import look_at
from replicate.door.opening import is_being_seeded
from replicate.errors import BusyError, NotFoundError, PoolReplacedError, ReplicateError, TryAgainError
from replicate.findings import Finding
from replicate.instance.consumers import read_consumer, read_hold
from replicate.instance.file import PeerEntry, RegionEntry
from replicate.instance.instance import REBUILDING_MARKER, Instance
from replicate.journal.space import fill_percent, journal_space
from replicate.limits import REGIONS_MAX
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, SharedMemory
from replicate.recovery.stale_wal import refuse_stale
from replicate.security.tls_files import TlsFiles, certificate_findings
from replicate.status.journal import ClosedJournal, look_at_closed_journal
from replicate.status.replays import look_at_replays
from replicate.status.report import (
    DaemonReport,
    JournalReport,
    PeerReport,
    ReceivingReport,
    RegionReport,
    Status,
    bottleneck,
    findings,
    worst_first,
)

CONNECTED_STATES: Final = (
    "sending",
    "waiting for XON",
    "waiting for restart",
    "searching for restart",
    "making the seed",
    "sending the seed",
)
"""States of a Source Server that has a connection; see also GT.M's in facts.md §1."""
SILENT_PERIODS: Final = 2
SILENT_LEAST_S: Final = 10.0
"""A peer that has not answered for so many heartbeats, and so long, is worth a word: a busy machine is not so late."""
PAUSED_STATE: Final = "waiting for XON"


@dataclass(frozen=True, slots=True)
class _Words:
    """The control words that are shown, read at one moment."""

    last_seqno: int
    last_durable_seqno: int
    last_commit_wall_ns: int
    fatal_errno: int
    barrier_seqno: int
    barrier_left_s: float
    region_done: tuple[int, ...]
    """By region id: the last transaction that the region held when it was last committed to."""


def collect(instance: Instance) -> Status:
    """Everything, now. Raises PermissionRefusedError if the instance is another user's; otherwise only what is broken
    in the instance file itself."""
    now_wall_ns = time.time_ns()
    problems = list(_refused_settings(instance))
    words = _read_words(instance, problems)
    regions = tuple(_region(instance, entry, words) for entry in instance.regions)
    closed = ClosedJournal()
    if is_being_seeded(instance):
        text = "this secondary has been seeded only in part (a seed runs, or was interrupted)"
        problems.append(Finding("SEED_INCOMPLETE", text, "replicate -i INSTANCE seed"))
    elif words is None:
        closed = look_at_closed_journal(instance, _last_in(regions))
        if closed.problem and _read_words(instance, problems) is None:  # else somebody was just opening it
            text = f"the journal can not be opened: {closed.problem}"
            problems.append(Finding("JOURNAL_UNREADABLE", text, closed.do))
    elif words.barrier_seqno and words.barrier_left_s > 0 and is_held(instance):
        text = f"a compare or digest holds the Update Process at transaction {words.barrier_seqno}"
        do = f"wait for it: it is lifted in {words.barrier_left_s:.0f} s at the latest"
        problems.append(Finding("BARRIER_HELD", text, do))
    problems += certificate_findings(instance.path, instance.config.tls, now_wall_ns / 1e9)
    problems += _unusable_certificate(instance)
    problems += _read_only(instance, regions)
    journal = _journal(instance, words, closed, regions, problems)
    peers = tuple(_peer(instance, entry, journal, now_wall_ns, problems) for entry in instance.peers)
    receiving = _receiving(instance, journal, now_wall_ns) if instance.role == "secondary" else None
    took = look_at_replays(instance) if receiving is not None else {}
    found = findings(instance.role, journal, regions, peers, receiving, cores=len(os.sched_getaffinity(0)), took=took)
    content = instance.content
    return Status(
        name=instance.name,
        role=instance.role,
        path=str(instance.path),
        network=str(uuid.UUID(bytes=content.network)),
        uuid=str(uuid.UUID(bytes=content.uuid)),
        incarnation=content.incarnation,
        taken_wall_ns=now_wall_ns,
        journal=journal,
        regions=regions,
        peers=peers,
        receiving=receiving,
        bottleneck=bottleneck(journal, peers, receiving),
        findings=tuple(sorted((_named(instance, finding) for finding in (*problems, *found)), key=worst_first)),
    )


def _refused_settings(instance: Instance) -> Iterator[Finding]:
    """Daemons and applications that run have the settings of their start, and feel nothing of it until they end."""
    for one in instance.refused_settings:
        error = one.error
        text = (
            f"no daemon starts and no application connects, though what runs goes on: {error.what} [{error.where}]; "
            f"what status shows by {f'[{one.section}]' if one.section else 'the settings'} it shows by defaults there"
        )
        do = error.do or "mend that"
        yield Finding("SETTINGS_REFUSED", text, f"{do}; then replicate -i INSTANCE config check")


def _unusable_certificate(instance: Instance) -> Iterator[Finding]:
    """A daemon that runs goes on with what it has loaded, and says so in its log once; the next start fails."""
    files = TlsFiles.of(instance.path, instance.config.tls)
    if not files.are_there():
        return
    from replicate.security.identity import load_identity  # its libraries take a tenth of a second to load

    try:
        load_identity(files, instance.name)
    except ReplicateError as error:
        text = f"what runs goes on with what it has loaded, and nothing else can start: {error.what} [{error.where}]"
        do = error.do or "Put it back, or issue another one: replicate -i INSTANCE certificate issue NAME --ca DIR"
        yield Finding("CERTIFICATE_UNUSABLE", text, do)


def _named(instance: Instance, finding: Finding) -> Finding:
    return replace(finding, text=instance.pasteable(finding.text), do=instance.pasteable(finding.do))


def _read_words(instance: Instance, problems: list[Finding]) -> _Words | None:
    if instance.was_copied:
        return None  # a restored backup: what is in memory is of the journal that was here before it
    try:
        memory = SharedMemory.attach(PoolKind.JOURNAL, instance.content.uuid, owner_uid=os.stat(instance.path).st_uid)
    except (NotFoundError, TryAgainError, PoolReplacedError):
        return None  # nobody has opened the instance since the machine started, or somebody is just doing so
    except ReplicateError as error:
        do = error.do or "stop every process that uses the instance, then start them again"
        problems.append(Finding("POOL_UNUSABLE", str(error), do))
        return None
    try:
        words = memory.words
        return _Words(
            last_seqno=words[word.LAST_SEQNO],
            last_durable_seqno=words[word.LAST_DURABLE_SEQNO],
            last_commit_wall_ns=words[word.LAST_COMMIT_WALL_NS],
            fatal_errno=words[word.FATAL],
            barrier_seqno=words[word.BARRIER_SEQNO],
            barrier_left_s=(words[word.BARRIER_EXPIRES_NS] - time.monotonic_ns()) / 1e9,
            region_done=tuple(words[word.REGION_DONE : word.REGION_DONE + REGIONS_MAX]),
        )
    finally:
        memory.close()


def _last_in(regions: tuple[RegionReport, ...]) -> int:
    return max((region.last_seqno or 0 for region in regions), default=0)


def _journal(
    instance: Instance,
    words: _Words | None,
    closed: ClosedJournal,
    regions: tuple[RegionReport, ...],
    problems: list[Finding],
) -> JournalReport:
    space = journal_space(instance.journal_directory)
    cap_bytes = instance.config.journal.cap_bytes
    archive = None
    try:
        archive = look_at_archive(instance)
    except ReplicateError as error:
        problems.append(
            Finding("ARCHIVE_UNREADABLE", str(error), error.do or "mend that; then replicate -i INSTANCE status")
        )
    return JournalReport(
        is_open=words is not None,
        # Without the control words: after a power loss regions may be ahead of the journal; recovery completes it.
        last_written_seqno=words.last_seqno if words else max(closed.last_seqno or 0, _last_in(regions)),
        last_durable_seqno=words.last_durable_seqno if words else closed.last_durable_seqno,
        last_commit_wall_ns=words.last_commit_wall_ns if words else 0,
        first_kept_seqno=space.first_kept_seqno,
        segments=space.segments,
        bytes=space.bytes,
        cap_bytes=cap_bytes,
        cap_percent=round(100 * space.bytes / cap_bytes, 2),
        disk_percent=space.disk_percent,
        disk_free_bytes=space.disk_free_bytes,
        durability=instance.config.journal.durability,
        fatal_errno=words.fatal_errno if words else 0,
        archive=instance.config.journal.archive,
        archived_seqno=archive.last_seqno if archive else None,
        unarchived_bytes=archive.waiting_bytes if archive else 0,
        archive_lag_bytes=instance.config.journal.archive_lag_bytes,
    )


def _region(instance: Instance, entry: RegionEntry, words: _Words | None) -> RegionReport:
    name, path = entry.name, str(entry.path)
    try:
        disk_percent = _disk_percent(instance, entry)
        check = partial(refuse_stale, instance, entry)
        again = f"replicate -i INSTANCE region release {name}; then add the database again, and seed the secondaries"
        do = again if instance.role == "primary" else f"seed it anew: {instance.way_out}"
        found = look_at(path, region=entry.uuid, network=instance.content.network, check=check, changed_do=do)
    except BusyError:  # somebody restarts the WAL, or recovers it: a moment
        return RegionReport(name, path, None, is_busy=True)
    except ReplicateError as error:
        return RegionReport(name, path, None, f"{error.code}: {error.what} [{error.where}]", error.do)
    last_seqno, problem, do = found.last_seqno, "", ""
    # The words were read before, and a region never goes back.
    if words is not None and last_seqno < words.region_done[entry.region_id]:
        problem = (
            f"REGION_REPLACED: it holds transactions up to {last_seqno}, it held {words.region_done[entry.region_id]} "
            f"before: this is an old copy [{entry.path}]"
        )
        do = f"put the right file back; or begin anew: {instance.way_out}"
    pids = " ".join(str(reader.pid) for reader in found.hindrances if reader.pid > 0)
    return RegionReport(
        name,
        path,
        last_seqno,
        problem,
        do,
        disk_percent,
        wal_bytes=found.wal_bytes,
        wal_pending_bytes=found.pending_bytes,
        pinned_by=", ".join(f"{reader.text} still reads an older state" for reader in found.hindrances),
        pinned_do=f"end its transaction, or the process: {f'kill {pids}' if pids else f'fuser {path}-shm names it'}",
    )


def _read_only(instance: Instance, regions: tuple[RegionReport, ...]) -> Iterator[Finding]:
    """What can be read and not written: everything looks well until somebody commits."""
    places: list[tuple[str, tuple[Path, ...]]] = [("journal", (instance.journal_directory,))]
    places += [(r.name, (Path(r.path), Path(r.path).parent)) for r in regions if not r.problem]
    for name, paths in places:
        for path in paths:
            with suppress(OSError):
                is_mounted_so = os.statvfs(path).f_flag & os.ST_RDONLY
                if not is_mounted_so and os.access(path, os.W_OK, effective_ids=True):
                    continue
                why, do = "this user has no permission to write it", f"chmod u+w {path}"
                if is_mounted_so:
                    why = "its file system is mounted read-only"
                    do = "mend the disk (the kernel's log says why), and mount it read-write"
                yield Finding("READ_ONLY", f"nothing can be committed: {why} [{path}]", do, name)
                break


def _disk_percent(instance: Instance, entry: RegionEntry) -> float:
    """How full the region's file system is; 0.0 where it is the journal's, which is reported already."""
    with suppress(OSError):
        if os.stat(entry.path.parent).st_dev != os.stat(instance.journal_directory).st_dev:
            return fill_percent(os.statvfs(entry.path.parent))
    return 0.0


def _daemon(instance: Instance, name: str) -> tuple[DaemonReport, Mapping[str, Any]]:
    said: DaemonStatus | None = DaemonFiles(instance.path, name).read_status()
    if said is None:
        return DaemonReport(name, "never started", 0, ""), {}
    report = DaemonReport(name, said.state, said.pid, said.text, instance.pasteable(said.error), instead=said.instead)
    if report.is_running and _is_frozen(said.pid):
        report = replace(report, is_frozen=True)
    facts = dict(said.facts)
    if not report.is_running and isinstance(facts.get("lag_s"), float) and facts["lag_s"] > 0:
        # It measured until it ended; what was not applied then has grown older since, or is applied now.
        facts["lag_s"] += max(0.0, (time.time_ns() - said.changed_wall_ns) / 1e9)
    return report, facts


def _is_frozen(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process: it then neither works nor says so."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def _peer(
    instance: Instance, entry: PeerEntry, journal: JournalReport, now_wall_ns: int, problems: list[Finding]
) -> PeerReport:
    daemon, facts = _daemon(instance, f"source-{entry.name}")
    durable, needs_seed = 0, False
    held: int | None = None
    try:
        held = read_hold(instance.consumers_directory, entry.name)
        consumer = read_consumer(instance.consumers_directory, entry.name)
        if consumer is not None:
            durable, needs_seed = consumer.acknowledged_seqno, consumer.needs_seed
    except ReplicateError as error:
        do = error.do or "mend that; then replicate -i INSTANCE status"
        problems.append(Finding("CONSUMER_UNREADABLE", str(error), do, entry.name))
    state = str(facts.get("state", ""))
    sent, received, applied = (_seqno(facts, f"last_{what}_seqno") for what in ("sent", "received", "applied"))
    durable = max(durable, _seqno(facts, "last_acknowledged_seqno") or 0)
    # What is durable there was applied, and what was applied was received, even if we have not been told so since.
    # 0 without a connection means that we know nothing.
    is_connected = daemon.is_running and state in CONNECTED_STATES
    applied = _at_least(applied, durable, is_connected)
    received = _at_least(received, applied or 0, is_connected)
    sent = _at_least(sent, received or 0, is_connected)
    written = journal.last_written_seqno
    backlog = max(0, written - applied) if applied is not None else (0 if written == 0 else None)
    is_measured = daemon.is_running and not daemon.is_frozen and facts.get("lag_s") is not None
    since_ns = _seqno(facts, "peer_not_applying_since_wall_ns") if is_connected else None
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(since_ns / 1e9)) if since_ns else ""
    return PeerReport(
        name=entry.name,
        address=f"{entry.host}:{entry.port}",
        source=daemon,
        is_connected=is_connected,
        is_paused=daemon.is_running and state == PAUSED_STATE,
        last_sent_seqno=sent,
        last_received_seqno=received,
        last_applied_seqno=applied,
        last_durable_seqno=durable,
        source_backlog=max(0, written - sent) if sent is not None else None,
        receiver_backlog=received - applied if received is not None and applied is not None else None,
        backlog=backlog,
        lag_s=_lag_s(backlog, facts, 0 if is_measured else journal.last_commit_wall_ns, now_wall_ns),
        transactions_from_pool=_seqno(facts, "transactions_from_pool") or 0,
        transactions_from_files=_seqno(facts, "transactions_from_files") or 0,
        last_error=str(facts.get("last_error") or ""),
        needs_seed=needs_seed,
        update_state=str(facts.get("peer_update_state") or "") if since else "",
        not_applying_since=since,
        seed_seqno=held,
        silent_s=_silent_s(facts) if is_connected and not daemon.is_frozen else None,
        patience_s=max(SILENT_PERIODS * instance.config.source.heartbeat_period_s, SILENT_LEAST_S),
    )


def _silent_s(facts: Mapping[str, Any]) -> float | None:
    heard_ns = _seqno(facts, "last_heard_monotonic_ns")
    return None if heard_ns is None else round(max(0.0, (time.monotonic_ns() - heard_ns) / 1e9), 3)


def _receiving(instance: Instance, journal: JournalReport, now_wall_ns: int) -> ReceivingReport:
    receiver, facts = _daemon(instance, "receiver")
    update, update_facts = _daemon(instance, "update")
    applied = journal.last_written_seqno
    received = _seqno(facts, "last_received_seqno")
    received = max(received, applied) if received is not None else None
    source_last = _seqno(facts, "source_last_seqno")
    known = max((n for n in (source_last, received) if n is not None), default=None)
    backlog = max(0, known - applied) if known is not None else None
    percent, rate = facts.get("pool_percent"), update_facts.get("applied_per_s")
    is_working = update.is_running and not update.is_frozen
    return ReceivingReport(
        receiver=receiver,
        update=update,
        is_connected=receiver.is_running and facts.get("is_connected") is True,
        source=str(facts.get("source") or ""),
        # Its word may be older than what it has sent since.
        source_last_seqno=known if source_last is not None else None,
        last_received_seqno=received,
        last_applied_seqno=applied,
        last_durable_seqno=journal.last_durable_seqno,
        receiver_backlog=max(0, received - applied) if received is not None else None,
        backlog=backlog,
        # Our newest commit is applied, so its age says nothing of what is not; the receiver's measure does.
        lag_s=_lag_s(backlog, {**update_facts, **facts}, 0, now_wall_ns),
        pool_percent=float(percent) if isinstance(percent, (int, float)) else None,
        applied_per_s=float(rate) if isinstance(rate, (int, float)) and rate > 0 and is_working else None,
        is_rebuilt_in_part=(instance.path / REBUILDING_MARKER).exists(),
    )


def _lag_s(backlog: int | None, facts: Mapping[str, Any], newest_wall_ns: int, now_wall_ns: int) -> float | None:
    """The daemon's own measure if it has one; at least the age of the newest commit (0: of none), by the wall clock,
    which may have been set since. A running daemon measures by a clock that can not be."""
    if backlog is None:
        return None
    if backlog == 0:
        return 0.0
    measured = facts.get("lag_s")
    least = max(0.0, (now_wall_ns - newest_wall_ns) / 1e9) if newest_wall_ns else None
    if isinstance(measured, (int, float)):
        least = max(float(measured), least or 0.0)
    # Rounded up: 0.0 says that nothing is behind.
    return None if least is None else max(1, math.ceil(least * 1000)) / 1000


def _at_least(told: int | None, least: int, is_connected: bool) -> int | None:
    known = max(told or 0, least)
    return known if known or is_connected else None


def _seqno(facts: Mapping[str, Any], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
