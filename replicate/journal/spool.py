"""The spool of a large transaction: its parts go to a file of their own, which becomes a segment at commit.

    room for a header (SEGMENT_HEADER_BYTES) · PART frame 0 · PART frame 1 · … · LARGE frame · CATALOGUE frame

A writer's spool takes the change stream (`write`, `cut`, `finish`); a secondary's (`Spool.receiving`) takes PART frames
as they arrive (`write_frame`, `finish_received`). Both end in `adopt`, or in `abort`.

Guarantees: nobody holds the transaction in memory (one part at most). A live spool is locked (`flock` on its own file),
so `remove_orphans` removes only those whose process is gone. An adopted segment appears under its name whole and
durable, or not at all. After an error a spool can only be aborted.
Leaves to others: what the changes mean, numbers, the commit lock (the caller of `adopt` holds it).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.errors import (
    AlreadyExistsError,
    DivergedError,
    GapError,
    InternalError,
    JournalDamagedError,
    JournalIOError,
)
from replicate.journal.header import FLAG_ADOPTED, SegmentHeader
from replicate.journal.record import (
    PART_OVERHEAD_BYTES,
    chain_of,
    decode,
    large_payload,
    pack_part,
    read_head,
    read_part,
)
from replicate.journal.segment import catalogue_frame, segment_name
from replicate.journal.spool_format import part_offset, read_part_frame
from replicate.limits import PART_BYTES
from replicate.model.transaction import Catalogue, LargeCommit
from replicate.system.failpoint import hit
from replicate.system.files import Directory, write_all
from replicate.system.os_errors import refuse_changed, refuse_os_error

SPOOL_SUFFIX: Final = ".spool"
_ORPHANS: Final = (SPOOL_SUFFIX, ".tmp")


class SpoolSummary(Struct, frozen=True):
    """A finished spool: `end_offset` is where its LARGE frame belongs."""

    path: str
    token: int
    part_count: int
    payload_bytes: int
    last_part_chain: int
    end_offset: int


def spool_path(directory: str | os.PathLike[str], token: int) -> str:
    """The path of the spool with that token in the journal directory."""
    return os.path.join(os.fspath(directory), f"{token:016x}{SPOOL_SUFFIX}")


def split(stream: bytes) -> list[bytes]:
    """What a spool that takes this change stream holds in each of its parts."""
    return [stream[at : at + PART_BYTES] for at in range(0, len(stream), PART_BYTES)]


def large_payload_of(origin: int, parts: Sequence[bytes], partitions: tuple[int, ...]) -> tuple[bytes, int]:
    """As `Spool.commit_payload`, of a spool with a token of its own that holds those parts."""
    token, chained = int.from_bytes(os.urandom(8), "big"), 0
    for number, data in enumerate(parts):
        _, chained = pack_part(origin, token, number, data, chained)
    return large_payload(token, len(parts), sum(map(len, parts)), chained, partitions)


class Spool:
    """One large transaction in the making. For one thread; close it by `adopt` or `abort`."""

    __slots__ = ("_buffer", "_chains", "_fd", "_flushed_bytes", "_summary", "origin", "path", "token")

    def __init__(self, path: str | os.PathLike[str], origin: int, token: int | None = None) -> None:
        """Make the file, which must not exist. `origin`: key of the origin that commits. `token`: None = a random one.

        AlreadyExistsError, DiskFullError or JournalIOError; there is no file then.
        """
        self.path = os.fspath(path)
        self.origin = origin
        self.token = int.from_bytes(os.urandom(8), "big") if token is None else token
        self._fd = create_locked(self.path)
        self._buffer = bytearray()
        self._chains: list[int] = []  # of each part that is in the file: 8 bytes for 256 KiB
        self._flushed_bytes = 0
        self._summary: SpoolSummary | None = None

    @classmethod
    def create(cls, directory: str | os.PathLike[str], origin: int) -> Spool:
        """A new spool with a random token in the journal directory."""
        token = int.from_bytes(os.urandom(8), "big")
        return cls(spool_path(directory, token), origin, token)

    # The change stream.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append to the change stream. DiskFullError or JournalIOError: only `abort` is left."""
        self._refuse_finished()
        self._buffer += data
        while len(self._buffer) >= PART_BYTES:
            self._flush(PART_BYTES)

    def tell(self) -> int:
        """Bytes of the change stream so far."""
        return self._flushed_bytes + len(self._buffer)

    def cut(self, offset: int) -> None:
        """Take the change stream back to `offset` bytes: what was written after it is forgotten.

        JournalDamagedError when the part that is cut into does not verify; JournalIOError.
        """
        self._refuse_finished()
        if not 0 <= offset <= self.tell():
            raise InternalError(f"a spool of {self.tell()} bytes cannot be cut at {offset}", where=self.path)
        if offset >= self._flushed_bytes:
            del self._buffer[offset - self._flushed_bytes :]
            return
        number, kept = divmod(offset, PART_BYTES)
        head = b""
        if kept:
            _, _, data = read_part(read_part_frame(self._fd, self.path, number, PART_BYTES))
            head = bytes(data[:kept])
        try:
            os.ftruncate(self._fd, part_offset(number))
        except OSError as error:
            refuse_os_error(error, "cutting a spool failed", self.path)
        del self._chains[number:]
        self._flushed_bytes = number * PART_BYTES
        self._buffer = bytearray(head)

    def stream(self) -> Iterator[bytes]:
        """The change stream as it is now, a part at a time, before `finish`. JournalDamagedError, JournalIOError."""
        self._refuse_finished()
        for number in range(len(self._chains)):
            size_bytes = min(PART_BYTES, self._flushed_bytes - number * PART_BYTES)  # the last that came may be shorter
            yield bytes(read_part(read_part_frame(self._fd, self.path, number, size_bytes))[2])
        yield bytes(self._buffer)

    def _flush(self, count: int) -> None:
        number = len(self._chains)
        previous = self._chains[-1] if self._chains else 0
        frame, chain = pack_part(self.origin, self.token, number, bytes(self._buffer[:count]), previous)
        self._store(frame, part_offset(number))
        del self._buffer[:count]
        self._chains.append(chain)
        self._flushed_bytes += count

    def _store(self, data: bytes, offset: int) -> None:
        try:
            write_all(self._fd, data, offset)
        except OSError as error:
            refuse_os_error(error, "writing a spool failed", self.path)

    def finish(self) -> SpoolSummary:
        """Write the last part and sync: the bulk of the work, to be done before the commit lock is taken. Once only.

        DiskFullError or JournalIOError: only `abort` is left.
        """
        if self._summary is not None:
            return self._summary
        if self._buffer:
            self._flush(len(self._buffer))
        return self._finished()

    def _finished(self) -> SpoolSummary:
        if not self._chains:
            raise InternalError("an empty spool cannot be committed", where=self.path)
        self._sync()
        end = part_offset(0) + len(self._chains) * PART_OVERHEAD_BYTES + self._flushed_bytes
        self._summary = SpoolSummary(
            self.path, self.token, len(self._chains), self._flushed_bytes, self._chains[-1], end
        )
        return self._summary

    def _sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise JournalIOError(
                f"fsync of a spool failed: {error.strerror}", where=self.path, errno=error.errno
            ) from error

    def _refuse_finished(self) -> None:
        if self._summary is not None or self._fd < 0:
            raise InternalError("a spool that is finished takes no more", where=self.path)

    def commit_payload(self, partitions: tuple[int, ...]) -> tuple[bytes, int]:
        """`finish`, and the payload of the LARGE frame with its count of elements, for `pack_frame`."""
        found = self.finish()
        return large_payload(found.token, found.part_count, found.payload_bytes, found.last_part_chain, partitions)

    # Parts that arrive.

    @property
    def part_count(self) -> int:
        """Parts in the file: the next one to arrive has this number."""
        return len(self._chains)

    @classmethod
    def receiving(cls, path: str | os.PathLike[str]) -> Spool:
        """A new spool for parts that arrive: its origin and token are the first part's. Raises as `Spool(...)`."""
        return cls(path, 0, 0)

    def write_frame(self, frame: bytes) -> None:
        """Store the next PART frame as it came.

        Verified: CHECK, origin, token, number (GapError), chain (DivergedError), size (JournalDamagedError). Nothing
        was stored then. DiskFullError or JournalIOError: only `abort` is left.
        """
        self._refuse_finished()
        if self._buffer:
            raise InternalError("a spool takes either a stream or parts", where=self.path)
        data = self._admit(frame)
        self._store(frame, part_offset(len(self._chains)))
        self._note_part(frame, len(data))

    def _admit(self, frame: bytes) -> memoryview:
        head, number, data = read_part(frame)
        if head.frame_bytes != len(frame):
            raise JournalDamagedError("something stands after a part", where=self.path)
        if not self.origin and number == 0:
            self.origin, self.token = head.origin, head.csn
        if head.origin != self.origin or head.csn != self.token:
            raise JournalDamagedError("a part belongs to another large transaction", where=self.path)
        if number != len(self._chains):
            raise GapError(f"part {number} arrived, {len(self._chains)} is next", where=self.path, part=number)
        if not data or self._flushed_bytes != number * PART_BYTES:
            raise JournalDamagedError("a part that is not the last should be full", where=self.path, part=number)
        if chain_of(frame, self._chains[-1] if self._chains else 0) != head.chain:
            raise DivergedError(f"the chain hash of part {number} does not follow", where=self.path, part=number)
        return data

    def _note_part(self, frame: bytes, count: int) -> None:
        self._chains.append(read_head(frame).chain)
        self._flushed_bytes += count

    def finish_received(self, part_count: int, payload_bytes: int, last_part_chain: int) -> SpoolSummary:
        """Sync, after checking that these parts are the ones that were committed (the LARGE frame's own numbers).

        GapError when parts are missing, DivergedError when they are others.
        """
        if len(self._chains) != part_count or self._flushed_bytes != payload_bytes:
            raise GapError(
                f"the commit names {part_count} parts of {payload_bytes} bytes, {len(self._chains)} of "
                f"{self._flushed_bytes} are here",
                where=self.path,
            )
        if not self._chains or self._chains[-1] != last_part_chain:
            raise DivergedError("the parts here are not those that were committed", where=self.path)
        return self._summary or self._finished()

    # The end.

    def adopt(
        self, header: SegmentHeader, large_frame: bytes, catalogue: Catalogue, *, replace_empty: bool = False
    ) -> str:
        """Make this spool the segment that begins (and ends) with `large_frame`'s seqno; the segment's path.

        Takes constant time when `finish` or `finish_received` was called before; else they are called now. `header`: as
        of the segment that it follows; flags and offsets are filled in here. `catalogue`: in force just before this
        transaction. `replace_empty`: a segment of that number is there and holds no frame; this one takes its place.
        The commit lock is held by the caller.

        GapError or DivergedError: the commit frame is not that of these parts; nothing has changed.
        ExhaustedError, DiskFullError or JournalIOError: the segment is not in the chain unless the error names a failed
        fsync of the directory (then it may or may not be, after a power loss), and the spool can only be aborted.
        """
        commit = decode(large_frame)
        content = commit.content[0] if commit.content else None
        if not isinstance(content, LargeCommit) or commit.seqno != header.first_seqno:
            raise InternalError("a spool is adopted under the number of its commit frame", where=self.path)
        if commit.origin != self.origin or content.token != self.token:
            raise DivergedError("the commit frame belongs to another large transaction", where=self.path)
        if self._buffer:
            self.finish()
        summary = self.finish_received(content.part_count, content.payload_bytes, content.last_part_chain)
        directory = os.path.dirname(self.path)
        path = os.path.join(directory, segment_name(header.first_seqno))
        if os.path.lexists(path) and not replace_empty:
            raise AlreadyExistsError("there is such a segment already", where=path)
        final = replace(
            header,
            flags=header.flags | FLAG_ADOPTED,
            commit_offset=summary.end_offset,
            catalogue_offset=summary.end_offset + len(large_frame),
        )
        self._store(large_frame + catalogue_frame(catalogue, final), summary.end_offset)
        self._store(final.pack(), 0)
        self._sync()

        def renamed() -> None:
            # From here on the file is the chain's: `abort` must not unlink it.
            self.keep()
            self.path = path
            hit("adopt.renamed")

        put_in_place(self.path, path, "adopting a spool failed", renamed)
        return path

    def keep(self) -> None:
        """Let go of the file but leave it. May be called again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def abort(self) -> None:
        """Remove the file. Does nothing after `adopt`, `keep` or `abort`; an orphan that stays is removed at start."""
        if self._fd < 0:
            return
        try:
            os.unlink(self.path)
        except OSError:
            pass  # remove_orphans will; the transaction is rolled back either way
        self.keep()


class PartsCheck(Spool):
    """Takes PART frames as `Spool.receiving` does, with every check of it, and keeps nothing: for the process that only
    wants to know that a large transaction is whole. It cannot be adopted."""

    __slots__ = ()

    def __init__(self) -> None:
        self.path, self.origin, self.token, self._fd = "", 0, 0, -1
        self._buffer, self._chains, self._flushed_bytes, self._summary = bytearray(), [], 0, None

    def _store(self, data: bytes, offset: int) -> None:
        pass

    def _sync(self) -> None:
        pass

    def _refuse_finished(self) -> None:
        if self._summary is not None:
            raise InternalError("a check of parts that is finished takes no more")

    def adopt(
        self, header: SegmentHeader, large_frame: bytes, catalogue: Catalogue, *, replace_empty: bool = False
    ) -> str:
        raise InternalError("parts that were only checked are nowhere")


def adopt(
    spool: Spool, header: SegmentHeader, large_frame: bytes, catalogue: Catalogue, *, replace_empty: bool = False
) -> str:
    """`spool.adopt`."""
    return spool.adopt(header, large_frame, catalogue, replace_empty=replace_empty)


def put_in_place(aside: str, path: str, doing: str, renamed: Callable[[], None]) -> None:
    """Rename `aside`, which is on the disk, whole, to the segment `path` of the same directory, for good. `renamed` is
    called as soon as the file has that name, before the directory is synced: the process that made it lets go of it.

    ExhaustedError, DiskFullError or JournalIOError: the segment is not in the chain unless the error names a failed
    fsync of the directory.
    """
    with Directory(os.path.dirname(path)) as names:
        try:
            os.rename(aside, path)
        except OSError as error:
            refuse_changed(error, doing, aside)
        renamed()
        names.sync()


def _lock(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyExistsError("the spool is in use", where=path) from None


def create_locked(path: str) -> int:
    """A new file, locked. Between making and locking it `remove_orphans` may take it away: then once more."""
    while True:
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd
        except FileExistsError:
            raise AlreadyExistsError("there is such a spool already", where=path) from None
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            refuse_os_error(error, "making a spool failed", path)
        os.close(fd)


def remove_orphans(directory: str | os.PathLike[str]) -> tuple[str, ...]:
    """Remove the spools and half made segments that dead processes left; the names removed, sorted. Commit lock held.

    JournalIOError when the directory cannot be read.
    """
    directory = os.fspath(directory)
    removed = []
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(_ORPHANS))
    except OSError as error:
        refuse_os_error(error, "listing the journal failed", directory)
    for name in names:
        path = os.path.join(directory, name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            refuse_os_error(error, "opening an orphan failed", path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            removed.append(name)
        except BlockingIOError:
            continue  # its process lives
        except OSError as error:
            refuse_os_error(error, "removing an orphan failed", path)
        finally:
            os.close(fd)
    return tuple(removed)
