"""Room that is kept beside the journal for its first full disk: a file of that size, which holds nothing.

    JOURNAL/reserve    as large as journal.reserve_bytes: kept; empty: given up

Guarantees: it is given up whole, once, by the process that meets the full disk while it appends (it has the commit
lock): so commits go on, and `status` says it. A kill at any step leaves room, never harm. It is made again when there
is twice as much room, and never takes the last of it.
Leaves to others: who keeps it up (door/pruning.py, on its rounds), who gives it up (door/door.py). On a file system
that does not free what a file gives up (with snapshots, say), it brings nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from replicate.system.failpoint import hit

NAME: Final = "reserve"
ROOM: Final = 2
"""So many times its size must be free before it is made."""


def keep(directory: str | os.PathLike[str], wanted_bytes: int) -> None:
    """Have it that large; 0: have none. One process at a time. Nothing happens where there is no room for it, or the
    disk refuses it: it is only a reserve."""
    path = os.path.join(directory, NAME)
    with suppress(OSError):
        size = reserved_bytes(directory)
        if size == wanted_bytes or (size is None and not wanted_bytes):
            return
        if not wanted_bytes:
            os.unlink(path)
            return
        free = os.statvfs(directory)
        if free.f_bavail * free.f_frsize < ROOM * wanted_bytes:
            return
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, 0)
            hit("reserve.emptied")
            try:
                os.posix_fallocate(fd, 0, wanted_bytes)
            except OSError:
                os.ftruncate(fd, 0)
                raise
            hit("reserve.made")
            os.fsync(fd)
        finally:
            os.close(fd)


def give_up(directory: str | os.PathLike[str]) -> bool:
    """Whether there was a reserve, whose room is free now. False, too, where it cannot be given up. The caller has the
    commit lock."""
    try:
        fd = os.open(os.path.join(directory, NAME), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not os.fstat(fd).st_size:
            return False
        os.ftruncate(fd, 0)
        hit("reserve.given_up")
        os.fsync(fd)  # blocks are free when that is on the disk
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def reserved_bytes(directory: str | os.PathLike[str]) -> int | None:
    """How much is kept: 0 where it was given up, None where none was ever made. Raises OSError."""
    try:
        return os.stat(os.path.join(directory, NAME), follow_symlinks=False).st_size
    except FileNotFoundError:
        return None
