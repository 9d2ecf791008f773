"""Waking a reader that sleeps, and only then: a FIFO for each reader, and a sleeper byte for each in the pool.

Guarantees: a ring never blocks, never raises and never signals its caller, whatever became of the reader. A wait ends
at the latest CAP_S after its condition holds, also when a ring was lost (a writer killed before it, or the two bytes
crossing in the processors' store buffers). One reader for each slot; its death frees the slot at once (flock).
Leaves to others: what is waited for; `ready` says. trio is imported only by what waits with it, because writers are
applications.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from replicate.errors import JournalIOError, PermissionRefusedError, TryAgainError
from replicate.limits import READERS_MAX
from replicate.pool.control import SLEEPERS, SLEEPERS_OFFSET
from replicate.pool.shared_memory import PoolKind, SharedMemory

CAP_S: Final = 0.5
"""Longest sleep before the condition is asked again, and so the longest delay that a lost ring can cause."""
_Answer = TypeVar("_Answer")
_FLAGS: Final = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class Pool(Protocol):
    """What has sleeper bytes: either pool."""

    @property
    def memory(self) -> SharedMemory:
        """The mapped file."""


def doorbell_path(run_directory: Path, kind: PoolKind, slot: int) -> Path:
    """The FIFO of one reader."""
    return run_directory / f"{kind.value}-{slot}.doorbell"


class Doorbell:
    """The reader's side. Close it before its pool."""

    def __init__(self, path: Path, fd: int, sleeper: memoryview) -> None:
        """Takes over `fd`; use `claim` or `create_reader`."""
        self.path = path
        self._fd = fd
        self._sleeper = sleeper
        self.is_looked_after = False
        """`keep_looking` runs."""
        self._is_asleep = False
        sleeper[0] = 0

    @classmethod
    def claim(cls, pool: Pool, run_directory: Path, slot: int | None = None) -> Doorbell:
        """A slot of the pool that no living reader has; `slot` asks for that one.

        TryAgainError when it, or all READERS_MAX, are taken. PermissionRefusedError, JournalIOError: see create_reader.
        """
        taken = TryAgainError("the doorbell is taken", where=str(run_directory))
        for number in range(READERS_MAX) if slot is None else (slot,):
            begin = SLEEPERS_OFFSET + number
            path = doorbell_path(run_directory, pool.memory.kind, number)
            try:
                return cls.create_reader(path, pool.memory.view[begin : begin + 1])
            except TryAgainError as error:
                taken = error
        if slot is None:
            taken = TryAgainError(f"{READERS_MAX} readers sleep on this pool already", where=str(run_directory))
        raise taken

    @classmethod
    def create_reader(cls, path: Path, sleeper: memoryview) -> Doorbell:
        """The doorbell at `path`, made if it is not there, held by us alone. `sleeper`: one byte of shared memory.

        TryAgainError: another living reader holds it. PermissionRefusedError: no FIFO, or not ours. JournalIOError.
        Nothing stays open after an error.
        """
        fd = -1
        try:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            fd = os.open(path, _FLAGS)
            facts = os.fstat(fd)
            if not stat.S_ISFIFO(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                raise PermissionRefusedError("a doorbell must be a FIFO of our own", where=str(path), do="Remove it")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.lstat(path).st_ino != facts.st_ino:
                raise TryAgainError("the doorbell was replaced just now", where=str(path))
        except BlockingIOError as error:
            os.close(fd)
            raise TryAgainError("another reader holds this doorbell", where=str(path)) from error
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if error.errno in (errno.ELOOP, errno.EACCES, errno.EPERM):
                raise PermissionRefusedError(f"a doorbell cannot be used: {error}", where=str(path)) from error
            raise JournalIOError(f"a doorbell cannot be made: {error}", where=str(path)) from error
        except (PermissionRefusedError, TryAgainError):
            os.close(fd)
            raise
        return cls(path, fd, sleeper)

    async def sleep(self, ready: Callable[[], object]) -> None:
        """Under trio, while `keep_looking` runs: sleep until somebody rings, CAP_S at most; not at all when `ready()`
        is true already.

        Always a checkpoint. When cancelled, nobody rings any more. ValueError once the pool was closed.
        """
        import trio

        await trio.lowlevel.checkpoint()
        assert self.is_looked_after, "a lost ring would be slept through"
        self._drain()
        self._sleeper[0] = 1
        self._is_asleep = True
        try:
            if not ready():
                await trio.lowlevel.wait_readable(self._fd)
        finally:
            self._is_asleep = False
            self._sleeper[0] = 0

    async def keep_looking(self) -> None:
        """Under trio, until it is cancelled: end each `sleep` after CAP_S.

        So a sleep has no deadline of its own, which would be 20 of the 120 calls between a ring and the send of a
        transaction that comes alone (bench_latency).
        """
        import trio

        self.is_looked_after = True
        try:
            while True:
                await trio.sleep(CAP_S)
                if self._is_asleep:  # not by its byte: who has cleared that may have been killed before the ring
                    self.wake()
        finally:
            self.is_looked_after = False

    async def wait(self, ready: Callable[[], object], timeout_s: float) -> bool:
        """As `sleep`, but returns True only when `ready()` is true, and False after `timeout_s` seconds."""
        import trio

        await trio.lowlevel.checkpoint()
        deadline_s = trio.current_time() + timeout_s
        while True:
            self._drain()
            self._sleeper[0] = 1
            try:
                if ready():
                    return True
                left_s = deadline_s - trio.current_time()
                if left_s <= 0:
                    return False
                with trio.move_on_after(min(left_s, CAP_S)):
                    await trio.lowlevel.wait_readable(self._fd)
            finally:
                self._sleeper[0] = 0
            if ready():
                return True  # what is in the FIFO is drained before the next sleep

    def wait_sync(
        self,
        ready: Callable[[], object],
        timeout_s: float | None = None,
        on_ring: Callable[[], float] | None = None,
    ) -> bool:
        """The same for a thread without trio. `on_ring` is called when somebody has rung before `ready()` is true, and
        gives the seconds that we wait for that at most."""
        deadline_s = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            self._drain()
            self._sleeper[0] = 1
            try:
                if ready():
                    return True
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                rung = poll.poll(1000.0 * min(left_s, CAP_S))
            finally:
                self._sleeper[0] = 0
            if rung and on_ring is not None and not ready():
                deadline_s = min(deadline_s, time.monotonic() + on_ring())
            if ready():
                return True  # what is in the FIFO is drained before the next sleep

    async def wait_and_call(
        self,
        ready: Callable[[], object],
        timeout_s: float,
        call: Callable[[], _Answer],
        on_ring: Callable[[], float] | None = None,
    ) -> _Answer:
        """Under trio: wait in a thread as `wait_sync` does, and then `call()` there, whatever has ended the wait.

        Nothing stands between the ring and the call: no turn of trio's, no handing over to a thread. A cancellation
        takes effect when the call has returned: see that `ready()` becomes true then, and `wake` us.
        """
        import trio

        def sleep_and_call() -> _Answer:
            self.wait_sync(ready, timeout_s, on_ring)
            return call()

        return await trio.to_thread.run_sync(sleep_and_call)

    def wake(self) -> None:
        """From another thread or task of the same process: have a wait ask its condition now."""
        with contextlib.suppress(BlockingIOError):  # it is full of rings
            os.write(self._fd, b"\0")

    def close(self) -> None:
        """Give the slot back; the FIFO stays for the next reader. May be called twice, also after the pool's close."""
        if self._fd < 0:
            return
        with contextlib.suppress(ValueError):
            self._sleeper[0] = 0
            self._sleeper.release()
        os.close(self._fd)
        self._fd = -1

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._fd, 4096)) == 4096:
                pass


