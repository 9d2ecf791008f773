"""The chain of segments in INSTANCE/journal: found by name, tied by their headers, switched and pruned.

Each segment's header names the one before it (first seqno, last seqno, check of its header), so a segment that is lost,
swapped or of another generation is noticed where the chain is walked.

Guarantees: readers need no lock and never see half a frame (the caller bounds them by a seqno known to be complete);
pruning removes from the oldest on, one durable step at a time, so that what remains is always a chain.
Leaves to others: consumers and their positions, the commit lock (the caller holds it to switch, adopt and prune),
pools.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise

from msgspec import Struct

from replicate.errors import DamagedError, JournalDamagedError, JournalMissingError
from replicate.journal.header import SegmentHeader
from replicate.journal.segment import SegmentFile, create_segment, first_seqno_of_name, open_segment, segment_name
from replicate.journal.tail import ScanResult
from replicate.limits import SEGMENT_GROW_BYTES
from replicate.model.transaction import Catalogue
from replicate.system.failpoint import hit
from replicate.system.files import sync_directory
from replicate.system.os_errors import refuse_os_error


class Segment(Struct, frozen=True):
    """One segment of the chain, its header verified."""

    path: str
    header: SegmentHeader

    @property
    def first_seqno(self) -> int:
        return self.header.first_seqno


class Chain:
    """The segments of one directory. Holds no descriptor; safe beside writers and pruners in other processes.

    `network`, `instance`: UUID bytes that every header must name; None = do not ask. `grow_bytes`: the step in which
    segments that are opened or made here grow. `since`: segments that begin before that number are passed over.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        network: bytes | None = None,
        instance: bytes | None = None,
        grow_bytes: int = SEGMENT_GROW_BYTES,
        since: int = 0,
    ) -> None:
        self.directory = os.fspath(directory)
        self._grow_bytes = grow_bytes
        self._since = since
        self._network = network
        self._instance = instance
        self._headers: dict[int, tuple[tuple[int, int], SegmentHeader]] = {}

    # Looking.

    def first_seqnos(self) -> list[int]:
        """The first seqno of every segment there is, ascending; by name, nothing is opened. JournalIOError."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            raise JournalMissingError("there is no journal directory", where=self.directory) from None
        except OSError as error:
            refuse_os_error(error, "listing the journal failed", self.directory)
        since = self._since
        found = sorted(seqno for seqno in map(first_seqno_of_name, names) if seqno is not None and seqno >= since)
        for gone in self._headers.keys() - set(found):
            del self._headers[gone]
        return found

    def path_of(self, first_seqno: int) -> str:
        """Where the segment that begins with `first_seqno` stands, or would stand."""
        return os.path.join(self.directory, segment_name(first_seqno))

    def segment(self, first_seqno: int) -> Segment:
        """The segment that begins with exactly that seqno. What `open_segment` raises."""
        path = self.path_of(first_seqno)
        try:
            found = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            raise JournalMissingError("there is no such segment", where=path) from None
        except OSError as error:
            refuse_os_error(error, "looking at a journal segment failed", path)
        # An empty newest segment may be replaced by another of the same number: look whether it is still the same file.
        identity = (found.st_ino, found.st_ctime_ns)
        known = self._headers.get(first_seqno)
        if known is None or known[0] != identity:
            with self.open(first_seqno) as opened:
                known = self._headers[first_seqno] = (identity, opened.header)
        return Segment(path, known[1])

    def open(self, first_seqno: int, *, writable: bool = False) -> SegmentFile:
        """Open the segment that begins with that seqno. What `open_segment` raises."""
        return open_segment(
            self.path_of(first_seqno),
            network=self._network,
            instance=self._instance,
            writable=writable,
            grow_bytes=self._grow_bytes,
        )

    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first, headers and links verified.

        JournalMissingError when one in the middle is gone, JournalDamagedError when one is not what the next was
        written after; what `open_segment` raises.
        """
        found = tuple(self.segment(first_seqno) for first_seqno in self.first_seqnos())
        for previous, following in pairwise(found):
            self._check_link(previous, following)
        return found

    def _check_link(self, previous: Segment, following: Segment) -> None:
        fault = following.header.link_fault(previous.header)
        if fault is None:
            return
        if following.header.previous_first_seqno > previous.first_seqno:
            raise JournalMissingError(
                f"segment {following.header.previous_first_seqno} is not there",
                where=self.directory,
                do="Restore the file, or seed the secondaries that still need it again",
            )
        raise JournalDamagedError(f"the chain is broken: {fault}", where=following.path)

    def last_segment(self) -> Segment:
        """The newest segment, its link to the one before verified. JournalMissingError when there is none at all."""
        numbers = self.first_seqnos()
        if not numbers:
            raise JournalMissingError("the journal has no segment", where=self.directory)
        last = self.segment(numbers[-1])
        if len(numbers) > 1:
            self._check_link(self.segment(numbers[-2]), last)
        return last

    def find(self, seqno: int) -> Segment:
        """The segment that holds `seqno`, or, above the end, the last one. JournalMissingError when it was pruned."""
        numbers = self.first_seqnos()
        index = bisect_right(numbers, seqno)
        if not index:
            oldest = f"the oldest is {numbers[0]}" if numbers else "there is no segment"
            raise JournalMissingError(
                f"seqno {seqno} is not in the journal any more; {oldest}",
                where=self.directory,
                do="A consumer that still needs it must be seeded again",
                seqno=seqno,
            )
        found = self.segment(numbers[index - 1])
        if index < len(numbers):
            self._check_link(found, self.segment(numbers[index]))
        return found

    def size_bytes(self) -> int:
        """What all segments take on disk."""
        return sum(self._file_bytes(first_seqno) for first_seqno in self.first_seqnos())

    def _file_bytes(self, first_seqno: int) -> int:
        try:
            return os.stat(self.path_of(first_seqno)).st_blocks * 512
        except FileNotFoundError:
            return 0  # another process has pruned it meanwhile

    def oldest_seqno(self) -> int:
        """The first seqno that is still in the journal. JournalMissingError when there is no segment."""
        numbers = self.first_seqnos()
        if not numbers:
            raise JournalMissingError("the journal has no segment", where=self.directory)
        return numbers[0]

    def is_partial(self, from_seqno: int = 0) -> bool:
        """Whether a segment with `from_seqno`, or after it, says that it is of a secondary which does not get all. One
        that is damaged, or pruned meanwhile, says nothing. JournalIOError, FormatUnknownError."""
        numbers = self.first_seqnos()
        return any(map(self._says_partial, numbers[max(0, bisect_right(numbers, from_seqno) - 1) :]))

    def whole_end(self) -> Chain:
        """The same journal from after the last segment that says so: what an instance has written since it was made
        primary, with nothing of what it had got before. Itself where none says so. Raises as `is_partial`."""
        numbers = self.first_seqnos()
        marked = [number for number in numbers if self._says_partial(number)]
        if not marked:
            return self
        return Chain(
            self.directory,
            network=self._network,
            instance=self._instance,
            grow_bytes=self._grow_bytes,
            since=marked[-1] + 1,
        )

    def _says_partial(self, first_seqno: int) -> bool:
        with suppress(DamagedError):
            return self.segment(first_seqno).header.is_partial
        return False

    # Writing. The caller holds the commit lock.

    def create_first(self, header: SegmentHeader, catalogue: Catalogue) -> SegmentFile:
        """The first segment of a new journal (or one seeded in the middle). What `create_segment` raises."""
        return create_segment(self.directory, header, catalogue, grow_bytes=self._grow_bytes)

    def scan_last(self) -> tuple[Segment, ScanResult]:
        """Scan the newest segment from its first frame on (recovery). An adopted one was synced whole before it got its
        name: its commit frame is verified. What `open_segment` and `scan` raise."""
        last = self.last_segment()
        with self.open(last.first_seqno) as segment:
            return last, segment.scan_adopted() if last.header.adopted else segment.scan()

    # Pruning.

    def prune(self, below_seqno: int) -> list[str]:
        """Remove, oldest first, the segments that hold only seqnos below `below_seqno`; never the newest one.

        `below_seqno`: what every registered consumer, and our own regions, have durably applied, plus one. Gives the
        names of those removed.
        JournalIOError: what was removed before stays removed, the rest is a chain.
        """
        numbers = self.first_seqnos()
        removed: list[str] = []
        for first_seqno, following in pairwise(numbers):
            if following > below_seqno:
                break
            path = self.path_of(first_seqno)
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass  # another process was quicker
            except OSError as error:
                refuse_os_error(error, "pruning the journal failed", path)
            hit("prune.unlinked")
            sync_directory(self.directory)
            removed.append(segment_name(first_seqno))
        return removed

    def seqno_within_cap(self, cap_bytes: int) -> int:
        """The `below_seqno` with which `prune` brings the chain within `cap_bytes`, or as near as it can."""
        numbers = self.first_seqnos()
        total = self.size_bytes()
        below = numbers[0] if numbers else 0
        for first_seqno, following in pairwise(numbers):
            if total <= cap_bytes:
                break
            total -= self._file_bytes(first_seqno)
            below = following
        return below
