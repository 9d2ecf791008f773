"""The sidecar beside the journal that remembers the last durable seqno, so that damage can be told from a torn tail.

    slot 0 at offset 0, 1 at 512:  "DSD" · format u8 · seqno u64 · counter u64 · boot u64 · crc32c u32     (32 bytes)

Written after each group's fdatasync into the slot that is *not* the newer one, without an fsync: it may lag after a
power loss, a harmless lower bound, and must not cost a second fsync a group. `sync` at a switch or a stop; a recovery
has both slots on the disk (`settle`). `boot` tells recovery whether the machine was restarted since (boot.py). Odd
counters stand in slot 0, even ones in slot 1, so the counter of the last write tells where the next one goes.

Guarantees: a reader gets the newer of two whole slots; a half written one is never taken for a number. `write` never
lowers the number; only `reset` does.
Leaves to others: what durable means (the caller has synced the journal before).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from crc32c import crc32c

from replicate.errors import DamagedError, FormatUnknownError, JournalDamagedError, JournalIOError, JournalMissingError
from replicate.system.boot import boot_word
from replicate.system.files import replace_file, write_all
from replicate.system.os_errors import refuse_os_error

SIDECAR_NAME: Final = "durable"
_MAGIC: Final = b"DSD"
DURABLE_FORMAT: Final = 1
_SLOT: Final = struct.Struct(">3sBQQQI")
_BODY: Final = struct.Struct(">3sBQQQ")
_SLOT_OFFSETS: Final = (0, 512)
_FILE_BYTES: Final = 1024
_COUNTER_MAX: Final = 2**63
"""Nobody has counted that far: a slot that says so was not written by us."""
_BOOT: Final = boot_word()

assert _SLOT.size == 32


def _pack(seqno: int, counter: int) -> bytes:
    body = _BODY.pack(_MAGIC, DURABLE_FORMAT, seqno, counter, _BOOT)
    return body + crc32c(body).to_bytes(4, "big")


def _unpack(data: bytes, offset: int, where: str) -> tuple[int, int, int] | None:
    """(counter, seqno, boot) of one slot; None when it is not whole. FormatUnknownError of another format."""
    slot = data[offset : offset + _SLOT.size]
    if len(slot) < _SLOT.size:
        return None
    magic, number, seqno, counter, boot, check = _SLOT.unpack(slot)
    if magic != _MAGIC or crc32c(slot[:-4]) != check:
        return None
    if number != DURABLE_FORMAT:
        raise FormatUnknownError(
            f"the durable mark has format {number}, this release knows {DURABLE_FORMAT}",
            where=where,
            do="Use the release that wrote it, or a newer one",
        )
    return (counter, seqno, boot) if counter < _COUNTER_MAX else None


def durable_seqno(directory: str) -> int:
    """What the sidecar in a journal's directory tells; 0, one witness less, where it cannot be read.

    DiskFullError or JournalIOError."""
    sidecar = DurableSidecar(os.path.join(directory, SIDECAR_NAME), writable=False)
    try:
        return sidecar.read()
    except DamagedError:
        return 0
    finally:
        sidecar.close()


class DurableSidecar:
    """The sidecar at `path`, opened at its first use. Several processes may hold one; writers need no lock (`write`).

    `writable`: False for a process that only reads it, which a copy of a journal on a read-only mount, or another's,
    lets do. `words`, `counter_at`, `seqno_at`: control words, and in which of them all writers of this file, one at a
    time, keep its counter (0: nobody has) and its number: so these are known without reading the file.

    Any method: JournalMissingError when the file is not there (removed, or only a part of the instance was restored),
    DiskFullError or JournalIOError.
    """

    __slots__ = ("_counter_at", "_fd", "_mode", "_seqno_at", "_words", "path")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        writable: bool = True,
        words: memoryview | None = None,
        counter_at: int = 0,
        seqno_at: int = 1,
    ) -> None:
        self.path = os.fspath(path)
        self._fd = -1
        self._mode = os.O_RDWR if writable else os.O_RDONLY
        self._words = words
        self._counter_at = counter_at
        self._seqno_at = seqno_at

    @classmethod
    def create(cls, path: str | os.PathLike[str], seqno: int = 0) -> DurableSidecar:
        """Make (or replace) the sidecar, durable, with `seqno` in it. Raises as `replace_file`."""
        image = _pack(seqno, 1).ljust(_SLOT_OFFSETS[1], b"\0") + _pack(seqno, 0)
        replace_file(Path(path), image.ljust(_FILE_BYTES, b"\0"))
        return cls(path)

    def _open(self) -> int:
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, self._mode | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                raise JournalMissingError(
                    "the journal's durable mark is not there",
                    where=self.path,
                    do="Restore the file with the journal; without it a torn tail cannot be told from damage",
                ) from None
            except OSError as error:
                refuse_os_error(error, "opening the durable mark failed", self.path)
        return self._fd

    def close(self) -> None:
        """Let go of the descriptor. May be called again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _newest(self) -> tuple[int, int, int, int]:
        """(counter, seqno, boot, index of the slot)."""
        fd = self._open()
        try:
            data = os.pread(fd, _FILE_BYTES, 0)
        except OSError as error:
            refuse_os_error(error, "reading the durable mark failed", self.path)
        slots = [
            (*found, index)
            for index, offset in enumerate(_SLOT_OFFSETS)
            if (found := _unpack(data, offset, self.path)) is not None
        ]
        if not slots:
            raise JournalDamagedError(
                "neither half of the durable mark verifies",
                where=self.path,
                do="Run `replicate -i INSTANCE journal verify`; without it a torn tail cannot be told from damage",
            )
        return max(slots)

    def read(self) -> int:
        """The last durable seqno that was written. JournalDamagedError (neither slot is whole), FormatUnknownError."""
        return self._newest()[1]

    def counter(self) -> int:
        """How often it was written, at least; never lower than a control word said before. Raises as `read` does."""
        return self._newest()[0]

    def is_of_this_boot(self) -> bool:
        """True when the mark was written since the machine was started: nothing can have been lost to a power cut."""
        return self._newest()[2] == _BOOT

    def write(self, seqno: int) -> None:
        """Remember that everything up to `seqno` is durable; nothing happens when a higher number stands there.

        Two processes that write at once may leave the lower of their numbers: it stays a lower bound. Not synced.
        DiskFullError or JournalIOError: the number before is still there.
        """
        words = self._words
        counter = words[self._counter_at] if words is not None else 0
        if words is not None and counter:
            known, index = words[self._seqno_at], (counter + 1) % 2
        else:
            counter, known, _, index = self._newest()
        if seqno > known:
            counter += 1 if counter % 2 == 1 - index else 2  # 2: in this file they stand the other way round
            self._store(seqno, counter, 1 - index)
            if words is not None:
                words[self._seqno_at] = seqno
                words[self._counter_at] = counter  # last: after an old one, the same slot is written once more

    def settle(self, seqno: int) -> None:
        """As `write`, of this boot, and both slots are on the disk. After a sync that failed the newer one may be torn
        there, and whole in memory: it is stored once more, before the other one is touched."""
        counter, known, _, index = self._newest()
        self._store(known, counter, index)
        self.sync()
        self._store(max(known, seqno), counter + 1, 1 - index)
        self.sync()

    def reset(self, seqno: int) -> None:
        """Set the number, lower if need be (after a rollback), in both slots, and sync."""
        counter, _, _, index = self._newest()
        self._store(seqno, counter + 1, 1 - index)
        self.sync()
        self._store(seqno, counter + 2, index)
        self.sync()

    def _store(self, seqno: int, counter: int, index: int) -> None:
        fd = self._fd if self._fd >= 0 else self._open()
        try:
            write_all(fd, _pack(seqno, counter), _SLOT_OFFSETS[index])
        except OSError as error:
            refuse_os_error(error, "writing the durable mark failed", self.path)

    def sync(self) -> None:
        """fdatasync, at a switch and at a stop. JournalIOError: not retried; the journal itself is well."""
        fd = self._open()
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise JournalIOError(
                f"fsync of the durable mark failed: {error.strerror}", where=self.path, errno=error.errno
            ) from error
