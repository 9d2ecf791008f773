"""The files through which a daemon is seen from outside: its lock, its status, its log; and what they say together.

Guarantees: a daemon that was killed reads as dead, and one that something else keeps down as stopped.
Leaves to others: how the lock and the status are kept (lock_file.py, status_file.py), what the daemon does, signals.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.daemon.lock_file import LockFile, daemon_names
from replicate.daemon.status_file import DEAD, FAILED, STARTING, STOPPED, DaemonStatus, StatusFile
from replicate.errors import AlreadyRunningError, ReplicateError

_OF_THE_DATA: Final = (65, 69, 76)
"""Exit codes of what a seed mends: damage, conflicts and gaps, nothing there yet, another history than the source's."""
SEED: Final = "seed"
"""What is at work `instead` of an Update Process while the regions are replaced."""


class DaemonFiles(Struct, frozen=True):
    """Where one daemon of one instance keeps its files. `name` is unique in the instance, such as `source-west`."""

    instance_path: Path
    name: str

    @property
    def run_directory(self) -> Path:
        return self.instance_path / "run"

    @property
    def lock(self) -> LockFile:
        return LockFile(self.instance_path, self.name)

    @property
    def status(self) -> StatusFile:
        return StatusFile(self.run_directory / f"{self.name}.status.json")

    @property
    def last_run(self) -> Path:
        """With which settings of the command line it ran last (last_run.py); beside the lock, as run/ is disposable."""
        return self.lock.path.with_suffix(".ran.json")

    @property
    def stop_timeout(self) -> Path:
        return self.run_directory / f"{self.name}.stop-timeout"

    @property
    def log(self) -> Path:
        return self.instance_path / "log" / f"{self.name}.log"

    @property
    def standard_error(self) -> Path:
        return self.instance_path / "log" / f"{self.name}.err"

    def forget_failure(self, since: str) -> None:
        """The databases that the daemon may have failed by are not there any more, `since` a seed, say: it reads as
        stopped. What does not come of them (a setting, a disk) stays. The caller holds the lock."""
        status = self.status.read()
        if status is not None and status.state == FAILED and status.exit_code in _OF_THE_DATA:
            text = f"it had failed before the {since} ({status.error.partition(':')[0]})"
            with suppress(
                ReplicateError, OSError
            ):  # it is no more than a word to the operator, and the work itself is done
                self.status.write(replace(status, state=STOPPED, text=text, error="", exit_code=0))

    def read_status(self) -> DaemonStatus | None:
        """What the daemon last said; None if it never ran. A daemon that was killed reads as DEAD, and as STOPPED while
        something else is at work in its place, however it has ended before."""
        running = self.lock.probe()
        status = self.status.read()
        if running is not None and running.instead:
            return DaemonStatus(
                name=self.name,
                pid=running.pid,
                state=STOPPED,
                text=f"a {running.instead} is under way in its place"
                + (f", process {running.pid}" if running.pid else ""),
                started_wall_ns=0,
                changed_wall_ns=0 if status is None else status.changed_wall_ns,
                facts={} if status is None else status.facts,
                instead=running.instead,
            )
        if running is not None:
            if status is not None and status.is_running and running.pid in (0, status.pid):
                return status
            text = "" if status is not None else "has not said how it stands: its status file is not there"
            return DaemonStatus(self.name, running.pid, STARTING, text if self.log.exists() else "", 0, 0)
        if status is None and self.log.exists():
            text = f"nobody holds its lock, and its status file is gone; how it has ended says {self.log}"
            return DaemonStatus(self.name, 0, STOPPED, text, 0, 0)
        if status is None or not status.is_running:
            return status
        return DaemonStatus(
            name=status.name,
            pid=status.pid,
            state=DEAD,
            text=f"was {status.state}, and ended without a word (killed, or its disk is full; see {self.log})",
            started_wall_ns=status.started_wall_ns,
            changed_wall_ns=status.changed_wall_ns,
            facts=status.facts,
        )


def forget_failures(instance_path: Path, since: str) -> None:
    """`forget_failure` of every daemon of the instance that nobody runs, nor keeps from running but this process."""
    for name in daemon_names(instance_path):
        files = DaemonFiles(instance_path, name)
        try:
            fd = files.lock.acquire(instead=since)
        except AlreadyRunningError:
            held = files.lock.probe()
            if held is not None and held.instead and held.pid == os.getpid():
                files.forget_failure(held.instead)
            continue
        except ReplicateError:
            continue
        try:
            files.forget_failure(since)
        finally:
            os.close(fd)


def seed_runs(instance_path: Path) -> bool:
    """Whether somebody seeds the instance at this moment: the Update Process is kept down for it. Takes no lock."""
    held = LockFile(instance_path, "update").probe()
    return held is not None and held.instead == SEED
