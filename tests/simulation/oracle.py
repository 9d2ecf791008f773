"""What must be true in a world, whatever happens there: I1 to I4 and I6 of the project's list of faults.

The oracle stands outside of both hosts. It sees each commit of a region as it happens, what writers are told, what the
source sends, and what the receiver reports as durable, and knows the one true order of rows.

Guarantees: a violation is raised at once, with what was expected; nothing is compared that is not yet decided.
Leaves to others: how anything is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain as flatten

from replicate.journal.frame import FIXED_ELEMENTS
from replicate.journal.record import decode_batch
from replicate.model.transaction import Op
from tests.simulation.regions import Pending, Region


class ViolationError(AssertionError):
    """Something that must hold does not. `what` names which."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what}: {text}")
        self.what = what


class Lane:
    """One region on both sites. `truth`: the identities of all rows in the order of their commits, as far as it cannot
    change any more up to `fixed`, and as the primary has it now after that."""

    def __init__(self, primary: Region, secondary: Region) -> None:
        self.primary = primary
        self.secondary = secondary
        self.truth = list(primary.rows)
        self.ends = set(self.truth)
        """Rows with which a transaction ends here."""
        self.fixed = len(self.truth)


class Oracle:
    """One lane for each region, and what holds for all of them together."""

    def __init__(self, primary: list[Region], secondary: list[Region], *, is_partial: bool = False) -> None:
        """`is_partial`: rows of the second region never come to the secondary, though numbers and forms do."""
        self.is_partial = is_partial
        self.lanes = [Lane(here, there) for here, there in zip(primary, secondary, strict=True)]
        self.transactions: list[tuple[tuple[int, ...], ...]] = []
        """Rows of one transaction each, by region: there together, or not at all."""
        self.acknowledged: set[int] = set()
        """Rows of which a writer was told that they are committed, and which no crash since may have taken."""
        self.failed: set[int] = set()
        """Rows of which a writer was told that they are not."""
        self.taken_back: set[int] = set()
        """Rows that a recovery has taken back, since the journal had lost them."""
        self.sent: dict[int, int] = {}
        """seqno -> chain hash of the last frame of each batch that was sent."""
        self.last_sent_seqno = 0
        self.reported_seqno = 0
        """The highest that the receiver has reported as durable."""
        self.most_applied_seqno = min(region.seqno for region in secondary)
        """The highest that all of the secondary's regions have ever held."""
        self.starts_below = 0
        """Streams that began before what was reported as durable."""
        self.applied = 0
        """Transactions' rows that the secondary has committed, in all."""
        for region in primary:
            region.on_commit, region.on_take_back = self.on_primary, self.on_take_back
        for region in secondary:
            region.on_commit = self.on_secondary

    # Commits.

    def on_primary(self, region: Region, pending: Pending) -> None:
        """A region of the primary has committed these rows (for the first time, or again in a redo)."""
        lane = self.lanes[region.number]
        count = len(pending.rows)
        start = len(region.rows) - count
        known = lane.truth[start : start + count]
        if known != pending.rows:
            if start < lane.fixed:
                raise ViolationError(
                    "I3 lost",
                    f"rows {known} at place {start} were acknowledged or sent; now {pending.rows} stand there",
                )
            lane.truth[start:] = pending.rows

    def on_take_back(self, region: Region, pending: Pending) -> None:
        """A recovery of the primary takes these rows out of a region again."""
        lane = self.lanes[region.number]
        if set(pending.deleted).intersection(lane.truth[: lane.fixed]):
            raise ViolationError("I2 ahead", f"rows {pending.deleted} are taken back, and the secondary holds them")
        self.taken_back.update(pending.deleted)

    def on_secondary(self, region: Region, pending: Pending) -> None:
        """A region of the secondary has committed these."""
        lane = self.lanes[region.number]
        if self.is_partial and region.number:
            if pending.rows:
                raise ViolationError("partition", f"rows {pending.rows} came, and their partition is not wanted")
            self.most_applied_seqno = max(self.most_applied_seqno, min(one.secondary.seqno for one in self.lanes))
            return
        count = len(pending.rows)
        start = len(region.rows) - count
        known = lane.truth[start : start + count]
        if known != pending.rows[: len(known)]:
            raise ViolationError("I1 order", f"at place {start} {known} should stand, {pending.rows} were applied")
        if len(known) < count:  # the primary has it in its journal, and redoes it in its region later
            lane.truth += pending.rows[len(known) :]
        if count and pending.rows[-1] not in lane.ends:
            raise ViolationError("I2 prefix", f"the secondary shows a part of a transaction: {pending.rows}")
        lane.fixed = max(lane.fixed, start + count)
        self.applied += count
        self.most_applied_seqno = max(self.most_applied_seqno, min(one.secondary.seqno for one in self.lanes))

    # What is told.

    def on_submitted(self, parts: dict[int, list[int]]) -> None:
        """A writer is about to commit these rows (number of the region -> rows) in one transaction."""
        for number, rows in parts.items():
            self.lanes[number].ends.add(rows[-1])
        if len(parts) > 1:
            self.transactions.append(tuple(tuple(parts[number]) for number in sorted(parts)))

    def on_acknowledged(self, rows: list[int]) -> None:
        """A writer was told: committed."""
        self.acknowledged.update(rows)

    def on_sent(self, seqno: int, chain: int) -> None:
        """The source has handed this frame to the network; nothing after it."""
        known = self.sent.setdefault(seqno, chain)
        if known != chain:
            raise ViolationError("I1 order", f"transaction {seqno} was sent twice, with different content")
        self.last_sent_seqno = max(self.last_sent_seqno, seqno)

    def on_reported(self, durable_seqno: int) -> None:
        """The source has heard: durable up to there."""
        if durable_seqno > self.most_applied_seqno:
            raise ViolationError(
                "I4 honest", f"{durable_seqno} is reported as durable, {self.most_applied_seqno} was applied at most"
            )
        self.reported_seqno = max(self.reported_seqno, durable_seqno)

    def on_start(self, next_seqno: int) -> None:
        """Both sides agree that the stream begins there. It may lie below what was reported as durable: after a power
        loss the secondary's journal has that, and its region only when the Update Process has rolled it forward. What
        comes again then is passed over."""
        self.starts_below += next_seqno - 1 < self.reported_seqno

    def on_primary_power_loss(self, *, is_durable: bool) -> None:
        """What was not promised for this case may be gone, and what a region has lost is not the truth any more."""
        if not is_durable:
            self.acknowledged.clear()
        for lane in self.lanes:
            del lane.truth[max(lane.fixed, len(lane.primary.rows)) :]

    # Looking at a host that has recovered.

    def check_primary(self, chains: dict[int, int], oldest_seqno: int, kept: list[bytes]) -> None:
        """`chains`: of every transaction in the primary's journal. Its regions have been rolled forward. `kept`: the
        files of what was taken back."""
        regions = [lane.primary for lane in self.lanes]
        present: set[int] = set().union(*(region.present for region in regions))
        lost = self.acknowledged - present
        if lost:
            raise ViolationError("I3 lost", f"rows {sorted(lost)} were acknowledged and are gone")
        for lane in self.lanes:
            rows = lane.primary.rows
            if rows[: lane.fixed] != lane.truth[: lane.fixed] or len(rows) < lane.fixed:
                raise ViolationError("I2 ahead", f"the secondary holds {lane.fixed} rows, the primary {len(rows)}")
        wrong = self.failed & present
        if wrong:
            raise ViolationError("I3 failed", f"rows {sorted(wrong)} were said to have failed and are there")
        for seqno, chain in self.sent.items():
            if seqno >= oldest_seqno and chains.get(seqno) != chain:
                raise ViolationError("I2 ahead", f"transaction {seqno} was sent, and is not in the primary's journal")
        if sum(len(region.rows) for region in regions) != len(present):
            raise ViolationError("I1 twice", "the primary holds a row twice")
        self._check_whole(present)
        if self.taken_back:
            self._check_kept(kept)

    def gets(self, parts: tuple[tuple[int, ...], ...]) -> Sequence[int]:
        """Of a transaction's rows, those that the secondary has in the end."""
        return parts[0] if self.is_partial else tuple(flatten.from_iterable(parts))

    def _check_whole(self, present: set[int], *, is_secondary: bool = False) -> None:
        for parts in self.transactions:
            rows = self.gets(parts) if is_secondary else tuple(flatten.from_iterable(parts))
            there = present.intersection(rows)
            if there and len(there) < len(rows):
                raise ViolationError("I2 whole", f"of the transaction with rows {rows} only {sorted(there)} are there")

    def _check_kept(self, kept: list[bytes]) -> None:
        """I5: what was taken back is in a file, each once."""
        rows = [
            change[0]
            for data in kept
            for body in decode_batch(data)[2::3]
            for op, change in zip(body[FIXED_ELEMENTS::4], body[FIXED_ELEMENTS + 3 :: 4], strict=True)
            if op == Op.INSERT
        ]
        missing = self.taken_back - set(rows)
        if missing or len(rows) != len(set(rows)):
            raise ViolationError("I5 kept", f"rows {sorted(missing)} were taken back and not kept, or kept twice")

    def check_reached(self, region: Region, last_seqno: int) -> None:
        """A region of the secondary has recovered: it is where its journal ends, and nothing reported is gone."""
        if region.seqno < self.reported_seqno or last_seqno < self.reported_seqno:
            raise ViolationError(
                "I4 honest", f"{self.reported_seqno} was reported as durable, {region.seqno} is left ({last_seqno})"
            )
        if region.seqno != last_seqno:
            raise ViolationError("I2 prefix", f"a region holds {region.seqno}, the journal ends with {last_seqno}")

    def check_secondary(self, last_seqno: int) -> None:
        """The secondary has recovered, and its journal ends there."""
        for lane in self.lanes:
            region = lane.secondary
            self.check_reached(region, last_seqno)
            if region.rows != lane.truth[: len(region.rows)]:
                raise ViolationError("I2 prefix", "the secondary's rows are no prefix of the primary's")
        held = self.lanes[:1] if self.is_partial else self.lanes
        self._check_whole(set().union(*(lane.secondary.present for lane in held)), is_secondary=True)
