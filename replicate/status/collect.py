"""Collects what `replicate status` shows, from the control words, the daemons' status files and the regions.

Guarantees: takes no lock that a writer needs, waits for nobody, changes nothing; a part that cannot be read becomes a
finding, and the rest is still reported. The journal's numbers are of this moment, those of daemons up to a second old.
Leaves to others: what the numbers mean for an operator (status/report.py).

Facts that daemons put into their status, by name; what is not there counts as unknown. The Source Server: state,
last_sent_seqno, last_received_seqno, last_applied_seqno, lag_s, transactions_from_pool, transactions_from_files,
last_error, peer_region_waits. The Receiver Server: is_connected, is_streaming, source, source_last_seqno,
last_received_seqno, pool_percent, lag_s, or lag_at_least_s where that is not known. Both: heartbeat_period_s, and when
the other side was last heard (daemon/last_heard.py). The Update Process: applied_per_s, while it has had work without a
pause, of the last ten seconds.
"""

from __future__ import annotations

import math
import os
import shlex
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.compare.index_found import look_at_indexes
from replicate.compare.last_compare import Compared, look_at_compared
from replicate.compare.patrol_found import Patrolled, look_at_patrolled
from replicate.daemon.figures import FIGURES
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_heard import now as this_moment
from replicate.daemon.last_heard import read_facts, utc
from replicate.daemon.last_run import missing_settings
from replicate.daemon.status_file import DaemonStatus
from replicate.door.barrier import NOWHERE, is_held
from replicate.door.recovery.opening import is_being_seeded
from replicate.door.recovery.stale_wal import refuse_stale
from replicate.door.recovery.way_out import way_out_of_changed_schema
from replicate.errors import BusyError, NotFoundError, PoolReplacedError, ReplicateError, TryAgainError
from replicate.instance.archive_mark import look_at_archive
from replicate.instance.consumers import read_consumer, read_hold, told_seqno
from replicate.instance.file import PeerEntry, RegionEntry
from replicate.instance.instance import REBUILDING_MARKER, Instance
from replicate.journal.reserve import reserved_bytes
from replicate.journal.space import fill_percent, journal_space
from replicate.limits import REGIONS_MAX
from replicate.model.contact import Moment, known, patience_s
from replicate.model.findings import Finding
from replicate.model.table_wish import told_what
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, SharedMemory
from replicate.region.sqlite.region_state import look_at
from replicate.security.tls_files import TlsFiles, certificate_findings
from replicate.status.bottleneck import bottleneck
from replicate.status.clocks import clock_findings
from replicate.status.comparing import ComparedReport, RepairedReport, compared_findings
from replicate.status.indexes import index_findings, indexes_report
from replicate.status.journal import ClosedJournal, look_at_closed_journal
from replicate.status.listens import listens
from replicate.status.merging import merging_findings, who_has_what
from replicate.status.other_instances import OtherInstance, look_for, placed
from replicate.status.packets import hears_by_packets, look_at_packets, were_level_by_packets
from replicate.status.patrol import patrol_findings, patrol_report
from replicate.status.report import (
    NEVER_STARTED,
    DaemonReport,
    JournalReport,
    PartitionReport,
    PeerReport,
    ReceivingReport,
    RegionReport,
    Status,
    SupplierReport,
    each_once,
    findings,
)
from replicate.status.roles import (
    frozen_findings,
    is_rolled_back_in_part,
    lost_findings,
    restoring_findings,
    retired_finding,
    rollback_findings,
    succession_findings,
)
from replicate.status.schema_fences import schema_fence_findings

CONNECTED_STATES: Final = (
    "sending",
    "waiting for XON",
    "waiting for restart",
    "searching for restart",
    "making the seed",
    "sending the seed",
)
"""States of a Source Server that has a connection; see also GT.M's in facts.md §1."""
PAUSED_STATE: Final = "waiting for XON"


