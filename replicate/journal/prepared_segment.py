"""A journal segment that is written beside the chain, whole, and then enters it by its name alone.

    header (SEGMENT_HEADER_BYTES) · CATALOGUE frame · frames …              an ordinary segment, of any length

For a range of transactions that is taken over in one step (a replay): until `enter` the chain knows nothing of it, and
afterwards it holds the whole range. Frames are copied byte for byte.

Guarantees: frames are numbered without a gap; the file is on the disk, whole, before it gets its name; what a killed
process leaves is an orphan that the next start removes (spool.remove_orphans).
Leaves to others: the commit lock and control words (door/received_range.py), and what the frames say.
"""

from __future__ import annotations

import os
from typing import Final

from replicate.errors import GapError, InternalError
from replicate.journal.header import SegmentHeader
from replicate.journal.record import FrameBatch, Head
from replicate.journal.segment import catalogue_frame, segment_name
from replicate.journal.spool import SPOOL_SUFFIX, create_locked, put_in_place
from replicate.limits import SEGMENT_HEADER_BYTES
from replicate.model.transaction import Catalogue
from replicate.system.failpoint import hit
from replicate.system.files import write_all
from replicate.system.os_errors import refuse_os_error

BUFFER_BYTES: Final = 4 * 1024 * 1024


class AsideSegment:
    """One segment in the making. For one thread; `enter` or `abort` ends it.

    `header`: of the segment that begins with the first frame, after the journal's end as it is now. `catalogue`: in
    force there, position and all.
    """

    def __init__(self, directory: str | os.PathLike[str], header: SegmentHeader, catalogue: Catalogue) -> None:
        """Make the file. DiskFullError or JournalIOError; there is none then."""
        self.header = header
        self.first_seqno = header.first_seqno
        self.last_seqno = header.first_seqno - 1
        self.last_head: Head | None = None
        self.last_offset = 0
        """Where the last frame begins."""
        self._directory = os.fspath(directory)
        self.path = os.path.join(self._directory, f"take-{os.getpid()}-{header.first_seqno:020d}{SPOOL_SUFFIX}")
        self._fd = create_locked(self.path)
        self._buffer = bytearray()
        self._flushed = SEGMENT_HEADER_BYTES
        self._put(catalogue_frame(catalogue, header))

    @property
    def end_offset(self) -> int:
        """The offset after the last frame."""
        return self._flushed + len(self._buffer)

    def write(self, batch: FrameBatch, last: Head) -> None:
        """Append whole, verified frames; `last` is the head of their last one. GapError when they do not follow.

        DiskFullError or JournalIOError: only `abort` is left.
        """
        if batch.first_seqno != self.last_seqno + 1 or last.seqno != batch.last_seqno:
            raise GapError(
                f"transaction {self.last_seqno + 1} should come next, {batch.first_seqno} came",
                expected=self.last_seqno + 1,
                got=batch.first_seqno,
            )
        self._put(batch.data)
        self.last_seqno, self.last_head = batch.last_seqno, last
        self.last_offset = self.end_offset - last.frame_bytes

    def _put(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        try:
            with memoryview(self._buffer) as view:
                write_all(self._fd, view, self._flushed)
        except OSError as error:
            refuse_os_error(error, "writing a journal segment aside failed", self.path)
        self._flushed += len(self._buffer)
        self._buffer.clear()

    def finish(self) -> None:
        """Have everything but the name on the disk; so `enter` takes constant time. DiskFullError or JournalIOError."""
        self._flush()
        try:
            write_all(self._fd, self.header.pack(), 0)
            os.fsync(self._fd)
        except OSError as error:
            refuse_os_error(error, "syncing a journal segment aside failed", self.path)

    def enter(self) -> str:
        """Give the segment its name; its path. Commit lock held, and the chain is as it was when this was begun.

        A segment of that name there holds nothing. JournalIOError: it is in the chain only if the error names a failed
        fsync of the directory.
        """
        if self.last_head is None:
            raise InternalError("a segment without a frame is not entered", where=self.path)
        self.finish()
        path = os.path.join(self._directory, segment_name(self.first_seqno))
        hit("take.before_rename")

        def renamed() -> None:
            self._close()
            self.path = path
            hit("take.renamed")

        put_in_place(self.path, path, "entering a journal segment failed", renamed)
        return path

    def abort(self) -> None:
        """Remove the file. Does nothing after `enter` or `abort`."""
        if self._fd < 0:
            return
        try:
            os.unlink(self.path)
        except OSError:
            pass  # an orphan; the next start removes it
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
