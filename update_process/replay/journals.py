"""The journals that a replay reads: directories of a primary that lives or is gone, copies of them, and archives.

Guarantees: transactions come in their order, verified, whatever holds them; nothing above the bound that was asked for
is read; a hole between the journals is refused by both numbers. That they continue one another (also across journals)
is proven by the chain hashes, which the caller verifies. Of an archive one segment at a time is unpacked, into the
stage; it is removed when it has been read.
Refuses to know: what is done with them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from replicate.errors import (
    GapError,
    InternalError,
    JournalMissingError,
    NotFoundError,
    WrongNetworkError,
)
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch
from replicate.limits import BATCH_BYTES_MAX
from replicate.seed.file import require_free
from update_process.replay.archive_files import ArchiveFiles, archive_uri, local_path, open_files, unpack_file
from update_process.replay.manifest import FOLDER, Range, SegmentCopy, holding, read_ranges


def journal_directory(path: Path) -> Path:
    """The directory that holds the segments: `path` itself, or `journal` in the instance `path`. NotFoundError."""
    if not path.is_dir():
        raise NotFoundError("there is no such directory", where=str(path), do="Name a directory of journal segments")
    for directory in (path, path / "journal"):
        if directory.is_dir() and Chain(directory).first_seqnos():
            return directory
    raise NotFoundError(
        "no journal segment and no archive is here",
        where=str(path),
        do="Name a directory of journal segments, or an archive",
    )


def is_archive(name: str | Path) -> bool:
    """Whether a journal that was named is an archive: a URI elsewhere, or a directory with manifests."""
    path = local_path(archive_uri(str(name)))
    return path is None or (path / FOLDER).is_dir()


def require_here(names: Sequence[str | Path]) -> None:
    """NotFoundError when a directory that was named is not there, or holds nothing."""
    for name in names:
        path = local_path(archive_uri(str(name)))
        if path is not None and not is_archive(name):
            journal_directory(path)


@dataclass(frozen=True, slots=True)
class ArchiveRanges:
    """An archive as far as it is finished."""

    files: ArchiveFiles
    ranges: list[Range]

    @property
    def uri(self) -> str:
        return self.files.uri

    def range_with(self, seqno: int) -> Range | None:
        """The range that holds a number."""
        return next((one for one in self.ranges if one.first_seqno <= seqno <= one.last_seqno), None)


@dataclass(frozen=True, slots=True)
class Span:
    """What one journal holds of a range of numbers: the rows of a range of an archive, or a directory's segments."""

    first_seqno: int
    last_seqno: int
    directory: Path | None = None
    archive: ArchiveRanges | None = None
    range: Range | None = None