class _Words(Struct, frozen=True):
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
    now = this_moment()
    now_wall_ns = now.wall_ns
    problems = list(_refused_settings(instance))
    words = _read_words(instance, problems)
    regions = tuple(_region(instance, entry, words) for entry in instance.regions)
    closed = _closed(instance, words, regions, problems)
    problems += _waiting(instance)
    problems += certificate_findings(instance.path, instance.config.tls, now_wall_ns / 1e9)
    problems += _unusable_certificate(instance)
    problems += _read_only(instance, regions)
    journal = _journal(instance, words, closed, regions, problems)
    lines = [entry for entry in instance.consumers if not entry.by_packets]
    peers = tuple(_peer(instance, entry, journal, now, problems) for entry in lines)
    packets = look_at_packets(instance, journal.last_written_seqno, now_wall_ns, problems)
    suppliers = _suppliers(instance) if instance.is_supplier else ()
    receiving = _receiving(instance, journal, now, suppliers) if instance.receives else None
    problems += rollback_findings(instance, is_at_work=bool(receiving and receiving.receiver.instead))
    connected = [peer.name for peer in peers if peer.is_connected]
    problems += succession_findings(instance, journal.last_written_seqno, connected)
    problems += retired_finding(instance, {one.name: one.last_error for one in peers if one.is_away})
    problems += frozen_findings(instance)
    were_level = {one.name for one in suppliers if one.was_level} | were_level_by_packets(instance)
    problems += restoring_findings(instance, were_level)
    problems += merging_findings(instance, now_wall_ns / 1e9)
    problems += schema_fence_findings(instance, now_wall_ns / 1e9)
    problems += clock_findings(instance)
    problems += lost_findings(instance)
    by_packets = hears_by_packets(instance)
    told = instance.told_role, journal, regions, peers, receiving, packets
    found = findings(*told, by_packets=by_packets, suppliers=suppliers)
    content = instance.content
    noted = look_at_compared(instance.path)
    compared = _compared(noted, now_wall_ns)
    patrolled = look_at_patrolled(instance.path) if instance.role == "secondary" else Patrolled()
    others = _others(instance, receiving, compared)
    source, here = receiving.source if receiving is not None else "", {other.name for other in others if other.typed}
    if regions and not is_being_seeded(instance):
        problems += compared_findings(
            instance.told_role,
            compared,
            peers={peer.name for peer in instance.consumers},
            source=source,
            here=here,
            filled_s=(now_wall_ns - max(noted.seeded_wall_ns, content.created_wall_ns)) / 1e9,
            warn_days=instance.config.status.compared_warn_days,
            repaired=_repaired(noted, now_wall_ns),
        )
    problems += patrol_findings(patrolled, now_wall_ns, source=source, here=here)
    indexes = look_at_indexes(instance.path)
    problems += index_findings(indexes, now_wall_ns, role=instance.role)
    return Status(
        name=instance.name,
        role=instance.told_role,
        path=str(instance.path),
        network=str(uuid.UUID(bytes=content.network)),
        uuid=str(uuid.UUID(bytes=content.uuid)),
        incarnation=content.incarnation,
        taken_wall_ns=now_wall_ns,
        journal=journal,
        regions=regions,
        peers=peers,
        receiving=receiving,
        bottleneck=bottleneck(journal, peers, receiving, by_packets=by_packets),
        findings=each_once(_named(instance, others, finding) for finding in (*problems, *found)),
        compared=compared,
        patrol=patrol_report(patrolled, now_wall_ns),
        indexes=indexes_report(indexes, now_wall_ns),
        packets=packets,
        suppliers=suppliers,
        told=who_has_what(instance),
        partitions=_partitions(instance),
    )


def _partitions(instance: Instance) -> tuple[PartitionReport, ...]:
    content = instance.content
    if content.subscription is None and content.held is None:
        return ()
    return tuple(PartitionReport(*one) for one in content.subscribed_here)


def _closed(
    instance: Instance, words: _Words | None, regions: tuple[RegionReport, ...], problems: list[Finding]
) -> ClosedJournal:
    """The journal where nobody has it open. Adds what bars it: a seed, damage, somebody who holds it."""
    closed = ClosedJournal()
    if is_being_seeded(instance):
        text = "this secondary has been seeded only in part (a seed runs, or was interrupted)"
        problems.append(Finding("SEED_INCOMPLETE", text, "replicate -i INSTANCE seed"))
    elif is_rolled_back_in_part(instance):
        pass  # its regions and its journal stand apart until it has ended, which is said below
    elif words is None:
        closed = look_at_closed_journal(instance, _last_in(regions))
        if closed.problem and _read_words(instance, problems) is None:  # else somebody was just opening it
            text = f"the journal cannot be opened: {closed.problem}"
            problems.append(Finding("JOURNAL_UNREADABLE", text, closed.do))
    elif words.barrier_seqno and words.barrier_left_s > 0 and is_held(instance):
        what = (
            "writers" if words.barrier_seqno == NOWHERE else f"the Update Process at transaction {words.barrier_seqno}"
        )
        text = f"a compare or digest holds {what}"
        do = f"wait for it: it is lifted in {words.barrier_left_s:.0f} s at the latest"
        problems.append(Finding("BARRIER_HELD", text, do))
    return closed


