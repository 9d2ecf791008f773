"""The findings of `replicate status`: one table of codes, each with its severity and its meaning in one sentence.
What an error's code means is told by its class.

Guarantees: a finding bears a code of this table and that code's severity, so that scripts and alerts may match on it; a
code never changes its meaning once landed; every finding says what to do. Being busy is never worse than an `info`.
Leaves to others: when a finding is due (status/report.py, status/collect.py), and how it is printed. Pure.
"""

from __future__ import annotations

import difflib
import re
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from replicate.errors import ERRORS, UsageError

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""Worst first. Errors and warnings make `replicate status` end with exit code 1."""


class FindingKind(Struct, frozen=True):
    """A row of the table; or what an error's code means, which has no severity."""

    code: str
    severity: Severity | None
    meaning: str


_KINDS: Final = (
    FindingKind(
        "SETTINGS_REFUSED", "error", "A part of replicate.toml is refused: what is running goes on, nothing starts."
    ),
    FindingKind("JOURNAL_FATAL", "error", "A write or sync of the journal failed, and nothing is committed any more."),
    FindingKind("JOURNAL_UNREADABLE", "error", "The next open of the journal would find it damaged or missing."),
    FindingKind("JOURNAL_FULL", "error", "The journal has nearly reached its cap (95 %)."),
    FindingKind("JOURNAL_FILLING", "warning", "The journal comes near its cap (70 and 85 %)."),
    FindingKind(
        "JOURNAL_RESERVE_USED", "error", "The disk was full, and commits go on only by the room that was kept for that."
    ),
    FindingKind("DISK_FULL", "error", "A file system that we write to is nearly full (95 %)."),
    FindingKind("DISK_FILLING", "warning", "A file system that we write to is filling up (70 and 85 %)."),
    FindingKind("READ_ONLY", "error", "The journal or a region can be read but not written, so nothing is committed."),
    FindingKind("POOL_UNUSABLE", "error", "The journal pool in shared memory is not ours, or not readable."),
    FindingKind(
        "REGION_UNREADABLE", "error", "A region's database cannot be opened, or is not the one that was registered."
    ),
    FindingKind("REGION_REPLACED", "error", "A region's file is an old copy: it holds less than it held before."),
    FindingKind("SCHEMA_CHANGED", "error", "Another client changed a region's schema or guards: nothing more goes in."),
    FindingKind(
        "REGION_WAITS", "warning", "A region of the primary waits on a secondary for its seed; the others go on."
    ),
    FindingKind("ROWS_WAIT", "warning", "A secondary waits for a copy by what is wanted of a table now."),
    FindingKind("PARTITION_WAITS", "warning", "A secondary waits for the rows of partitions; those it has go on."),
    FindingKind(
        "PACKET_UNCONFIRMED", "warning", "A peer that gets packets has not confirmed one for confirm_within_s."
    ),
    FindingKind("PACKET_WAITS", "warning", "Packets are here that cannot be applied before others, which are missing."),
    FindingKind("PACKET_GAP", "warning", "A packet before those that wait here is missing: it is late, or lost."),
    FindingKind("REGION_BUSY", "info", "A region is locked at this moment, so its position was not read."),
    FindingKind("WAL_PINNED", "warning", "A long reader keeps a region's WAL from being checkpointed, and it grows."),
    FindingKind("SEED_INCOMPLETE", "error", "The secondary holds only a part of its seed."),
    FindingKind(
        "ROLLBACK_UNFINISHED", "error", "A rollback was killed, and nothing opens the instance before it has ended."
    ),
    FindingKind("FENCED", "error", "Another site took over, as the own journal proves: no writes are taken here."),
    FindingKind("SPLIT_BRAIN", "error", "Another site was met that is primary, too: an operator has to choose one."),
    FindingKind("HANDED_OVER", "warning", "The role was given away, and the other site has not said that it has it."),
    FindingKind(
        "RESTORING",
        "warning",
        "A supplier, or a primary, was restored, and takes no writes until others have brought back what it had.",
    ),
    FindingKind(
        "SUPPLIER_RETIRED",
        "error",
        "Another supplier says that this one is gone for good: it takes no writes.",
    ),
    FindingKind(
        "SUPPLIER_SILENT", "warning", "A supplier has not told for status.silent_warn_s that it has what others wrote."
    ),
    FindingKind(
        "SCHEMA_FENCE", "info", "A supplier has the others stand aside for a change of the schema: they write nothing."
    ),
    FindingKind("SCHEMA_FENCE_LASTS", "warning", "The same, for longer than status.fence_warn_s."),
    FindingKind("CLOCK_SKEW", "warning", "The clock of a source's host differs from this one's by seconds."),
    FindingKind("MERGES_OPEN", "info", "Values that were lost as rows were merged were not looked at."),
    FindingKind(
        "ORPHAN_ROWS", "info", "Rows of a supplier name rows that are not there: another one has deleted them."
    ),
    FindingKind("FROZEN", "warning", "An operator has frozen the instance: nothing is committed or applied."),
    FindingKind("CONSUMER_UNREADABLE", "error", "The stored position of a peer cannot be read."),
    FindingKind("PEER_DROPPED", "error", "A peer was dropped at the journal's cap, and must be seeded again."),
    FindingKind(
        "PEER_NEEDS_ARCHIVE", "error", "What a peer needs next is not in the journal any more, but in the archive."
    ),
    FindingKind(
        "ARCHIVE_UNREADABLE", "error", "How far the archive reaches cannot be read, so no journal file is removed."
    ),
    FindingKind("ARCHIVE_LAGS", "warning", "More finished journal than archive_lag_bytes is not in the archive."),
    FindingKind("DAEMON_FAILED", "error", "A daemon has ended by an error."),
    FindingKind("CONFLICT", "error", "The Update Process has stopped before a row that is not as the primary left it."),
    FindingKind("FILTER_FAILED", "error", "The filter of a stream has failed, and nothing more goes through it."),
    FindingKind("DAEMON_DEAD", "error", "A daemon has ended without a word: it was killed."),
    FindingKind("DAEMON_FROZEN", "error", "A daemon is there, but a signal or a debugger has stopped it."),
    FindingKind("DAEMON_STOPPED", "warning", "A daemon that is needed does not run."),
    FindingKind("PEER_NOT_CONNECTED", "warning", "The Source Server runs, and has no connection to its peer."),
    FindingKind("PEER_PASSIVE", "warning", "A Source Server was put to sleep: nothing is sent to its peer."),
    FindingKind(
        "PEER_SILENT", "warning", "The connection to a peer stands, and nothing comes from it, no heartbeat either."
    ),
    FindingKind("SOURCE_SILENT", "warning", "The source is connected, and nothing comes from it, no heartbeat either."),
    FindingKind("PEER_PAUSED", "warning", "A peer has asked for a pause (XOFF), because its receive pool is full."),
    FindingKind(
        "PEER_NOT_APPLYING", "warning", "The Update Process of a peer does not run, and transactions wait for it."
    ),
    FindingKind("NO_SOURCE", "warning", "The Receiver Server runs, and no source is connected."),
    FindingKind(
        "CERTIFICATE_UNUSABLE", "error", "A daemon that starts cannot use the certificate, its key or the CA's."
    ),
    FindingKind("CERTIFICATE_EXPIRED", "error", "A certificate has expired, and no peer accepts it."),
    FindingKind("CERTIFICATE_EXPIRES", "warning", "A certificate expires soon (tls.warn_days)."),
    FindingKind(
        "REPLAY_RUNS", "info", "A replay, rebuild or seed is at work, and the Update Process cannot run meanwhile."
    ),
    FindingKind(
        "REBUILD_UNFINISHED", "info", "A rebuild has brought the secondary to a transaction before the one asked for."
    ),
    FindingKind(
        "LOST_UNSETTLED", "warning", "Transactions that only a lost file holds were neither applied nor given up."
    ),
    FindingKind("DIVERGED_ROWS", "error", "The patrol has found rows that are not as the source has them."),
    FindingKind("INDEX_DAMAGED", "error", "The patrol has found an index that is not as the rows have it."),
    FindingKind("COMPARED_DIFFERENT", "error", "The last compare with another instance has found a difference."),
    FindingKind(
        "COMPARE_DUE", "warning", "A secondary was not compared with its primary for status.compared_warn_days."
    ),
    FindingKind(
        "COMPARED", "info", "The last compare with another instance, which has found no difference, and its age."
    ),
    FindingKind("ROWS_REPAIRED", "info", "Rows were made as they are in another instance, past the stream."),
    FindingKind("BARRIER_HELD", "info", "A compare or a digest holds the Update Process for a moment."),
    FindingKind("SEED_WAITING", "info", "The journal is kept for a seed that a peer has not taken over yet."),
    FindingKind("NO_REGION", "info", "The instance has no region yet."),
    FindingKind("NO_PEER", "info", "The primary has no peer yet, so it sends to nobody."),
)
CODES: Final = {kind.code: kind for kind in _KINDS}
"""The table, in the order of the manual's (errors.md)."""