class Journals:
    """The journals named `names`, all of the network `network`: paths, or URIs of archives.

    `stage`: a directory for segments of archives; needed where there is one. `spark`: gives a session where a URI
    takes one.
    """

    def __init__(
        self,
        names: Sequence[str | Path],
        network: bytes,
        *,
        stage: Path | None = None,
        spark: Callable[[], Any] | None = None,
    ) -> None:
        """Look at each. NotFoundError, UsageError, WrongNetworkError, JournalDamagedError, FormatUnknownError, and what
        reading an archive's manifests raises."""
        self.directories: list[Path] = []
        self.archives: list[ArchiveRanges] = []
        self._stage = stage
        for name in names:
            if is_archive(name):
                self.archives.append(_archive(open_files(archive_uri(str(name)), spark), network))
            else:
                path = local_path(archive_uri(str(name)))
                assert path is not None
                self.directories.append(journal_directory(path))
        self.chains = [Chain(directory, network=network) for directory in self.directories]
        self._ends = [_end(chain) for chain in self.chains]
        self._archived = max((one.ranges[-1].last_seqno for one in self.archives), default=0)

    @property
    def where(self) -> str:
        """All of them, for an error."""
        return ", ".join([*map(str, self.directories), *(one.uri for one in self.archives)])

    @property
    def last_seqno(self) -> int:
        """The last transaction that the journals hold whole."""
        return max([self._archived, *(whole for _, whole in self._ends)])

    @property
    def last_durable_seqno(self) -> int:
        """The last one that is known to be on their primary's disk: what a secondary may hold without getting ahead."""
        return max([self._archived, *(durable for durable, _ in self._ends)])

    def oldest_seqno(self) -> int:
        """The first transaction that any of them holds."""
        return min(
            [
                *(chain.oldest_seqno() for chain in self.chains),
                *(archive.ranges[0].first_seqno for archive in self.archives),
            ]
        )

    def read(
        self, next_seqno: int, last_seqno: int, *, max_bytes: int = BATCH_BYTES_MAX
    ) -> Iterator[FrameBatch | LargeTransaction]:
        """Everything from `next_seqno` to `last_seqno`. JournalMissingError (pruned), GapError, FrameDamaged,
        JournalDamagedError, named with file and offset; what came before it has been given. A large transaction's file
        may be gone once the next one is asked for."""
        while next_seqno <= last_seqno:
            with self._holding(next_seqno, last_seqno) as (chain, bound):
                with closing(ChainReader(chain, next_seqno)) as reader:
                    while (found := reader.read(max_bytes, bound)) is not None:
                        yield found
                    next_seqno = reader.next_seqno

    def spans(self, first_seqno: int, last_seqno: int) -> list[Span]:
        """Where a range's rows are best read, in order: archived as far as that goes. GapError, JournalMissingError."""
        found: list[Span] = []
        while first_seqno <= last_seqno:
            for archive in self.archives:
                one = archive.range_with(first_seqno)
                if one is not None:
                    found.append(Span(first_seqno, min(one.last_seqno, last_seqno), None, archive, one))
                    break
            else:
                chain, bound = self._chain_with(first_seqno, last_seqno) or self._missing(first_seqno)
                ahead = [one.first_seqno for archive in self.archives for one in archive.ranges]
                bound = min([bound, *(first - 1 for first in ahead if first > first_seqno)])
                found.append(Span(first_seqno, bound, Path(chain.directory)))
            first_seqno = found[-1].last_seqno + 1
        return found

    def range_with(self, seqno: int) -> Range | None:
        """The range of an archive that holds a number."""
        return next((one for archive in self.archives if (one := archive.range_with(seqno))), None)

    def require(self, first_seqno: int, last_seqno: int) -> None:
        """GapError or JournalMissingError when a number is in none of them, as far as they say themselves."""
        while first_seqno <= last_seqno:
            chain = self._chain_with(first_seqno, last_seqno)
            copy = self._copy_with(first_seqno)
            if chain is None and copy is None:
                self._missing(first_seqno)
            first_seqno = 1 + max(0 if chain is None else chain[1], 0 if copy is None else copy[2].last_seqno)

    @contextmanager
    def _holding(self, seqno: int, last_seqno: int) -> Iterator[tuple[Chain, int]]:
        """The chain that holds `seqno` and goes furthest, and how far; else the archive's segment, unpacked."""
        chain = self._chain_with(seqno, last_seqno)
        if chain is not None:
            yield chain
            return
        copy = self._copy_with(seqno)
        if copy is None:
            self._missing(seqno)
        archive, one, segment = copy
        directory = self._unpack(archive, one, segment)
        try:
            yield Chain(directory, network=bytes.fromhex(one.network)), min(segment.last_seqno, last_seqno)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _chain_with(self, seqno: int, last_seqno: int) -> tuple[Chain, int] | None:
        best: tuple[Chain, int] | None = None
        for chain, (_, whole) in zip(self.chains, self._ends, strict=True):
            holds = chain.oldest_seqno() <= seqno <= whole
            if holds and (best is None or whole > best[1]):
                best = (chain, whole)
        return None if best is None else (best[0], min(best[1], last_seqno))

    def _copy_with(self, seqno: int) -> tuple[ArchiveRanges, Range, SegmentCopy] | None:
        for archive in self.archives:
            found = holding(archive.ranges, seqno)
            if found is not None:
                return archive, *found
        return None

    def _unpack(self, archive: ArchiveRanges, one: Range, segment: SegmentCopy) -> Path:
        if self._stage is None:
            raise InternalError("an archive is read without a stage")
        directory = self._stage / f"segment-{segment.first_seqno:020d}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        require_free(directory, segment.bytes, "a segment of the archive")
        name, packed = one.packed_name(segment), directory / "packed"
        try:
            archive.files.fetch(name, packed)
            unpack_file(packed, directory / segment.name, segment.bytes, segment.sha256, where=f"{archive.uri}/{name}")
            packed.unlink()
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return directory

    def _missing(self, seqno: int) -> NoReturn:
        if seqno < self.oldest_seqno():
            raise JournalMissingError(
                f"transaction {seqno} is needed first, the oldest in these journals is {self.oldest_seqno()}",
                where=self.where,
                do="Name older segments or an archive with a further --journal, or seed this secondary anew",
                seqno=seqno,
            )
        raise GapError(f"transaction {seqno} is in none of these journals", where=self.where, expected=seqno)


def _archive(files: ArchiveFiles, network: bytes) -> ArchiveRanges:
    ranges = read_ranges(files)
    if not ranges:
        raise NotFoundError("this archive holds nothing yet", where=files.uri, do="Run: replicate archive")
    if ranges[0].network != network.hex():
        raise WrongNetworkError(
            f"the archive is of network {ranges[0].network}, this instance of {network.hex()}", where=files.uri
        )
    return ArchiveRanges(files, ranges)


def _end(chain: Chain) -> tuple[int, int]:
    """The last durable seqno as far as is known, and the last whole one."""
    _, scan = chain.scan_last()
    try:
        with closing(DurableSidecar(Path(chain.directory) / SIDECAR_NAME)) as sidecar:
            durable = sidecar.read()
    except JournalMissingError:
        durable = scan.last_seqno  # copied segments: what is whole in them was written there
    return min(max(durable, scan.last_mark), scan.last_seqno), scan.last_seqno