def _repaired(noted: Compared, now_wall_ns: int) -> RepairedReport | None:
    one = noted.repaired
    age_s = 0.0 if one is None else max(0.0, (now_wall_ns - one.wall_ns) / 1e9)
    return None if one is None else RepairedReport(one.like, one.seqno, one.rows, age_s)


def _compared(noted: Compared, now_wall_ns: int) -> tuple[ComparedReport, ...]:
    return tuple(
        ComparedReport(other, one.seqno, max(0.0, (now_wall_ns - one.wall_ns) / 1e9), one.is_equal, one.differs)
        for other, one in noted.found.items()
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


def _waiting(instance: Instance) -> Iterator[Finding]:
    """Of a secondary, what the primary has and it has not."""
    for name in instance.waiting:
        text = f"region {name} was added on the primary, and waits here for its seed; the others go on"
        yield Finding("REGION_WAITS", text, f"replicate -i INSTANCE seed --region {name}", name)
    content, choice = instance.content, instance.content.choice
    for key in choice.uncopied:
        wanted, table = choice.rows.get(key), ".".join(filter(None, key))
        what = told_what(wanted) if wanted is not None else "all rows"
        text = f"of table {table} {what} are wanted, and are here with the next copy of them"
        yield Finding("ROWS_WAIT", text, instance.way_out, table)
    if content.held is None:
        return
    known, told = content.partitions, instance.told_held
    lacking = [one for one in sorted({*known.names, *(choice.wanted or ())}) if choice.wants(one) > choice.holds(one)]
    alike: dict[str, list[int]] = {}
    for one in lacking:
        alike.setdefault(content.told_state(one), []).append(one)
    for state, numbers in alike.items():
        names, many = ", ".join(map(known.name, numbers)), len(numbers) > 1
        text = f"partition{'s' * many} {names}: wanted, and not here: {'each' if many else 'it'} {state}"
        do = f"replicate -i INSTANCE {content.bringing(numbers)}"
        yield Finding("PARTITION_WAITS", f"{text}; {instance.name} {told}", do, "" if many else names)
    if choice.wanted is None and not lacking:
        text = f"all partitions are wanted; {instance.name} {told} until its next seed"
        yield Finding("PARTITION_WAITS", text, "replicate -i INSTANCE seed --restart")


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


def _others(
    instance: Instance, receiving: ReceivingReport | None, compared: tuple[ComparedReport, ...]
) -> tuple[OtherInstance, ...]:
    """The instances that findings may name beside this one."""
    hosts = dict.fromkeys((one.other for one in compared), "")
    if receiving is not None:
        _, facts = _daemon(instance, "receiver")
        hosts[receiving.source] = str(facts.get("source_host") or "")  # since that was started
    hosts |= {peer.name: peer.host for peer in instance.consumers}
    return look_for(instance, hosts)


def _named(instance: Instance, others: tuple[OtherInstance, ...], finding: Finding) -> Finding:
    do = placed(instance.pasteable(finding.do), others)
    return replace(finding, text=instance.pasteable(finding.text), do=do)


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
        last_commit_wall_ns=words.last_commit_wall_ns if words else closed.last_commit_wall_ns,
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
        is_reserve_used=instance.config.journal.reserve_bytes > 0 and reserved_bytes(instance.journal_directory) == 0,
    )


