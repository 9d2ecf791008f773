"""What `replicate journal verify` finds: every header, link, frame, number and chain hash, and each frame's content.

Guarantees: goes on after each bad place with the next frame, part or segment that verifies, and reports them all;
reads files only, takes no lock, and may run beside a writer (a bad end of the newest segment is looked at again before
it is reported).
Leaves to others: what to do about a finding, beyond saying where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from replicate.errors import DamagedError, JournalMissingError, ReplicateError
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.header import SegmentHeader
from replicate.journal.reader import large_transaction
from replicate.journal.record import decode
from replicate.journal.scan import frame_after, scan
from replicate.journal.segment import SegmentFile, segment_name
from replicate.journal.spool_format import part_offset
from replicate.journal.tail import LOOKS, Clean, ScanResult, classify_tail, goes_on
from replicate.journal.walk import measure, walk
from replicate.limits import BATCH_BYTES_MAX
from replicate.model.transaction import Kind

if TYPE_CHECKING:
    from replicate.instance.instance import Instance


class JournalFault(Struct, frozen=True):
    """Something that is not as it should be; `seqno`: the number that should stand at `offset`, 0 for none."""

    segment: str
    offset: int
    seqno: int
    what: str


class Verification(Struct, frozen=True):
    """`first_seqno` to `last_seqno` is what was looked at (0: nothing)."""

    first_seqno: int
    last_seqno: int
    segment_count: int
    transaction_count: int
    findings: tuple[JournalFault, ...]

    def lines(self) -> Iterator[str]:
        """For people: what was looked at, then each finding."""
        segments, transactions, found = self.segment_count, self.transaction_count, len(self.findings)
        yield (
            f"{segments} segment{'s' * (segments != 1)}, {transactions} transaction{'s' * (transactions != 1)}, "
            f"{self.first_seqno} to {self.last_seqno}: {found or 'no'} finding{'s' * (found != 1)}"
        )
        for finding in self.findings:
            place = f"{finding.segment}, offset {finding.offset}" + (
                f", seqno {finding.seqno}" if finding.seqno else ""
            )
            yield f"    {place}: {finding.what}"


def verify_journal(instance: Instance, first_seqno: int | None = None, last_seqno: int | None = None) -> Verification:
    """`verify_chain` over an instance's journal."""
    chain = Chain(instance.journal_directory, network=instance.content.network, instance=instance.content.uuid)
    return verify_chain(chain, first_seqno, last_seqno, marks_are_ours=instance.told_role == "primary")


def verify_chain(
    chain: Chain, first_seqno: int | None = None, last_seqno: int | None = None, *, marks_are_ours: bool = True
) -> Verification:
    """Verify the segments that hold anything between both numbers (None: all). `marks_are_ours`: see `classify_tail`.

    JournalIOError.
    """
    return _Verifier(chain, marks_are_ours=marks_are_ours).run(first_seqno, last_seqno)


