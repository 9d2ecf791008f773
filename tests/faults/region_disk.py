"""The disk below SQLite in this process: the n-th write, sync or truncation of a region kills us, is torn, or fails.

It is a VFS of our own in place of the default one, so it meets every file that SQLite opens from now on: database, WAL,
temporary file. Guarantees: nothing but the one call that was chosen differs from the real one; `ENOSPC` leaves half of
what was to be written, as a full disk does. Leaves to others: what SQLite writes when.
"""

from __future__ import annotations

import linecache
import mmap
import os
import signal
import sys
import zlib
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import apsw

from replicate.door import door as door_module
from tests.faults.places import PACKAGES

CALLS: Final = ("region write", "region sync", "region truncate")
COUNTED_MAX: Final = 4095
ENDING: Final = ("/replicate/log.py",)
APPENDED: Final = ("append.after_write", "adopt.after_rename")
"""From here on a transaction is in the journal: what SQLite writes next belongs to its COMMIT."""
_CODES: Final = {
    "region write": apsw.SQLITE_IOERR_WRITE,
    "region sync": apsw.SQLITE_IOERR_FSYNC,
    "region truncate": apsw.SQLITE_IOERR_TRUNCATE,
}


_installed: Final[list[apsw.VFS]] = []
"""A VFS that nobody refers to is unregistered."""


class Counted:
    """How often a call came, and from which places in the code; also for who has forked us.

    `place`: what is to happen happens at the first call from there, whatever its number."""

    def __init__(self, place: int = 0) -> None:
        self._place = place
        self._words = memoryview(mmap.mmap(-1, 8 * (2 + COUNTED_MAX))).cast("Q")
        """How many calls, the place of each, and whether the wanted place has come."""

    def next(self, what: str = "") -> int:
        """Count one more, made by the caller's callers; its number."""
        self._words[0] += 1
        number = int(self._words[0])
        if number <= COUNTED_MAX:
            self._words[number] = _place(what)
        return number

    def is_due(self, number: int, wanted: int) -> bool:
        """Whether call `number`, the newest one, is the one where something is to happen: the `wanted`-th, or the first
        from the place."""
        if not self._place:
            return number == wanted
        if self._words[-1] or number > COUNTED_MAX or self._words[number] != self._place:
            return False
        self._words[-1] = 1
        return True

    def has_come(self, wanted: int) -> bool:
        """Whether it has come."""
        return bool(self._words[-1]) if self._place else self.count >= wanted

    @property
    def count(self) -> int:
        return int(self._words[0])

    def places(self) -> dict[int, int]:
        """Every place that a call came from, and the number of the first one."""
        seen: dict[int, int] = {}
        for number in range(1, min(self.count, COUNTED_MAX) + 1):
            seen.setdefault(int(self._words[number]), number)
        return seen


def _place(what: str) -> int:
    """A number for the lines of the product that led here, and `what`. From a file of ENDING on it does not matter who
    called: it passes over every error itself."""
    frame: FrameType | None = sys._getframe(2)
    lines = [what]
    while frame is not None:
        name = frame.f_code.co_filename
        if any(f"/{package}/" in name for package in PACKAGES) and "/tests/" not in name:
            lines.append(f"{name}:{frame.f_lineno}")
            if name.endswith(ENDING):
                break
        frame = frame.f_back
    return zlib.crc32("\n".join(lines).encode())


def _is_closing() -> bool:
    """Whether the product closes a connection just now."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and "/tests/" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and ".close(" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)


class RegionDisk:
    """From now on the `number`-th `call` (of CALLS) to a file whose path begins with `below` comes to `action`: kill,
    torn (half is written, then SIGKILL), EIO, ENOSPC or EROFS. 0: it counts only. `in_commit`: count only from the next
    append to the journal on."""

    def __init__(
        self,
        call: str,
        number: int,
        action: str,
        below: str,
        *,
        counted: Counted | None = None,
        in_commit: bool = False,
    ) -> None:
        assert call in CALLS, call
        self.call, self.number, self.action, self.below = call, number, action, os.path.realpath(below)
        self.counted = counted or Counted()
        self.armed = not in_commit
        _installed.append(_Disk(self))
        if in_commit:
            hit = door_module.hit

            def arming(name: str) -> None:
                self.armed = self.armed or name in APPENDED
                hit(name)

            door_module.hit = arming

    def meet(self, call: str, path: str, half: Callable[[], None]) -> None:
        """Before the real call; `half` does half of it."""
        if not self.armed or call != self.call or not path.startswith(self.below):
            return
        if not self.counted.is_due(self.counted.next(path.rpartition("-")[2]), self.number):
            return
        if self.action not in ("kill", "torn") and _is_closing():
            return  # SQLite passes over it and tells nobody; APSW would raise what is raised here all the same
        if self.action in ("torn", "ENOSPC"):
            half()
        if self.action in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        raise apsw.exception_for(apsw.SQLITE_FULL if self.action == "ENOSPC" else _CODES[call])


class _File(apsw.VFSFile):
    def __init__(self, disk: RegionDisk, below: str, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._path = os.path.realpath(name.filename() if isinstance(name, apsw.URIFilename) else name) if name else ""
        super().__init__(below, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        written = super().xWrite
        self._disk.meet("region write", self._path, lambda: written(data[: len(data) // 2], offset))
        written(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.meet("region sync", self._path, lambda: None)
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self._disk.meet("region truncate", self._path, lambda: None)
        super().xTruncate(size)


class _Disk(apsw.VFS):
    def __init__(self, disk: RegionDisk) -> None:
        self._disk, self._below = disk, apsw.vfs_names()[0]  # the default one comes first
        super().__init__(f"planted-{disk.call}", self._below, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self._disk, self._below, name, flags)
