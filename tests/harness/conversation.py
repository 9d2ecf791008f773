"""A process of a test that answers requests, pickled, on its standard streams.

Guarantees: a request is answered before the next one is read; the process ends when its other side is closed, or dies.
Leaves to others: what is asked.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness import fork_server

ROOT = Path(__file__).resolve().parents[2]


class Conversation:
    """Such a process, which runs `module`."""

    def __init__(self, module: str) -> None:
        self._process = fork_server.popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, request: str, argument: Any = None) -> None:
        """Ask without waiting for the answer."""
        assert self._process.stdin is not None
        pickle.dump((request, argument), self._process.stdin)
        self._process.stdin.flush()

    def answer(self) -> Any:
        """The next answer."""
        assert self._process.stdout is not None
        return pickle.load(self._process.stdout)

    def ask(self, request: str, argument: Any = None) -> Any:
        """One request and its answer."""
        self.send(request, argument)
        return self.answer()

    def close(self) -> int:
        """End the process; its exit code, below 0 when a signal has ended it."""
        self._process.communicate()
        return self._process.returncode


def tell(answer: Any) -> None:
    """The process's own side: give an answer."""
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def serve(answer: Callable[[str, Any], Any]) -> None:
    """The process's own side: answer all requests, until there are no more."""
    while True:
        try:
            request, argument = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        tell(answer(request, argument))
