"""What `replicate status` reports, and what an operator should do next.

Guarantees: every finding says what is wrong, where, and the command that mends it; nothing is called well that was not
seen. Leaves to others: which part of the street others wait for (status/bottleneck.py), where the numbers come from
(status/collect.py) and how they are printed (status/text.py). Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from errno import EDQUOT, EFBIG, ENOSPC, errorcode
from math import inf
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from replicate.limits import MIB
from replicate.model.findings import SEVERITIES, Finding
from replicate.model.start_command import start_command, text_of
from replicate.settings.load import SETTINGS
from replicate.settings.table import Scalar
from replicate.status.comparing import ComparedReport, ago
from replicate.status.listens import Listens

STATUS_ROOM_BYTES: Final = 64 * 1024
"""With less than this free a daemon cannot tell how it stands: its status file is written again each time."""
STALE: Final = "; the daemons cannot write their status there, so their numbers and states may be old"
RETIRED_THERE: Final = "refused by the peer: RETIRED: "
"""In the last error of a Source Server: what another supplier says of this one."""
FILL_MARKS_PERCENT: Final = (70.0, 85.0, 95.0)
"""A journal cap or disk fuller than these is warned of; beyond the last it is an error."""

Level = Literal["FULL", "FILLING"]


class JournalReport(Struct, frozen=True):
    """The own journal. `is_open`: some process has opened the instance since the machine started.

    `last_durable_seqno` is None where nobody can say; `fatal_errno` not 0: a write or sync failed, nobody appends.
    """

    is_open: bool
    last_written_seqno: int
    last_durable_seqno: int | None
    last_commit_wall_ns: int
    first_kept_seqno: int | None
    segments: int
    bytes: int
    cap_bytes: int
    cap_percent: float
    disk_percent: float
    disk_free_bytes: int
    durability: str
    fatal_errno: int = 0
    archive: str = ""
    """Where segments go before they are pruned; "" where no archive is configured."""
    archived_seqno: int | None = None
    unarchived_bytes: int = 0
    """Of finished segments that are not in the archive."""
    archive_lag_bytes: int = 0
    """More than this is a finding."""
    is_reserve_used: bool = False
    """The room that is kept for a full disk was given up, and there is not enough to keep it again."""


NEVER_STARTED: Final = "never started"
"""The state of a daemon that has no history."""


class DaemonReport(Struct, frozen=True):
    """A daemon. `state`: starting, serving, stopping, stopped, failed, dead, or "never started"."""

    name: str
    state: str
    pid: int
    text: str
    error: str = ""
    is_frozen: bool = False
    """The process is there, and a signal (SIGSTOP) or a debugger has stopped it."""
    is_passive: bool = False
    """Of a Source Server: it sleeps, because an operator has said so, or the instance is secondary."""
    filter_error: str = ""
    """Of a server: what its filter has failed of."""
    instead: str = ""
    """What keeps it from starting, as process `pid`: "replay", "rebuild"; it does not run then."""
    given: Mapping[str, Scalar] = field(default_factory=dict)
    """Settings that its last run was given on the command line, and that a start without them would not have."""

    @property
    def start(self) -> str:
        """The command that starts it as it ran last."""
        return start_command(self.name, self.given)

    @property
    def is_running(self) -> bool:
        return self.state in ("starting", "serving", "stopping")


class LineReport(Struct, frozen=True, kw_only=True):
    """How lately the other side of a connection was heard, whichever end of it we are."""

    patience_s: float = inf
    """It is not silent for longer when all is well."""
    is_silent: bool = False
    """The connection stands, and it has been silent for longer: what stands here of it is as old."""
    last_heard: str | None = None
    """When it was last heard, in UTC; None: never, or not since our server has run."""
    last_heard_s: float | None = None
    """And how many seconds ago."""


ByPartition = Mapping[str, Mapping[str, int]]
"""The name of a figure (daemon/figures.py) -> the name of a partition -> its value."""


class PeerReport(LineReport, frozen=True):
    """A stream to a secondary. Positions are None where the peer has not been heard of since its source started.

    `source_backlog`: committed, not sent. `receiver_backlog`: received there, not applied. `backlog`: committed, not
    applied. `lag_s`: age of the oldest transaction not applied there; 0.0 when level, None when unknown.
    """

    name: str
    address: str
    source: DaemonReport
    is_connected: bool
    is_paused: bool
    last_sent_seqno: int | None
    last_received_seqno: int | None
    last_applied_seqno: int | None
    last_durable_seqno: int
    source_backlog: int | None
    receiver_backlog: int | None
    backlog: int | None
    lag_s: float | None
    transactions_from_pool: int
    transactions_from_files: int
    last_error: str
    needs_seed: bool
    update_state: str = ""
    """Of its Update Process, as the peer tells us; "" when it runs, or nobody tells."""
    not_applying_since: str = ""
    """When we first heard that; as a text, in UTC."""
    seed_seqno: int | None = None
    """Where the seed stands that is on its way to it; None when there is none."""
    silent_s: float | None = None
    """The age of the last that it has said; None without a connection."""
    region_waits: bool = False
    """A region of ours waits there for its seed, as it tells us itself."""
    by_partition: ByPartition = field(default_factory=dict)
    """What the Source Server has counted since its start, where it looks for what goes."""

    @property
    def is_away(self) -> bool:
        """There is no connection to it, and there should be one."""
        return self.source.is_running and not self.is_connected and not self.source.is_passive


class SupplierReport(Struct, frozen=True):
    """On a supplier, one that sends to it, by the numbers of that one's journal."""

    name: str
    is_connected: bool
    last_seqno: int
    last_received_seqno: int
    last_applied_seqno: int
    was_level: bool
    """All that it had when its stream began is applied here."""
    silent_s: float | None = None
    """How long nothing has come from it, where that is longer than it may be."""
    is_paused: bool = False
    """It was told to pause (XOFF): its receive pool is full."""


