"""The files through which a daemon is seen from outside: its lock, its status, its log.

Guarantees: the lock is held exactly as long as the daemon lives (the kernel drops it, however the process ends), and
asking whether it is held takes no lock, so a question never makes a start fail. The lock file has two names, in two
directories: who removes one of them lets no second daemon start. A status file is replaced whole. A process id is
believed only while the lock is held and the process's start time is the one noted with it.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from replicate.errors import (
    AlreadyRunningError,
    DiskFullError,
    JournalIOError,
    NotFoundError,
    PermissionRefusedError,
    ReplicateError,
)
from replicate.instance.private_files import read_private

# struct flock of 64-bit Linux: type, whence, start, length, pid. Open-file-description locks want pid 0.
_FLOCK: Final = struct.Struct("@hhqqi4x")
_WHOLE_FILE: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
# Python 3.11 names them only where its headers did.
_F_OFD_GETLK: Final = getattr(fcntl, "F_OFD_GETLK", 36)
_F_OFD_SETLK: Final = getattr(fcntl, "F_OFD_SETLK", 37)

_LOCK_PREFIX: Final = "daemon-"
"""Tells them from the locks of journal and regions, which are beside them."""

STARTING: Final = "starting"
SERVING: Final = "serving"
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
_OF_THE_DATA: Final = (65, 69, 76)
"""Exit codes of what a seed mends: damage, conflicts and gaps, nothing there yet, another history than the source's."""
SEED: Final = "seed"
"""What is at work `instead` of an Update Process while the regions are replaced."""
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
        return self.instance_path / "locks" / f"{_LOCK_PREFIX}{self.name}.lock"

    @property
    def second_lock(self) -> Path:
        """The other name of the same file: run/ is what people take for disposable. Both are one file wherever both
        directories are on one file system that knows hard links; the first alone counts where they are not."""
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
        """Make run/, locks/ and log/ where they are missing. NotFoundError if the instance itself is not there."""
        if not self.instance_path.is_dir():
            raise NotFoundError(
                "no such instance",
                where=str(self.instance_path),
                do="Name an instance with -i, or make it: instance create",
            )
        for directory in (self.run_directory, self.lock.parent, self.log.parent):
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
        self._name_twice()  # before: who holds the file by the one name must be met under the other
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(self.lock, flags, 0o600)
        except OSError as error:
            raise _translated(error, self.lock) from error
        try:
            try:
                fcntl.fcntl(fd, _F_OFD_SETLK, _WHOLE_FILE)
            except (BlockingIOError, PermissionError):
                raise self.running_error(self.probe() or Running(0)) from None
            if (other := _holder(self.second_lock, but=fd)) is not None:
                raise self.running_error(other)
            self._name_twice(fd)
            pid = os.getpid()
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{pid} {_start_ticks(pid)} {instead}\n".encode(), 0)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise _translated(error, self.lock) from error
            raise
        return fd

    def keep(self, fd: int) -> int | None:
        """For who has the lock as `fd`, from time to time: give the file back a name that somebody has removed. Where
        it has none any more, the descriptor of a new lock, which must stay open as well.

        Raises AlreadyRunningError when somebody else has begun meanwhile, NotFoundError when the instance is gone.
        """
        links = os.fstat(fd).st_nlink
        if links == 0:
            return self.acquire()
        if links == 1:
            self.make_directories()
            self._name_twice(fd)
        return None

    def _name_twice(self, fd: int | None = None) -> None:
        """See to it that both names are there, and are one file: the one locked as `fd`, if it is."""
        if fd is not None:
            ours = os.fstat(fd)
            with suppress(OSError):
                there = os.lstat(self.second_lock)
                if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
                    self.second_lock.unlink()  # a copy, and nobody holds it
        for one, other in ((self.lock, self.second_lock), (self.second_lock, self.lock)):
            with suppress(OSError):  # not there, there already, on another file system, or one without hard links
                os.link(one, other, follow_symlinks=False)

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
        return _holder(self.lock) or _holder(self.second_lock)

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
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(temporary, flags, 0o600)
        except FileNotFoundError:
            self.run_directory.mkdir(mode=0o700)  # somebody has removed it under us
            fd = os.open(temporary, flags, 0o600)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                # In one call of C: `dump` takes a turn of Python for each fact, in which the daemon's own loop waits.
                file.write(json.dumps(made, default=repr))
            os.replace(temporary, self.status)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise

    def forget_failure(self, since: str) -> None:
        """The databases that the daemon may have failed by are not there any more, `since` a seed, say: it reads as
        stopped. What does not come of them (a setting, a disk) stays. The caller holds the lock."""
        status = self.read_stored()
        if status is not None and status.state == FAILED and status.exit_code in _OF_THE_DATA:
            text = f"it had failed before the {since} ({status.error.partition(':')[0]})"
            with suppress(OSError):  # it is no more than a word to the operator, and the work itself is done
                self.write_status(replace(status, state=STOPPED, text=text, error="", exit_code=0))

    def read_status(self) -> DaemonStatus | None:
        """What the daemon last said; None if it never ran. A daemon that was killed reads as DEAD, and as STOPPED while
        something else is at work in its place, however it has ended before."""
        running = self.probe()
        status = self.read_stored()
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

    def read_stored(self) -> DaemonStatus | None:
        """What stands in the status file, whether or not its writer lives; None where nothing sensible does."""
        try:
            made = json.loads(read_private(self.status))
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


def forget_failures(instance_path: Path, since: str) -> None:
    """`forget_failure` of every daemon of the instance that nobody runs, nor keeps from running but this process."""
    for name in daemon_names(instance_path):
        files = DaemonFiles(instance_path, name)
        try:
            fd = files.acquire(instead=since)
        except AlreadyRunningError:
            held = files.probe()
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
    held = DaemonFiles(instance_path, "update").probe()
    return held is not None and held.instead == SEED


def daemon_names(instance_path: Path) -> tuple[str, ...]:
    """Names of all daemons that ever ran for this instance, sorted."""
    locks = [path.name.removeprefix(_LOCK_PREFIX) for path in (instance_path / "locks").glob(f"{_LOCK_PREFIX}*.lock")]
    locks += [path.name for path in (instance_path / "run").glob("*.lock")]
    return tuple(sorted({name.removesuffix(".lock") for name in locks}))


def _holder(lock: Path, *, but: int | None = None) -> Running | None:
    """Who holds the lock of this name; None also where it is the file that is open as `but`."""
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _translated(error, lock) from error
    try:
        if but is not None and os.path.sameopenfile(fd, but):
            return None
        answer = _FLOCK.unpack(fcntl.fcntl(fd, _F_OFD_GETLK, _WHOLE_FILE))
        if answer[0] == fcntl.F_UNLCK:
            return None
        words = os.pread(fd, 64, 0).split()
    finally:
        os.close(fd)
    if len(words) in (2, 3) and words[0].isdigit() and _start_ticks(int(words[0])) == int(words[1]):
        return Running(int(words[0]), b"".join(words[2:]).decode("ascii", "replace"))
    return Running(0)


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
