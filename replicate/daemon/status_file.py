"""The status of a daemon: a small file that says how it stands, for commands and for `status`.

Guarantees: the file is replaced whole; what is no sensible status reads as none.
Leaves to others: whether the daemon still lives (lock_file.py), and what follows for its status (files.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from replicate.errors import JournalIOError
from replicate.system.files import read_private, replace_unsynced

STARTING: Final = "starting"
SERVING: Final = "serving"
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
DEAD: Final = "dead"
"""Of a daemon that ended without saying so (killed)."""


class DaemonStatus(Struct, frozen=True):
    """What a daemon last said of itself. Times are wall-clock nanoseconds. `facts` differ by daemon."""

    name: str
    pid: int
    state: str
    text: str
    started_wall_ns: int
    changed_wall_ns: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    exit_code: int = 0
    instead: str = ""
    """What is at work in its place, as process `pid`, so that it cannot run: "replay"."""

    @property
    def is_running(self) -> bool:
        return self.state in (STARTING, SERVING, STOPPING)


class StatusFile(Struct, frozen=True):
    """The file itself, whether or not its writer lives."""

    path: Path

    def write(self, status: DaemonStatus) -> None:
        """Replace the status file whole; by one thread at a time. Raises OSError where its directory cannot be made,
        else as `replace_unsynced`; the old one then stays."""
        made = {
            "name": status.name,
            "pid": status.pid,
            "state": status.state,
            "text": status.text,
            "started_wall_ns": status.started_wall_ns,
            "changed_wall_ns": status.changed_wall_ns,
            "facts": dict(status.facts),
            "error": status.error,
            "exit_code": status.exit_code,
        }
        if not self.path.parent.is_dir():
            self.path.parent.mkdir(mode=0o700)  # somebody has removed it under us
        # In one call of C: `dump` takes a turn of Python for each fact, in which the daemon's own loop waits.
        replace_unsynced(self.path, json.dumps(made, default=repr).encode())

    def read(self) -> DaemonStatus | None:
        """What stands there; None where nothing sensible does."""
        try:
            made = json.loads(read_private(self.path))
            return DaemonStatus(
                name=str(made["name"]),
                pid=int(made["pid"]),
                state=str(made["state"]),
                text=str(made["text"]),
                started_wall_ns=int(made["started_wall_ns"]),
                changed_wall_ns=int(made["changed_wall_ns"]),
                facts=dict(made["facts"]),
                error=str(made["error"]),
                exit_code=int(made["exit_code"]),
            )
        except (OSError, JournalIOError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
