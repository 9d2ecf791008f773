"""The standard library's sqlite3, in a process of its own, and for which release it speaks.

Guarantees: nothing of ours is in that process but what a step does (as_sqlite3_side.py); its death by a signal is
`Died`, with the step that it died at, and the next program has a new one; any other end of it is an error of the
harness. Leaves to others: what it should have answered.
"""

from __future__ import annotations

import contextlib
import faulthandler
import pickle
import signal
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.as_sqlite3_programs import Program, Step
from tests.fuzz.as_sqlite3_side import Seen, Side, registered
from tests.harness.conversation import Conversation, serve


class Died(Exception):
    """The standard library's module, not ours, has ended its process; the text says where."""


@dataclass(frozen=True, slots=True)
class Release:
    """What the reference speaks for."""

    python: tuple[int, int, int]
    sqlite: tuple[int, int, int]

    def __str__(self) -> str:
        return "sqlite3 of Python {}.{}.{} with SQLite {}.{}.{}".format(*self.python, *self.sqlite)


class Reference:
    """Such a process, as the other side of one program after the other."""

    def __init__(self) -> None:
        self._conversation = Conversation(__name__)
        self.release = Release(*self._conversation.ask("release"))

    @property
    def pid(self) -> int:
        """Of the process that is asked next."""
        return self._conversation.pid

    def open(self, path: Path, program: Program) -> None:
        """Make the program's database at `path`, and a connection to it; that of the program before is closed."""
        self._ask("open", (str(path), program.script, program.options))

    def perform(self, step: Step) -> Seen:
        """What comes of a step. Died."""
        seen: Seen = self._ask("perform", step)
        return seen

    def rollback(self) -> None:
        """Roll back what is open."""
        self._ask("rollback")

    def close(self) -> None:
        """End the process."""
        self._conversation.close()

    def _ask(self, request: str, argument: Any = None) -> Any:
        try:
            return self._conversation.ask(request, argument)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            code = self._conversation.close()
            self._conversation = Conversation(__name__)
            if code >= 0:
                raise AssertionError(f"the reference ended with exit code {code} at {request} {argument}") from None
            raise Died(f"{self.release} died of {signal.Signals(-code).name} at {argument}") from None


class _Process:
    """The process's own side."""

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._side: Side | None = None

    def answer(self, request: str, argument: Any) -> Any:
        """One request."""
        if request == "release":
            return sys.version_info[:3], sqlite3.sqlite_version_info
        if request == "open":
            path, script, options = argument
            if self._connection is not None:
                self._connection.close()
            with contextlib.closing(sqlite3.connect(path)) as made:
                made.execute("PRAGMA journal_mode = WAL")
                made.executescript(script)
            self._connection = sqlite3.connect(path, **options)
            self._side = Side(self._connection)
            return None
        assert self._connection is not None
        assert self._side is not None
        if request == "perform":
            return self._side.perform(argument)
        assert request == "rollback"
        return self._connection.rollback()


if __name__ == "__main__":
    faulthandler.enable()
    with registered():
        serve(_Process().answer)
