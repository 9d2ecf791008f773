"""What must be true in a world, whatever happens there: I1 to I4 and I6 of the project's list of faults.

The oracle stands outside of both hosts. It sees each commit of a region as it happens, what writers are told, what the
source sends, and what the receiver reports as durable, and knows the one true order of rows.

Guarantees: a violation is raised at once, with what was expected; nothing is compared that is not yet decided.
Refuses to know: how anything is done.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.regions import Pending, Region


class ViolationError(AssertionError):
    """Something that must hold does not. `what` names which."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what}: {text}")
        self.what = what


class Oracle:
    """`truth`: the identities of all rows in the order of their commits, as far as it can not change any more up to
    `fixed`, and as the primary has it now behind that."""

    def __init__(self, primary: Region, secondary: Region) -> None:
        self.primary = primary
        self.secondary = secondary
        self.truth = list(primary.rows)
        self.bounds = {len(self.truth)}
        self.fixed = len(self.truth)
        self.acknowledged: set[int] = set()
        """Rows of which a writer was told that they are committed, and which no crash since may have taken."""
        self.failed: set[int] = set()
        """Rows of which a writer was told that they are not."""
        self.sent: dict[int, int] = {}
        """seqno -> chain hash of the last frame of each batch that was sent."""
        self.last_sent_seqno = 0
        self.reported_seqno = 0
        """The highest that the receiver has reported as durable."""
        self.most_applied_seqno = secondary.seqno
        """The highest that the secondary's region has ever held."""
        self.starts_below = 0
        """Streams that began before what was reported as durable."""
        self.applied = 0
        """Transactions' rows that the secondary has committed, in all."""
        primary.on_commit = self.on_primary
        secondary.on_commit = self.on_secondary

    # Commits.

    def on_primary(self, region: Region, pending: Pending) -> None:
        """The primary's region has committed these rows (for the first time, or again in a redo)."""
        count = len(pending.rows)
        start = len(region.rows) - count
        known = self.truth[start : start + count]
        if known != pending.rows:
            if start < self.fixed:
                raise ViolationError(
                    "I3 lost",
                    f"rows {known} at place {start} were acknowledged or sent; now {pending.rows} stand there",
                )
            self.truth[start:] = pending.rows
        self.bounds.add(start + count)

    def on_secondary(self, region: Region, pending: Pending) -> None:
        """The secondary's region has committed these."""
        count = len(pending.rows)
        start = len(region.rows) - count
        known = self.truth[start : start + count]
        if known != pending.rows[: len(known)]:
            raise ViolationError("I1 order", f"at place {start} {known} should stand, {pending.rows} were applied")
        if len(known) < count:  # the primary has it in its journal, and redoes it in its region later
            self.truth += pending.rows[len(known) :]
        elif start + count not in self.bounds:
            raise ViolationError(
                "I2 prefix", f"the secondary shows a part of a transaction, up to place {start + count}"
            )
        self.fixed = max(self.fixed, start + count)
        self.applied += count
        self.most_applied_seqno = max(self.most_applied_seqno, region.seqno)

    # What is told.

    def on_acknowledged(self, rows: list[int]) -> None:
        """A writer was told: committed."""
        self.acknowledged.update(rows)

    def on_sent(self, seqno: int, chain: int) -> None:
        """The source has handed this frame to the network; nothing behind it."""
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
        """What was not promised for this case may be gone."""
        if not is_durable:
            self.acknowledged.clear()

    # Looking at a host that has recovered.

    def check_primary(self, chains: dict[int, int], oldest_seqno: int) -> None:
        """`chains`: of every transaction in the primary's journal. Its region has been rolled forward."""
        region = self.primary
        lost = self.acknowledged - region.present
        if lost:
            raise ViolationError("I3 lost", f"rows {sorted(lost)} were acknowledged and are gone")
        if region.rows[: self.fixed] != self.truth[: self.fixed] or len(region.rows) < self.fixed:
            raise ViolationError("I2 ahead", f"the secondary holds {self.fixed} rows, the primary {len(region.rows)}")
        wrong = self.failed & region.present
        if wrong:
            raise ViolationError("I3 failed", f"rows {sorted(wrong)} were said to have failed and are there")
        for seqno, chain in self.sent.items():
            if seqno >= oldest_seqno and chains.get(seqno) != chain:
                raise ViolationError("I2 ahead", f"transaction {seqno} was sent, and is not in the primary's journal")
        if len(region.rows) != len(region.present):
            raise ViolationError("I1 twice", "the primary holds a row twice")

    def check_secondary(self, last_seqno: int) -> None:
        """The secondary has recovered, and its journal ends there."""
        region = self.secondary
        if region.seqno < self.reported_seqno or last_seqno < self.reported_seqno:
            raise ViolationError(
                "I4 honest", f"{self.reported_seqno} was reported as durable, {region.seqno} is left ({last_seqno})"
            )
        if region.rows != self.truth[: len(region.rows)]:
            raise ViolationError("I2 prefix", "the secondary's rows are no prefix of the primary's")

    def facts(self) -> dict[str, Any]:
        """For the transcript."""
        return {
            "truth": len(self.truth), "fixed": self.fixed, "acknowledged": len(self.acknowledged),
            "sent": self.last_sent_seqno, "reported": self.reported_seqno,
        }  # fmt: skip
