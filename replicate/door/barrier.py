"""A barrier: nothing is applied (on a primary: committed) beyond a sequence number, until it is lifted or has expired.

Guarantees: one barrier at a time; it falls at once when its holder dies, as the kernel gives up the holder's lock then,
and expires (by the monotonic clock) when its holder stands still; nothing not yet received when it was set is applied
beyond it. A writer on a primary stands at one for WRITER_WAIT_S_MAX at most. At a *closing* one it stands for its own
patience, and is refused then: nothing passes while the holder lives. One that turns writers away has them give up
transactions and regions. One that holds beginnings stops nothing that has begun. A frozen instance stands as at a
closing one that has no end.
Leaves to others: why anybody wants the instance to stand still.
"""

from __future__ import annotations

import contextlib
import os
import time
from fcntl import LOCK_NB, LOCK_SH, flock
from types import TracebackType
from typing import Final

from replicate.door.door import Door
from replicate.errors import BusyError, FrozenError, InternalError, ReplicateError
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.system.locks import FileLock

LOCK_NAME: Final = "barrier.lock"
LOCK_TIMEOUT_S: Final = 0.1
"""Others hold the lock for microseconds, to look whether it is held."""
WRITER_WAIT_S_MAX: Final = 1.0
"""Opening a snapshot takes milliseconds; only a holder that was stopped takes longer."""
WRITER_PAUSE_S: Final = 0.001
TURNED_AWAY_PAUSE_S: Final = 0.005
FROZEN_PAUSE_S: Final = 0.01
_NS: Final = 1_000_000_000
HOLDS_WRITERS: Final = 1
TURNS_WRITERS_AWAY: Final = 2
"""Of the word CLOSING. At the second a writer gives its transaction up first, and waits with nothing held."""
HOLDS_BEGINNINGS: Final = 3
"""A writer begins no transaction, for WRITER_WAIT_S_MAX at most; what has begun is committed, and all is applied."""
NOWHERE: Final = (1 << 64) - 1
"""Of the word BARRIER_SEQNO: it stands at no transaction that there can be."""


class Barrier:
    """Set with `hold` or `raise_to`, lifted at the end of the `with` block.

    The words BARRIER_SEQNO, BARRIER_EXPIRES_NS and CLOSING are written by the process that holds the barrier's lock,
    and by nobody else; a barrier of which nobody holds the lock does not stand.
    """

    def __init__(self, door: Door, *, timeout_s: float, closing: bool = False) -> None:
        """`timeout_s`: how long the barrier stands at most, from each call of `hold` or `raise_to` on. `closing`: no
        writer passes it meanwhile."""
        self._door = door
        self._closing = HOLDS_WRITERS if closing else 0
        self._timeout_ns = int(timeout_s * _NS)
        self._lock: FileLock | None = None
        """Held from `hold` or `raise_to` to `lift`."""

    def __enter__(self) -> Barrier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lift()

    def hold(self) -> int:
        """Stand still at what is applied now; returns that seqno. Raises BusyError while another barrier stands.

        The Update Process may still finish the batch that it has begun; nothing received later passes.
        """
        return self._set(None)

    def raise_to(self, seqno: int) -> None:
        """Go on up to `seqno` and stand still there. Raises BusyError while somebody else's barrier stands."""
        self._set(seqno)

    def hold_beginnings(self) -> None:
        """No transaction is begun from now on; what has begun is committed, and what arrives is applied. Raises
        BusyError while another barrier stands."""
        if self._closing:
            raise InternalError("a closing barrier holds more than beginnings")
        self._closing = HOLDS_BEGINNINGS
        self._set(NOWHERE)

    def turn_away(self) -> None:
        """At a closing barrier that stands: from now on writers give up their transactions, and hear what has become of
        it when it is lifted, or the pool is retired. It does not stand longer by that."""
        if self._lock is None or self._closing not in (HOLDS_WRITERS, TURNS_WRITERS_AWAY):
            raise InternalError("writers are turned away at a closing barrier only")
        self._door.words[word.CLOSING] = self._closing = TURNS_WRITERS_AWAY

    def lift(self) -> None:
        """Let everything pass. May be called when no barrier of ours stands."""
        if self._lock is None:
            return
        words = self._door.words
        _clear(words)
        self._lock.close()
        self._lock = None

    def _set(self, seqno: int | None) -> int:
        if seqno is not None and seqno < 0:
            raise InternalError(f"{seqno} is no sequence number")
        words = self._door.words
        if self._lock is None:
            self._lock = self._locked()
        # Under the commit lock nothing is being committed, so what is the last one now stays it.
        with self._door.locked():
            wanted = int(words[word.LAST_SEQNO]) if seqno is None else seqno
            words[word.BARRIER_EXPIRES_NS] = time.monotonic_ns() + self._timeout_ns
            words[word.CLOSING] = self._closing
            # 0 means no barrier, so an instance with nothing applied is held at its first transaction.
            words[word.BARRIER_SEQNO] = max(1, wanted)
        return wanted

    def _locked(self) -> FileLock:
        instance = self._door.instance
        lock = FileLock(instance.locks_directory / LOCK_NAME)
        try:
            lock.acquire(LOCK_TIMEOUT_S, what="the barrier")
        except BusyError as error:
            lock.close()
            raise BusyError(
                f"another compare or digest holds this instance at transaction {self._door.words[word.BARRIER_SEQNO]}",
                where=str(lock.path),
                do="Wait for it to end; fuser -v on that file names it",
            ) from error
        except BaseException:
            lock.close()
            raise
        return lock


