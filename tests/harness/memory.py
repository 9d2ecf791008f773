"""How much memory processes have of their own: for tests and benchmarks of what must stay bounded.

Guarantees: of processes that run, what is counted is anonymous memory (RssAnon): neither the mapped pools nor files. Of
a command that is run to its end it is all that was resident at once (ru_maxrss). Leaves to others: what the processes
do.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_LAUNCHER: Final = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(pid, 0)
print(used.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A process begins with the high mark of the one that has started it, and that of pytest is higher than most. So a
small one stands between."""


class Memory(threading.Thread):
    """The most that processes had of their own (RssAnon: neither pools nor mapped files), in MiB, from looks each
    20 ms."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        super().__init__(daemon=True)
        self._pids = pids
        self._stopped = threading.Event()
        self._peaks = dict.fromkeys(pids, 0.0)

    def run(self) -> None:
        while not self._stopped.wait(0.02):
            for name, pid in self._pids.items():
                self._peaks[name] = max(self._peaks[name], anonymous_mib(pid))

    def stop(self) -> dict[str, float]:
        """End the looks; the peak of each process."""
        self._stopped.set()
        self.join()
        return self._peaks


def anonymous_mib(pid: int) -> float:
    """0.0 for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("RssAnon:")), 0.0)


class Ran(NamedTuple):
    """A command that has come to its end well. `lines`: that it has printed; `peak_mib`: most resident at once."""

    lines: int
    peak_mib: float


def ran(command: Sequence[str]) -> Ran:
    """Run a command, whose output is counted and thrown away. AssertionError where it fails."""
    words = [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        count = sum(1 for _ in process.stdout)
        said = process.stderr.read().decode()
    assert process.returncode == 0, said
    return Ran(count, int(said.splitlines()[-1]) / 1024)
