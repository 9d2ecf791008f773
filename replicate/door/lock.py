"""The instance's commit lock in one process: a file lock between processes, and one between its threads.

Guarantees: one thread of one process holds it; `leave` may come twice, and `give_up` frees whatever an interrupt
(a KeyboardInterrupt may arise at any call) has left held by this thread. Leaves to others: what is done under it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from threading import TIMEOUT_MAX, RLock

from replicate.errors import BusyError
from replicate.system.locks import FileLock


class CommitLock:
    """One per door. Not reentrant, although the thread lock has an owner: only so can it be freed after an
    interrupt."""

    __slots__ = ("_file", "_thread")

    def __init__(self, path: Path) -> None:
        self._file = FileLock(path)
        self._thread = RLock()

    def enter(self, timeout_s: float) -> None:
        """Take it, waiting at most `timeout_s` seconds; BusyError after that, and then it is not held. Others: see
        FileLock."""
        thread, file = self._thread, self._file
        try:
            # Tried without a time-out first: reckoning one takes longer than the lock itself.
            if not thread.acquire(False) and not thread.acquire(timeout=min(max(0.0, timeout_s), TIMEOUT_MAX)):
                raise BusyError(
                    f"the commit lock was held by another thread for {timeout_s:g} s",
                    where=str(file.path),
                    do="Try again; if it stays so, look for a stopped process: fuser -v on that file",
                )
            # Held already: this thread was interrupted on its way out.
            if not file.held and not file.try_acquire():
                file.acquire(timeout_s, what="the commit lock")
        except BaseException:
            self.give_up()
            raise

    def leave(self) -> None:
        """Give it up."""
        self._file.release()
        self._thread.release()

    def give_up(self) -> None:
        """Free what this thread still holds; nothing happens when it holds nothing."""
        if self._thread.acquire(False):
            self._file.release()
            with contextlib.suppress(RuntimeError):
                while True:
                    self._thread.release()

    def close(self) -> None:
        """Close the descriptor."""
        self._file.close()