class ReceivingReport(LineReport, frozen=True):
    """The stream from the primary, on a secondary. `source_last_seqno`: the last that the primary has told of.

    `backlog` and `lag_s` are None where nobody knows them, such as while the primary has not said for longer than a
    heartbeat how it stands. Then `backlog_at_least` counts what it has told of and is not applied, and the copy is
    at least `lag_at_least_s` behind the primary's clock: since it was heard, or since the oldest of these (contact.py).
    """

    receiver: DaemonReport
    update: DaemonReport
    is_connected: bool
    source: str
    source_last_seqno: int | None
    last_received_seqno: int | None
    last_applied_seqno: int
    last_durable_seqno: int | None
    receiver_backlog: int | None
    backlog: int | None
    lag_s: float | None
    pool_percent: float | None
    applied_per_s: float | None = None
    """Transactions that the Update Process applies, measured while it had work without a pause; None: unknown."""
    level_in_s: float | None = None
    """So long it needs at that rate for what is known to be left, if nothing more comes; None: unknown."""
    is_rebuilt_in_part: bool = False
    """A rebuild has ended after a piece that is not its last."""
    is_seeded: bool = True
    """There is a region, or one is being made: the first seed has begun."""
    waiting: tuple[str, ...] = ()
    """Regions of the primary that are not here, and wait for their seed."""
    lag_at_least_s: float | None = None
    backlog_at_least: int | None = None
    backlog_unknown_since: str | None = None
    """When the primary has last said how it stands, in UTC; None where the backlog is known, or never was."""
    by_partition: ByPartition = field(default_factory=dict)
    """What the Update Process has counted since its start, where partitions are in use."""
    listens: Listens = field(default_factory=Listens)

    @property
    def never_ran(self) -> bool:
        """Whether neither of its daemons was ever started."""
        return self.receiver.state == self.update.state == NEVER_STARTED

    @property
    def instead(self) -> DaemonReport | None:
        """The daemon in whose place something else is at work, which is neither's failure; None: nothing is."""
        return next((daemon for daemon in (self.update, self.receiver) if daemon.instead), None)