class Finding(Struct, frozen=True):
    """Something to know or to mend. `text` says what and where, `do` which command (or act) mends it; `subject` is the
    region, peer or daemon that it is about, if it is one. `brief`: the text without values of rows, where it has some:
    what those are told who may not read rows. `severity`: of the code, whatever is given."""

    code: str
    text: str
    do: str
    subject: str = ""
    brief: str = ""
    severity: Severity = "info"

    def __post_init__(self) -> None:
        force_setattr(self, "severity", CODES[self.code].severity)

    @property
    def is_wrong(self) -> bool:
        """Whether an operator should act."""
        return self.severity != "info"


def explained(code: str) -> FindingKind:
    """The row of a finding's code, or what an error's code means, however it is spelt. UsageError names the nearest."""
    wanted = code.upper().replace("-", "_")
    if wanted in CODES:
        return CODES[wanted]
    if wanted in ERRORS:
        kind = ERRORS[wanted]
        first = re.split(r"(?<=\.)\s", " ".join((kind.__doc__ or "").split()), maxsplit=1)[0]
        return FindingKind(wanted, None, f"An error of exit code {kind.exit_code}: {first}")
    near = difflib.get_close_matches(wanted, (*CODES, *ERRORS), 1)
    do = f"Did you mean {near[0]}?" if near else "`replicate status --explain all` lists the findings"
    raise UsageError(f"there is no finding and no error {code}", do=do)
