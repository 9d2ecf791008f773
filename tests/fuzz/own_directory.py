"""A directory of this process in memory, and none that outlives it for good.

Guarantees: it is locked (`flock`) as long as this process, or any heir of `fd`, lives; of those that are not,
whose makers were killed, none is left when the next one is made.
Leaves to others: what is in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final

PREFIX: Final = "dualsite-fuzz-"


def base(variable: str) -> Path:
    """Where it belongs: as the environment says, else in memory where that can be."""
    return Path(os.environ.get(variable) or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()))


class OwnDirectory:
    """A new empty directory below `within`; gone with `close`."""

    def __init__(self, within: Path) -> None:
        _remove_left(within)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=within))
            fd = _locked(self.path)
            if fd is not None:
                break  # else another one took it for left behind, between the making and the locking
        self.fd = fd

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.fd)

    def __enter__(self) -> OwnDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _locked(path: Path) -> int | None:
    """Its descriptor; None when it is another's, or gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists():
            return fd
    except BlockingIOError:
        pass
    os.close(fd)
    return None


def _remove_left(within: Path) -> None:
    """Remove those that nobody holds."""
    for path in within.glob(f"{PREFIX}*"):
        fd = _locked(path)
        if fd is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(fd)
