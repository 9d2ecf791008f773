"""The journals that a replay reads: directories of a primary that lives or is gone, copies of them, and archives.

Guarantees: transactions come in their order, verified, whatever holds them; nothing above the bound that was asked for
is read. A directory may have holes: what is missing there is read from whichever of the journals holds it, and numbers
that none of them holds are refused, all by name, before anything is read. That they continue one another (also across
journals) is proven by the chain hashes, which the caller verifies. What is planned is read from just there, frames and
rows. Of an archive one segment at a time is unpacked, into the stage; it is removed when it has been read.
Leaves to others: what is done with them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from replicate.audit.chain_parts import ChainPart, UnpackedPart, parts_of
from replicate.audit.stretches import Stretch
from replicate.errors import (
    DamagedError,
    GapError,
    InternalError,
    JournalMissingError,
    NotFoundError,
    ReplicateError,
    TryAgainError,
    WrongNetworkError,
)
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch
from replicate.limits import BATCH_BYTES_MAX
from replicate.system.failpoint import hit
from replicate.transfer.seed.file import require_free
from update_process.replay.archive.files import (
    ArchiveFiles,
    archive_uri,
    local_path,
    open_files,
    same_file,
    unpack_file,
)
from update_process.replay.archive.manifest import FOLDER, Range, SegmentCopy, read_ranges

HOLES_TOLD: Final = 8
"""Of holes after these an error only says how many there are."""


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


@contextmanager
def _as_it_is(chain: Chain) -> Iterator[Chain]:
    yield chain


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


class ArchiveRanges(Struct, frozen=True):
    """An archive as far as it is finished."""

    files: ArchiveFiles
    ranges: list[Range]

    @property
    def uri(self) -> str:
        return self.files.uri

    def range_with(self, seqno: int) -> Range | None:
        """The range that holds a number."""
        return next((one for one in self.ranges if one.first_seqno <= seqno <= one.last_seqno), None)


class Span(Struct, frozen=True):
    """What one journal holds of a range of numbers: (a part of) a range of an archive, or a directory's segments."""

    first_seqno: int
    last_seqno: int
    chain: Chain | None = None
    archive: ArchiveRanges | None = None
    range: Range | None = None

    @property
    def directory(self) -> Path | None:
        """The directory of the segments."""
        return None if self.chain is None else Path(self.chain.directory)

    @property
    def where(self) -> str:
        """The directory or URI."""
        return str(self.directory) if self.archive is None else self.archive.uri


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
        segments: Sequence[tuple[Path, int]] = (),
    ) -> None:
        """Look at each. `segments`: further directories of one segment, in our stage, and with which transaction that
        ends: it need not be looked for. NotFoundError, UsageError, WrongNetworkError, JournalDamagedError,
        FormatUnknownError, and what reading an archive's manifests raises."""
        self.archives: list[ArchiveRanges] = []
        self.chains: list[ChainPart] = []
        """Of each directory its unbroken parts."""
        self._stage = stage
        self._plan: list[Span] = []
        for name in names:
            if is_archive(name):
                self.archives.append(_archive(open_files(archive_uri(str(name)), spark), network))
            else:
                path = local_path(archive_uri(str(name)))
                assert path is not None
                self.chains += parts_of(journal_directory(path), network=network)
        self._ends = [_end(chain) for chain in self.chains]
        for directory, last_seqno in segments:
            self.chains.append(UnpackedPart(directory, network=network))
            self._ends.append((last_seqno, last_seqno))
        self._archived = max((one.ranges[-1].last_seqno for one in self.archives), default=0)

    @property
    def where(self) -> str:
        """All of them, for an error."""
        return ", ".join(dict.fromkeys([*(chain.directory for chain in self.chains), *(a.uri for a in self.archives)]))

    @property
    def held(self) -> str:
        """All of them, each with the numbers that it holds, for an error."""
        found: dict[str, list[tuple[int, int]]] = {}
        for first, last, where in self._held():
            bounds = found.setdefault(where, [])
            if bounds and bounds[-1][1] + 1 == first:
                bounds[-1] = bounds[-1][0], last
            else:
                bounds.append((first, last))
        return ", ".join(f"{where} ({_numbers(bounds)})" for where, bounds in found.items())

    def _held(self) -> Iterator[tuple[int, int, str]]:
        """What each part and range holds, first and last, and where that is."""
        for chain, (_, whole) in zip(self.chains, self._ends, strict=True):
            if (first := chain.oldest_seqno()) <= whole:
                yield first, whole, chain.directory
        for archive in self.archives:
            for one in archive.ranges:
                yield one.first_seqno, one.last_seqno, archive.uri

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
        """Everything from `next_seqno` to `last_seqno`, from where it is planned. JournalMissingError (pruned),
        GapError, FrameDamaged, JournalDamagedError, named with file and offset; what came before it has been given. A
        large transaction's file may be gone once the next one is asked for."""
        for span in self._planned(next_seqno, last_seqno) or self._spans(next_seqno, last_seqno, archived_first=False):
            for chain, first, last in self._chains_of(span):
                with closing(ChainReader(chain, first)) as reader:
                    while (found := reader.read(max_bytes, last)) is not None:
                        yield found
                    if reader.next_seqno != last + 1:
                        raise GapError(
                            f"transaction {reader.next_seqno} is not in the journal",
                            where=chain.directory,
                            expected=reader.next_seqno,
                        )

    def refuse_taken_back(self, error: DamagedError) -> None:
        """TryAgainError instead of `error` when one of them ends before it did: its instance went back to a common
        point while it was read, so nothing in it is damaged."""
        for chain, (_, whole) in zip(self.chains, self._ends, strict=True):
            try:
                end = max(_end(part)[1] for part in parts_of(chain.directory)) if chain.is_newest else whole
            except ReplicateError:
                continue
            if end < whole:
                raise TryAgainError(
                    f"the journal was taken back to transaction {end} while it was read, and went up to {whole} before",
                    where=chain.directory,
                    do=f"What is here beyond {end} is taken back, too, once this instance meets the primary of now: "
                    "replicate -i INSTANCE rollback",
                ) from error

    def plan(self, first_seqno: int, last_seqno: int, *, archived_first: bool) -> list[Span]:
        """Where each number of a range is read from, from now on: `read` and `spans` follow it. So the process that
        takes rows from archives (`archived_first`) has verified the frames of just these. Journals that name one number
        may tell different histories (one was written on after a backup that was restored): never the rows of one, and
        the frames of another.

        GapError or JournalMissingError when a number is in none of them, as far as they say themselves.
        """
        self._plan = list(self._spans(first_seqno, last_seqno, archived_first=archived_first))
        return self._plan

    def spans(self, first_seqno: int, last_seqno: int) -> list[Span]:
        """Where a range is read from, in order: as planned, else archived as far as that goes. Raises as `plan`."""
        found = self._planned(first_seqno, last_seqno)
        return found or list(self._spans(first_seqno, last_seqno, archived_first=True))

    def stretches(self, first_seqno: int, last_seqno: int) -> list[Stretch]:
        """The same for an audit, which may read them in any order; each segment of an archive by itself. Raises as
        `plan`."""
        found: list[Stretch] = []
        for span in self._spans(first_seqno, last_seqno, archived_first=False):
            first, last = span.first_seqno, span.last_seqno
            if span.archive is None or span.range is None:
                assert span.chain is not None
                found.append(Stretch(first, last, partial(_as_it_is, span.chain)))
                continue
            found += [
                Stretch(
                    max(first, copy.first_seqno),
                    min(last, copy.last_seqno),
                    partial(self._opened, span.archive, span.range, copy),
                )
                for copy in span.range.segments
                if copy.last_seqno >= first and copy.first_seqno <= last
            ]
        return found

    def range_with(self, seqno: int) -> Range | None:
        """The range of an archive that holds a number."""
        return next((one for archive in self.archives if (one := archive.range_with(seqno))), None)

    def require(self, first_seqno: int, last_seqno: int) -> None:
        """GapError or JournalMissingError when a number is in none of them, as far as they say themselves."""
        for _ in self._spans(first_seqno, last_seqno, archived_first=False):
            pass

    def _planned(self, first_seqno: int, last_seqno: int) -> list[Span]:
        """The part of the plan; nothing when that does not cover all of it."""
        plan = self._plan
        if not plan or first_seqno < plan[0].first_seqno or last_seqno > plan[-1].last_seqno:
            return []
        return [
            replace(
                span,
                first_seqno=max(first_seqno, span.first_seqno),
                last_seqno=min(last_seqno, span.last_seqno),
            )
            for span in plan
            if span.last_seqno >= first_seqno and span.first_seqno <= last_seqno
        ]

    def _spans(self, first_seqno: int, last_seqno: int, *, archived_first: bool) -> Iterator[Span]:
        while first_seqno <= last_seqno:
            archived = next(
                ((archive, one) for archive in self.archives if (one := archive.range_with(first_seqno))), None
            )
            held = None if archived and archived_first else self._chain_with(first_seqno, last_seqno)
            ahead: list[int] = []
            if held is not None:
                chain, bound = held
                if archived_first:
                    ahead = [one.first_seqno for archive in self.archives for one in archive.ranges]
                span = Span(first_seqno, bound, chain)
            elif archived is not None:
                if not archived_first:
                    ahead = [chain.oldest_seqno() for chain in self.chains]
                span = Span(first_seqno, min(archived[1].last_seqno, last_seqno), None, *archived)
            else:
                self._missing(first_seqno, last_seqno)
            nearest = min((first - 1 for first in ahead if first > first_seqno), default=span.last_seqno)
            yield replace(span, last_seqno=min(span.last_seqno, nearest))
            first_seqno = min(span.last_seqno, nearest) + 1

    def _chains_of(self, span: Span) -> Iterator[tuple[Chain, int, int]]:
        """The chains that hold a span, one after another, each while it is asked for, and how much of it to read."""
        first, last = span.first_seqno, span.last_seqno
        if span.archive is None or span.range is None:
            assert span.chain is not None
            yield span.chain, first, last
            return
        for copy in span.range.segments:
            if copy.last_seqno >= first and copy.first_seqno <= last:
                with self._opened(span.archive, span.range, copy) as chain:
                    yield chain, max(first, copy.first_seqno), min(last, copy.last_seqno)

    @contextmanager
    def _opened(self, archive: ArchiveRanges, one: Range, copy: SegmentCopy) -> Iterator[Chain]:
        """A chain that holds an archived segment: a directory's, where the very same file is, else it is unpacked."""
        for chain in self.chains:
            is_there = copy.first_seqno in chain.first_seqnos()
            if is_there and same_file(Path(chain.path_of(copy.first_seqno)), copy.bytes, copy.sha256):
                yield chain
                return
        directory = self._unpack(archive, one, copy)
        try:
            yield UnpackedPart(directory, network=bytes.fromhex(one.network))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _chain_with(self, seqno: int, last_seqno: int) -> tuple[Chain, int] | None:
        """The chain that holds a number and goes furthest, and how far."""
        best: tuple[Chain, int] | None = None
        for chain, (_, whole) in zip(self.chains, self._ends, strict=True):
            holds = chain.oldest_seqno() <= seqno <= whole
            if holds and (best is None or whole > best[1]):
                best = (chain, whole)
        return None if best is None else (best[0], min(best[1], last_seqno))

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
            hit("replay.unpacked")
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return directory

    def _missing(self, seqno: int, last_seqno: int) -> NoReturn:
        """Refuse `seqno`, which none of them holds, and what else is missing up to `last_seqno`."""
        if seqno < self.oldest_seqno():
            raise JournalMissingError(
                f"transaction {seqno} is needed first, the oldest in these journals is {self.oldest_seqno()}",
                where=self.held,
                do="Name older segments or an archive with a further --journal, or seed this secondary again",
                seqno=seqno,
            )
        missing = holes(((first, last) for first, last, _ in self._held()), seqno, last_seqno)
        is_one = missing == [(seqno, seqno)]
        raise GapError(
            f"transaction{'' if is_one else 's'} {_numbers(missing)} {'is' if is_one else 'are'} in none of these "
            "journals",
            where=self.held,
            do="Name other segments, or an archive, with a further --journal; or seed this secondary again",
            expected=seqno,
        )