class _Verifier:
    def __init__(self, chain: Chain, *, marks_are_ours: bool) -> None:
        self.chain = chain
        self.marks_are_ours = marks_are_ours
        self.findings: list[JournalFault] = []
        self.transactions = 0
        self.last_seqno = 0
        # Carried from one segment to the next: its header, where it ended, and the chains there.
        self.previous: SegmentHeader | None = None
        self.ended: ScanResult | None = None
        self.is_whole = True
        """Nothing was bad in it, so that all chains there are known."""

    def run(self, first_seqno: int | None, last_seqno: int | None) -> Verification:
        durable = self._durable()
        numbers = self.chain.first_seqnos()
        looked = []
        for index, first in enumerate(numbers):
            newest = index + 1 == len(numbers)
            if first_seqno is not None and not newest and numbers[index + 1] <= first_seqno:
                continue
            if last_seqno is not None and first > last_seqno:
                break
            if self._segment(first, durable if newest else None):
                looked.append(first)
        if not numbers:
            self.findings.append(JournalFault(self.chain.directory, 0, 0, "there is no segment"))
        return Verification(
            looked[0] if looked else 0, self.last_seqno, len(looked), self.transactions, tuple(self.findings)
        )

    def _durable(self) -> int:
        sidecar = DurableSidecar(f"{self.chain.directory}/{SIDECAR_NAME}", writable=False)
        try:
            return sidecar.read()
        except ReplicateError as error:
            self.findings.append(JournalFault(SIDECAR_NAME, 0, 0, error.what))
            return 0
        finally:
            sidecar.close()

    def _find(self, first: int, offset: int, seqno: int, what: str) -> None:
        self.findings.append(JournalFault(segment_name(first), offset, seqno, what))

    def _segment(self, first: int, durable: int | None) -> bool:
        """`durable`: the mark beside the journal, for the newest segment only. False: it was pruned meanwhile."""
        previous, ended, is_whole = self.previous, self.ended, self.is_whole
        self.previous = self.ended = None
        self.is_whole = True
        try:
            segment = self.chain.open(first)
        except ReplicateError as error:
            if self._is_pruned(first, error):
                return False
            self._find(first, 0, first, error.what)
            return True
        with segment:
            header = self.previous = segment.header
            if previous is not None:
                self._link(previous, header, ended)
            try:
                if header.adopted:
                    self.ended = self._adopted(segment)
                else:
                    self.ended = self._ordinary(segment, ended, is_whole, durable)
            except ReplicateError as error:
                if self._is_pruned(first, error):
                    return False
                where = error.facts.get("offset", 0)
                self._find(first, where if isinstance(where, int) else 0, first, error.what)
        return True

    def _is_pruned(self, first: int, error: ReplicateError) -> bool:
        """Pruning takes the oldest: what stood before the oldest of now is not missing."""
        return isinstance(error, JournalMissingError) and first < min(self.chain.first_seqnos(), default=0)

    def _link(self, previous: SegmentHeader, header: SegmentHeader, ended: ScanResult | None) -> None:
        fault = header.link_fault(previous)
        if fault is None and ended is not None:
            if ended.last_seqno != header.previous_last_seqno:
                fault = (
                    f"it follows seqno {header.previous_last_seqno}, the segment before ends with {ended.last_seqno}"
                )
            elif not previous.adopted and ended.end_offset != header.previous_end_offset:
                fault = f"the segment before should end at {header.previous_end_offset}, not at {ended.end_offset}"
        if fault is not None:
            self._find(header.first_seqno, 0, header.first_seqno, f"the chain is broken: {fault}")

    def _ordinary(
        self, segment: SegmentFile, before: ScanResult | None, is_whole: bool, durable: int | None
    ) -> ScanResult | None:
        """Piece by piece: after a bad place on with the next frame that verifies. How it ended; None: who knows."""
        header = segment.header
        chains: Mapping[int, tuple[int, int]] | None
        try:
            catalogue, begin = segment.read_catalogue()
        except DamagedError as error:
            self._find(header.first_seqno, header.catalogue_offset, 0, f"the segment's catalogue: {error.what}")
            after = frame_after(segment.fd, header.catalogue_offset + 1, header.first_seqno, segment.path)
            if after is None:
                return None
            begin, expected, chains = after.offset, after.seqno, None
        else:
            expected, chains = header.first_seqno, catalogue.chains
            if before is not None and not _agree(before.chains, chains, is_whole=is_whole):
                what = "chain hashes differ from the segment before"
                self._find(header.first_seqno, header.catalogue_offset, 0, what)
        while True:
            found = self._piece(segment, begin, expected, chains, durable)
            self._contents(segment, begin, found, chains)
            self.transactions += found.frame_count
            self.last_seqno = max(self.last_seqno, found.last_seqno)
            if found.after is None:
                self.is_whole = chains is not None
                return found if found.damaged is None else None
            begin, expected, chains = found.after.offset, found.after.seqno, None

    def _piece(
        self,
        segment: SegmentFile,
        begin: int,
        expected: int,
        chains: Mapping[int, tuple[int, int]] | None,
        durable: int | None,
    ) -> ScanResult:
        """What stands from `begin` up to the next bad place, which is found, or to the end."""
        first = segment.header.first_seqno
        for _ in range(LOOKS):
            # Which of all marks is the highest is asked once: every piece would read all the rest of the file for it.
            found = scan(segment.fd, begin, expected, chains=chains, path=segment.path, all_marks=chains is not None)
            if found.damaged is None or durable is None:
                break  # only at the newest segment's end may a writer be at work
        what = "" if found.damaged is None else found.damaged.reason
        if durable is not None:
            verdict = classify_tail(found, last_durable_seqno=durable, marks_are_ours=self.marks_are_ours)
            if not isinstance(verdict, Clean):
                what = getattr(verdict, "reason", "a torn tail: the last frame was half written")
        if what:
            self._find(first, found.end_offset, found.last_seqno + 1, f"{what}{goes_on(found)}")
        return found

    def _contents(
        self, segment: SegmentFile, offset: int, found: ScanResult, chains: Mapping[int, tuple[int, int]] | None
    ) -> None:
        """Each frame's content, and its number of its origin: the first on trust where nobody knows the `chains`."""
        first = segment.header.first_seqno
        last = {origin: seqno for origin, (seqno, _) in (chains or {}).items()}
        while offset < found.end_offset:
            data = segment.read_some(min(BATCH_BYTES_MAX, found.end_offset - offset), offset)
            whole = measure(data, verify=False).end
            for at, head in walk(memoryview(data)[:whole]):
                expected = 0 if head.kind == Kind.HISTORY else last.get(head.origin, 0) + 1
                if head.origin_seqno != expected and (chains is not None or head.origin in last):
                    what = f"origin {head.origin:08x} has number {head.origin_seqno}, {expected} should stand here"
                    self._find(first, offset + at, head.seqno, what)
                last[head.origin] = head.origin_seqno
                try:
                    decode(data[at : at + head.frame_bytes])
                except ReplicateError as error:
                    self._find(first, offset + at, head.seqno, error.what)
            offset += whole

    def _adopted(self, segment: SegmentFile) -> ScanResult | None:
        """A large transaction: its commit frame, its catalogue, and each part for itself."""
        first = segment.header.first_seqno
        found: ScanResult | None = None
        try:
            large = large_transaction(segment)
        except DamagedError as error:
            self._find(first, segment.header.commit_offset, first, error.what)
            self._catalogue_of_adopted(segment)
            return None
        self.transactions += 1
        self.last_seqno = max(self.last_seqno, first)
        if self._catalogue_of_adopted(segment):
            found = segment.scan_adopted()
        number = 0
        while number < large.part_count:
            try:
                for _ in large.parts(number):  # each is verified as it comes
                    number += 1
            except JournalMissingError:
                raise
            except DamagedError as error:
                bad = min(number, large.part_count - 1)
                self._find(first, part_offset(bad), first, f"part {bad} of {large.part_count}: {error.what}")
                number += 1
            else:
                break
        return found

    def _catalogue_of_adopted(self, segment: SegmentFile) -> bool:
        try:
            segment.read_catalogue()
        except DamagedError as error:
            first, offset = segment.header.first_seqno, segment.header.catalogue_offset
            self._find(first, offset, 0, f"the segment's catalogue: {error.what}")
            return False
        return True


def _agree(before: Mapping[int, tuple[int, int]], here: Mapping[int, tuple[int, int]], *, is_whole: bool) -> bool:
    """Whether the chains at a segment's end are those at the next one's begin. After a bad place only those of the
    origins that came after it are known."""
    return dict(before) == dict(here) if is_whole else all(here.get(key) == point for key, point in before.items())
