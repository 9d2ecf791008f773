"""The files through which a daemon is seen from outside: its lock, its status, its log.

Guarantees: the lock is held exactly as long as the daemon lives (the kernel drops it, however the process ends), and
asking whether it is held takes no lock, so a question never makes a start fail. A status file is replaced whole. A
process id is believed only while the lock is held and the process's start time is the one noted with it.
Refuses to know: what the daemon does; signals; trio.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from replicate.errors import (
    AlreadyRunningError,
    DiskFullError,
    JournalIOError,
    NotFoundError,
    PermissionRefusedError,
)
from replicate.instance.private_files import read_private

# struct flock of 64-bit Linux: type, whence, start, length, pid. Open-file-description locks want pid 0.
_FLOCK: Final = struct.Struct("@hhqqi4x")
_WHOLE_FILE: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
# Python 3.11 names them only where its headers did.
_F_OFD_GETLK: Final = getattr(fcntl, "F_OFD_GETLK", 36)
_F_OFD_SETLK: Final = getattr(fcntl, "F_OFD_SETLK", 37)

STARTING: Final = "starting"
SERVING: Final = "serving"
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
DEAD: Final = "dead"
"""What `read_status` reports of a daemon that ended without saying so (killed)."""


@dataclass(frozen=True, slots=True)
class Running:
    """Who holds a daemon's lock. `pid` is 0 in the instant before it has noted its own. `instead`: what it is where it
    is not the daemon, but keeps it from starting: "replay"."""

    pid: int
    instead: str = ""


@dataclass(frozen=True, slots=True)
class DaemonStatus:
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
    """What is at work in its place, as process `pid`, so that it can not run: "replay"."""

    @property
    def is_running(self) -> bool:
        return self.state in (STARTING, SERVING, STOPPING)


@dataclass(frozen=True, slots=True)
class DaemonFiles:
    """Where one daemon of one instance keeps its files. `name` is unique in the instance, such as `source-west`."""

    instance_path: Path
    name: str

    @property
    def run_directory(self) -> Path:
        return self.instance_path / "run"

    @property
    def lock(self) -> Path:
        return self.run_directory / f"{self.name}.lock"

    @property
    def status(self) -> Path:
        return self.run_directory / f"{self.name}.status.json"

    @property
    def stop_timeout(self) -> Path:
        return self.run_directory / f"{self.name}.stop-timeout"

    @property
    def log(self) -> Path:
        return self.instance_path / "log" / f"{self.name}.log"

    @property
    def standard_error(self) -> Path:
        return self.instance_path / "log" / f"{self.name}.err"

    def make_directories(self) -> None:
        """Make run/ and log/ where they are missing. NotFoundError if the instance itself is not there."""
        if not self.instance_path.is_dir():
            raise NotFoundError(
                "no such instance",
                where=str(self.instance_path),
                do="Name an instance with -i, or make it: instance create",
            )
        for directory in (self.run_directory, self.log.parent):
            try:
                directory.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise _translated(error, directory) from error

    # The lock.

    def acquire(self, *, instead: str = "") -> int:
        """Take the lock for the life of this process: the descriptor returned must stay open. `instead`: we are not the
        daemon, but this, and the daemon must not run meanwhile.

        Raises AlreadyRunningError naming the process that has it, PermissionRefusedError and JournalIOError; the lock
        is not held then.
        """
        self.make_directories()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(self.lock, flags, 0o600)
        except OSError as error:
            raise _translated(error, self.lock) from error
        try:
            fcntl.fcntl(fd, _F_OFD_SETLK, _WHOLE_FILE)
        except (BlockingIOError, PermissionError):
            os.close(fd)
            raise self.running_error(self.probe() or Running(0)) from None
        pid = os.getpid()
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{pid} {_start_ticks(pid)} {instead}\n".encode(), 0)
        except OSError as error:
            os.close(fd)
            raise _translated(error, self.lock) from error
        return fd

    @contextmanager
    def kept_down(self, instead: str) -> Iterator[None]:
        """`instead` is at work for the length of a block, and the daemon can not run meanwhile. As `acquire`."""
        fd = self.acquire(instead=instead)
        try:
            yield
        finally:
            os.close(fd)

    def probe(self) -> Running | None:
        """Who holds the lock, or None. Takes no lock itself."""
        try:
            fd = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _translated(error, self.lock) from error
        try:
            answer = _FLOCK.unpack(fcntl.fcntl(fd, _F_OFD_GETLK, _WHOLE_FILE))
            if answer[0] == fcntl.F_UNLCK:
                return None
            words = os.pread(fd, 64, 0).split()
        finally:
            os.close(fd)
        if len(words) in (2, 3) and words[0].isdigit() and _start_ticks(int(words[0])) == int(words[1]):
            return Running(int(words[0]), b"".join(words[2:]).decode("ascii", "replace"))
        return Running(0)

    def running_error(self, running: Running) -> AlreadyRunningError:
        """What to tell who wants to start or stop the daemon while somebody has its lock."""
        pid = f" as process {running.pid}" if running.pid else ""
        if running.instead:
            return AlreadyRunningError(
                f"a {running.instead} of this instance is under way{pid}",
                where=str(self.instance_path),
                do="Wait for its end",
            )
        return AlreadyRunningError(
            f"{self.name} runs already{pid}", where=str(self.instance_path), do="Stop it first, or leave it running"
        )

    # The status.

    def write_status(self, status: DaemonStatus) -> None:
        """Replace the status file whole; by one thread at a time. Raises OSError; the old one then stays."""
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
        temporary = self.status.with_suffix(".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                # In one call of C: `dump` takes a turn of Python for each fact, in which the daemon's own loop waits.
                file.write(json.dumps(made, default=repr))
            os.replace(temporary, self.status)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise

    def read_status(self) -> DaemonStatus | None:
        """What the daemon last said; None if it never ran. A daemon that was killed reads as DEAD, and as STOPPED while
        something else is at work in its place, however it has ended before."""
        running = self.probe()
        try:
            made = json.loads(read_private(self.status))
            status = DaemonStatus(
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
            status = None
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
            return DaemonStatus(self.name, running.pid, STARTING, "", 0, 0)
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


def daemon_names(instance_path: Path) -> tuple[str, ...]:
    """Names of all daemons that ever ran for this instance, sorted."""
    return tuple(sorted(path.name.removesuffix(".lock") for path in (instance_path / "run").glob("*.lock")))


def _start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot: tells it from a later one with the same number. 0: no such."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_bytes()
        return int(text[text.rindex(b")") + 2 :].split()[19])
    return 0


def _translated(error: OSError, path: Path) -> PermissionRefusedError | JournalIOError:
    if isinstance(error, PermissionError):
        return PermissionRefusedError(
            "not allowed", where=str(path), do="Run as the instance's owner, or give the directory to this user"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{error.strerror}", where=str(path), do="Free space, then start again")
    return JournalIOError(f"{error.strerror}", where=str(path), do="Mend the file system, then start again")
