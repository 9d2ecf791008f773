"""Who keeps a region's WAL from being checkpointed, told from SQLite's wal-index without a lock and without an open.

    bytes of the -shm file (sqlite.org/walformat.html)
    0 - 47, again 48 - 95    header: word 4 mxFrame, 16 bits at 14 the page size, words 8 and 9 the WAL's salts
    96 - 119                 nBackfill, then five read marks
    120 - 127                locks: reader i holds byte 123 + i; slot 0 is for readers of the database alone

Guarantees: takes no lock, opens and closes no file of the region, writes nothing. It reads through the descriptor that
SQLite itself holds in this process: closing another one would drop the locks of all its connections (POSIX locks belong
to a process). A reader is called a hindrance only if it is there at two looks and the checkpoint has not moved between
them.
Leaves to others: what a status says of it; what is in the WAL.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

PINNED_BYTES: Final = 128 * 1024 * 1024
"""WAL written since a reader began, and not checkpointed, from which on the reader is named: twice what an applier
leaves between its checkpoints."""
LOOK_AGAIN_S: Final = 0.25
_HEADER: Final = struct.Struct("=12xB1xHI")
"""isInit, page size, mxFrame."""
_CHECKPOINT: Final = struct.Struct("=6I")
_HEADER_BYTES: Final = 48
_SALTS: Final = slice(32, 40)
_READ_LOCK: Final = 123
_UNUSED_MARK: Final = 0xFFFFFFFF
_FRAME_HEADER_BYTES: Final = 24
_FLOCK: Final = struct.Struct("@hhqqi4x")


class Reader(Struct, frozen=True):
    """A process that reads a snapshot. `pid` is 0 where the kernel does not tell (another PID namespace)."""

    slot: int
    pid: int
    mark: int

    @property
    def text(self) -> str:
        """For an operator: the process, and its name where it can be seen."""
        if self.pid <= 0:
            return "a process"
        with suppress(OSError):
            name = Path(f"/proc/{self.pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
            return f"process {self.pid} ({name})"
        return f"process {self.pid}"


class WalState(Struct, frozen=True):
    """The WAL at one moment: its frames, how many are in the database already, and who reads which snapshot."""

    frames: int
    backfilled: int
    page_bytes: int
    readers: tuple[Reader, ...]

    @property
    def pending_bytes(self) -> int:
        """What the next checkpoint has to do."""
        return self._bytes(self.frames - self.backfilled)

    def hindrances(self) -> tuple[Reader, ...]:
        """The readers that began PINNED_BYTES of WAL ago, or more, with what is not checkpointed after them."""
        if self.pending_bytes < PINNED_BYTES:
            return ()
        return tuple(r for r in self.readers if self._bytes(self.frames - r.mark) >= PINNED_BYTES)

    def _bytes(self, frames: int) -> int:
        return max(0, frames) * (self.page_bytes + _FRAME_HEADER_BYTES)


def read_wal_state(path: str | os.PathLike[str]) -> WalState | None:
    """The state of the WAL of the database at `path`. Call it while this process has a connection to it that has read.

    None when it cannot be told: no connection here has its -shm file open, or the header is being written.
    """
    fd = descriptor_of(f"{os.fspath(path)}-shm")
    if fd is None:
        return None
    try:
        data = os.pread(fd, 2 * _HEADER_BYTES + _CHECKPOINT.size, 0)
        first, second = data[:_HEADER_BYTES], data[_HEADER_BYTES : 2 * _HEADER_BYTES]
        if len(data) < 2 * _HEADER_BYTES + _CHECKPOINT.size or first != second:
            return None
        is_made, page, frames = _HEADER.unpack_from(first)
        backfilled, *marks = _CHECKPOINT.unpack_from(data, 2 * _HEADER_BYTES)
        if not is_made:
            return None
        # Slot 0's readers see the database as it is without the WAL: they stand at what is in it already.
        marks[0] = backfilled
        readers = tuple(
            Reader(slot, pid, mark)
            for slot, mark in enumerate(marks)
            if mark != _UNUSED_MARK and (pid := _holder(fd, _READ_LOCK + slot)) is not None
        )
    except OSError:
        return None
    page_bytes = 65536 if page == 1 else page
    return WalState(frames, backfilled, page_bytes, readers)


class WalHeader(Struct, frozen=True):
    """Which WAL is in force: `salts` stand in each of its frames, `frames` of them are committed, `backfilled` of these
    are in the database already."""

    salts: bytes
    frames: int
    backfilled: int
    page_bytes: int


def read_wal_header(path: str | os.PathLike[str]) -> WalHeader | None:
    """The WAL of the database at `path`, as its wal-index tells; None as in `read_wal_state`."""
    fd = descriptor_of(f"{os.fspath(path)}-shm")
    try:
        data = os.pread(fd, 2 * _HEADER_BYTES + 4, 0) if fd is not None else b""
    except OSError:
        return None
    first = data[:_HEADER_BYTES]
    if len(data) < 2 * _HEADER_BYTES + 4 or first != data[_HEADER_BYTES : 2 * _HEADER_BYTES]:
        return None
    is_made, page, frames = _HEADER.unpack_from(first)
    (backfilled,) = struct.unpack_from("=I", data, 2 * _HEADER_BYTES)
    if not is_made:
        return None
    return WalHeader(first[_SALTS], frames, backfilled, 65536 if page == 1 else page)


def find_hindrances(path: str | os.PathLike[str]) -> tuple[WalState | None, tuple[Reader, ...]]:
    """The state, and the readers that keep the WAL from being checkpointed; waits LOOK_AGAIN_S if there may be one."""
    state = read_wal_state(path)
    if state is None or not (suspects := state.hindrances()):
        return state, ()
    time.sleep(LOOK_AGAIN_S)
    later = read_wal_state(path)
    if later is None or later.backfilled != state.backfilled or later.frames < state.frames:
        return later or state, ()
    still = later.hindrances()
    return later, tuple(reader for reader in suspects if reader in still)


def descriptor_of(path: str) -> int | None:
    """SQLite's own descriptor of the file in this process; None: there is none. Read through it, and never close it."""
    try:
        wanted = os.stat(path, follow_symlinks=False)
        numbers = [int(entry) for entry in os.listdir("/proc/self/fd")]
    except OSError:
        return None
    for number in numbers:
        with suppress(OSError):  # closed meanwhile, such as the one that listed them
            facts = os.fstat(number)
            if (facts.st_dev, facts.st_ino) == (wanted.st_dev, wanted.st_ino):
                return number
    return None


def _holder(fd: int, offset: int) -> int | None:
    """Which other process holds a lock on the byte; None: nobody. Asks, takes none."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(0, pid)
