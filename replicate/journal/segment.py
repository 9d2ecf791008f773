"""One journal segment as a file: made durable before its first use, appended to at a given offset, scanned at recovery.

    header (SEGMENT_HEADER_BYTES) · CATALOGUE frame · frames … · zeros written ahead      an ordinary segment
    header · PART frames … · LARGE frame · CATALOGUE frame                               an adopted one (spool.py)

Guarantees: a segment appears under its name whole and durable, or not at all. After a failed append the bytes are taken
back (zeros), and if that fails too, or an fsync fails, the object is *poisoned*: it raises for ever, nothing is retried
(after a failed fsync every retry "succeeds" and the data are gone).
Leaves to others: who holds the commit lock (the caller does, for every writing method), seqno allotment, pools.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NoReturn

from replicate.errors import (
    AlreadyExistsError,
    FrameDamaged,
    InternalError,
    JournalDamagedError,
    JournalIOError,
    JournalMissingError,
)
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.header import FLAG_ADOPTED, MAGIC, SegmentHeader
from replicate.journal.record import LARGE_BEGINS, catalogue_payload, check_frame, decode, pack_frame, read_head
from replicate.journal.scan import scan
from replicate.journal.tail import Damage, FrameAfter, ScanResult
from replicate.journal.walk import Pieces
from replicate.limits import SEGMENT_GROW_BYTES, SEGMENT_HEADER_BYTES
from replicate.model.transaction import Catalogue, Kind, Transaction
from replicate.system.failpoint import hit
from replicate.system.files import Directory, write_all, write_zeros
from replicate.system.os_errors import SPARED, refuse_changed, refuse_os_error

__all__ = [
    "FLAG_ADOPTED",
    "MAGIC",
    "Damage",
    "FrameAfter",
    "ScanResult",
    "SegmentFile",
    "SegmentHeader",
    "catalogue_frame",
    "create_segment",
    "grow_bytes_of",
    "open_segment",
    "read_exactly",
    "scan",
    "segment_name",
]

_SUFFIX: Final = ".journal"
OWN_ROOM_BYTES: Final = 1024 * 1024
"""An append of so much makes its own room. No single frame is that large: it is a batch that was received."""


def segment_name(first_seqno: int) -> str:
    """The file name of the segment that begins with `first_seqno`; names sort as numbers do."""
    return f"{first_seqno:020d}{_SUFFIX}"


def first_seqno_of_name(name: str) -> int | None:
    """The number in a segment's file name; None when it is no segment's name."""
    digits = name.removesuffix(_SUFFIX)
    return int(digits) if name.endswith(_SUFFIX) and len(digits) == 20 and digits.isdecimal() else None


def read_exactly(fd: int, count: int, offset: int, path: str) -> bytes:
    """`count` bytes from `offset`. JournalDamagedError when the file ends before; JournalIOError."""
    pieces = []
    wanted = count
    while wanted:
        try:
            piece = os.pread(fd, wanted, offset)
        except OSError as error:
            refuse_os_error(error, "reading the journal failed", path)
        if not piece:
            raise JournalDamagedError("the segment ends too early", where=f"{path}, offset {offset}")
        pieces.append(piece)
        wanted -= len(piece)
        offset += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def catalogue_frame(catalogue: Catalogue, header: SegmentHeader) -> bytes:
    """The CATALOGUE frame of a segment: its seqno is the first one that it holds for."""
    payload, count = catalogue_payload(catalogue)
    frame, _ = pack_frame(
        Kind.CATALOGUE, header.first_seqno, 0, 0, header.origin.key, header.origin_seqno, 0, payload, count
    )
    return frame


class SegmentFile:
    """An open segment. Writing methods: the caller holds the commit lock. Close it; it owns its descriptor.

    `zeroed_offset`: the file is known to be durably zero-written up to there (set it from the control block when
    another process has grown the file). `grow_bytes`: the file grows to multiples of it.

    The file only grows: by zeros, fsynced, in steps of `grow_bytes` before they are used; or, where OWN_ROOM_BYTES and
    more are appended at once, by these themselves (a sync of so much does not become slower by the file's growing, and
    zeros would be written and synced only to be written over). It is never cut by truncation: sealing leaves the zeros,
    and the next header records where this one ended.
    """

    __slots__ = ("_poison", "fd", "grow_bytes", "header", "path", "zeroed_offset")

    def __init__(
        self,
        path: str,
        fd: int,
        header: SegmentHeader,
        zeroed_offset: int = 0,
        *,
        grow_bytes: int = SEGMENT_GROW_BYTES,
    ) -> None:
        self.path = path
        self.fd = fd
        self.header = header
        self.zeroed_offset = zeroed_offset
        self.grow_bytes = grow_bytes
        self._poison: str | None = None

    def close(self) -> None:
        """Let go of the descriptor; nothing is synced. May be called again."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def poisoned(self) -> bool:
        """A write or fsync failed for good: this object only raises from then on."""
        return self._poison is not None

    def _refuse_poisoned(self) -> None:
        if self._poison is not None:
            raise JournalIOError(
                f"this journal segment failed before and is not used again ({self._poison})",
                where=self.path,
                do="Stop this process; recovery runs at the next start",
            )

    def append(self, offset: int, data: bytes | Pieces) -> int:
        """Write frames at `offset`, where the last ones ended; the offset after them. Not durable until `sync`.

        DiskFullError or JournalIOError: the bytes have been taken back (zeros again, as far as the file goes), nothing
        was appended, and only if that failed the object is poisoned. Any other error than those that os_errors.py
        spares poisons.
        """
        if self._poison is not None:
            self._refuse_poisoned()
        end = offset + len(data)
        if end > self.zeroed_offset:
            self.make_room(end, len(data))
        try:
            if isinstance(data, bytes):
                write_all(self.fd, data, offset)
            else:
                for piece in data:
                    write_all(self.fd, piece, offset)
                    offset += len(piece)
                    hit("append.after_piece")
        except OSError as error:
            self._take_back(error, end - len(data), end)
        return end

    def rewrite(self, offset: int, data: bytes) -> None:
        """Write once more what stands at `offset` already. Not durable until `sync`.

        DiskFullError or JournalIOError: the same bytes stand there still (they are older than we are, so nothing is
        taken back), and the object is poisoned.
        """
        self._refuse_poisoned()
        try:
            write_all(self.fd, data, offset)
        except OSError as error:
            self._poison = f"a write failed ({error.strerror})"
            refuse_os_error(error, "writing the journal's frames once more failed", self.path)

    def _take_back(self, error: OSError, offset: int, end: int) -> NoReturn:
        try:
            write_zeros(self.fd, offset, min(end, os.fstat(self.fd).st_size))
        except OSError as second:
            self._poison = f"a write failed ({error.strerror}) and could not be taken back ({second.strerror})"
            raise JournalIOError(self._poison, where=self.path, errno=error.errno) from error
        if error.errno not in SPARED:
            self._poison = f"a write failed ({error.strerror})"
        refuse_os_error(error, "appending to the journal failed", self.path)

    def make_room(self, end: int, size: int) -> int:
        """Have zeros for `size` bytes that end at `end`, unless they make their own room; the offset up to which zeros
        are now. Raises as `ensure_zeroed`."""
        return self.ensure_zeroed(end) if size < OWN_ROOM_BYTES else self.zeroed_offset

    def ensure_zeroed(self, upto: int) -> int:
        """Have zeros written, and synced, at least up to `upto`; the offset up to which they are now.

        DiskFullError, ExhaustedError: what was written before stays as it was, and the caller may try again when there
        is space, or memory. JournalIOError: poisoned.
        """
        self._refuse_poisoned()
        if self.header.adopted:
            raise InternalError("an adopted segment is never appended to", where=self.path)
        if upto <= self.zeroed_offset:
            return self.zeroed_offset
        try:
            size = os.fstat(self.fd).st_size
            grown = max(size, -(-upto // self.grow_bytes) * self.grow_bytes) if upto > size else size
            write_zeros(self.fd, size, grown)
        except OSError as error:
            if error.errno not in SPARED:
                self._poison = f"growing the segment failed ({error.strerror})"
            refuse_os_error(error, "growing the journal segment failed", self.path)
        # Also when the file is long enough: the process that grew it may have been killed before its fsync.
        self._fsync(os.fsync)
        self.zeroed_offset = grown
        return grown

    def begin_writing(self, offset: int, size: int) -> None:
        """Have the kernel begin to write what was appended there, and do not wait: a `sync` a little later finds half
        of its work done. Nothing is promised, and nothing raised: what fails there, `sync` says."""
        # (The advice also drops whole pages that are on the disk already. These are not yet.)
        try:
            os.posix_fadvise(self.fd, offset, size, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass

    def sync(self) -> None:
        """fdatasync: everything appended before is durable. JournalIOError: *unknown*, and poisoned for ever."""
        self._refuse_poisoned()
        self._fsync(os.fdatasync)

    def _fsync(self, call: Callable[[int], None]) -> None:
        try:
            call(self.fd)
        except OSError as error:
            self._poison = f"fsync failed ({error.strerror})"
            raise JournalIOError(
                f"fsync of the journal failed: {error.strerror}",
                where=self.path,
                do="What was written since the last sync may be lost; recovery decides at the next start",
                errno=error.errno,
            ) from error

    def cut(self, offset: int) -> None:
        """Cut a torn tail: zeros from `offset` to the end of the file, synced. JournalIOError: poisoned, cut or not."""
        self._refuse_poisoned()
        try:
            write_zeros(self.fd, offset, os.fstat(self.fd).st_size)
        except OSError as error:
            self._poison = f"cutting a torn tail failed ({error.strerror})"
            raise JournalIOError(self._poison, where=self.path, errno=error.errno) from error
        self._fsync(os.fsync)

    def read_catalogue(self) -> tuple[Catalogue, int]:
        """The CATALOGUE frame, and the offset after it: where an ordinary segment's frames begin.

        JournalDamagedError when it does not verify or is not this segment's.
        """
        offset = self.header.catalogue_offset
        frame = self.read_frame(offset)
        transaction = decode(frame)
        catalogue = transaction.content[0] if transaction.content else None
        if not isinstance(catalogue, Catalogue) or transaction.seqno != self.header.first_seqno:
            raise JournalDamagedError("the segment's catalogue is not its own", where=self.path)
        return catalogue, offset + len(frame)

    def read_some(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`, fewer only at the end of the file. JournalIOError."""
        try:
            return os.pread(self.fd, count, offset)
        except OSError as error:
            refuse_os_error(error, "reading the journal failed", self.path)

    def read_frame(self, offset: int) -> bytes:
        """One whole verified frame. FrameDamaged, FormatUnknownError, or JournalDamagedError when the file ends."""
        try:
            # A wrong length is refused before we ask for so much memory.
            head = read_head(read_exactly(self.fd, FRAME_HEAD_BYTES, offset, self.path))
            frame = read_exactly(self.fd, head.frame_bytes, offset, self.path)
            check_frame(frame)
        except FrameDamaged as error:
            raise FrameDamaged(error.what, where=f"{self.path}, offset {offset}", offset=offset) from error
        return frame

    def scan(self) -> ScanResult:
        """Scan all frames of an ordinary segment, from its first seqno on."""
        catalogue, offset = self.read_catalogue()
        return scan(self.fd, offset, self.header.first_seqno, chains=catalogue.chains, path=self.path)

    def read_commit(self) -> tuple[bytes, Transaction]:
        """The LARGE frame of an adopted segment, and its decoded form. JournalDamagedError when it is not its own."""
        offset = self.header.commit_offset
        frame = self.read_frame(offset)
        transaction = decode(frame)
        if transaction.kind not in LARGE_BEGINS or transaction.seqno != self.header.first_seqno:
            raise JournalDamagedError("the large transaction's commit frame is not its own", where=self.path)
        if offset + len(frame) != self.header.catalogue_offset:
            raise JournalDamagedError(
                "the large transaction's commit frame does not end where it should", where=self.path
            )
        return frame, transaction

    def scan_adopted(self) -> ScanResult:
        """The same for an adopted segment: verifies its commit frame and catalogue, not its parts."""
        _, commit = self.read_commit()
        catalogue, end_offset = self.read_catalogue()
        chains = {**catalogue.chains, commit.origin: (commit.origin_seqno, commit.chain)}
        return ScanResult(end_offset, commit.seqno, 1, chains, commit.mark, commit.csn)


def grow_bytes_of(segment_bytes: int) -> int:
    """The step in which segments grow that are to be of `segment_bytes`: not more than that."""
    return min(SEGMENT_GROW_BYTES, segment_bytes)


def create_segment(
    directory: str | os.PathLike[str],
    header: SegmentHeader,
    catalogue: Catalogue,
    *,
    replace: bool = False,
    grow_bytes: int = SEGMENT_GROW_BYTES,
) -> SegmentFile:
    """Make an ordinary segment: written under another name, fsynced, renamed, directory fsynced. Open for append.

    Its frames begin after its catalogue: `read_catalogue()[1]`. AlreadyExistsError when there is such a segment, but
    with `replace`: the caller knows that nothing is in it, and the new one takes its name.
    ExhaustedError, DiskFullError or JournalIOError: there is none (an orphan with the suffix .tmp may remain;
    spool.remove_orphans); where the error names the directory, it is there, but its name may not stay.
    """
    directory = os.fspath(directory)
    path = os.path.join(directory, segment_name(header.first_seqno))
    if not replace and os.path.lexists(path):
        raise AlreadyExistsError("there is such a segment already", where=path)
    temporary = path + ".tmp"
    image = header.pack() + catalogue_frame(catalogue, header)
    grown = -(-(len(image) + 1) // grow_bytes) * grow_bytes
    with Directory(directory) as names:
        fd, refuse = -1, refuse_os_error
        try:
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            write_all(fd, image, 0)
            write_zeros(fd, len(image), grown)
            refuse = refuse_changed
            os.fsync(fd)
            os.rename(temporary, path)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
                try:
                    os.unlink(temporary)
                except OSError:
                    pass  # the orphan is removed at the next start; the first error is the one to tell
            refuse(error, "making a journal segment failed", path)
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        try:
            names.sync()
        except BaseException:
            os.close(fd)
            raise
    return SegmentFile(path, fd, header, grown, grow_bytes=grow_bytes)


def open_segment(
    path: str | os.PathLike[str],
    *,
    network: bytes | None = None,
    instance: bytes | None = None,
    writable: bool = False,
    zeroed_offset: int = 0,
    grow_bytes: int = SEGMENT_GROW_BYTES,
) -> SegmentFile:
    """Open a segment and verify its header (its name too). JournalMissingError, JournalDamagedError,
    FormatUnknownError, WrongNetworkError or WrongInstanceError; nothing is open then.
    """
    path = os.fspath(path)
    mode = os.O_RDWR if writable else os.O_RDONLY
    try:
        fd = os.open(path, mode | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise JournalMissingError("there is no such segment", where=path) from None
    except OSError as error:
        refuse_os_error(error, "opening a journal segment failed", path)
    try:
        header = SegmentHeader.unpack(read_exactly(fd, SEGMENT_HEADER_BYTES, 0, path), where=path)
        header.validate(network=network, instance=instance, where=path)
        named = first_seqno_of_name(os.path.basename(path))
        if named is not None and named != header.first_seqno:
            raise JournalDamagedError(f"the segment begins with {header.first_seqno}, not as its name says", where=path)
    except BaseException:
        os.close(fd)
        raise
    return SegmentFile(path, fd, header, zeroed_offset, grow_bytes=grow_bytes)
