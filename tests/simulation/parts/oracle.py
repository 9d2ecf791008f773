"""What must be true where the secondary subscribes to some partitions, and to some rows and columns of tables: it is
the primary restricted, and what it does not get never leaves. What else ../oracle.py has holds, too.

A row belongs to the partition that its table was in when it was written. What the secondary gives up on the way stays
as it was: of each of its tables the first rows, in their order. What it loads on the way is there from some commit on,
whole and level with the others. Segments of its journal that do not say that they have not all have all.
Guarantees: as there. Leaves to others: how anything is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain as flatten
from typing import Any, Final

from replicate.errors import JournalDamagedError
from replicate.filters.selection import changes_in
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import changes_of, decode_batch, read_head
from replicate.limits import PARTITION_NONE
from replicate.model.transaction import Op
from tests.simulation.oracle import Lane, Oracle, ViolationError
from tests.simulation.parts.climate import PARTITIONS, PartsClimate
from tests.simulation.regions import Pending, Region

_INSERT: Final = int(Op.INSERT)


class PartsOracle(Oracle):
    """`partition_of`: row -> its partition. `table_of`: row -> its table. `climate`: says what the secondary gets."""

    def __init__(
        self,
        primary: list[Region],
        secondary: list[Region],
        partition_of: Mapping[int, int],
        table_of: Mapping[int, int],
        climate: PartsClimate,
    ) -> None:
        super().__init__(primary, secondary)
        self.partition_of = dict(partition_of)
        self.kept_back = 0
        """Rows that never left, so far."""
        self.beyond = 0
        """Those of them that are of a partition which comes."""
        self.is_asked = self.is_put_in = self.is_held = False
        """Of what is loaded: its stream is asked for; its rows may be there; they are held."""
        self.dropped: set[int] = set()
        """Numbers of tables whose rows go from the secondary, in whatever order."""
        self._climate = climate
        self._table_of = table_of
        self._whole: dict[int, list[int]] = {}
        """Row -> all rows of its transaction in its region."""
        self._was: dict[int, list[int]] = {lane.primary.number: [] for lane in self.lanes}
        """Of each region what the primary's power loss has taken, in its order: the journal may have it."""
        self._parts: dict[int, dict[int, bytes]] = {}
        """Token of a large transaction -> number of a part -> its frame."""
        self._frames: dict[int, tuple[int, int, frozenset[int], bool]] = {}
        """seqno -> origin, origin_seqno, partitions of its rows, whether it has more than rows that come."""
        self._seeded = max((row.origin_seqno for region in secondary for row in region.scr.values()), default=0)
        """With what a seed brings, all records say the same."""

    def holds(self, row: int) -> bool:
        """Whether the secondary gets that row, at first."""
        return self._climate.holds(self.partition_of[row]) and self._keeps(row)

    def stays(self, row: int) -> bool:
        """Whether it gets such rows to the end."""
        return self._climate.stays(self.partition_of[row]) and self._keeps(row)

    def is_loaded(self, row: int) -> bool:
        """Whether it is of the partition that is loaded on the way."""
        return self._climate.loads == self.partition_of[row]

    def lacks_loaded(self) -> bool:
        """Whether something of that is not there yet."""
        if not self._climate.loads:
            return False
        there = set().union(*(lane.secondary.present for lane in self.lanes))
        rows = [row for lane in self.lanes for row in lane.primary.rows if self.is_loaded(row)]
        return not self.is_held or not there.issuperset(rows)

    def _keeps(self, row: int) -> bool:
        return self._climate.keeps(self._table_of[row], row)

    def gets(self, parts: tuple[tuple[int, ...], ...]) -> Sequence[int]:
        """Those whose partition stays."""
        return self._staying(tuple(flatten.from_iterable(parts)))

    def _staying(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if self.stays(row)]

    # What is told.

    def on_submitted(self, parts: Mapping[int, list[int]]) -> None:
        """A writer is about to commit these rows, whose partitions are known."""
        for number, rows in parts.items():
            self._whole.update(dict.fromkeys(rows, rows))
            if there := self._staying(rows):
                self.lanes[number].ends.add(there[-1])
        self.transactions.append(tuple(tuple(parts[number]) for number in sorted(parts)))

    def on_primary_power_loss(self, *, is_durable: bool) -> None:
        """As there; what is gone is kept in mind."""
        self._frames.clear()  # numbers come again
        before = {lane.primary.number: list(lane.truth) for lane in self.lanes}
        super().on_primary_power_loss(is_durable=is_durable)
        for lane in self.lanes:
            number, there = lane.primary.number, set(lane.truth)
            gone = [row for row in before[number] if row not in there]
            self._was[number] = [*gone, *(row for row in self._was[number] if row not in there and row not in gone)]

    def on_copied(self) -> None:
        """All that the primary's regions have now is durable, and on its way."""
        for lane in self.lanes:
            lane.fixed = max(lane.fixed, len(lane.primary.rows))

    def on_leaving(self, changes: Sequence[Any]) -> None:
        """The source hands these flat changes to the network."""
        for place in range(0, len(changes) - 3, 4):
            if changes[place] == Op.INSERT and not self._may_leave(changes[place + 3][0]):
                row = changes[place + 3][0]
                raise ViolationError("partition", f"row {row} of partition {self.partition_of[row]} leaves the primary")
            if changes[place] == Op.INSERT and self._climate.has_list(self._table_of[changes[place + 3][0]]):
                row, *others = changes[place + 3]
                if any(one is not None for one in others):
                    raise ViolationError("columns", f"of row {row} more than its identity leaves the primary")

    def _may_leave(self, row: int) -> bool:
        return self.holds(row) and (self.is_asked or not self.is_loaded(row))

    def on_leaving_batch(self, data: bytes) -> None:
        """Likewise of whole frames."""
        for body in decode_batch(data)[2::3]:
            self.on_leaving(changes_of(body))

    def on_leaving_part(self, token: int, number: int, frame: bytes) -> None:
        """Likewise of a part of a large transaction."""
        self._parts.setdefault(token, {})[number] = frame

    def on_leaving_large(self, token: int, count: int) -> None:
        """Likewise of the end of one, which has that many parts."""
        parts = self._parts.get(token, {})
        if set(parts) >= set(range(count)):
            try:
                self.on_leaving(list(flatten.from_iterable(changes_in(parts[number] for number in range(count)))))
            except JournalDamagedError as error:
                raise ViolationError("I6 sent", f"parts under {token:x} are not those of one transaction") from error

    # Commits of the secondary.

    def on_secondary(self, region: Region, pending: Pending) -> None:
        """A region of the secondary has committed these."""
        lane = self.lanes[region.number]
        if leaked := [row for row in pending.rows if not self.holds(row)]:
            raise ViolationError("partition", f"rows {leaked} came, and their partition is not wanted")
        if not self.is_put_in and (early := list(filter(self.is_loaded, pending.rows))):
            raise ViolationError("partition", f"rows {early} came, and those from before are not there")
        for row in pending.rows:
            if row not in lane.truth:  # the primary has it in its journal, and redoes it in its region later
                self._comes_again(lane, row)
        self._check_rows(lane, f"{pending.rows} were applied")
        if (staying := self._staying(pending.rows)) and staying[-1] not in lane.ends:
            raise ViolationError("I2 prefix", f"the secondary shows a part of a transaction: {pending.rows}")
        if pending.rows:
            last = self._whole.get(pending.rows[-1], pending.rows)[-1]
            lane.fixed = max(lane.fixed, lane.truth.index(last) + 1)
        self.applied += len(pending.rows)
        self.most_applied_seqno = max(self.most_applied_seqno, min(one.secondary.seqno for one in self.lanes))

    def _check_rows(self, lane: Lane, told: str) -> None:
        """What is there is the beginning of what should come: of what it gets to the end, and of each table for itself;
        all in the primary's order."""
        rows, place = lane.secondary.rows, {row: at for at, row in enumerate(lane.truth)}
        if lost := [row for row in rows if row not in place]:
            raise ViolationError("I2 prefix", f"rows {lost} are there, and not on the primary ({told})")
        in_order = [row for row in rows if not self.is_loaded(row)]
        if in_order != sorted(in_order, key=place.__getitem__):
            raise ViolationError("I1 order", f"{rows} stand there, in another order than on the primary ({told})")
        there = self._staying(rows)
        if there != (wanted := self._staying(lane.truth)[: len(there)]):
            raise ViolationError("I1 order", f"{wanted} should stand there, not {there} ({told})")
        if self.is_held:
            wanted = [row for row in lane.truth if self.stays(row) or self.is_loaded(row)]
            there = [row for row in wanted if row in lane.secondary.present]
            if there != wanted[: len(there)]:
                raise ViolationError(
                    "I2 prefix", f"with what was loaded {wanted} should stand there, not {there} ({told})"
                )
        given_up = {self._table_of[row] for row in rows if not self.stays(row)}
        for table in given_up - self.dropped:
            there, wanted = (
                [row for row in some if self._table_of[row] == table and self.holds(row) and not self.stays(row)]
                for some in (rows, lane.truth)
            )
            if there != wanted[: len(there)]:
                raise ViolationError("I1 order", f"of table {table} {wanted} should stand there, not {there} ({told})")

    def _comes_again(self, lane: Lane, row: int) -> None:
        """What stood before it is durable, too, no matter who gets it."""
        was, end = self._was[lane.primary.number], self._whole[row][-1]
        again = was[: was.index(end) + 1] if end in was else self._whole[row]
        there = set(lane.truth)
        lane.truth += [one for one in again if one not in there]

    # Looking at a host that has recovered.

    def note_frame(self, seqno: int, origin: int, origin_seqno: int, changes: Sequence[Any]) -> None:
        """The primary's journal has this transaction."""
        ops, images = changes[0::4], changes[3::4]
        rows = [image[0] for op, image in zip(ops, images, strict=True) if op == Op.INSERT]
        found = [self.partition_of[row] for row in rows if self._keeps(row)]
        self._frames[seqno] = origin, origin_seqno, frozenset(found), len(found) < len(ops)

    def note_large(self, large: LargeTransaction) -> None:
        """Likewise of a large one."""
        head = read_head(large.commit_frame)
        changes = list(flatten.from_iterable(changes_in(large.parts())))
        self.note_frame(head.seqno, head.origin, head.origin_seqno, changes)

    def check_unmarked(self, seqno: int, changes: Sequence[Any]) -> None:
        """A transaction in a segment of the secondary's that says nothing: it has all that leaves the primary."""
        if seqno not in self._frames:
            return
        rows = [image[0] for op, image in zip(changes[0::4], changes[3::4], strict=True) if op == _INSERT]
        found = {self.partition_of[row] for row in rows}
        if found != (whole := set(self._frames[seqno][2]) - {PARTITION_NONE}):
            raise ViolationError(
                "unmarked", f"transaction {seqno} has rows of {sorted(found)}, not of {sorted(whole)}, and says nothing"
            )

    def check_secondary(self, last_seqno: int) -> None:
        """The secondary has recovered, and its journal ends there."""
        for lane in self.lanes:
            region = lane.secondary
            self.check_reached(region, last_seqno)
            self._check_rows(lane, "recovered")
            self._check_records(region)
        self._check_whole(set().union(*(lane.secondary.present for lane in self.lanes)), is_secondary=True)
        there = [row for lane in self.lanes for row in lane.truth if not self.holds(row)]
        self.kept_back = len(there)
        self.beyond = sum(self._climate.holds(self.partition_of[row]) for row in there)

    def _check_records(self, region: Region) -> None:
        """The checkpoint record of each partition that is here names the last transaction with rows of it, or a later
        one that may be about its tables."""
        least: dict[tuple[int, int], int] = {}
        most: dict[tuple[int, int], int] = {}
        for seqno in range(region.seqno, 0, -1):
            if seqno not in self._frames:  # pruned before anybody looked
                break
            origin, origin_seqno, partitions, has_more = self._frames[seqno]
            for partition in filter(self._climate.stays, range(1, 1 + PARTITIONS)):
                if partition in partitions:
                    least.setdefault((origin, partition), origin_seqno)
                if partition in partitions or has_more:
                    most.setdefault((origin, partition), origin_seqno)
        for key, last in most.items():
            row = region.scr.get(key)
            found = 0 if row is None else row.origin_seqno
            if found < least.get(key, 0) or (key in least and found > max(last, self._seeded)):
                raise ViolationError(
                    "record", f"that of {key} says {found}; the last one with rows of it is {least.get(key)}"
                )