class BarrierWatch:
    """The look at the barrier of the process that applies. Used by one thread at a time; `close` it."""

    def __init__(self, door: Door) -> None:
        self._words = door.words
        self._path = door.instance.locks_directory / LOCK_NAME
        self._lock: FileLock | None = None

    def seqno(self) -> int:
        """The last transaction that may be applied; 0 when there is no barrier and the instance is not frozen."""
        frozen, barrier = int(self._words[word.FROZEN]), self._barrier_seqno()
        return min(frozen, barrier) if frozen and barrier else frozen or barrier

    def _barrier_seqno(self) -> int:
        """Where a barrier stands, 0: none. One that was left is cleared."""
        words = self._words
        seqno = int(words[word.BARRIER_SEQNO])
        if not seqno or time.monotonic_ns() >= words[word.BARRIER_EXPIRES_NS]:
            return 0
        if self._lock is None:
            self._lock = FileLock(self._path)
        if not self._lock.try_acquire():
            return seqno
        # Its holder is dead, or lifts it just now. While the lock is ours nobody sets another one.
        _clear(words)
        self._lock.release()
        return 0

    def close(self) -> None:
        """Give the descriptor up. May be called twice."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class TurnedAwayError(BusyError):
    """A writer has met a barrier that turns writers away; `outlast_turning_away` waits for the end of that."""


def outlast_turning_away(door: Door) -> None:
    """Wait, with nothing held, until the barrier has fallen that turned us away, or the pool is retired."""
    words = door.words
    watch = BarrierWatch(door)
    try:
        while words[word.POOL_STATE] != word.STATE_CLOSED and words[word.CLOSING] == TURNS_WRITERS_AWAY:
            if not watch.seqno():
                return
            time.sleep(TURNED_AWAY_PAUSE_S)
    finally:
        watch.close()


def stand_at_barrier(door: Door, timeout_s: float | None = None) -> None:
    """For a writer that holds the commit lock, and holds it again on return: wait while a barrier stands at the last
    transaction. `timeout_s`: for the lock, as of `Door.enter`, and before a closing barrier. Raises what that raises,
    and BusyError where that one still stands (TurnedAwayError: its holder waits for us to give up); the lock is
    not held then."""
    words = door.words
    if words[word.LAST_SEQNO] < words[word.BARRIER_SEQNO] and not words[word.FROZEN]:
        return
    began = time.monotonic()
    watch = BarrierWatch(door)
    try:
        while 0 < (seqno := watch.seqno()) <= words[word.LAST_SEQNO]:
            waited_s, closing = time.monotonic() - began, words[word.CLOSING]
            if words[word.FROZEN] and waited_s >= (timeout_s or WRITER_WAIT_S_MAX):
                door.leave()
                raise frozen_error(door)
            if closing == TURNS_WRITERS_AWAY:
                door.leave()
                raise TurnedAwayError(f"instance {door.instance.name} takes no commit beyond {seqno} at this moment")
            if not words[word.FROZEN] and waited_s >= (
                timeout_s or WRITER_WAIT_S_MAX if closing else WRITER_WAIT_S_MAX
            ):
                if not closing:
                    return
                door.leave()
                raise BusyError(
                    f"instance {door.instance.name} takes no commit beyond {seqno} at this moment: its door is closed",
                    where=str(door.instance.path),
                    do="Try again; status tells which site is primary then",
                )
            door.leave()
            time.sleep(FROZEN_PAUSE_S if words[word.FROZEN] else WRITER_PAUSE_S)
            door.enter(timeout_s)
    finally:
        watch.close()


def stand_before_beginning(door: Door, timeout_s: float) -> None:
    """For a writer that holds nothing yet: wait while beginnings are held, or the instance is frozen. FrozenError after
    `timeout_s` seconds of frost; held beginnings end by themselves."""
    words, began = door.words, time.monotonic()
    if words[word.CLOSING] == HOLDS_BEGINNINGS:
        watch = BarrierWatch(door)
        try:
            while watch.seqno() == NOWHERE and time.monotonic() - began < WRITER_WAIT_S_MAX:
                time.sleep(WRITER_PAUSE_S)
        finally:
            watch.close()
    until_s = began + timeout_s
    while words[word.FROZEN] and words[word.POOL_STATE] != word.STATE_CLOSED:
        if time.monotonic() >= until_s:
            raise frozen_error(door)
        time.sleep(FROZEN_PAUSE_S)


def frozen_error(door: Door) -> FrozenError:
    """By whom it is frozen, and the command that ends it."""
    instance = door.instance
    with contextlib.suppress(ReplicateError):
        instance.reload()
    return FrozenError(
        f"instance {instance.name} is {instance.content.frozen or 'frozen'}: no transaction is committed",
        where=str(instance.path),
        do=f"Try again; it is thawed by: replicate -i {instance.named} instance freeze off",
    )


def _clear(words: memoryview) -> None:
    """There is no barrier."""
    words[word.BARRIER_SEQNO] = 0
    words[word.BARRIER_EXPIRES_NS] = 0
    words[word.CLOSING] = 0


def is_held(instance: Instance) -> bool:
    """Whether a living process holds a barrier, for onlookers: makes nothing, changes nothing."""
    try:
        fd = os.open(instance.locks_directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        flock(fd, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
