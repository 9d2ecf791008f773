"""When the journal is on the disk: group commit, the last durable seqno, and the policies.

Guarantees: LAST_DURABLE_SEQNO (and the sidecar file beside the journal) only ever names what an fdatasync has
returned for; all committers that wait are served by one fdatasync; the first failure is kept for every process, and
no sync is tried again. Leaves to others: what is in the journal; who waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from typing import Final

from replicate.door.interval_sync import IntervalSync
from replicate.errors import (
    BusyError,
    DiskFullError,
    ExhaustedError,
    JournalIOError,
    OutcomeUnknownError,
    ReplicateError,
)
from replicate.instance.instance import Instance
from replicate.journal.durable import DurableSidecar
from replicate.journal.segment import SegmentFile
from replicate.pool import control as word
from replicate.pool.shared_memory import SharedMemory
from replicate.pool.wake_word import WakeWord
from replicate.system.failpoint import hit
from replicate.system.locks import FileLock
from replicate.system.os_errors import FULL

SYNC_LOCK_TIMEOUT_S: Final = 300.0
"""A flush may take long on a bad disk; waiting is right, and giving up would only say "outcome unknown" earlier."""

NOTE_TIMEOUT_S: Final = 1.0
"""What need not be noted now waits no longer than most flushes take."""


def _nothing() -> None:
    pass


class Durability:
    """The syncing side of one process's door. Threads share it.

    One flush serves everyone: the process that gets the sync lock reads LAST_SEQNO *before* it syncs, so all that were
    appended by then are covered; the others sleep until it is done, see their number durable, and do nothing; one of
    those that came too late for it begins the next. Nobody waits for company: the process that commits while a flush is
    under way is in the next one, and holding a flush back for those whom the last one knew of gained nothing (measured,
    four writers: 5700 commits a second with it, 6200 without). A new segment is only begun after the old one was
    synced, so syncing the newest one is enough.
    """

    def __init__(
        self,
        instance: Instance,
        words: memoryview,
        open_segment: Callable[[], SegmentFile],
        on_durable: Callable[[], object] = _nothing,
        memory: SharedMemory | None = None,
    ) -> None:
        """`on_durable` is called, in whichever thread, when the last durable seqno has risen. `memory`: that of
        `words`, so that those that wait for another's flush can sleep there; None: they look at intervals."""
        self._instance = instance
        self._words = words
        self._open_segment = open_segment
        self._on_durable = on_durable
        self._thread_lock = threading.RLock()  # has an owner: only so can it be freed after an interrupt
        self._lock = FileLock(instance.locks_directory / "sync.lock")
        if memory is not None:
            self._lock.wake = WakeWord(memory, word.SYNC_WAKE)
        self._sidecar = DurableSidecar(
            instance.journal_directory / "durable",
            words=words,
            counter_at=word.SIDECAR_COUNTER,
            seqno_at=word.SIDECAR_SEQNO,
        )
        self._segment: SegmentFile | None = None
        self._generation = -1
        self._policy = instance.config.journal.durability
        self.waits = self._policy == "durable"
        """Whether `after_commit` waits for the disk."""
        self._interval = IntervalSync(self.sync_to_end, instance.config.journal.sync_interval_s)

    def close(self) -> None:
        """Sync what the policy still owes, and close. May be called twice."""
        self._interval.close()
        with self._thread_lock:
            self._lock.close()
            self._sidecar.close()
            if self._segment is not None:
                self._segment.close()
                self._segment = None

    def check_alive(self) -> None:
        """JournalIOError when a write or sync of this journal has failed, in whichever process."""
        number = self._words[word.FATAL]
        if number:
            full = number in FULL
            raise (DiskFullError if full else JournalIOError)(
                f"the journal failed earlier ({'disk full' if full else os.strerror(number)}) and takes nothing more",
                where=str(self._instance.journal_directory),
                do=f"{'Make space on the' if full else 'Mend the'} disk, stop every process of this instance, then "
                "start again: recovery runs first",
                errno=number,
            )

    def after_commit(self, seqno: int) -> None:
        """What the policy asks of a writer: wait for the disk, see that it is synced soon, or nothing."""
        if self.waits:
            self.wait(seqno)
        elif self._policy == "interval":
            self._interval.wake()

    def wait(self, seqno: int) -> int:
        """Return once `seqno` is on the disk; returns the last durable seqno.

        OutcomeUnknownError when the sync fails: the transaction is committed, and we cannot say that it would
        survive a power loss.
        """
        words = self._words
        if words[word.LAST_DURABLE_SEQNO] >= seqno:
            return int(words[word.LAST_DURABLE_SEQNO])
        try:
            return self._sync(seqno)
        except ReplicateError as error:
            alone = isinstance(error, ExhaustedError)
            raise OutcomeUnknownError(
                f"transaction {seqno} is committed, but syncing the journal failed: {error.what}",
                where=str(self._instance.journal_directory),
                do=error.do if alone else "Mend the disk, stop every process of this instance, start again",
            ) from error

    def sync_to_end(self, timeout_s: float | None = None) -> int:
        """Make everything visible durable; returns the last durable seqno. JournalIOError: unknown, and for ever.

        `timeout_s`: how long to wait for the process that syncs already (None: as long as a flush may take); BusyError
        after that."""
        return self._sync(self._words[word.LAST_SEQNO], timeout_s)

    def sync_appended(self, segment: SegmentFile) -> None:
        """Sync a frame that is appended but not visible yet; for the holder of the commit lock."""
        try:
            segment.sync()
        except BaseException as error:
            if segment.poisoned or isinstance(error, JournalIOError):
                self._fail(error)
            raise

    def note_durable(self, seqno: int, timeout_s: float = NOTE_TIMEOUT_S) -> None:
        """`seqno` is known to be durable by other means (an adopted segment, a sync by the holder of the commit
        lock).

        Mostly under the commit lock, after a commit that has happened. So nobody fails by it, and nobody waits here
        for the process that stands still with the sync lock: after `timeout_s` seconds it is left unsaid, and said with
        the next flush, which is of all that is visible."""
        if self._words[word.LAST_DURABLE_SEQNO] >= seqno:
            return
        try:
            if not self._thread_lock.acquire(timeout=timeout_s):
                return
            with contextlib.suppress(BusyError):
                self._acquire(timeout_s=timeout_s)
                self._note(seqno)
        finally:
            self._give_up()

    def _note(self, seqno: int) -> None:
        """Sync lock held: two that raise the number at once must not lower it."""
        if self._words[word.LAST_DURABLE_SEQNO] < seqno:
            self._words[word.LAST_DURABLE_SEQNO] = seqno
            self._on_durable()  # first: a process that waits for it sends it to the other site
            self._sidecar.write(seqno)

    def _acquire(self, unless: Callable[[], bool] | None = None, timeout_s: float | None = None) -> bool:
        """Take the sync lock; False when `unless` has come true instead."""
        lock = self._lock
        if lock.held:
            return True  # an interrupt came while it was being released
        # That a flush is under way need not be heard from the kernel, by a call that fails.
        if not self._words[word.SYNCING] and lock.try_acquire():
            return True
        wait_s = SYNC_LOCK_TIMEOUT_S if timeout_s is None else timeout_s
        return lock.acquire(wait_s, what="the journal's sync", unless=unless)

    def _sync(self, seqno: int, timeout_s: float | None = None) -> int:
        words, thread, lock = self._words, self._thread_lock, self._lock
        wait_s = SYNC_LOCK_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            if not thread.acquire(False) and not thread.acquire(timeout=min(max(0.0, wait_s), threading.TIMEOUT_MAX)):
                raise BusyError(
                    f"the journal's sync was held by another thread for {wait_s:g} s",
                    where=str(lock.path),
                    do="Try again; if it stays so, a disk hangs, or a process stands still: fuser -v on that file",
                )
            # A process that waits for the lock looks whether the flush that it waits for was its own too: the next one
            # may begin before its turn comes, and that flush is not for it.
            if words[word.LAST_DURABLE_SEQNO] < seqno and self._acquire(
                lambda: bool(words[word.LAST_DURABLE_SEQNO] >= seqno), timeout_s
            ):
                if words[word.LAST_DURABLE_SEQNO] < seqno:
                    self.check_alive()
                    self._flush()
                lock.release()
            thread.release()
        except BaseException:
            self._give_up()
            raise
        return int(words[word.LAST_DURABLE_SEQNO])

    def _give_up(self) -> None:
        """Free what this thread holds still; an interrupt may arise at any call."""
        if self._thread_lock.acquire(blocking=False):
            self._lock.release()
            with contextlib.suppress(RuntimeError):
                while True:
                    self._thread_lock.release()

    def _flush(self) -> None:
        words = self._words
        last_seqno = words[word.LAST_SEQNO]
        segment = self._segment
        while segment is None or self._generation != words[word.SEGMENT_GENERATION]:
            if segment is not None:
                segment.close()
                self._segment = None
            self._generation = words[word.SEGMENT_GENERATION]
            # Opened after the append, perhaps: a write-back error from before is still reported to this descriptor,
            # since nobody has been told of it (errseq, Linux 4.17).
            self._segment = segment = self._open_segment()
        words[word.SYNCING] = 1
        hit("sync.before")
        try:
            segment.sync()
        except BaseException as error:
            words[word.SYNCING] = 0
            if segment.poisoned or isinstance(error, JournalIOError):  # or an interrupt has taken the failure's place
                self._fail(error)
            raise
        words[word.SYNCING] = 0
        hit("sync.after")
        self._note(last_seqno)

    def _fail(self, error: BaseException) -> None:
        number = error.facts.get("errno") if isinstance(error, ReplicateError) else None
        self._words[word.FATAL] = number if isinstance(number, int) and number else errno.EIO