def holes(held: Iterable[tuple[int, int]], first_seqno: int, last_seqno: int) -> list[tuple[int, int]]:
    """What of a range of numbers is in none of the ranges `held`."""
    found: list[tuple[int, int]] = []
    wanted = first_seqno
    for first, last in sorted(held):
        if first > last_seqno:
            break
        if first > wanted:
            found.append((wanted, first - 1))
        wanted = max(wanted, last + 1)
    if wanted <= last_seqno:
        found.append((wanted, last_seqno))
    return found


def _numbers(bounds: Sequence[tuple[int, int]]) -> str:
    told = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in bounds[:HOLES_TOLD])
    return told + (f" and {len(bounds) - HOLES_TOLD} more ranges" if len(bounds) > HOLES_TOLD else "")


def _archive(files: ArchiveFiles, network: bytes) -> ArchiveRanges:
    ranges = read_ranges(files)
    if not ranges:
        raise NotFoundError("this archive holds nothing yet", where=files.uri, do="Run: replicate -i INSTANCE archive")
    if ranges[0].network != network.hex():
        raise WrongNetworkError(
            f"the archive is of network {ranges[0].network}, this instance of {network.hex()}", where=files.uri
        )
    return ArchiveRanges(files, ranges)


def _end(chain: ChainPart) -> tuple[int, int]:
    """The last durable seqno as far as is known, and the last whole one."""
    _, scan = chain.scan_last()
    if not chain.is_newest:  # a segment was written after it, so it had been synced
        return scan.last_seqno, scan.last_seqno
    try:
        with closing(DurableSidecar(Path(chain.directory) / SIDECAR_NAME, writable=False)) as sidecar:
            durable = sidecar.read()
    except JournalMissingError:
        durable = scan.last_seqno  # copied segments: what is whole in them was written there
    return min(max(durable, scan.last_mark), scan.last_seqno), scan.last_seqno
