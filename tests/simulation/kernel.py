"""Virtual time: processes of coroutines that sleep, wait and die, one step at a time, in an order that a seed decides.

`Kernel` runs them; trio_face.py gives them trio's words. A killed `Process` is never resumed: what its coroutines
would still do on their way out (`finally`) meets a dead process, and everything simulated refuses it with `Killed`.

Guarantees: the same calls in the same order give the same run: no real clock, no thread, no hash order. Time moves only
when nothing is left to do at this moment.
Leaves to others: what runs.
"""

from __future__ import annotations

import heapq
import inspect
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final


class Killed(BaseException):
    """The process is dead; nothing of it has any effect any more."""


class Cancelled(BaseException):
    """A scope around the coroutine was cancelled."""


class _Suspended:
    """What a coroutine gives the kernel; the one that wakes it has been told before."""

    __slots__ = ("shielded",)

    def __init__(self, shielded: bool) -> None:
        self.shielded = shielded

    def __await__(self) -> Any:
        return (yield self)


CLOSES_MAX: Final = 20
_PLAIN: Final = _Suspended(False)
_SHIELDED: Final = _Suspended(True)


class Scope:
    """A cancel scope: with a deadline, or cancelled by hand."""

    __slots__ = ("_task", "cancelled_caught", "deadline", "is_cancelled", "kernel", "shield")

    def __init__(self, kernel: Kernel, deadline: float = math.inf, *, shield: bool = False) -> None:
        self.kernel = kernel
        self.deadline = deadline
        self.shield = shield
        self.is_cancelled = self.cancelled_caught = False
        self._task: Task | None = None

    def __enter__(self) -> Scope:
        self._task = task = self.kernel.task
        assert task is not None
        task.scopes.append(self)
        if self.deadline < math.inf:
            self.kernel.at(self.deadline, self._expire)
        return self

    def _expire(self) -> None:
        if self._task is not None:
            self.cancel()

    def cancel(self) -> None:
        """Wake everybody within; each meets Cancelled at its next wait."""
        if not self.is_cancelled:
            self.is_cancelled = True
            if self._task is not None:
                self._task.process.has_cancelled = True
                self.kernel.cancel_within(self._task.process)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        task, self._task = self._task, None
        assert task is not None
        task.scopes.remove(self)
        if not isinstance(error, Cancelled) or not self.is_cancelled:
            return False
        self.cancelled_caught = self.shield or not task.is_to_be_cancelled()
        return self.cancelled_caught


class Task:
    """One coroutine. `turn` rises with each step: a wake of an earlier turn is stale."""

    __slots__ = ("coroutine", "is_done", "is_waiting", "nursery", "outer", "process", "scopes", "shielded", "turn")

    def __init__(self, process: Process, coroutine: Coroutine[Any, Any, Any], outer: list[Scope], nursery: Any) -> None:
        self.process = process
        self.coroutine = coroutine
        self.outer = outer
        self.scopes: list[Scope] = []
        self.nursery = nursery
        self.turn = 0
        self.is_waiting = True
        self.is_done = False
        self.shielded = True  # until its first step

    def is_to_be_cancelled(self) -> bool:
        """A scope around it is cancelled, and none within that one shields it."""
        for scopes in (self.scopes, self.outer):
            for scope in reversed(scopes):
                if scope.is_cancelled:
                    return True
                if scope.shield:
                    return False
        return False


class Process:
    """What dies together. `on_end` gets the error it ended with, or None; not called for one that was killed."""

    def __init__(self, kernel: Kernel, name: str, host: Any, on_end: Callable[[BaseException | None], None]) -> None:
        self.kernel = kernel
        self.name = name
        self.host = host
        self.pid = kernel.next_number()
        self.is_dead = False
        self.frozen_until = 0.0
        self.has_cancelled = False
        """A scope of it was ever cancelled; until then nobody needs to look."""
        self.tasks: list[Task] = []
        self.on_end = on_end
        self.mappings: list[Any] = []
        """Memory that it has mapped: gone when it dies, so that nothing of it can be written any more."""

    def check(self) -> None:
        """Killed when it is dead."""
        if self.is_dead:
            raise Killed

    def die(self) -> None:
        """Now, whatever it does; nobody inside learns of it."""
        if not self.is_dead:
            self.is_dead = True
            for mapping in self.mappings:
                mapping.unmap()
            self.mappings.clear()


