"""The policy `interval`: a thread of the writing process that syncs the journal within a set time after a commit.

Guarantees: a commit is synced at most `interval_s` seconds after `wake`, and when the process ends normally; an idle
process costs nothing. A writer that is *killed* leaves its last second to the next one that syncs (another writer,
the Source Server before it sends): a kill alone loses nothing, the pages are the kernel's. Leaves to others: what is
synced. The first failure is kept by the door for everyone; the thread then ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

from replicate.errors import ReplicateError, TryAgainError


class IntervalSync:
    """Calls `sync` in a thread of its own, at most `interval_s` seconds after each `wake`."""

    def __init__(self, sync: Callable[[], object], interval_s: float) -> None:
        self._sync = sync
        # Half of the time is kept for the disk: what is promised is when the data is safe, not when we begin.
        self._pause_s = interval_s / 2
        self._awake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._pid = os.getpid()

    def wake(self) -> None:
        """There is something to sync. Cheap when the thread knows already."""
        if not self._awake.is_set():
            self._awake.set()
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None and not self._closing.is_set():
                atexit.register(self.close)
                util = sys.modules.get("multiprocessing.util")
                if util is not None:  # its children end without running atexit's functions
                    util.Finalize(None, self.close, exitpriority=10)
                self._thread = threading.Thread(target=self._run, name="replicate-interval-sync", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._awake.wait()
            if self._closing.wait(self._pause_s):
                return
            self._awake.clear()
            try:
                self._sync()
            except TryAgainError:
                self._awake.set()  # a stopped process holds the sync lock: once more after the pause
            except ReplicateError:
                return  # the door is poisoned and says so to every committer

    def close(self) -> None:
        """Sync what is left and end the thread. May be called twice, and in a forked child, where it does nothing."""
        if self._closing.is_set() or os.getpid() != self._pid:
            return
        self._closing.set()
        thread = self._thread
        if thread is None:
            return
        atexit.unregister(self.close)
        self._awake.set()
        if thread is not threading.current_thread():
            deadline = time.monotonic() + 60
            while thread.is_alive() and time.monotonic() < deadline:
                thread.join(1)
        with contextlib.suppress(ReplicateError):
            self._sync()
