"""Having the daemons of an instance stand aside: each ends its work, gives up its lock, and goes on when it is asked no
more, in the same process. So a role may be gone back on under systemd, which sees nobody end.

    asked_aside(…)      one process asks, for the length of a block, and waits for the daemons' locks
    (roles/daemons_down.py) is_asked_aside(…)   each daemon looks, from time to time, whether all are asked, or it alone
    (daemon.py)

Guarantees: nobody is asked any more once the process that asked has ended, however that was; a question takes nothing
that keeps another process from asking for longer than an instant.
Leaves to others: what is done meanwhile.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replicate.system.locks import FileLock


def _name(daemon: str) -> str:
    return f"aside-{daemon}.lock" if daemon else "aside.lock"


@contextmanager
def asked_aside(instance_path: Path, timeout_s: float, *, daemon: str = "") -> Iterator[None]:
    """`daemon`: which one, "": all. BusyError when another process asks for longer than `timeout_s` seconds."""
    lock = FileLock(instance_path / "locks" / _name(daemon))
    try:
        lock.acquire(timeout_s, what="the wish that daemons stand aside")
        yield
    finally:
        lock.close()


def is_asked_aside(instance_path: Path, daemon: str) -> bool:
    """Whether a process asks `daemon` now. What cannot be read asks nothing."""
    return any(_is_held(instance_path / "locks" / _name(name)) for name in ("", daemon))


def _is_held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: those that look do not see one another
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