class Doorbells:
    """The writers' side: one for each process and instance. Keeps the FIFOs that it has rung open.

    The writer opens the FIFO for reading too: then there is always a reader, and no write can raise SIGPIPE in an
    application that has put the default action back. That the reader is gone is seen from its byte, which stays
    cleared.

    A reader sets its byte, asks once more whether there is something, and sleeps on its FIFO. A writer looks at the
    bytes (two words) after it has published; where one is set it clears it and writes one byte into the FIFO. So a
    writer under load makes no system call, and an idle reader uses no processor time.
    """

    def __init__(self, run_directory: Path) -> None:
        """Opens nothing yet."""
        self._run_directory = run_directory
        self._fds: dict[tuple[PoolKind, int], int] = {}
        self._lock = threading.Lock()

    def ring(self, pool: Pool, slot: int | None = None) -> int:
        """Wake the readers of `pool` that sleep, or only that of `slot`; how many were rung. Never raises OSError."""
        memory = pool.memory
        words = memory.words
        if not (words[SLEEPERS] or words[SLEEPERS + 1]):
            return 0
        view = memory.view
        rung = 0
        for number in range(READERS_MAX) if slot is None else (slot,):
            if view[SLEEPERS_OFFSET + number]:
                # Cleared first: a reader that sets it again afterwards finds our byte in its FIFO.
                view[SLEEPERS_OFFSET + number] = 0
                with self._lock:
                    rung += self._ring(memory.kind, number)
        return rung

    def close(self) -> None:
        """Close the FIFOs. May be called twice, and used again."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _ring(self, kind: PoolKind, slot: int) -> int:
        key = (kind, slot)
        try:
            fd = self._fds.get(key, -1)
            if fd >= 0:
                rung = _write(fd)  # first: what sleeps there is waited for
                if os.fstat(fd).st_nlink:
                    return rung
                os.close(self._fds.pop(key))  # someone emptied the directory, and the reader made a new one
            fd = os.open(doorbell_path(self._run_directory, kind, slot), _FLAGS)
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.close(fd)
                return 0
            self._fds[key] = fd
            return _write(fd)
        except OSError:
            return 0  # Nobody there. The cap makes a lost ring harmless.


def _write(fd: int) -> int:
    """One byte into a FIFO; how many went in. A full one wakes as well."""
    try:
        return os.write(fd, b"\1")
    except BlockingIOError:
        return 0


assert READERS_MAX == 16  # two words of bytes are looked at
