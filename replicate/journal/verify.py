"""What `replicate journal verify` finds: every header, link, frame, number and chain hash, and each frame's content.

Guarantees: goes on after a finding and reports them all; reads files only, takes no lock, and may run beside a writer
(a bad end of the newest segment is looked at again before it is reported).
Refuses to know: what to do about a finding, beyond saying where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from replicate.errors import JournalMissingError, ReplicateError
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.frames import measure, walk
from replicate.journal.header import SegmentHeader
from replicate.journal.reader import large_transaction
from replicate.journal.record import decode
from replicate.journal.scan import scan
from replicate.journal.segment import SegmentFile, segment_name
from replicate.journal.tail import Clean, ScanResult, classify_tail
from replicate.limits import BATCH_BYTES_MAX
from replicate.transaction import Kind

if TYPE_CHECKING:
    from replicate.instance.instance import Instance

_LOOKS: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be; `seqno`: the number that should stand at `offset`, 0 for none."""

    segment: str
    offset: int
    seqno: int
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """`first_seqno` to `last_seqno` is what was looked at (0: nothing)."""

    first_seqno: int
    last_seqno: int
    segment_count: int
    transaction_count: int
    findings: tuple[Finding, ...]

    def lines(self) -> Iterator[str]:
        """For people: what was looked at, then each finding."""
        yield (
            f"{self.segment_count} segments, {self.transaction_count} transactions, "
            f"{self.first_seqno} to {self.last_seqno}: {len(self.findings) or 'no'} finding"
            f"{'' if len(self.findings) == 1 else 's'}"
        )
        for finding in self.findings:
            place = f"{finding.segment}, offset {finding.offset}" + (
                f", seqno {finding.seqno}" if finding.seqno else ""
            )
            yield f"    {place}: {finding.what}"


def verify_journal(instance: Instance, first_seqno: int | None = None, last_seqno: int | None = None) -> Verification:
    """`verify_chain` over an instance's journal."""
    chain = Chain(instance.journal_directory, network=instance.content.network, instance=instance.content.uuid)
    return verify_chain(chain, first_seqno, last_seqno, marks_are_ours=instance.role == "primary")


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
        self.findings: list[Finding] = []
        self.transactions = 0
        self.last_seqno = 0
        # Carried from one segment to the next: its header, where it ended, and the chains there.
        self.previous: SegmentHeader | None = None
        self.ended: ScanResult | None = None

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
            self.findings.append(Finding(self.chain.directory, 0, 0, "there is no segment"))
        return Verification(
            looked[0] if looked else 0, self.last_seqno, len(looked), self.transactions, tuple(self.findings)
        )

    def _durable(self) -> int:
        sidecar = DurableSidecar(f"{self.chain.directory}/{SIDECAR_NAME}", writable=False)
        try:
            return sidecar.read()
        except ReplicateError as error:
            self.findings.append(Finding(SIDECAR_NAME, 0, 0, error.what))
            return 0
        finally:
            sidecar.close()

    def _find(self, first: int, offset: int, seqno: int, what: str) -> None:
        self.findings.append(Finding(segment_name(first), offset, seqno, what))

    def _segment(self, first: int, durable: int | None) -> bool:
        """`durable`: the mark beside the journal, for the newest segment only. False: it was pruned meanwhile."""
        previous, ended = self.previous, self.ended
        self.previous = self.ended = None
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
                self.ended = self._adopted(segment) if header.adopted else self._ordinary(segment, ended, durable)
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

    def _ordinary(self, segment: SegmentFile, before: ScanResult | None, durable: int | None) -> ScanResult:
        header = segment.header
        catalogue, begin = segment.read_catalogue()
        if before is not None and dict(before.chains) != dict(catalogue.chains):
            self._find(header.first_seqno, header.catalogue_offset, 0, "chain hashes differ from the segment before")
        for _ in range(_LOOKS):
            found = scan(segment.fd, begin, header.first_seqno, chains=catalogue.chains, path=segment.path)
            if found.damaged is None or durable is None:
                break  # only at the newest segment's end may a writer be at work
        if durable is not None:
            verdict = classify_tail(found, last_durable_seqno=durable, marks_are_ours=self.marks_are_ours)
            if not isinstance(verdict, Clean):
                reason = getattr(verdict, "reason", "a torn tail: the last frame was half written")
                self._find(header.first_seqno, verdict.offset, found.last_seqno + 1, reason)
        elif found.damaged is not None:
            self._find(header.first_seqno, found.damaged.offset, found.damaged.seqno, found.damaged.reason)
        self._contents(segment, begin, found, {origin: last for origin, (last, _) in catalogue.chains.items()})
        self.transactions += found.frame_count
        self.last_seqno = max(self.last_seqno, found.last_seqno)
        return found

    def _contents(self, segment: SegmentFile, offset: int, found: ScanResult, last: dict[int, int]) -> None:
        first = segment.header.first_seqno
        while offset < found.end_offset:
            data = segment.read_some(min(BATCH_BYTES_MAX, found.end_offset - offset), offset)
            whole = measure(data, verify=False).end
            for at, head in walk(memoryview(data)[:whole]):
                expected = 0 if head.kind == Kind.HISTORY else last.get(head.origin, 0) + 1
                if head.origin_seqno != expected:
                    what = f"origin {head.origin:08x} has number {head.origin_seqno}, {expected} should stand here"
                    self._find(first, offset + at, head.seqno, what)
                last[head.origin] = head.origin_seqno
                try:
                    decode(data[at : at + head.frame_bytes])
                except ReplicateError as error:
                    self._find(first, offset + at, head.seqno, error.what)
            offset += whole

    def _adopted(self, segment: SegmentFile) -> ScanResult:
        found = segment.scan_adopted()
        self.transactions += 1
        self.last_seqno = max(self.last_seqno, found.last_seqno)
        for _ in large_transaction(segment).parts():
            pass  # each is verified as it comes
        return found
