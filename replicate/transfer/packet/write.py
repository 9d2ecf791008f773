"""Writes one packet: whole and durable under its own name, or nothing of it is left.

Guarantees: those of ../unfinished_file.py; one pass, with bounded memory, also where it is sealed: then nothing of it
is on the disk but that. No file that was there when it began is replaced.
Leaves to others: what goes into it (export.py), and how it is signed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from replicate.errors import AlreadyExistsError, InternalError
from replicate.system.failpoint import hit
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
from replicate.transfer.packet.sealed import PacketSealer
from replicate.transfer.records import HEAD_BYTES
from replicate.transfer.unfinished_file import AsideFile
from replicate.wire.compression import Compressor

PIECE_OVERHEAD_BYTES: Final = HEAD_BYTES + 4

Sign = Callable[[bytes], Signature | None]
"""Signs the body of the summary; None where nothing is signed here."""


def unsigned(_body: bytes) -> None:
    """Signs nothing."""


class PacketWriter:
    """One packet in the making. As a context manager: removed unless finished."""

    def __init__(self, path: Path, sealer: PacketSealer | None = None, version: int = VERSION) -> None:
        """`sealer`: only what this makes of the packet is on the disk. `version`: as the summary's.

        AlreadyExistsError when there is such a file; NotFoundError, DiskFullError, JournalIOError."""
        self.path = path
        self.written_bytes = 0
        """Of the packet; when it is finished, of its file, which is longer where it is sealed."""
        self._sealer = sealer
        self._file_bytes = 0
        self._digest = hashlib.sha256()
        self._compressor = Compressor()
        if path.exists() or path.is_symlink():
            raise AlreadyExistsError("the file exists already", where=str(path), do="Name another, or remove it")
        self._file = AsideFile(path, "packet")
        try:
            if sealer is not None:
                self._put([sealer.begin()])
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
        if self._sealer is not None:
            self._put([self._sealer.end()])
        self._file.finish(lambda: hit("packet.before_rename"))
        self.written_bytes = self._file_bytes
        return whole

    def _record(self, kind: PacketRecord, *body: bytes) -> None:
        self._write(PACKET.pack_record(kind, self.written_bytes, *body))

    def _write(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._digest.update(piece)
            self.written_bytes += len(piece)
        self._put(pieces if self._sealer is None else self._sealer.add(b"".join(pieces)))

    def _put(self, pieces: Iterable[bytes]) -> None:
        """Into the file."""
        made = list(pieces)
        self._file.write(made, lambda: hit("packet.write"))
        self._file_bytes += sum(map(len, made))
