"""What the kernel says of the life of a process.

Guarantees: a process that has ended, and was not fetched by its parent yet, reads as ended; so does a number that is
nobody's. Takes no lock, and asks /proc alone.
Leaves to others: whose process it is (daemon/lock_file.py).
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

_ENDED: Final = frozenset("ZX")
_PF_EXITING: Final = 0x4
"""Of the kernel's flags of a task."""
_KILL_BIT: Final = 1 << (signal.SIGKILL - 1)


def is_ended(pid: int) -> bool:
    """Whether there is no such process, or only what its parent still has to fetch."""
    fields = _stat(pid)
    return not fields or fields[0] in _ENDED


def is_ending(pid: int) -> bool:
    """Whether the process has ended, ends now, or was killed and will: it does nothing of its own any more."""
    fields = _stat(pid)
    return not fields or fields[0] in _ENDED or bool(int(fields[6]) & _PF_EXITING) or _is_killed(pid)


def _stat(pid: int) -> list[str]:
    """The fields of its `stat` from the state on; none for no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _is_killed(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return True
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask & _KILL_BIT for mask in pending)
