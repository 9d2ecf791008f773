"""Seed files on a disk: written whole or not at all, read in one pass with bounded memory.

Guarantees: a file under its own name is complete and synced (written aside, fsynced, renamed, directory fsynced); after
a failure nothing of it is left. A reader verifies each record before it hands it on, and the whole at the end; damage,
a file that was cut and one that is too long are named with their offset. A file that is still arriving can be looked
through for the place up to which it is good.
Leaves to others: the layout of the bytes (transfer/container.py), regions, and what a seed is for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xxhash import xxh3_128

from replicate.errors import AlreadyExistsError, DamagedError, DiskFullError, NotFoundError, UsageError
from replicate.limits import MIB
from replicate.model.transaction import Catalogue
from replicate.system.failpoint import hit
from replicate.system.os_errors import io_error
from replicate.transfer.container import (
    PAGES_BYTES,
    SEED,
    Pages,
    SeedHeader,
    SeedRegion,
    SeedSequence,
    pack_end,
    pack_pages,
    pack_region,
)
from replicate.transfer.container import RecordType as Type
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES
from replicate.transfer.unfinished_file import AsideFile

SPARE_BYTES: Final = 1 * MIB
"""Left free on a disk that we fill knowingly."""


def require_free(directory: Path, wanted_bytes: int, what: str, *, spare_bytes: int = SPARE_BYTES) -> None:
    """DiskFullError when `wanted_bytes`, and `spare_bytes` for others, are not free where `directory` is."""
    try:
        facts = os.statvfs(directory)
    except OSError as error:
        raise io_error(error, f"no place for {what}", str(directory)) from error
    free_bytes = facts.f_bavail * facts.f_frsize
    if free_bytes < wanted_bytes + spare_bytes:
        raise DiskFullError(
            f"{what} needs {wanted_bytes / MIB:.1f} MiB and should leave {spare_bytes / MIB:.1f}; "
            f"{free_bytes / MIB:.1f} MiB are free",
            where=str(directory),
            do="Free space, or choose another disk",
        )


def require_absent(path: Path, *, replace: bool) -> None:
    """AlreadyExistsError when something is at `path` and may not be replaced; UsageError when it never may."""
    if not path.parent.is_dir():
        raise NotFoundError("there is no such directory", where=str(path.parent), do="Make it, or name another file")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError("this is no plain file", where=str(path), do="Name another file")
    if path.exists() and not replace:
        raise AlreadyExistsError("the file exists already", where=str(path), do="To replace it: --restart")


class SeedWriter:
    """Writes one seed file, aside of its name; `finish` gives it its name. As a context manager: removed unless
    finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written_bytes = 0
        self._digest = xxh3_128()
        self._file = AsideFile(path, "seed file")

    def __enter__(self) -> SeedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.abandon()

    def begin(self, header: bytes, catalogue: bytes, version: int) -> None:
        """The bodies of the first two records, and the version of the format."""
        self._write([SEED.pack_prefix(version)])
        self._write(SEED.pack_record(Type.HEADER, self.written_bytes, header))
        self._write(SEED.pack_record(Type.CATALOGUE, self.written_bytes, catalogue))

    def region(self, region: SeedRegion, copy: Path) -> Iterator[int]:
        """Append the database file `copy`; yields the pages done after each record. Raises JournalIOError."""
        self._write(pack_region(self.written_bytes, region))
        page = 1
        try:
            with open(copy, "rb", buffering=0, opener=_plain) as file:
                while page <= region.pages:
                    data = _read_exactly(file.fileno(), min(PAGES_BYTES, (region.pages - page + 1) * region.page_bytes))
                    self._write(pack_pages(self.written_bytes, page, data))
                    page += len(data) // region.page_bytes
                    yield page - 1
        except OSError as error:
            raise io_error(error, "the copy of a region could not be read", str(copy)) from error

    def finish(self) -> int:
        """End it, sync it and give it its name; its length. After a failure there is no file of that name."""
        self._write(pack_end(self.written_bytes, self._digest.digest()))
        self._file.finish(lambda: hit("seed.before_rename"))
        return self.written_bytes

    def _write(self, pieces: list[bytes]) -> None:
        self._file.write(pieces, lambda: hit("seed.write"))
        for piece in pieces:
            self._digest.update(piece)
            self.written_bytes += len(piece)


def _plain(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _read_exactly(fd: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(fd, count - len(data))
        if not piece:
            break
        data = data + piece if data else piece
    return data


class SeedReader:
    """Reads one seed file from its beginning. `header` and `catalogue` are read at once; `pages` gives the rest."""

    def __init__(self, path: Path) -> None:
        """Raises NotFoundError, PermissionRefusedError, FormatUnknownError, DamagedError."""
        self.path = path
        self.good_bytes = 0
        """All bytes before this offset have verified."""
        self._sequence = SeedSequence(str(path))
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise NotFoundError(
                "there is no such file",
                where=str(path),
                do="Make it on the primary: replicate -i PRIMARY seed --to-file FILE --for NAME",
            ) from None
        except OSError as error:
            raise io_error(error, "the seed file cannot be opened", str(path)) from error
        try:
            self._sequence = SeedSequence(str(path), SEED.check_prefix(self._read(PREFIX_BYTES), str(path)))
            self.good_bytes = PREFIX_BYTES
            while self._sequence.catalogue is None:
                self._next()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SeedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def header(self) -> SeedHeader:
        assert self._sequence.header is not None
        return self._sequence.header

    @property
    def catalogue(self) -> Catalogue:
        assert self._sequence.catalogue is not None
        return self._sequence.catalogue

    @property
    def file_bytes(self) -> int:
        """How long the whole file should be."""
        return self._sequence.file_bytes

    def pages(self) -> Iterator[Pages]:
        """All pages of all regions, in order. When this ends without an error, the whole file has verified.

        DamagedError, naming the offset and what to do; what was given before it is not to be used then.
        """
        while not self._sequence.is_complete:
            pages = self._next()
            if pages is not None:
                yield pages
        if self._read(1):
            raise SEED.damaged("there is something after the end of the seed", self.good_bytes, str(self.path))

    def _next(self) -> Pages | None:
        position, where = self.good_bytes, str(self.path)
        raw = self._read(HEAD_BYTES)
        if len(raw) < HEAD_BYTES:
            raise self._cut(position)
        head = SEED.read_head(raw, position, where)
        body = self._read(head.length)
        if len(body) < head.length:
            raise self._cut(position)
        SEED.check_body(head, body, where)
        pages = self._sequence.take(head, body)
        self.good_bytes = position + HEAD_BYTES + head.length
        return pages

    def _cut(self, position: int) -> DamagedError:
        size = os.fstat(self._fd).st_size
        whole = f", of {self.file_bytes}" if self.file_bytes else ""
        return SEED.damaged(f"the seed file was cut: it ends after {size} bytes{whole}", position, str(self.path))

    def _read(self, count: int) -> bytes:
        try:
            return _read_exactly(self._fd, count)
        except OSError as error:
            raise io_error(error, "the seed file could not be read", str(self.path)) from error


def read_header(path: Path) -> SeedHeader:
    """What the file says it is. Raises what SeedReader raises."""
    with SeedReader(path) as reader:
        return reader.header


def good_bytes_of(path: Path) -> int:
    """Up to which offset a file that is still arriving is good: whole verified records; 0 when there is nothing."""
    try:
        reader = SeedReader(path)
    except (NotFoundError, DamagedError):
        return 0
    with reader:
        try:
            for _ in reader.pages():
                pass
        except DamagedError:
            pass
        return reader.good_bytes