def _region(instance: Instance, entry: RegionEntry, words: _Words | None) -> RegionReport:
    name, path = entry.name, str(entry.path)
    try:
        disk_percent = _disk_percent(instance, entry)
        check = partial(refuse_stale, instance, entry)
        do = way_out_of_changed_schema(instance, name)
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
        do = f"put the right file back; or begin again: {instance.way_out}"
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
    for region in regions:
        # What opens a read-only database leaves such a WAL, which stays when the database may be written again.
        beside = tuple(Path(f"{region.path}{suffix}") for suffix in ("", "-wal", "-shm"))
        places += [(region.name, (*beside, Path(region.path).parent))] if not region.problem else []
    for name, paths in places:
        closed: list[str] = []
        for path in paths:
            with suppress(OSError):
                if os.statvfs(path).f_flag & os.ST_RDONLY:
                    text = f"nothing can be committed: its file system is mounted read-only [{path}]"
                    do = "mend the disk (the kernel's log says why), and mount it read-write"
                    yield Finding("READ_ONLY", text, do, name)
                    break
                if not os.access(path, os.W_OK, effective_ids=True):
                    closed.append(shlex.quote(str(path)))
        else:
            if closed:
                text = f"nothing can be committed: this user has no permission to write it [{', '.join(closed)}]"
                yield Finding("READ_ONLY", text, f"chmod u+w {' '.join(closed)}", name)


def _disk_percent(instance: Instance, entry: RegionEntry) -> float:
    """How full the region's file system is; 0.0 where it is the journal's, which is reported already."""
    with suppress(OSError):
        if os.stat(entry.path.parent).st_dev != os.stat(instance.journal_directory).st_dev:
            return fill_percent(os.statvfs(entry.path.parent))
    return 0.0


def _daemon(instance: Instance, name: str) -> tuple[DaemonReport, Mapping[str, Any]]:
    said: DaemonStatus | None = DaemonFiles(instance.path, name).read_status()
    given = missing_settings(instance.path, name, instance.config)
    if said is None:
        return DaemonReport(name, NEVER_STARTED, 0, "", given=given), {}
    error = instance.pasteable(said.error)
    failed = str(said.facts.get("filter_error") or "")
    report = DaemonReport(
        name, said.state, said.pid, said.text, error, filter_error=failed, instead=said.instead, given=given
    )
    if report.is_running and _is_frozen(said.pid):
        report = replace(report, is_frozen=True)
    facts = dict(said.facts)
    if not report.is_running:
        # It measured until it ended; what was not applied then has grown older since, or is applied now. That nothing
        # was left then says nothing of now.
        elapsed_s = max(0.0, (time.time_ns() - said.changed_wall_ns) / 1e9)
        for name in ("lag_s", "lag_at_least_s"):
            measured = facts.get(name)
            facts[name] = measured + elapsed_s if isinstance(measured, float) and measured > 0 else None
    return report, facts


