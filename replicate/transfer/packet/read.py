"""Reads packets: what one says it is, from its end; and then all of it, verified, into files.

Guarantees: only a plain file is opened, and nothing in a packet becomes a path. Its length is that of when it was
opened: what grows meanwhile is damaged. A segment that was unpacked has its length; what does not verify is named with
its offset, and nothing of the packet is to be used then. Memory is bounded by the records' limits.
Leaves to others: whether a packet is for us, from whom one may come, and what comes next.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from replicate.errors import DamagedError, NotFoundError, ProtocolViolationError, UsageError
from replicate.system.os_errors import io_error
from replicate.transfer.packet.format import (
    END_BYTES,
    PACKET,
    PacketRecord,
    PacketSummary,
    SegmentPart,
    Signature,
    unpack_end,
    unpack_piece,
)
from replicate.transfer.packet.sealed import SealedPacket, Unseal, is_sealed
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES, UNREADABLE
from replicate.wire.compression import Decompressor

SUFFIX: Final = ".packet"


class PacketReader:
    """One packet. `summary`, `signature` and `summary_body` are there at once; `verify` and `unpack` read the rest."""

    def __init__(self, path: Path, unseal: Unseal | None = None) -> None:
        """`unseal`: opens what is sealed for us; None: such a packet is refused.

        NotFoundError, UsageError (no plain file; sealed for another), PermissionRefusedError, FormatUnknownError,
        DamagedError, and what `unseal` raises."""
        self.path = path
        self._sealed: SealedPacket | None = None
        self.signature: Signature | None = None
        self._where = str(path)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise NotFoundError(
                "there is no such packet", where=self._where, do="Name a file, or a directory"
            ) from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UsageError("this is a symbolic link", where=self._where, do="Name the packet itself") from None
            raise io_error(error, "the packet cannot be opened", self._where) from error
        try:
            facts = os.fstat(self._fd)
            if not stat.S_ISREG(facts.st_mode):
                raise UsageError("this is no plain file", where=self._where, do="Name the packet itself")
            self.bytes = facts.st_size
            prefix = self._read(0, min(PREFIX_BYTES, self.bytes))
            if is_sealed(prefix):
                prefix = self._open(unseal)
            version = PACKET.check_prefix(prefix, self._where)
            self._summary_position, self.summary_body, self.summary = self._tail()
            if version != self.summary.version:
                raise PACKET.damaged(f"the packet says format {version}, and its summary is another's", 0, self._where)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PacketReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_sealed(self) -> bool:
        """Whether its target alone reads it."""
        return self._sealed is not None

    def close(self) -> None:
        """May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def segments(self) -> Iterator[tuple[SegmentPart, Iterator[bytes]]]:
        """Each segment and its bytes, in order; take all bytes of one before the next. When this ends without an error,
        the whole packet has verified. DamagedError, naming the offset."""
        digest = hashlib.sha256(self._read(0, PREFIX_BYTES))
        position = PREFIX_BYTES
        while position < self._summary_position:
            kind, body, following = self._record(position, digest)
            if kind is not PacketRecord.SEGMENT:
                raise PACKET.damaged(f"a record {kind.name} comes out of its order", position, self._where)
            try:
                part = SegmentPart.unpack(body)
            except UNREADABLE as error:
                raise PACKET.damaged(f"a record SEGMENT makes no sense: {error}", position, self._where) from error
            place = [following]
            yield part, self._pieces(part, place, digest)
            position = place[0]
        if position != self._summary_position or digest.digest() != self.summary.digest:
            raise PACKET.damaged("the packet as a whole does not verify: its digest differs", position, self._where)

    def verify(self) -> tuple[SegmentPart, ...]:
        """Read all of it; what it holds. DamagedError."""
        parts = []
        for part, pieces in self.segments():
            for _ in pieces:
                pass  # each piece is verified as it is read
            parts.append(part)
        return tuple(parts)

    def _pieces(self, part: SegmentPart, place: list[int], digest: hashlib._Hash) -> Iterator[bytes]:
        """The bytes of a segment; `place`: where its first PIECE begins, and at the end what is after the last one."""
        left, unpack = part.size - part.offset, Decompressor()
        while place[0] < self._summary_position:
            position = place[0]
            if PACKET.read_head(self._read(position, HEAD_BYTES), position, self._where).kind is PacketRecord.SEGMENT:
                break
            kind, body, place[0] = self._record(position, digest)
            try:
                if kind is not PacketRecord.PIECE:
                    raise ValueError("it comes out of its order")
                raw_bytes, data = unpack_piece(body)
                if part.size and raw_bytes > left:
                    raise ValueError("the segment is longer than it says")
                piece = data if len(data) == raw_bytes else unpack.decompress(data, raw_bytes)
            except (*UNREADABLE, ProtocolViolationError) as error:
                raise PACKET.damaged(f"a record {kind.name} makes no sense: {error}", position, self._where) from error
            left -= raw_bytes
            yield piece
        goes_on = place[0] == self._summary_position and self.summary.end_inside == part.size - left
        if part.size and left and not goes_on:
            raise PACKET.damaged("a segment ends too early", place[0], self._where)

    def _open(self, unseal: Unseal | None) -> bytes:
        """Read what is sealed instead of the file; how it begins."""
        sealed = SealedPacket(self._raw, self.bytes, self._where)
        if unseal is None:
            raise UsageError(
                f"this packet is sealed for {sealed.target}",
                where=self._where,
                do=f"Look at it there: replicate -i {sealed.target} packet show FILE",
            )
        sealed.open(unseal)
        self._sealed, self.bytes = sealed, sealed.bytes
        return self._read(0, min(PREFIX_BYTES, self.bytes))

    def _tail(self) -> tuple[int, bytes, PacketSummary]:
        if self.bytes < PREFIX_BYTES + END_BYTES:
            raise self._cut()
        position = self.bytes - END_BYTES
        try:
            kind, body, _ = self._record(position)
            if kind is not PacketRecord.END:
                raise DamagedError("it has no end")
            begin = unpack_end(body)
        except UNREADABLE:
            raise self._cut() from None
        if not PREFIX_BYTES <= begin < position:
            raise PACKET.damaged("the end of the packet leads nowhere", position, self._where)
        kind, summary, following = self._record(begin)
        if kind is PacketRecord.SUMMARY and following < position:
            kind, body, following = self._record(following)
            if kind is not PacketRecord.SIGNATURE or following != position:
                raise PACKET.damaged("something is between the summary and the end", following, self._where)
            self.signature = Signature.unpack(body)
        elif kind is not PacketRecord.SUMMARY:
            raise PACKET.damaged("the end of the packet leads to no summary", begin, self._where)
        try:
            return begin, summary, PacketSummary.unpack(summary)
        except DamagedError as error:
            raise PACKET.damaged(error.what, begin, self._where) from error

    def _cut(self) -> DamagedError:
        return PACKET.damaged("the packet was cut, or something is after its end", self.bytes, self._where)

    def _record(self, position: int, digest: hashlib._Hash | None = None) -> tuple[PacketRecord, bytes, int]:
        raw = self._read(position, HEAD_BYTES)
        head = PACKET.read_head(raw, position, self._where)
        body = self._read(position + HEAD_BYTES, head.length)
        PACKET.check_body(head, body, self._where)
        if digest is not None:
            digest.update(raw)
            digest.update(body)
        return head.kind, body, position + HEAD_BYTES + head.length

    def _read(self, position: int, count: int) -> bytes:
        """So many bytes of the packet."""
        if self._sealed is None:
            return self._raw(position, count)
        data = b""
        while len(data) < count:
            piece = self._sealed.read(position + len(data), count - len(data))
            if not piece:
                raise self._cut()
            data = data + piece if data else piece
        return data

    def _raw(self, position: int, count: int) -> bytes:
        """So many bytes of the file."""
        data = b""
        try:
            while len(data) < count:
                piece = os.pread(self._fd, count - len(data), position + len(data))
                if not piece:
                    raise self._cut()
                data = data + piece if data else piece
        except OSError as error:
            raise io_error(error, "the packet could not be read", self._where) from error
        return data


def packets_in(path: Path) -> list[Path]:
    """The files that may be packets: `path` itself, or those of its suffix in the directory `path`, by name.
    NotFoundError when it is not there."""
    if path.is_dir():
        try:
            found = [entry.name for entry in os.scandir(path) if entry.name.endswith(SUFFIX) and entry.name[0] != "."]
        except OSError as error:
            raise io_error(error, "the directory of packets cannot be read", str(path)) from error
        return [path / name for name in sorted(found)]
    if not path.exists() and not path.is_symlink():
        raise NotFoundError("there is no such packet or directory", where=str(path), do="Name a file, or a directory")
    return [path]
