"""trio's words over the simulated kernel: as much of trio as the daemons use, and nothing else.

`TrioFace` stands in the place of the module `trio` while a world runs. A call in a thread is made at once, in one step,
after a while: what other processes do meanwhile happens before it, or at its failpoints.

Guarantees: exceptions are trio's own; a name that is not here is an AttributeError, never a guess.
Leaves to others: who uses it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import trio

from tests.simulation.kernel import Cancelled, Kernel, Scope, Task


class Event:
    """trio.Event."""

    __slots__ = ("_is_set", "_kernel", "_waiting")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._is_set = False
        self._waiting: list[tuple[Task, int]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for task, turn in waiting:
            self._kernel.wake(task, turn)

    async def wait(self, *, shielded: bool = False) -> None:
        if self._is_set:
            await self._kernel.sleep(0, shielded=shielded)
            return
        self._waiting.append(self._kernel.me())
        await self._kernel.suspend(shielded=shielded)


class Lock:
    """trio.Lock."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._is_held = False
        self._waiting: deque[Event] = deque()

    async def __aenter__(self) -> None:
        await self._kernel.sleep(0)
        while self._is_held:
            event = Event(self._kernel)
            self._waiting.append(event)
            await event.wait()
        self._is_held = True

    async def __aexit__(self, *_: object) -> None:
        self._is_held = False
        while self._waiting:
            self._waiting.popleft().set()


class Nursery:
    """trio's nursery. Errors leave as a group, as there."""

    def __init__(self, kernel: Kernel) -> None:
        assert kernel.task is not None
        self._kernel = kernel
        self._owner = kernel.task
        self.cancel_scope = Scope(kernel)
        self.cancel_scope.__enter__()
        self._scopes = [*self._owner.outer, *self._owner.scopes]
        self._children: list[Task] = []
        self._errors: list[BaseException] = []
        self._changed = Event(kernel)

    def start_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        task = self._kernel.spawn(self._owner.process, call(*arguments), self._scopes, self)
        self._children.append(task)

    def child_ended(self, task: Task, error: BaseException | None) -> None:
        self._children.remove(task)
        if error is not None and not isinstance(error, Cancelled):
            self._errors.append(error)
            self.cancel_scope.cancel()
        self._changed.set()

    async def leave(self, error: BaseException | None) -> bool:
        if error is not None and not isinstance(error, Cancelled):
            self._errors.append(error)
            self.cancel_scope.cancel()
        while self._children:
            self._changed = Event(self._kernel)
            await self._changed.wait(shielded=True)
        is_swallowed = self.cancel_scope.__exit__(None, error, None)
        if self._errors:
            raise BaseExceptionGroup("in a nursery", self._errors)
        return is_swallowed


class _NurseryOpener:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def __aenter__(self) -> Nursery:
        await self._kernel.sleep(0)
        self._nursery = Nursery(self._kernel)
        return self._nursery

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, GeneratorExit):
            return False
        return await self._nursery.leave(error)


class _Channel:
    """Both ends of a memory channel."""

    def __init__(self, kernel: Kernel, size: int) -> None:
        self._kernel = kernel
        self._size = size
        self._held: deque[Any] = deque()
        self._room = Event(kernel)

    async def send(self, value: Any) -> None:
        await self._kernel.sleep(0)
        while len(self._held) >= self._size:
            self._room = Event(self._kernel)
            await self._room.wait()
        self._held.append(value)

    def receive_nowait(self) -> Any:
        if not self._held:
            raise trio.WouldBlock
        value = self._held.popleft()
        self._room.set()
        return value


class _OpenChannel:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __getitem__(self, _kind: object) -> _OpenChannel:
        return self

    def __call__(self, size: int) -> tuple[_Channel, _Channel]:
        channel = _Channel(self._kernel, size)
        return channel, channel


class TrioFace:
    """The module `trio`, as far as it is needed. `delay_s` says how long the next call in a thread takes."""

    BrokenResourceError = trio.BrokenResourceError
    ClosedResourceError = trio.ClosedResourceError
    TooSlowError = trio.TooSlowError
    WouldBlock = trio.WouldBlock

    def __init__(self, kernel: Kernel, network: Any, delay_s: Callable[[], float]) -> None:
        self._kernel = kernel
        self._network = network
        self._delay_s = delay_s
        self.open_memory_channel = _OpenChannel(kernel)
        self.to_thread = SimpleNamespace(run_sync=self._run_sync)
        self.lowlevel = SimpleNamespace(checkpoint=self._checkpoint, wait_readable=self._wait_readable)

    def current_time(self) -> float:
        return self._kernel.now

    def Event(self) -> Event:  # trio's name
        return Event(self._kernel)

    def Lock(self) -> Lock:
        return Lock(self._kernel)

    def CancelScope(self, *, shield: bool = False) -> Scope:
        return Scope(self._kernel, shield=shield)

    def open_nursery(self) -> _NurseryOpener:
        return _NurseryOpener(self._kernel)

    def move_on_after(self, seconds: float) -> Scope:
        return Scope(self._kernel, self._kernel.now + seconds)

    def move_on_at(self, deadline: float) -> Scope:
        return Scope(self._kernel, deadline)

    @contextmanager
    def fail_at(self, deadline: float) -> Iterator[Scope]:
        with Scope(self._kernel, deadline) as scope:
            yield scope
        if scope.is_cancelled:
            raise trio.TooSlowError

    async def sleep(self, seconds: float) -> None:
        await self._kernel.sleep(seconds)

    async def sleep_forever(self) -> None:
        await self._kernel.suspend()

    async def sleep_until(self, deadline: float) -> None:
        if deadline == math.inf:
            await self._kernel.suspend()
        await self._kernel.sleep(max(0.0, deadline - self._kernel.now))

    async def _checkpoint(self) -> None:
        await self._kernel.sleep(0)

    async def _wait_readable(self, doorbell: Any) -> None:
        await doorbell.rung()

    async def _run_sync(self, call: Callable[..., Any], *arguments: Any, abandon_on_cancel: bool = False) -> Any:
        await self._kernel.sleep(self._delay_s(), shielded=not abandon_on_cancel)
        return call(*arguments)

    # The network.

    async def open_tcp_stream(self, host: str, port: int) -> Any:
        return await self._network.connect(host, port)

    async def serve_listeners(
        self, handler: Callable[[Any], Any], listeners: list[Any], *, handler_nursery: Nursery | None = None
    ) -> None:
        if handler_nursery is None:
            async with self.open_nursery() as nursery:
                await self.serve_listeners(handler, listeners, handler_nursery=nursery)
            return
        while True:
            handler_nursery.start_soon(handler, await listeners[0].accept())

    async def aclose_forcefully(self, resource: Any) -> None:
        resource.close()
        await self._kernel.sleep(0)