def _is_frozen(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process: it then neither works nor says so."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def _peer(
    instance: Instance, entry: PeerEntry, journal: JournalReport, now: Moment, problems: list[Finding]
) -> PeerReport:
    daemon, facts = _daemon(instance, f"source-{entry.name}")
    durable, needs_seed = 0, False
    held: int | None = None
    try:
        held = read_hold(instance.consumers_directory, entry.name)
        consumer = read_consumer(instance.consumers_directory, entry.name)
        if consumer is not None:
            durable = told_seqno(instance.consumers_directory, consumer)
            needs_seed = consumer.needs_seed
    except ReplicateError as error:
        do = error.do or "mend that; then replicate -i INSTANCE status"
        problems.append(Finding("CONSUMER_UNREADABLE", str(error), do, entry.name))
    state = str(facts.get("state", ""))
    sent, received, applied = (_seqno(facts, f"last_{what}_seqno") for what in ("sent", "received", "applied"))
    durable = max(durable, _seqno(facts, "last_acknowledged_seqno") or 0)
    # What is durable there was applied, and what was applied was received, even if we have not been told so since.
    # 0 without a connection means that we know nothing.
    is_connected = daemon.is_running and state in CONNECTED_STATES
    if state == "waiting for restart" and facts.get("last_error"):
        is_connected = False  # tried again after a failure: until the stream begins, that is what there is to say
    applied = _at_least(applied, durable, is_connected)
    received = _at_least(received, applied or 0, is_connected)
    sent = _at_least(sent, received or 0, is_connected)
    written = max(journal.last_written_seqno, sent or 0)  # it may have sent more since the journal was looked at
    backlog = max(0, written - applied) if applied is not None else (0 if written == 0 else None)
    is_measured = daemon.is_running and not daemon.is_frozen and facts.get("lag_s") is not None
    since_ns = _seqno(facts, "peer_not_applying_since_wall_ns") if is_connected else None
    heard_s, _ = _ages_s(facts, now)
    lag_s = _lag_s(backlog, facts, 0 if is_measured else journal.last_commit_wall_ns, now.wall_ns)
    period_s = _period_s(facts) or instance.config.source.heartbeat_period_s
    judged = known(
        is_connected=is_connected and not daemon.is_frozen,
        told_s=heard_s,
        heard_s=heard_s,
        period_s=period_s,
        backlog=backlog,
        lag_s=lag_s,
    )
    return PeerReport(
        name=entry.name,
        address=f"{entry.host}:{entry.port}",
        source=replace(daemon, is_passive=entry.passive),
        is_connected=is_connected,
        is_paused=daemon.is_running and state == PAUSED_STATE,
        last_sent_seqno=sent,
        last_received_seqno=received,
        last_applied_seqno=applied,
        last_durable_seqno=durable,
        source_backlog=max(0, written - sent) if sent is not None else None,
        receiver_backlog=received - applied if received is not None and applied is not None else None,
        backlog=backlog,
        lag_s=lag_s,
        transactions_from_pool=_seqno(facts, "transactions_from_pool") or 0,
        transactions_from_files=_seqno(facts, "transactions_from_files") or 0,
        last_error=str(facts.get("last_error") or ""),
        needs_seed=needs_seed,
        update_state=str(facts.get("peer_update_state") or "") if since_ns else "",
        not_applying_since=utc(since_ns) if since_ns else "",
        seed_seqno=held,
        silent_s=_rounded(heard_s) if is_connected and not daemon.is_frozen else None,
        patience_s=patience_s(period_s),
        is_silent=judged.is_silent,
        last_heard=_ago(now, heard_s),
        last_heard_s=_rounded(heard_s),
        region_waits=is_connected and facts.get("peer_region_waits") is True,
        by_partition=_by_partition(facts),
    )


def _ages_s(facts: Mapping[str, Any], now: Moment) -> tuple[float | None, float | None]:
    """How long ago the other side was last heard, and has last told its position."""
    heard, told = read_facts(facts)
    return None if heard is None else now.age_s(heard), None if told is None else now.age_s(told)


def _period_s(facts: Mapping[str, Any]) -> float | None:
    period_s = facts.get("heartbeat_period_s")
    return float(period_s) if isinstance(period_s, (int, float)) and period_s > 0 else None


