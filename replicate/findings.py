"""The findings of `replicate status`: one table of codes, each with its severity and its meaning in one sentence.

Guarantees: a finding bears a code of this table and that code's severity, so that scripts and alerts may match on it; a
code never changes its meaning once landed; every finding says what to do. Being busy is never worse than an `info`.
Refuses to know: when a finding is due (status/report.py, status/collect.py), and how it is printed. Pure.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Final, Literal

from replicate.errors import UsageError

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""Worst first. Errors and warnings make `replicate status` end with exit code 1."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table."""

    code: str
    severity: Severity
    meaning: str


_KINDS: Final = (
    Kind("SETTINGS_REFUSED", "error", "A part of replicate.toml is refused: what is running goes on, nothing starts."),
    Kind("JOURNAL_FATAL", "error", "A write or sync of the journal failed, and nothing is committed any more."),
    Kind("JOURNAL_UNREADABLE", "error", "The next open of the journal would find it damaged or missing."),
    Kind("JOURNAL_FULL", "error", "The journal has nearly reached its cap (95 %)."),
    Kind("JOURNAL_FILLING", "warning", "The journal comes near its cap (70 and 85 %)."),
    Kind("DISK_FULL", "error", "A file system that we write to is nearly full (95 %)."),
    Kind("DISK_FILLING", "warning", "A file system that we write to is filling up (70 and 85 %)."),
    Kind("READ_ONLY", "error", "The journal or a region can be read but not written, so nothing is committed."),
    Kind("POOL_UNUSABLE", "error", "The journal pool in shared memory is not ours, or not readable."),
    Kind("REGION_UNREADABLE", "error", "A region's database can not be opened, or is not the one that was registered."),
    Kind("REGION_REPLACED", "error", "A region's file is an old copy: it holds less than it held before."),
    Kind("SCHEMA_CHANGED", "error", "Another client changed a region's schema or guards: nothing more goes in."),
    Kind("REGION_BUSY", "info", "A region is locked at this moment, so its position was not read."),
    Kind("WAL_PINNED", "warning", "A long reader keeps a region's WAL from being checkpointed, and it grows."),
    Kind("SEED_INCOMPLETE", "error", "The secondary holds only a part of its seed."),
    Kind("CONSUMER_UNREADABLE", "error", "The stored position of a peer can not be read."),
    Kind("PEER_DROPPED", "error", "A peer was dropped at the journal's cap, and must be seeded anew."),
    Kind("PEER_NEEDS_ARCHIVE", "error", "What a peer needs next is not in the journal any more, but in the archive."),
    Kind("ARCHIVE_UNREADABLE", "error", "How far the archive reaches can not be read, so no journal file is removed."),
    Kind("ARCHIVE_LAGS", "warning", "More finished journal than archive_lag_bytes is not in the archive."),
    Kind("DAEMON_FAILED", "error", "A daemon has ended by an error."),
    Kind("DAEMON_DEAD", "error", "A daemon has ended without a word: it was killed."),
    Kind("DAEMON_FROZEN", "error", "A daemon is there, but a signal or a debugger has stopped it."),
    Kind("DAEMON_STOPPED", "warning", "A daemon that is needed does not run."),
    Kind("PEER_NOT_CONNECTED", "warning", "The Source Server runs, and has no connection to its peer."),
    Kind("PEER_SILENT", "info", "The connection to a peer stands, and nothing has come from it for two heartbeats."),
    Kind("PEER_PAUSED", "warning", "A peer has asked for a pause (XOFF), because its receive pool is full."),
    Kind("PEER_NOT_APPLYING", "warning", "The Update Process of a peer does not run, and transactions wait for it."),
    Kind("NO_SOURCE", "warning", "The Receiver Server runs, and no source is connected."),
    Kind("CERTIFICATE_UNUSABLE", "error", "A daemon that starts can not use the certificate, its key or the CA's."),
    Kind("CERTIFICATE_EXPIRED", "error", "A certificate has expired, and no peer accepts it."),
    Kind("CERTIFICATE_EXPIRES", "warning", "A certificate expires soon (tls.warn_days)."),
    Kind("REPLAY_IS_QUICKER", "info", "A secondary is so far behind that a replay would be quicker than the stream."),
    Kind("REPLAY_RUNS", "info", "A replay, rebuild or seed is at work, and the Update Process can not run meanwhile."),
    Kind(
        "REBUILD_UNFINISHED", "info", "A rebuild has brought the secondary to a transaction before the one asked for."
    ),
    Kind("BARRIER_HELD", "info", "A compare or a digest holds the Update Process for a moment."),
    Kind("SEED_WAITING", "info", "The journal is kept behind a seed that a peer has not taken over yet."),
    Kind("NO_REGION", "info", "The instance has no region yet."),
    Kind("NO_PEER", "info", "The primary has no peer yet, so it sends to nobody."),
)
CODES: Final = {kind.code: kind for kind in _KINDS}
"""The table, in the order of README's."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know or to mend. `text` says what and where, `do` which command (or act) mends it; `subject` is the
    region, peer or daemon that it is about, if it is one."""

    code: str
    text: str
    do: str
    subject: str = ""
    severity: Severity = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "severity", CODES[self.code].severity)

    @property
    def is_wrong(self) -> bool:
        """Whether an operator should act."""
        return self.severity != "info"


def explained(code: str) -> Kind:
    """The row of a code, however it is spelt. UsageError names the nearest one."""
    wanted = code.upper().replace("-", "_")
    if wanted in CODES:
        return CODES[wanted]
    near = difflib.get_close_matches(wanted, CODES, 1)
    do = f"Did you mean {near[0]}?" if near else "`replicate status --explain all` lists them"
    raise UsageError(f"there is no finding {code}", do=do)