class RegionReport(Struct, frozen=True):
    """A region. `last_seqno` is the last transaction that touched it; `problem` is empty when all is well with it, else
    `problem_do` mends it; `disk_percent` how full its file system is, 0.0 where that is the journal's.

    `wal_bytes` is the size of its WAL file, `wal_pending_bytes` how much of it is not checkpointed; `pinned_by` names
    who keeps it so, and is empty where nobody does.
    """

    name: str
    path: str
    last_seqno: int | None
    problem: str = ""
    problem_do: str = ""
    disk_percent: float = 0.0
    is_busy: bool = False
    wal_bytes: int = 0
    wal_pending_bytes: int = 0
    pinned_by: str = ""
    pinned_do: str = ""


class PatrolReport(Struct, frozen=True):
    """What the patrol has proven on this secondary. Every one of `rows` rows was found equal within the last `age_s`
    seconds; None before the first whole round. `passed` ranges were not verified, the last one for the reason `why`.
    `at`: the table that it is at; "" while it rests. `different` ranges were found that are not the same."""

    rows: int | None
    age_s: float | None
    passed: int
    why: str
    at: str
    different: int = 0

    @property
    def line(self) -> str:
        """`all 412000000 rows verified within 6 h; now at main.account`."""
        text = "no whole round yet"
        if self.rows is not None and self.age_s is not None:
            every = "" if self.passed or self.different else "all "
            text = f"{every}{self.rows} rows verified within {ago(self.age_s)}"
        if self.different:
            text += f"; {self.different} range{'s' * (self.different != 1)} not the same"
        if self.passed:
            text += f"; {self.passed} range{'s' * (self.passed != 1)} passed over ({self.why})"
        return f"{text}; now at {self.at}" if self.at else text


class IndexesReport(Struct, frozen=True):
    """What a site's last whole round through its own indexes has looked at: so many `entries` within the last `age_s`
    seconds; None before the first. `left_out`: "region.table.index: reason". `at`: the table that it is at. So many are
    `damaged`."""

    entries: int | None
    age_s: float | None
    left_out: tuple[str, ...]
    at: str
    damaged: int = 0

    @property
    def line(self) -> str:
        """`1200 entries verified within 6 h; 1 left out (main.t.i: no such function: f); now at main.t`."""
        text = "no whole round yet"
        if self.entries is not None and self.age_s is not None:
            done = "looked at" if self.damaged else "verified"
            text = f"{'' if self.left_out else 'all '}{self.entries} entries {done} within {ago(self.age_s)}"
        if self.damaged:
            text += f"; {self.damaged} damaged"
        if self.left_out:
            text += f"; {len(self.left_out)} left out ({self.left_out[0]})"
        return f"{text}; now at {self.at}" if self.at else text


class PacketsReport(Struct, frozen=True):
    """A peer that gets packets. `exported_seqno`: the last transaction that is in a packet for it, or in its seed;
    `confirmed_seqno`: what it has said that it has; `backlog`: committed, and in no packet yet. `unconfirmed_s`: since
    when a packet is out that it has not confirmed; None when there is none."""

    name: str
    exported_seqno: int
    confirmed_seqno: int
    backlog: int
    unconfirmed_s: float | None
    needs_seed: bool = False


class PartitionReport(Struct, frozen=True):
    """A partition, on a secondary that has some only. `state`: as `subscription list` tells it."""

    name: str
    number: int
    state: str


