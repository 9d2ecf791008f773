"""Where a journal ends, and whether what stands there is the normal end, a torn tail, or damage.

A crash may leave the last frame half written: that is a torn tail, and it may be cut. A frame that was known to be
durable, or that others have seen, must never be taken for one: cutting it would lose it silently.

Guarantees: the verdict depends on its arguments alone.
Leaves to others: files, and what is done about the verdict. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

LOOKS: Final = 3
"""How often a process without the lock looks at the end of the newest segment before it is called bad: a writer may be
at it."""


class Damage(Struct, frozen=True):
    """Bytes that do not verify. `offset`: in the segment. `seqno`: the number that should stand there.

    `whole_frame`: they are a complete frame with a right check and the wrong number, kind or chain.
    """

    offset: int
    seqno: int
    reason: str
    whole_frame: bool = False


class FrameAfter(Struct, frozen=True):
    """The first frame that verifies after damage. `mark`: the highest MARK of it and all that verify after it."""

    offset: int
    seqno: int
    mark: int


class ScanResult(Struct, frozen=True):
    """What a scan of one segment found. Everything before `end_offset` verifies; the next frame belongs there.

    `last_seqno`: of the last good frame, or the one before the first expected when there is none. `chains`: origin ->
    (origin_seqno, chain) after it, of all origins given or met. `last_mark` and `last_csn`: the highest
    met. `definition_frames`: offsets of the frames that hold DEFINE changes or HISTORY. `restated`: where the last good
    frame was restated, its offset, its origin, and where that one stood before it (None: it was not known).
    """

    end_offset: int
    last_seqno: int
    frame_count: int
    chains: Mapping[int, tuple[int, int]]
    last_mark: int = 0
    last_csn: int = 0
    definition_frames: tuple[int, ...] = ()
    damaged: Damage | None = None
    after: FrameAfter | None = None
    restated: tuple[int, int, tuple[int, int] | None] | None = None

    def without_restated(self, reason: str) -> ScanResult:
        """As if the last frame, which is restated, had not come onto the disk."""
        assert self.restated is not None
        offset, origin, point = self.restated
        chains = {key: value for key, value in self.chains.items() if key != origin}
        if point is not None:
            chains[origin] = point
        return replace(
            self,
            end_offset=offset,
            last_seqno=self.last_seqno - 1,
            frame_count=self.frame_count - 1,
            chains=chains,
            damaged=Damage(offset, self.last_seqno, reason),
            restated=None,
        )


def goes_on(found: ScanResult) -> str:
    """For people, to follow what is damaged: where it goes on, and what is not there. "" where nothing verifies."""
    after, bad = found.after, found.last_seqno + 1
    if after is None:
        return ""
    if after.seqno == bad:
        return f"; {bad} stands at offset {after.offset}"
    lost = f"transaction {bad}" if after.seqno == bad + 1 else f"transactions {bad} to {after.seqno - 1}"
    return f"; {lost} cannot be read, {after.seqno} stands at offset {after.offset}"


class Clean(Struct, frozen=True):
    """The journal ends well at `offset`; the next frame will be `next_seqno`."""

    offset: int
    next_seqno: int


class Torn(Struct, frozen=True):
    """A last frame was half written. Cut at `offset` (zeros, fsync) and go on with `next_seqno` in a new segment."""

    offset: int
    next_seqno: int


class Damaged(Struct, frozen=True):
    """Something that should be there is not. `seqno`: the first that cannot be read; `reason` names the witness."""

    offset: int
    seqno: int
    reason: str


def classify_tail(
    scan: ScanResult,
    *,
    last_durable_seqno: int,
    region_seqno_max: int = 0,
    acknowledged_max: int = 0,
    power_lost: bool = False,
    marks_are_ours: bool = True,
) -> Clean | Torn | Damaged:
    """The verdict over the end of the last segment; see the head of this module for the rule.

    `last_durable_seqno`: from the sidecar. `region_seqno_max`: the highest of all regions. `acknowledged_max`: the
    highest that any consumer has acknowledged. 0 = none. `power_lost`: the machine was restarted since the sidecar was
    written. `marks_are_ours`: the process that wrote the frames told in their MARK what was durable *here*. Not so on a
    secondary: it journals the frames as the primary made them, and what that had on its disk proves nothing of ours.

    * zeros to the end of the file are the normal end (they were written ahead);
    * bad bytes are **damage** when their seqno is at or below the last durable seqno kept beside the journal, any
      frame's MARK (on a primary), the highest seqno in a region, or a consumer's acknowledged seqno; or when a frame
      that verifies stands after them; or when they are a whole frame that verifies but does not belong there (a torn
      write cannot make one);
    * a normal end is **damage** too when it lies before a seqno that was durable or acknowledged: something wiped the
      rest;
    * all else is a torn tail.

    A normal end before a region's seqno is no damage: after a power loss the region may be ahead; its ring completes
    us.
    """
    next_seqno = scan.last_seqno + 1
    marks = max(scan.last_mark, scan.after.mark if scan.after else 0) if marks_are_ours else 0
    witnesses = [
        (last_durable_seqno, "is durable by the mark kept beside the journal"),
        (marks, "is durable by the mark of another frame"),
        (acknowledged_max, "was acknowledged by a consumer"),
    ]
    if scan.damaged is not None and not power_lost:
        witnesses.append((region_seqno_max, "was committed in a region"))
    for seqno, testimony in witnesses:
        if seqno >= next_seqno:
            what = scan.damaged.reason if scan.damaged is not None else "the journal ends too early"
            return Damaged(scan.end_offset, next_seqno, f"{what}; but seqno {seqno} {testimony}")
    if scan.damaged is None:
        return Clean(scan.end_offset, next_seqno)
    if scan.damaged.whole_frame:
        return Damaged(scan.end_offset, next_seqno, scan.damaged.reason)
    if scan.after is not None and not power_lost:
        reason = f"{scan.damaged.reason}; but seqno {scan.after.seqno} verifies after it"
        return Damaged(scan.end_offset, next_seqno, reason)
    return Torn(scan.end_offset, next_seqno)
