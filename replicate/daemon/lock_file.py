"""The lock of a daemon: a file that is locked as long as the process lives, and says which process that is.

Guarantees: the lock is held exactly as long as the daemon lives (the kernel drops it, however the process ends), and
asking whether it is held takes no lock, so a question never makes a start fail. The lock file has two names, in two
directories: somebody who removes one of them lets no second daemon start. A process id is believed only while the lock
is held and the process's start time is the one noted with it.
Leaves to others: what the daemon does and says (status_file.py), signals.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.errors import (
    AlreadyRunningError,
    DiskFullError,
    JournalIOError,
    NotFoundError,
    PermissionRefusedError,
)

# struct flock of 64-bit Linux: type, whence, start, length, pid. Open-file-description locks want pid 0.
_FLOCK: Final = struct.Struct("@hhqqi4x")
_WHOLE_FILE: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
# Python 3.11 names them only where its headers did.
_F_OFD_GETLK: Final = getattr(fcntl, "F_OFD_GETLK", 36)
_F_OFD_SETLK: Final = getattr(fcntl, "F_OFD_SETLK", 37)

_WORDS_BYTES: Final = 64
"""What a lock file says of its holder: process id, when it began, what it is instead; blanks after that."""

_PREFIX: Final = "daemon-"
"""Tells them from the locks of journal and regions, which are beside them."""


class Running(Struct, frozen=True):
    """The process that holds a daemon's lock. `pid` is 0 in the instant before it has noted its own. `instead`: what it
    is where it is not the daemon, but keeps it from starting: "replay"."""

    pid: int
    instead: str = ""


class LockFile(Struct, frozen=True):
    """Of the daemon `name` of the instance there."""

    instance_path: Path
    name: str

    @property
    def path(self) -> Path:
        return self.instance_path / "locks" / f"{_PREFIX}{self.name}.lock"

    @property
    def second_path(self) -> Path:
        """The other name of the same file: run/ is what people take for disposable. Both are one file wherever both
        directories are on one file system that knows hard links; the first alone counts where they are not."""
        return self.instance_path / "run" / f"{self.name}.lock"

    def make_directories(self) -> None:
        """Make run/, locks/ and log/ where they are missing. NotFoundError if the instance itself is not there."""
        if not self.instance_path.is_dir():
            raise NotFoundError(
                "no such instance",
                where=str(self.instance_path),
                do="Name an instance with -i, or make it: instance create",
            )
        for directory in (self.second_path.parent, self.path.parent, self.instance_path / "log"):
            try:
                directory.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise _translated(error, directory) from error

    def acquire(self, *, instead: str = "") -> int:
        """Take the lock for the life of this process: the descriptor returned must stay open. `instead`: we are not the
        daemon, but this, and the daemon must not run meanwhile.

        Raises AlreadyRunningError naming the process that has it, PermissionRefusedError and JournalIOError; the lock
        is not held then.
        """
        self.make_directories()
        self._name_twice()  # before: a process that holds the file by the one name must be met under the other
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise _translated(error, self.path) from error
        try:
            try:
                fcntl.fcntl(fd, _F_OFD_SETLK, _WHOLE_FILE)
            except (BlockingIOError, PermissionError):
                raise self.running_error(self.probe() or Running(0)) from None
            if (other := _holder(self.second_path, but=fd)) is not None:
                raise self.running_error(other)
            self._name_twice(fd)
            pid = os.getpid()
            # Nothing is cut off: a process that takes the lock again has said so all the time, for a stop to find.
            os.pwrite(fd, f"{pid} {_start_ticks(pid)} {instead}\n".encode().ljust(_WORDS_BYTES), 0)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise _translated(error, self.path) from error
            raise
        return fd

    def keep(self, fd: int) -> int | None:
        """For the holder of the lock as `fd`, from time to time: give the file back a name that somebody has removed.
        Where it has none any more, the descriptor of a new lock, which must stay open as well.

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
                there = os.lstat(self.second_path)
                if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
                    self.second_path.unlink()  # a copy, and nobody holds it
        for one, other in ((self.path, self.second_path), (self.second_path, self.path)):
            with suppress(OSError):  # not there, there already, on another file system, or one without hard links
                os.link(one, other, follow_symlinks=False)

    @contextmanager
    def kept_down(self, instead: str) -> Iterator[None]:
        """`instead` is at work for the length of a block, and the daemon cannot run meanwhile. As `acquire`."""
        fd = self.acquire(instead=instead)
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(fd, 0)  # we live on, and the next holder is not us until it has said who it is
            os.close(fd)

    def probe(self) -> Running | None:
        """The holder of the lock, or None. Takes no lock itself."""
        return _holder(self.path) or _holder(self.second_path)

    def running_error(self, running: Running) -> AlreadyRunningError:
        """What to tell somebody who wants to start or stop the daemon while `running` has its lock."""
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


def daemon_names(instance_path: Path) -> tuple[str, ...]:
    """Names of all daemons that ever ran for this instance, sorted."""
    locks = [path.name.removeprefix(_PREFIX) for path in (instance_path / "locks").glob(f"{_PREFIX}*.lock")]
    locks += [path.name for path in (instance_path / "run").glob("*.lock")]
    return tuple(sorted({name.removesuffix(".lock") for name in locks}))


def _holder(lock: Path, *, but: int | None = None) -> Running | None:
    """The holder of the lock of this name; None also where it is the file that is open as `but`."""
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
        words = os.pread(fd, _WORDS_BYTES, 0).split()
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