def _end(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close it, also where it waits for something again as it is closed: what is left to the collector of garbage fails
    in whatever test runs then. One that waits again and again is left to it all the same."""
    for _ in range(CLOSES_MAX):
        with suppress(BaseException):
            coroutine.close()
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED:
            return


class Kernel:
    """The clock and everything that waits for it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.task: Task | None = None
        self.process: Process | None = None
        self.on_switch: Callable[[Process], None] = lambda _process: None
        self._heap: list[tuple[float, int, Any, int]] = []
        self._number = 0
        self._processes: list[Process] = []

    def next_number(self) -> int:
        self._number += 1
        return self._number

    # Processes and tasks.

    def start(
        self,
        name: str,
        host: Any,
        main: Callable[[], Coroutine[Any, Any, Any]],
        on_end: Callable[[BaseException | None], None],
    ) -> Process:
        """A process that runs `main()` from now on."""
        process = Process(self, name, host, on_end)
        self._processes.append(process)
        self.spawn(process, main(), [], None)
        return process

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, Any], outer: list[Scope], nursery: Any) -> Task:
        task = Task(process, coroutine, outer, nursery)
        process.tasks.append(task)
        self.wake(task, 0)
        return task

    def bury(self, process: Process) -> None:
        """Let go of a dead process's coroutines; of the one that runs as soon as it waits."""
        assert process.is_dead
        at_work = self.task
        with self.running(process):
            for task in process.tasks:
                if not task.is_done:
                    task.is_done = True
                    if task is not at_work:
                        _end(task.coroutine)
        process.tasks.clear()
        if process in self._processes:
            self._processes.remove(process)

    def close(self) -> None:
        """The end of the world."""
        for process in list(self._processes):
            process.die()
            self.bury(process)
        self._heap.clear()

    # Waiting.

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call it then."""
        self._number += 1
        heapq.heappush(self._heap, (max(when, self.now), self._number, call, -1))

    def wake(self, task: Task, turn: int, when: float = 0.0) -> None:
        """Resume the task then, if it has not moved since that turn."""
        self._number += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._number, task, turn))

    def me(self) -> tuple[Task, int]:
        """Who is running, for `wake`."""
        assert self.task is not None
        return self.task, self.task.turn

    async def suspend(self, *, shielded: bool = False) -> None:
        """Until somebody wakes us."""
        await (_SHIELDED if shielded else _PLAIN)

    async def sleep(self, seconds: float, *, shielded: bool = False) -> None:
        """Let time pass; a checkpoint in any case."""
        assert self.task is not None
        self.wake(self.task, self.task.turn, self.now + seconds)
        await (_SHIELDED if shielded else _PLAIN)

    def cancel_within(self, process: Process) -> None:
        """A scope of the process was cancelled: wake the one that is in it."""
        for task in process.tasks:
            if not task.is_done and task is not self.task and not task.shielded and task.is_to_be_cancelled():
                self.wake(task, task.turn)

    # Running.

    class _Running:
        __slots__ = ("before", "kernel", "process")

        def __init__(self, kernel: Kernel, process: Process) -> None:
            self.kernel, self.process = kernel, process

        def __enter__(self) -> None:
            self.before = self.kernel.process
            self.kernel.process = self.process
            self.kernel.on_switch(self.process)

        def __exit__(self, *_: object) -> None:
            self.kernel.process = self.before
            if self.before is not None:
                self.kernel.on_switch(self.before)

    def running(self, process: Process) -> _Running:
        """As if the process were running, for a block."""
        return Kernel._Running(self, process)

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Everything that happens up to then, or until `stop` is true."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until and not stop():
            when, _, what, turn = pop(heap)
            if when > self.now:
                self.now = when
            if turn < 0:
                what()
            elif what.turn == turn and not what.is_done and not what.process.is_dead:
                if what.process.frozen_until > self.now:
                    self.wake(what, turn, what.process.frozen_until)
                else:
                    self._step(what)
        self.now = max(self.now, until) if not heap or heap[0][0] > until else self.now

    def _step(self, task: Task) -> None:
        process = task.process
        if self.process is not process:
            self.process = process
            self.on_switch(process)
        self.task = task
        self.steps += 1
        cancelled = process.has_cancelled and not task.shielded and task.is_to_be_cancelled()
        task.turn += 1
        task.shielded = True
        try:
            trap = task.coroutine.throw(Cancelled()) if cancelled else task.coroutine.send(None)
        except StopIteration:
            self._ended(task, None)
        except BaseException as error:
            self._ended(task, error)
        else:
            if not process.is_dead:
                task.shielded = trap.shielded
                if process.has_cancelled and not trap.shielded and task.is_to_be_cancelled():
                    self.wake(task, task.turn)
            elif task.is_done:
                with self.running(process):
                    _end(task.coroutine)
        finally:
            self.task = self.process = None

    def _ended(self, task: Task, error: BaseException | None) -> None:
        process = task.process
        task.is_done = True
        if process.is_dead:
            return
        if isinstance(error, Killed):
            raise RuntimeError("a process that lives was refused as dead") from error
        process.tasks.remove(task)
        if task.nursery is not None:
            task.nursery.child_ended(task, error)
        else:
            process.die()
            process.on_end(error)
