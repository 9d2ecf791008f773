"""How much memory processes have of their own: for tests and benchmarks of what must stay bounded.

Guarantees: what is counted is anonymous memory (RssAnon): neither the mapped pools nor files. Refuses to know: what the
processes do.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path


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