class Status(Struct, frozen=True):
    """All of it. `bottleneck` is empty when everything is known to be level."""

    name: str
    role: str
    path: str
    network: str
    uuid: str
    incarnation: int
    taken_wall_ns: int
    journal: JournalReport
    regions: tuple[RegionReport, ...]
    peers: tuple[PeerReport, ...]
    receiving: ReceivingReport | None
    bottleneck: str
    findings: tuple[Finding, ...]
    compared: tuple[ComparedReport, ...] = ()
    """The last compare with each other instance, the newest last."""
    patrol: PatrolReport | None = None
    """None where no source has told of any range yet."""
    indexes: IndexesReport | None = None
    """None where no daemon has looked through the indexes yet."""
    packets: tuple[PacketsReport, ...] = ()
    """The peers that get packets."""
    suppliers: tuple[SupplierReport, ...] = ()
    """On a supplier, each that has sent since its Receiver Server was started; `receiving` has their sums."""
    told: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """On a supplier, who has what of whom, by its Update Process: by supplier that shares, ourselves among them, and by
    origin ("NAME INCARNATION") the last transaction that it has told that it has."""
    partitions: tuple[PartitionReport, ...] = ()
    """Of a secondary that has some only, each that it knows."""

    @property
    def is_wrong(self) -> bool:
        """Whether an operator should act."""
        return any(finding.is_wrong for finding in self.findings)


def findings(
    role: str,
    journal: JournalReport,
    regions: tuple[RegionReport, ...],
    peers: tuple[PeerReport, ...],
    receiving: ReceivingReport | None,
    packets: tuple[PacketsReport, ...] = (),
    *,
    by_packets: bool = False,
    suppliers: tuple[SupplierReport, ...] = (),
) -> tuple[Finding, ...]:
    """All that an operator should know, errors first. `by_packets`: a secondary that gets packets; daemons that never
    ran are not missed there."""
    found = [
        *_journal_findings(journal, peers),
        *_region_findings(role, regions),
        *(finding for peer in peers for finding in (*_peer_findings(role, peer), *_archive_need(journal, peer))),
        *(_receiving_findings(receiving, by_packets, suppliers) if receiving is not None else ()),
    ]
    if role != "secondary" and not peers and not packets:
        found.append(Finding("NO_PEER", "no peer is registered", "replicate -i INSTANCE peer add NAME HOST:PORT"))
    return tuple(sorted(found, key=_worst_first))


