"""A file that is written aside of its name: seed files and packets.

Guarantees: under its own name it is whole and durable (synced, renamed, its directory synced); after a failure nothing
of it is left, and what a killed writer left aside is replaced.
Leaves to others: what is written, and whether a file of that name may be replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from replicate.limits import MIB
from replicate.system.files import sync_directory
from replicate.system.os_errors import io_error

SYNC_BYTES: Final = 32 * MIB
"""Synced this often while it is written, so that the last sync, which cannot be interrupted, is short."""
PART_SUFFIX: Final = ".part"


class AsideFile:
    """One file in the making. `abandon` or `finish` ends it; `abandon` does nothing after either."""

    def __init__(self, path: Path, what: str) -> None:
        """`what`: its kind, in errors. NotFoundError, DiskFullError, JournalIOError."""
        self.path = path
        self._what = what
        self._aside = path.with_name(f".{path.name}{PART_SUFFIX}")
        self._unsynced_bytes = 0
        try:
            self._aside.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._aside, flags, 0o600)
        except OSError as error:
            raise io_error(error, f"the {what} could not be made", str(path)) from error

    def write(self, pieces: Iterable[bytes], reached: Callable[[], None]) -> None:
        """Append them. `reached`: the failpoint of writing. DiskFullError, JournalIOError; only `abandon` is left."""
        try:
            reached()
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(self._fd, view) :]
                self._unsynced_bytes += len(piece)
            if self._unsynced_bytes >= SYNC_BYTES:
                os.fdatasync(self._fd)
                self._unsynced_bytes = 0
        except OSError as error:
            raise io_error(error, f"the {self._what} could not be written and was removed", str(self.path)) from error

    def finish(self, reached: Callable[[], None]) -> None:
        """Sync it and give it its name; there is no file of that name after a failure, but one that fails to sync the
        directory. `reached`: the failpoint before the name. No link is made: a removable disk may know none."""
        try:
            os.fsync(self._fd)
            self._close()
            reached()
            os.rename(self._aside, self.path)
        except OSError as error:
            self._aside.unlink(missing_ok=True)
            raise io_error(error, f"the {self._what} could not be finished", str(self.path)) from error
        sync_directory(os.fspath(self.path.parent))

    def abandon(self) -> None:
        """Remove what is written."""
        if self._fd >= 0:
            self._close()
            self._aside.unlink(missing_ok=True)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)