def _ago(now: Moment, age_s: float | None) -> str | None:
    return None if age_s is None else utc(max(0, now.wall_ns - int(age_s * 1e9)))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _by_partition(facts: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """The figures by partition that a daemon has in its status."""
    return {name: facts[name] for name, one in FIGURES.items() if one.label == "partition" and facts.get(name)}


def _receiving(
    instance: Instance, journal: JournalReport, now: Moment, suppliers: Iterable[SupplierReport]
) -> ReceivingReport:
    receiver, facts = _daemon(instance, "receiver")
    update, update_facts = _daemon(instance, "update")
    # A supplier's journal counts otherwise than its source; the daemon has the source's numbers.
    applied = (_seqno(facts, "last_applied_seqno") or 0) if instance.is_supplier else journal.last_written_seqno
    durable = applied if instance.is_supplier else journal.last_durable_seqno
    received = _seqno(facts, "last_received_seqno")
    received = max(received, applied) if received is not None else None
    source_last = _seqno(facts, "source_last_seqno")
    newest = max((n for n in (source_last, received) if n is not None), default=None)
    backlog = max(0, newest - applied) if newest is not None else None
    percent = facts.get("pool_percent")
    rate = _rate(update_facts) if update.is_running and not update.is_frozen else None
    is_connected = receiver.is_running and facts.get("is_connected") is True
    heard_s, told_s = _ages_s(facts, now)
    period_s = _period_s(facts) or instance.config.source.heartbeat_period_s
    # Our newest commit is applied, so its age says nothing of what is not; the receiver's measure does.
    told_lag = facts.get("lag_s") if facts.get("lag_s") is not None else facts.get("lag_at_least_s")
    judged = known(
        is_connected=is_connected and source_last is not None,
        told_s=told_s,
        heard_s=heard_s,
        period_s=period_s,
        backlog=backlog,
        lag_s=_lag_s(backlog, {"lag_s": told_lag}, 0, now.wall_ns),
        is_streaming=facts.get("is_streaming") is not False,  # a release before this one does not say so
    )
    silent_s = max((one.silent_s for one in suppliers if one.silent_s is not None), default=None)
    if silent_s is not None:  # what one of several has written is not known, however lately the others were heard
        told_s, least_s = silent_s, max(silent_s, judged.lag_at_least_s or 0.0)
        judged = replace(judged, is_known=False, lag_s=None, lag_at_least_s=least_s, backlog=None)
    return ReceivingReport(
        receiver=receiver,
        update=update,
        is_connected=is_connected,
        source=str(facts.get("source") or ""),
        # Its word may be older than what it has sent since.
        source_last_seqno=newest if source_last is not None else None,
        last_received_seqno=received,
        last_applied_seqno=applied,
        last_durable_seqno=durable,
        receiver_backlog=max(0, received - applied) if received is not None else None,
        backlog=judged.backlog,
        lag_s=judged.lag_s,
        pool_percent=float(percent) if isinstance(percent, (int, float)) else None,
        applied_per_s=rate,
        level_in_s=None if rate is None else _rounded((judged.backlog or judged.backlog_at_least or 0) / rate),
        is_rebuilt_in_part=(instance.path / REBUILDING_MARKER).exists(),
        is_seeded=bool(instance.regions) or is_being_seeded(instance),
        waiting=instance.waiting,
        lag_at_least_s=_rounded(judged.lag_at_least_s),
        backlog_at_least=judged.backlog_at_least,
        backlog_unknown_since=None if judged.is_known else _ago(now, told_s),
        is_silent=judged.is_silent and not receiver.is_frozen,
        patience_s=patience_s(period_s),
        last_heard=_ago(now, heard_s),
        last_heard_s=_rounded(heard_s),
        listens=listens(
            facts.get("listen") if receiver.is_running else None,
            instance.config.receiver.listen,
            is_given="receiver.listen" in receiver.given,
            is_reached=bool(facts.get("source_host")),  # by this run: what was heard before may have come elsewhere
        ),
        by_partition=_by_partition(update_facts),
    )


def _suppliers(instance: Instance) -> tuple[SupplierReport, ...]:
    """Of a supplier, each of its sources, by its Receiver Server's word."""
    receiver, facts = _daemon(instance, "receiver")
    found = facts.get("suppliers")
    if not isinstance(found, list):
        return ()
    return tuple(
        SupplierReport(
            str(one.get("name")),
            receiver.is_running and one.get("is_connected") is True,
            int(one.get("last_seqno", 0)),
            int(one.get("last_received_seqno", 0)),
            int(one.get("last_applied_seqno", 0)),
            receiver.is_running and one.get("was_level") is True,
            float(silent_s) if isinstance(silent_s := one.get("silent_s"), (int, float)) else None,
            receiver.is_running and one.get("is_paused") is True,
        )
        for one in found
        if isinstance(one, dict)
    )


def _rate(facts: Mapping[str, Any]) -> float | None:
    """Transactions a second, as the Update Process has measured while it had work without a pause."""
    rate = facts.get("applied_per_s")
    return float(rate) if isinstance(rate, (int, float)) and rate > 0 else None


def _lag_s(backlog: int | None, facts: Mapping[str, Any], newest_wall_ns: int, now_wall_ns: int) -> float | None:
    """The daemon's own measure if it has one; at least the age of the newest commit (0: of none), by the wall clock,
    which may have been set since. A running daemon measures by a clock that cannot be."""
    if backlog is None:
        return None
    if backlog == 0:
        return 0.0
    measured = facts.get("lag_s")
    least = max(0.0, (now_wall_ns - newest_wall_ns) / 1e9) if newest_wall_ns else None
    if isinstance(measured, (int, float)):
        least = max(float(measured), least or 0.0)
    # Rounded up: 0.0 says that nothing is left.
    return None if least is None else max(1, math.ceil(least * 1000)) / 1000


def _at_least(told: int | None, least: int, is_connected: bool) -> int | None:
    known = max(told or 0, least)
    return known if known or is_connected else None


def _seqno(facts: Mapping[str, Any], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