def _worst_first(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


_ERROR: Final = re.compile(r":? [A-Z]+(?:_[A-Z]+)*: (.+?\])", re.DOTALL)
"""An error within a text: its code, what happened, and where."""


def each_once(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """All findings, worst first. An error that several of them tell is told by the first; the others point to it."""
    made: list[Finding] = []
    for finding in sorted(found, key=_worst_first):
        error = _ERROR.search(finding.text)
        first = next((one for one in made if error is not None and error[1] in one.text), None)
        if error is not None and first is not None:
            of = f" ({first.subject})" if first.subject else ""
            made.append(replace(finding, text=f"{finding.text[: error.start()]} by what {first.code}{of} tells"))
        else:
            made.append(finding)
    return tuple(made)


def fill_level(percent: float) -> Level | None:
    """How bad it is that something is so full: None below the first mark."""
    if percent < FILL_MARKS_PERCENT[0]:
        return None
    return "FULL" if percent >= FILL_MARKS_PERCENT[-1] else "FILLING"


def _mark(percent: float) -> str:
    return f"{max(mark for mark in FILL_MARKS_PERCENT if percent >= mark):g} %"


def _way_to_room(journal: JournalReport, peers: tuple[PeerReport, ...]) -> str:
    """What to do about a journal that is long: it is kept for a consumer that needs the oldest part of it."""
    keepers = []
    for peer in peers:
        has = peer.last_durable_seqno  # 0: it has said nothing yet, and begins with its seed
        if peer.seed_seqno is not None and (peer.needs_seed or not has or peer.seed_seqno <= has):
            do = f"finish it there, or give it up (replicate -i INSTANCE seed --forget {peer.name})"
            keepers.append((peer.seed_seqno, f"the seed that waits for peer {peer.name}: {do}"))
        elif not peer.needs_seed:
            do = f"let it catch up, or remove it if it is gone (replicate -i INSTANCE peer remove {peer.name})"
            keepers.append((peer.last_durable_seqno, f"peer {peer.name}: {do}"))
    if journal.archive and journal.unarchived_bytes:
        keepers.append((journal.archived_seqno or 0, f"the archive {journal.archive}: replicate -i INSTANCE archive"))
    behind = [keeper for keeper in keepers if keeper[0] < journal.last_written_seqno]
    if not behind:
        return _raised_cap(journal)
    return f"it is kept for {min(behind)[1]}; or {_raised_cap(journal)}"


def _raised_cap(journal: JournalReport) -> str:
    most = int(SETTINGS["journal.cap_bytes"].facts.most or 0)
    doubled = text_of("journal.cap_bytes", min(-(-2 * journal.cap_bytes // MIB) * MIB, most))
    return f"raise journal.cap_bytes: replicate -i INSTANCE config set journal.cap_bytes {doubled}"


def _journal_findings(journal: JournalReport, peers: tuple[PeerReport, ...]) -> Iterator[Finding]:
    if journal.fatal_errno:
        full = journal.fatal_errno in (ENOSPC, EDQUOT, EFBIG)
        yield Finding(
            "JOURNAL_FATAL",
            f"a journal write or sync failed ({'disk full: ' if full else ''}"
            f"{errorcode.get(journal.fatal_errno, 'unknown')}, errno {journal.fatal_errno}); nothing is committed any "
            "more",
            f"{'make space on the' if full else 'mend the'} disk, stop every process that uses the instance, and start "
            "them again",
        )
    level = fill_level(journal.cap_percent)
    if level is not None:
        yield Finding(
            f"JOURNAL_{level}",
            f"the journal is at {journal.cap_percent:.0f} % of its cap (above {_mark(journal.cap_percent)})",
            _way_to_room(journal, peers),
        )
    if journal.is_reserve_used:
        yield Finding(
            "JOURNAL_RESERVE_USED",
            "the disk of the journal was full; the room that was kept for that has been given up, and when it is full "
            "again commits are refused",
            "make room there now: the reserve is kept again as soon as there is twice as much",
            "journal",
        )
    level = fill_level(journal.disk_percent)
    if level is not None:
        yield Finding(
            f"DISK_{level}",
            f"the disk of the journal is {journal.disk_percent:.0f} % full (above {_mark(journal.disk_percent)})"
            + (STALE if journal.disk_free_bytes < STATUS_ROOM_BYTES else ""),
            "make room there" + ("; then start the daemons that have stopped" if level == "FULL" else ""),
            "journal",
        )

    if journal.archive and journal.unarchived_bytes > journal.archive_lag_bytes:
        text = (
            f"{journal.unarchived_bytes / 2**20:.0f} MiB of finished journal after transaction "
            f"{journal.archived_seqno or 0} are not in the archive {journal.archive}, and are kept for it"
        )
        yield Finding("ARCHIVE_LAGS", text, "replicate -i INSTANCE archive (best from a timer)")


def _archive_need(journal: JournalReport, peer: PeerReport) -> Iterator[Finding]:
    """A peer whose next transaction was pruned, since it is archived."""
    needed = (peer.last_durable_seqno or peer.seed_seqno or 0) + 1
    if journal.archive and not peer.needs_seed and needed < (journal.first_kept_seqno or 0):
        text = f"peer {peer.name} needs transaction {needed}; the journal begins with {journal.first_kept_seqno}"
        yield Finding(
            "PEER_NEEDS_ARCHIVE", text, f"there: replicate -i {peer.name} replay --journal {journal.archive}", peer.name
        )


_REGION_CODES: Final = {"REGION_REPLACED": "REGION_REPLACED", "SCHEMA_CHANGED": "SCHEMA_CHANGED"}
"""Of an error, by its code."""


def _region_findings(role: str, regions: tuple[RegionReport, ...]) -> Iterator[Finding]:
    for region in regions:
        name = region.name
        if region.problem:
            code = _REGION_CODES.get(region.problem.partition(":")[0], "REGION_UNREADABLE")
            do = region.problem_do or "mend that; then replicate -i INSTANCE status"
            yield Finding(code, f"region {name}: {region.problem}", do, name)
        elif region.is_busy:
            text = f"region {name} is locked by somebody at this moment; its position was not read"
            yield Finding("REGION_BUSY", text, "replicate -i INSTANCE status, once more", name)
        level = fill_level(region.disk_percent)
        if level is not None:
            percent = f"{region.disk_percent:.0f} % full (above {_mark(region.disk_percent)})"
            yield Finding(f"DISK_{level}", f"the disk of region {name} is {percent}", "make room there", name)
        if region.pinned_by:
            size = f"{region.wal_pending_bytes / 2**20:.0f} MiB"
            text = f"region {name}: {size} of its WAL cannot be checkpointed, because {region.pinned_by}"
            yield Finding("WAL_PINNED", text, region.pinned_do, name)
    if not regions:
        do = "replicate -i INSTANCE region add PATH" if role == "primary" else "replicate -i INSTANCE seed"
        yield Finding("NO_REGION", "there is no region yet", do)


_DAEMON_CODES: Final = {"CONFLICT": "CONFLICT"}
"""Likewise."""


def _daemon_finding(daemon: DaemonReport, *, before: str = "") -> Iterator[Finding]:
    """`before`: what is to be done before it is started, in front of that command."""
    name, start = daemon.name, f"{before}{daemon.start}"
    if daemon.is_running:
        if daemon.is_frozen:
            text = f"{name} is frozen: a signal (SIGSTOP) or a debugger has stopped process {daemon.pid}"
            yield Finding("DAEMON_FROZEN", text, f"kill -CONT {daemon.pid}", name)
        return
    if daemon.error:
        # The error says itself what to do first.
        text = f"{name} {daemon.state}: {daemon.error}"
        code = _DAEMON_CODES.get(daemon.error.partition(":")[0], "DAEMON_FAILED")
        yield Finding(code, text, f"mend that; then {start}", name)
    elif daemon.state in ("failed", "dead"):
        code = "DAEMON_DEAD" if daemon.state == "dead" else "DAEMON_FAILED"
        yield Finding(code, f"{name} {daemon.state}: {daemon.text}", start, name)
    else:
        yield Finding("DAEMON_STOPPED", f"{name} does not run ({daemon.state})", start, name)


def _filter_finding(daemon: DaemonReport) -> Iterator[Finding]:
    if daemon.filter_error and daemon.is_running:
        text = daemon.filter_error.removeprefix("FILTER_FAILED: ").partition(". Nothing of")[0]
        do = "mend it: the log of the server has its words; the stream goes on by itself"
        yield Finding("FILTER_FAILED", f"{daemon.name}: {text}", do, daemon.name)


def _peer_findings(role: str, peer: PeerReport) -> Iterator[Finding]:
    name = peer.name
    if peer.needs_seed:
        text = f"peer {name} was dropped at the journal's cap"
        do = f"seed it again, there: replicate -i {name} update stop, then replicate -i {name} seed --restart"
        yield Finding("PEER_DROPPED", text, do, name)
    if peer.seed_seqno is not None:
        text = f"the journal after transaction {peer.seed_seqno} is kept for a seed that {name} has not taken over yet"
        do = f"load it there: replicate -i {name} seed; or give it up here: replicate -i INSTANCE seed --forget {name}"
        yield Finding("SEED_WAITING", text, do, name)
    if peer.source.is_passive and role != "secondary":
        text = f"nothing is sent to {name}: its Source Server was made passive; the journal is kept for it"
        yield Finding("PEER_PASSIVE", text, f"replicate -i INSTANCE source activate --peer {shlex.quote(name)}", name)
    if not (peer.source.is_passive and role == "secondary" and peer.source.state in ("never started", "stopped")):
        yield from _daemon_finding(peer.source)
    yield from _filter_finding(peer.source)
    if peer.is_away and not peer.source.filter_error and RETIRED_THERE not in peer.last_error:
        error, _, do = peer.last_error.partition("]. ")  # an error's own advice is better than ours
        error = f": {error}{']' * bool(do)}" if error else f" ({peer.source.text})"
        do = do[:1].lower() + do[1:] or f"there: replicate -i {name} receiver status; address {peer.address}"
        yield Finding("PEER_NOT_CONNECTED", f"no connection to {name}{error}", do, name)
    if peer.is_silent:
        text = f"{name} has said nothing for {peer.silent_s or 0:.0f} s: what is shown of it is as old"
        do = f"look whether its host, the line and its Receiver Server are well; there: replicate -i {name} status"
        yield Finding("PEER_SILENT", text, do, name)
    if peer.is_paused:
        text = f"{name} has asked for a pause (XOFF): its receive pool is full"
        yield Finding("PEER_PAUSED", text, f"there: replicate -i {name} status", name)
    if peer.region_waits:
        text = f"at {name} a region that was added here waits for its seed; the others go on"
        do = f"there: replicate -i {name} status names it, and how it is seeded"
        yield Finding("REGION_WAITS", text, do, name)
    if peer.update_state and peer.backlog != 0:  # where nothing waits for it, it hurts nobody: it is just started again
        text = f"{name} applies nothing since {peer.not_applying_since}: its Update Process is {peer.update_state}"
        yield Finding("PEER_NOT_APPLYING", text, f"there: replicate -i {name} status names the reason", name)


def _silent(receiving: ReceivingReport, suppliers: tuple[SupplierReport, ...]) -> Iterator[tuple[str, float]]:
    """Each source that is silent, and for how long."""
    if receiving.is_silent and not suppliers:
        yield receiving.source, receiving.last_heard_s or 0.0
    for one in suppliers:
        if one.is_connected and (one.silent_s is not None or receiving.is_silent):
            yield one.name, max(one.silent_s or 0.0, receiving.last_heard_s or 0.0)


def _receiving_findings(
    receiving: ReceivingReport, by_packets: bool, suppliers: tuple[SupplierReport, ...]
) -> Iterator[Finding]:
    if receiving.instead is not None:
        what, pid = receiving.instead.instead, receiving.instead.pid
        text = f"a {what} of this instance is under way{f' (process {pid})' if pid else ''}"
        if not receiving.receiver.instead:  # a seed, which needs the Receiver Server
            do = f"wait for its end; then {receiving.update.start}"
            yield Finding("REPLAY_RUNS", f"{text}, and the Update Process cannot run meanwhile", do)
            return
        do = f"wait for its end; then {receiving.receiver.start}; {receiving.update.start}"
        yield Finding("REPLAY_RUNS", f"{text}, and its daemons cannot run meanwhile", do)
        return
    if receiving.is_rebuilt_in_part and not receiving.update.is_running:  # the stream does not stop where that did
        text = f"a rebuild was ended at transaction {receiving.last_applied_seqno}, before the one that was asked for"
        do = "run the same command again, without --restart, and it goes on from there; or start receiver and update, "
        do += "and the stream does"
        yield Finding("REBUILD_UNFINISHED", text, do)
    if by_packets and receiving.never_ran:
        return
    yield from _daemon_finding(receiving.receiver)
    seed = "" if receiving.is_seeded else "replicate -i INSTANCE seed; then "
    yield from _daemon_finding(receiving.update, before=seed)
    for name, silent_s in _silent(receiving, suppliers):
        text = (
            f"{name or 'the source'} has said nothing for {silent_s:.0f} s: what it has written since is not known here"
        )
        do = "look whether its host, the line and its Source Server are well; on the primary: replicate -i "
        do = do.replace("on the primary", "there") if suppliers else do
        yield Finding("SOURCE_SILENT", text, f"{do}{name or 'PRIMARY'} status", name)
    yield from _filter_finding(receiving.receiver)
    if receiving.receiver.is_running and not receiving.is_connected and not receiving.receiver.filter_error:
        says = receiving.receiver.text
        text = f"no source is connected{f' ({says})' if says else ''}{receiving.listens.text}"
        do = receiving.listens.do(receiving.source)
        yield Finding("NO_SOURCE", text, do.replace("on the primary", "there") if suppliers else do)
