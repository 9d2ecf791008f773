"""Writes one packet: whole and durable under its own name, or nothing of it is left.

Guarantees: one pass, bounded memory; written aside, fsynced, renamed, directory fsynced. No file that was there when
it began is replaced.
Refuses to know: what goes into it (export.py), and how it is signed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

from replicate.errors import AlreadyExistsError, InternalError
from replicate.limits import MIB
from replicate.system.failpoint import hit
from replicate.system.files import sync_directory
from replicate.system.os_errors import io_error
from replicate.transfer.packet.format import (
    PACKET,
    PIECE_BYTES,
    VERSION,
    PacketRecord,
    PacketSummary,
    SegmentPart,
    Signature,
    pack_end,
    pack_piece,
)
from replicate.transfer.records import HEAD_BYTES
from replicate.wire.compression import Compressor

SYNC_BYTES: Final = 32 * MIB
PART_SUFFIX: Final = ".part"
PIECE_OVERHEAD_BYTES: Final = HEAD_BYTES + 4

Seal = Callable[[bytes], Iterator[bytes]]
"""Makes of a whole packet the file that its target alone reads."""
Sign = Callable[[bytes], Signature | None]
"""Signs the body of the summary; None where nothing is signed here."""


def unsigned(_body: bytes) -> None:
    """Signs nothing."""


class PacketWriter:
    """One packet in the making. As a context manager: removed unless finished."""

    def __init__(self, path: Path, seal: Seal | None = None) -> None:
        """`seal`: what is written is kept in memory, and only what this makes of it is on the disk.

        AlreadyExistsError when there is such a file; NotFoundError, DiskFullError, JournalIOError."""
        self.path = path
        self._seal = seal
        self._plain = bytearray()
        self.aside = path.with_name(f".{path.name}{PART_SUFFIX}")
        """Where it is written. What a killed writer left there is replaced."""
        self.written_bytes = 0
        self._synced_bytes = 0
        self._digest = hashlib.sha256()
        self._compressor = Compressor()
        if path.exists() or path.is_symlink():
            raise AlreadyExistsError("the file exists already", where=str(path), do="Name another, or remove it")
        try:
            self.aside.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self.aside, flags, 0o600)
        except OSError as error:
            raise io_error(error, "the packet could not be made", str(path)) from error
        self._write([PACKET.pack_prefix(VERSION)])

    def __enter__(self) -> PacketWriter:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.aside.unlink(missing_ok=True)

    def segment(self, part: SegmentPart) -> None:
        """What follows is of this segment."""
        self._record(PacketRecord.SEGMENT, part.pack())

    def piece(self, data: bytes) -> None:
        """The next bytes of the segment: at most PIECE_BYTES."""
        if not 0 < len(data) <= PIECE_BYTES:
            raise InternalError(f"a piece of {len(data)} bytes")
        self._record(PacketRecord.PIECE, *pack_piece(len(data), self._compressor.compress(data) or data))

    def finish(self, summary: PacketSummary, sign: Sign = unsigned) -> PacketSummary:
        """End it, sync it and give it its name; the summary as it stands there. What `sign` raises, DiskFullError,
        JournalIOError: there is no file of that name then."""
        whole = replace(summary, digest=self._digest.digest())
        position, body = self.written_bytes, whole.pack()
        seal = self._seal
        self._record(PacketRecord.SUMMARY, body)
        if (signature := sign(body)) is not None:
            self._record(PacketRecord.SIGNATURE, signature.pack())
        self._record(PacketRecord.END, pack_end(position))
        if seal is not None:
            plain, self._seal, self.written_bytes = bytes(self._plain), None, 0
            self._plain.clear()
            for piece in seal(plain):
                self._write([piece])
        try:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
            hit("packet.before_rename")
            os.rename(self.aside, self.path)  # no link: a removable disk may know none
        except OSError as error:
            self.aside.unlink(missing_ok=True)
            raise io_error(error, "the packet could not be finished", str(self.path)) from error
        sync_directory(os.fspath(self.path.parent))
        return whole

    def _record(self, kind: PacketRecord, *body: bytes) -> None:
        self._write(PACKET.pack_record(kind, self.written_bytes, *body))

    def _write(self, pieces: list[bytes]) -> None:
        try:
            hit("packet.write")
            for piece in pieces:
                view = memoryview(piece)
                if self._seal is not None:
                    self._plain += view
                    view = view[:0]
                while view:
                    view = view[os.write(self._fd, view) :]
                self._digest.update(piece)
                self.written_bytes += len(piece)
            if self.written_bytes - self._synced_bytes >= SYNC_BYTES:
                os.fdatasync(self._fd)
                self._synced_bytes = self.written_bytes
        except OSError as error:
            raise io_error(error, "the packet could not be written and was removed", str(self.path)) from error
