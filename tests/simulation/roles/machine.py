"""What a host of a world of roles has beside host.py: paths on its disk, daemons' locks, orders to daemons, files.

Guarantees: as host.py. A thread that sleeps lets all others go on meanwhile, its own process's event loop too; who
sleeps in it may not be waited for by them, and they hear at once that it is busy.
Leaves to others: what is ordered, and who runs.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from replicate.daemon.control import DaemonFailedError
from replicate.daemon.orders import socket_name
from replicate.errors import AlreadyRunningError, ReplicateError, TryAgainError
from tests.simulation.host import Host, SimulatedLock, SimulatedPath
from tests.simulation.kernel import Process, Task

LOOK_S: Final = 0.05
ANSWER_S: Final = 60.0
"""So long a command waits for a daemon's answer."""


class RoleHost(Host):
    """`orders`: socket -> the process that listens there, and how it obeys. `told`: daemon -> what its status file
    says."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.orders: dict[str, tuple[Process, Callable[[str], Any]]] = {}
        self.told: dict[str, dict[str, Any]] = {}

    def power_loss(self, dice: Any) -> None:
        """Status files are on the disk, and never synced: they may be there or not."""
        super().power_loss(dice)
        self.orders.clear()


class RolePath(SimulatedPath):
    """A path on the disk of the one that uses it."""

    world: Any

    def unlink(self, missing_ok: bool = False) -> None:
        """Of the simulated disk."""
        try:
            self.world.os.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def glob(self, pattern: str) -> Iterator[RolePath]:
        """Of its directory alone; nothing where there is no such directory."""
        try:
            names = self.world.os.listdir(self)
        except FileNotFoundError:
            return
        for name in sorted(names):
            if Path(name).match(pattern):
                yield self / name


class DaemonLock:
    """LockFile: a lock of a process."""

    world: Any

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.path = path / "locks" / f"daemon-{name}.lock"

    def probe(self) -> Any:
        """Who has it."""
        holder = self.world.kernel.process.host.locks.get(str(self.path))
        if holder is None or holder._process.is_dead:
            return None
        return SimpleNamespace(pid=holder._process.pid, instead=getattr(holder, "instead", ""))

    @contextmanager
    def kept_down(self, instead: str) -> Iterator[None]:
        """As LockFile's. `instead` "": as the daemon itself."""
        lock = SimulatedLock(self.path)
        if not lock.try_acquire():
            raise AlreadyRunningError(f"{self.name} runs")
        lock.instead = instead  # type: ignore[attr-defined]
        try:
            yield
        finally:
            if not lock._process.is_dead:  # its kernel has let go of it
                lock.close()


class SimulatedDaemonFiles:
    """DaemonFiles."""

    def __init__(self, path: Path, name: str) -> None:
        self.lock = DaemonLock(path, name)
        self.status = SimpleNamespace(read=lambda: self._read(name))

    @staticmethod
    def _read(name: str) -> Any:
        facts = DaemonLock.world.kernel.process.host.told.get(name)
        return None if facts is None else SimpleNamespace(facts=facts)


def is_asked_aside(host: Host, path: Path) -> bool:
    """Whether somebody asks that all daemons of the host stand aside."""
    holder = host.locks.get(str(path / "locks" / "aside.lock"))
    return holder is not None and not holder._process.is_dead


# Orders.


class RoleSocket:
    """CommandSocket: who serves it is found by commands of its host."""

    world: Any

    def __init__(self, _directory: Path, name: str, *_: Any) -> None:
        self._name = name

    async def listen(self) -> None:
        """From `serve` on."""

    async def serve(self, heard: Any) -> None:
        """Be found, until cancelled."""
        kernel = self.world.kernel
        host = kernel.process.host
        host.orders[self._name] = found = (kernel.process, heard.__self__._obey)
        try:
            await kernel.suspend()
        finally:
            if host.orders.get(self._name) is found:
                del host.orders[self._name]


class Answer:
    """Of a daemon, to an order that it obeys in a task of its own."""

    def __init__(self, world: Any, host: RoleHost, daemon: str, order: str) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        found = host.orders.get(socket_name(daemon))
        self.is_heard = found is not None and not found[0].is_dead
        self.is_done = not self.is_heard
        if found is not None and self.is_heard:
            self.process, obey = found
            world.kernel.spawn(self.process, self._obey(obey, order), [], self)

    async def _obey(self, obey: Callable[[str], Any], order: str) -> None:
        try:
            self.result = await obey(order)
        except ReplicateError as error:
            self.error = error

    def child_ended(self, _task: Task, error: BaseException | None) -> None:
        """As a nursery's."""
        self.error = self.error or error
        self.is_done = True

    @property
    def is_over(self) -> bool:
        """It has answered, or never will."""
        return self.is_done or self.process.is_dead

    def taken(self, daemon: str) -> dict[str, Any] | None:
        """As `give` has it."""
        if not self.is_heard:
            return None
        if isinstance(self.error, ReplicateError):
            raise DaemonFailedError(str(self.error), self.error.exit_code)
        if self.error is not None or not self.is_done:
            raise TryAgainError(f"{daemon} takes no orders: it hung up")
        return dict(self.result)


def give(instance: Any, daemon: str, order: str) -> dict[str, Any] | None:
    """orders.give, in a thread of the one that asks."""
    world = DaemonLock.world
    answer = Answer(world, world.kernel.process.host, daemon, order)
    until = world.kernel.now + ANSWER_S
    while not answer.is_over and world.kernel.now < until:
        world.sleep_in_thread(LOOK_S)
    return answer.taken(daemon)


# Files.


class OpenFile(io.BytesIO):
    """A file that was opened by its descriptor: what is written is there when it is flushed or closed."""

    def __init__(self, system: Any, fd: int, mode: str) -> None:
        self._system, self._fd = system, fd
        self._is_written = "w" in mode
        data = b"" if self._is_written else system.pread(fd, 1 << 30, 0)
        super().__init__(data)
        self._flushed = 0

    def flush(self) -> None:
        """To the page cache."""
        if self._is_written and not self.closed and len(self.getvalue()) > self._flushed:
            self._system.pwrite(self._fd, self.getvalue()[self._flushed :], self._flushed)
            self._flushed = len(self.getvalue())

    def fileno(self) -> int:
        """Of the simulated system."""
        return self._fd

    def __exit__(self, *_: object) -> None:
        self.flush()
        self._system.close(self._fd)
        self.close()


def opened(fd: Any, mode: str = "r", **_: Any) -> Any:
    """The builtin `open` of modules that open descriptors."""
    world = DaemonLock.world
    if not isinstance(fd, int):
        fd = world.os.open(os.fspath(fd), os.O_RDONLY)
    return OpenFile(world.os, fd, mode)
