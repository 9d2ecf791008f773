"""Writes one packet: whole and durable under its own name, or nothing of it is left.

Guarantees: those of ../aside_file.py; one pass, with bounded memory but for a packet that is sealed, which is kept
whole until then. No file that was there when it began is replaced.
Refuses to know: what goes into it (export.py), and how it is signed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from replicate.errors import AlreadyExistsError, InternalError
from replicate.system.failpoint import hit
from replicate.transfer.aside_file import AsideFile
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

PIECE_OVERHEAD_BYTES: Final = HEAD_BYTES + 4

Seal = Callable[[bytes], Iterator[bytes]]
"""Makes of a whole packet the file that its target alone reads."""
Sign = Callable[[bytes], Signature | None]
"""Signs the body of the summary; None where nothing is signed here."""


def unsigned(_body: bytes) -> None:
    """Signs nothing."""


class PacketWriter:
    """One packet in the making. As a context manager: removed unless finished."""

    def __init__(self, path: Path, seal: Seal | None = None, version: int = VERSION) -> None:
        """`seal`: what is written is kept in memory, and only what this makes of it is on the disk. `version`: as the
        summary's.

        AlreadyExistsError when there is such a file; NotFoundError, DiskFullError, JournalIOError."""
        self.path = path
        self.written_bytes = 0
        self._seal = seal
        self._plain = bytearray()
        self._digest = hashlib.sha256()
        self._compressor = Compressor()
        if path.exists() or path.is_symlink():
            raise AlreadyExistsError("the file exists already", where=str(path), do="Name another, or remove it")
        self._file = AsideFile(path, "packet")
        try:
            self._write([PACKET.pack_prefix(version)])
        except BaseException:
            self._file.abandon()
            raise

    def __enter__(self) -> PacketWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.abandon()

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
        self._record(PacketRecord.SUMMARY, body)
        if (signature := sign(body)) is not None:
            self._record(PacketRecord.SIGNATURE, signature.pack())
        self._record(PacketRecord.END, pack_end(position))
        if self._seal is not None:
            self.written_bytes = 0
            for piece in self._seal(bytes(self._plain)):
                self._put([piece])
        self._file.finish(lambda: hit("packet.before_rename"))
        return whole

    def _record(self, kind: PacketRecord, *body: bytes) -> None:
        self._write(PACKET.pack_record(kind, self.written_bytes, *body))

    def _write(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._digest.update(piece)
        if self._seal is None:
            self._put(pieces)
        else:
            self._plain += b"".join(pieces)
            self.written_bytes = len(self._plain)

    def _put(self, pieces: list[bytes]) -> None:
        self._file.write(pieces, lambda: hit("packet.write"))
        self.written_bytes += sum(map(len, pieces))
