"""A connection of a differential program in a process of its own.

Guarantees: what a step does is done by tests/harness/sql_calls.py, here as there; a process that was killed is followed
by a fresh one within milliseconds (a mother that has imported everything, and has nothing open, forks it).
Leaves to others: what outcomes should be.

As a program: serves requests, pickled, on the standard streams.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from replicate import connect
from tests.harness.conversation import Conversation, serve, tell
from tests.harness.sql_calls import CONNECTIONS, Calls, Failure, Outcome
from tests.harness.sql_programs import Step


class Worker(Conversation):
    """One such process, for many programs."""

    def __init__(self) -> None:
        super().__init__("tests.harness.sql_worker")
        self._pid = int(self.answer())

    def kill(self) -> None:
        """SIGKILL. A fresh process, without a connection, is there when this returns."""
        os.kill(self._pid, signal.SIGKILL)
        self._pid = int(self.answer())


class RemoteCalls:
    """As sql_calls.Calls, with each connection in a worker of its own."""

    def __init__(self, workers: Sequence[Worker], path: Path, pragmas: tuple[str, ...]) -> None:
        self._workers = workers
        self._pragmas = pragmas
        self._path = path
        self.error: Failure | None = None
        """What the last step raised."""
        for number in range(CONNECTIONS):
            self._open(number)

    def _open(self, number: int) -> None:
        begin = (str(self._path), os.environ["REPLICATE_SHM_DIR"], self._pragmas, number)
        self._workers[number].ask("begin", begin)

    def close(self) -> None:
        """Close all."""
        for worker in self._workers:
            worker.ask("close")

    def perform(self, step: Step) -> Outcome:
        """Run one step: what came of it, and whether a transaction is open then."""
        if step.kind == "kill":
            self._workers[step.connection].kill()
            self._open(step.connection)
            self.error = None
            return "done", False
        outcome: Outcome
        outcome, self.error = self._workers[step.connection].ask("step", step)
        return outcome

    def roll_back(self, number: int) -> None:
        """Roll back one connection's transaction."""
        self._workers[number].ask("roll back")

    def in_transaction(self, number: int) -> bool:
        """Whether a transaction is open on a connection."""
        return bool(self._workers[number].ask("in transaction"))

    def rows(self, text: str) -> list[Any]:
        """What a query gives on the first connection."""
        found: list[Any] = self._workers[0].ask("rows", text)
        return found


def _failure(error: BaseException | None) -> Failure | None:
    if error is None:
        return None
    return Failure(str(error), getattr(error, "code", None), getattr(error, "sqlite_errorname", None))


class _Served:
    """The connection of the present program."""

    def __init__(self) -> None:
        self._calls: Calls | None = None
        self._number = 0

    def answer(self, request: str, argument: Any) -> Any:
        """One request."""
        if request == "begin":
            path, shm, pragmas, self._number = argument
            os.environ["REPLICATE_SHM_DIR"] = shm
            self._calls = Calls(lambda level: connect(path, timeout=0, isolation_level=level), pragmas, (self._number,))
            return None
        calls = self._calls
        if calls is None:
            raise AssertionError("nothing has begun")
        if request == "step":
            return calls.perform(argument), _failure(calls.error)
        if request == "in transaction":
            return calls.in_transaction(self._number)
        if request == "rows":
            return calls.connections[self._number].execute(argument).fetchall()
        if request == "roll back":
            calls.roll_back(self._number)
        else:
            calls.close()
            self._calls = None
        return None


def main() -> None:
    """Fork what serves, and another one when it was killed."""
    while True:
        pid = os.fork()
        if pid == 0:
            tell(os.getpid())
            serve(_Served().answer)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            sys.exit(os.waitstatus_to_exitcode(status) and 1)


if __name__ == "__main__":
    main()
