"""The lock of the consumers' positions: a process that reads one, and writes what it makes of it, is alone meanwhile.

Guarantees: it dies with its holder. Leaves to others: what a position says (instance/consumers.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from replicate.system.locks import FileLock

LOCK_TIMEOUT_S: Final = 30.0


@contextmanager
def positions_locked(directory: Path) -> Iterator[None]:
    """Alone with the positions: else a Source Server, say, would undo what a seed has written since it read. BusyError
    when a process that has them stands still."""
    lock = FileLock(directory.parent / "locks" / "consumers.lock")
    try:
        lock.acquire(LOCK_TIMEOUT_S, what="the lock of the consumers' positions")
        yield
    finally:
        lock.close()
