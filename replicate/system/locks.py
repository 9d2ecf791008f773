"""File locks between processes: `flock` on a file of our own, one descriptor per holder, waited for with a time-out.

Guarantees: the kernel releases a lock at once when its holder dies; a lock file that was unlinked or replaced under
us is noticed (two holders would be possible otherwise); a holder that stands still is reported, never robbed.
Leaves to others: what a lock protects, the order of locks (door/primary.py), waking sleepers (pool/wake_word.py).

Two things were measured before this was written. A lock on a *shared* descriptor is granted twice, so every holder
opens its own. And SQLite's own busy handler starves writers, two or three of four got one commit in five seconds,
while `flock` taken before BEGIN served them about equally; that is why a region has a lock of ours at all.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import weakref
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from typing import Final, Protocol

from replicate.errors import BusyError, ForkedError, InternalError, ReplicateError
from replicate.system.os_errors import io_error

SPIN_TRIES: Final = 20
"""Tries with nothing but a yield between them: an uncontended commit holds the lock for about 20 microseconds."""
SPIN_LOOKS: Final = 30
"""The same where a look at memory may tell that there is nothing to wait for: it costs less than a try that fails.
One that sleeps at once is as quick while processors are idle, and on a busy machine three times as slow (measured):
each wake-up waits for its turn."""
WATCH_EVERY: Final = 64
"""Acquisitions between two looks whether the file still has its name: a system call, and not needed for a crash."""
PAUSE_S_MIN: Final = 0.00005
PAUSE_S_MAX: Final = 0.002
"""Between later tries. The longest is what a waiter loses at most once the lock is free; jitter keeps waiters from
marching in step."""


_EXCLUSIVE: Final = LOCK_EX | LOCK_NB
_open: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A forked child closes its copies: a lock that its parent holds must not outlive a parent that is killed."""
    for lock in list(_open):
        lock.close()
        lock.held = False


class Wake(Protocol):
    """What the waiters for a lock sleep on (WakeWord)."""

    def mark(self) -> None:
        """Have the next `wake` look for sleepers."""

    def sleep(self, timeout_s: float) -> None:
        """Sleep until woken, at most `timeout_s` seconds."""

    def wake(self) -> None:
        """Wake what sleeps."""


class FileLock:
    """One holder's handle on one lock file. Not for use by several threads at once, nor in a forked child.

    `wake`: what to sleep on while it is held by others, and whom to wake when it is given up; None: waiters look for
    themselves, at rising intervals. So one that wants the lock again at once mostly gets it, which is the quickest for
    all where nothing else is waited for in between (measured: 17,000 commits a second of four writers, not 12,000).
    """

    __slots__ = ("__weakref__", "_fd", "_pid", "_unwatched", "held", "path", "wake")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held = False
        self.wake: Wake | None = None
        self._pid = os.getpid()
        self._unwatched = 0
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise io_error(error, "could not open a lock file", str(path)) from error
        _open.add(self)

    def fileno(self) -> int:
        """The descriptor, for mapping the lock file."""
        return self._fd

    def try_acquire(self) -> bool:
        """Take the lock if it is free now."""
        if self.held:
            raise InternalError("a lock was taken twice by one holder", where=str(self.path))
        try:
            flock(self._fd, _EXCLUSIVE)
            self._unwatched -= 1
            if self._unwatched < 0:
                self._watch()
            self.held = True
        except BlockingIOError:
            return False
        except (OSError, ValueError) as error:
            raise self._failed(error) from error
        except BaseException:  # an interrupt, perhaps between the kernel's word and ours
            self.release()
            raise
        return True

    def _watch(self) -> None:
        """InternalError when the file was unlinked, or another was renamed over it: others lock another one then."""
        self._unwatched = WATCH_EVERY
        if os.fstat(self._fd).st_nlink != 1:
            self._unwatched = 0
            raise InternalError(
                "the lock file was removed or replaced while in use",
                where=str(self.path),
                do="Stop every process of this instance, then start them again; never delete lock files",
            )

    def _failed(self, error: OSError | ValueError) -> ReplicateError:
        if os.getpid() != self._pid:
            return ForkedError(
                "a lock was used in a forked child",
                where=str(self.path),
                do="Open a connection of its own in the child",
            )
        if isinstance(error, OSError):
            return io_error(error, "could not lock", str(self.path))
        return InternalError("a lock was used after it was closed", where=str(self.path))

    def acquire(
        self,
        timeout_s: float,
        *,
        what: str = "the lock",
        unless: Callable[[], bool] | None = None,
    ) -> bool:
        """Take the lock, waiting at most `timeout_s` seconds; BusyError after that, and then it is not held.

        `unless`: asked while we wait; once it is true there is nothing to wait for, and False is returned without the
        lock. Else True.
        """
        wake = self.wake
        if wake is not None and unless is not None:
            for _ in range(SPIN_LOOKS):
                if unless():
                    return False
                os.sched_yield()
        else:
            for _ in range(SPIN_TRIES):
                if self.try_acquire():
                    return True
                if timeout_s <= 0:
                    break
                os.sched_yield()
        if wake is not None:
            return self._acquire_woken(wake, timeout_s, what, unless)
        deadline = time.monotonic() + timeout_s
        pause_s = PAUSE_S_MIN
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._busy(what, timeout_s)
            if unless is not None and unless():
                return False
            time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.5)))
            if self.try_acquire():
                return True
            pause_s = min(PAUSE_S_MAX, pause_s * 1.5)

    def _acquire_woken(self, wake: Wake, timeout_s: float, what: str, unless: Callable[[], bool] | None) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            # In this order: the process that gives the lock up from here on sees the mark. It stays when we get the
            # lock now, since others may sleep whom nobody has woken.
            wake.mark()
            if unless is not None and unless():
                return False
            if self.try_acquire():
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._busy(what, timeout_s)
            wake.sleep(min(left_s, PAUSE_S_MAX))  # a holder that is killed wakes nobody
            if unless is not None and unless():
                return False

    def _busy(self, what: str, timeout_s: float) -> BusyError:
        by, do = "another process", "Look for a stopped or long-running writer: fuser -v on that file"
        with contextlib.suppress(RuntimeError):  # another thread opens or closes one just now
            if any(other.held and other.path == self.path for other in list(_open) if other is not self):
                by, do = "another connection or thread of this process", "End what that one does: commit, or roll back"
        return BusyError(f"{what} was held by {by} for {timeout_s:g} s", where=str(self.path), do=do)

    def release(self) -> None:
        """Give the lock up; harmless when it is not held (an interrupt may have come between the kernel's word and
        ours)."""
        self.held = False
        if self._fd >= 0:
            flock(self._fd, LOCK_UN)
            if self.wake is not None:
                self.wake.wake()

    def close(self) -> None:
        """Give the lock up and close the descriptor. May be called twice."""
        if self._fd >= 0:
            if os.getpid() == self._pid:
                self.release()
            os.close(self._fd)
            self._fd = -1


os.register_at_fork(after_in_child=_let_go_in_child)
