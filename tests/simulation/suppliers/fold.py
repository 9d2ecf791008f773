"""What one region of a supplier comes to, by the frames of that supplier's journal: rows, and what was lost in merges.

A table of one writer is made change by change, each of which must fit; one of several writers by the latest stamp of
each group of columns, in whatever order they came.

Guarantees: a violation is raised at once, with what was expected.
Leaves to others: which frames there are (oracle.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from replicate.model.merged_row import Lost, Row, RowChanged, Stamp, lost
from replicate.model.seen import Told as Seen
from replicate.model.transaction import Kind, Op
from tests.simulation.content import Content, Image, Name, images_of
from tests.simulation.host import REGIONS
from tests.simulation.oracle import ViolationError
from tests.simulation.regions import Region
from tests.simulation.suppliers.template import named_table, shared_table, table_of
from tests.simulation.template import NAMES

GROUPS: Final[Mapping[str, tuple[int, ...]]] = {"shared": (0, 1, 2, 2), "named": (0, 1, 2)}
"""Of the columns of the tables that all write (template.py)."""
At = tuple[int, int, int, int]
"""Of a change: its transaction's stamp, and which one it is there."""
NEVER: Final[At] = (0, 0, 0, 0)

Places = dict[int, tuple[int, int]]
"""Origin -> its last transaction, and the chain hash there."""
Pasts = dict[tuple[int, int], dict[int, int]]
"""(origin, its number) -> of each origin the last transaction that was at the writer's before that one."""


class SupplierTransaction(NamedTuple):
    """A transaction as a frame has it. `by`: what its writer calls it (0: no application wrote it). `changes`: of rows,
    flat, as its writer made them; `seen`: what it tells."""

    kind: int
    origin: int
    origin_seqno: int
    csn: int
    chain: int
    by: int
    changes: Sequence[Any]
    seen: Seen
    writer: str


class Register:
    """One row of a table that all write: of each group and of its life the latest stamp, and what it says."""

    __slots__ = ("groups", "is_there", "life", "stamps", "values")

    def __init__(self, groups: tuple[int, ...], image: Image | None) -> None:
        self.groups = groups
        self.values = [] if image is None else list(image)
        self.stamps = [NEVER] * len(groups)
        self.is_there = image is not None
        self.life = NEVER

    def take(self, op: int, before: Image | None, after: Image | None, stamp: At) -> None:
        if after is not None:
            if not self.values:
                self.values = list(after)
            for at, group in enumerate(self.groups):
                wrote = before is None or any(
                    before[one] != after[one] for one, other in enumerate(self.groups) if other == group
                )
                if wrote and stamp >= self.stamps[at]:
                    self.values[at], self.stamps[at] = after[at], stamp
        elif not self.values:
            assert before is not None
            self.values = list(before)
        if stamp >= self.life:
            self.is_there, self.life = op != Op.DELETE, stamp

    def row(self) -> Row:
        """The same as merged_row.py has it."""
        stamps = {
            group: Stamp(*self.stamps[at][:3]) for at, group in enumerate(self.groups) if self.stamps[at] != NEVER
        }
        return Row(tuple(self.values) if self.values else None, self.is_there, Stamp(*self.life[:3]), stamps)


def changed_by(groups: tuple[int, ...], op: int, before: Image | None, after: Image | None) -> RowChanged:
    """One change as merged_row.py has it."""
    image = before if after is None else after
    assert image is not None
    if before is None or after is None:
        return RowChanged(op, image, frozenset(groups) if before is None else frozenset())
    return RowChanged(op, image, frozenset(group for at, group in enumerate(groups) if before[at] != after[at]))


def tables_of(number: int) -> dict[int, str]:
    """Of that region, by their ids."""
    region = REGIONS[number]
    tables = (*(table_of(name, region) for name in NAMES), shared_table(region), named_table(region))
    return {one.table_id: one.table for one in tables}


class FoldBegin(Struct, frozen=True):
    """What is in a region before anything happens there. `registers`: of rows that several have written."""

    seqno: int
    rows: dict[str, dict[Any, Image]]
    registers: dict[Name, Register] = field(default_factory=dict)


class Fold:
    """One region. `seqno`, `places`, `rows`: where it is, by what was committed there."""

    def __init__(self, name: str, region: Region, pasts: Pasts, begin: FoldBegin, places: Places) -> None:
        """`name`: the supplier's."""
        self._name = name if not region.number else f"{name}'s region {REGIONS[region.number]}"
        self._supplier = name
        self.region = region
        self._tables = tables_of(region.number)
        self._pasts = pasts
        self._begin, self._first_places = begin, places
        self.waited = 0
        """Commits after which rows waited for a name."""
        self.forget()

    @property
    def content(self) -> Content:
        """What is there."""
        assert self.region.content is not None
        return self.region.content

    def forget(self) -> None:
        """Nothing has happened yet."""
        self.seqno = self._begin.seqno
        self.rows = {table: dict(those) for table, those in self._begin.rows.items()}
        self.places: Places = dict(self._first_places)
        self.lost: list[tuple[int, Any, Lost]] = []
        """What was lost in merges, in transactions of these numbers, of rows of these keys."""
        self.registers: dict[Name, Register] = deepcopy(self._begin.registers)
        self.removed: Counter[Any] = Counter()
        """Keys of rows that were removed for their names by its own word, and not of those that are yet to come."""

    def begin(self, seqno: int) -> FoldBegin:
        """As it is now, for a region that goes on from that number."""
        return deepcopy(FoldBegin(seqno, self.rows, self.registers))

    def follow(self, frames: Mapping[int, SupplierTransaction]) -> None:
        """All that its region has."""
        for seqno in range(self.seqno + 1, self.region.seqno + 1):
            self.take(seqno, frames[seqno])

    def lacks(self, frames: Mapping[int, SupplierTransaction], last_seqno: int) -> bool:
        """Whether something of the journal up to there is yet to come here."""
        return any(
            frames[seqno].writer != self._supplier or not self._tables.keys().isdisjoint(frames[seqno].changes[1::4])
            for seqno in range(self.seqno + 1, last_seqno + 1)
        )

    def take(self, seqno: int, written: SupplierTransaction) -> None:
        """One transaction more."""
        self.seqno = seqno
        follow_place(self._name, self.places, written)
        if not written.by and written.writer == self._supplier:
            named = [
                image[0]
                for table_id, image in zip(written.changes[1::4], written.changes[3::4], strict=True)
                if table_id in self._tables
            ]
            self.removed.update(key for key in named if key in self.rows["named"])
        for place in range(0, len(written.changes), 4):
            if written.changes[place + 1] in self._tables:
                self._change(place // 4, written, *written.changes[place : place + 4])

    def _change(
        self, number: int, written: SupplierTransaction, op: int, table_id: int, argument: Any, values: Any
    ) -> None:
        table = self._tables[table_id]
        before, after = images_of(op, argument, values)
        rows = self.rows[table]
        image = before if after is None else after
        assert image is not None
        if table in GROUPS:
            groups = GROUPS[table]
            register = self.registers.setdefault((table, image[0]), Register(groups, rows.get(image[0])))
            self._note_lost(image[0], groups, register.row(), changed_by(groups, op, before, after), written)
            stamp = written.csn, written.origin, written.origin_seqno, number
            register.take(op, before, after, stamp)
            after = tuple(register.values) if register.is_there else None
        elif rows.get(image[0]) != before:
            raise ViolationError(
                "I1 order", f"{self._name}: row {image[0]} of {table} is {rows.get(image[0])}, not {before}"
            )
        if after is None:
            rows.pop(image[0], None)
        else:
            rows[image[0]] = after

    def _note_lost(
        self, key: Any, groups: tuple[int, ...], row: Row, change: RowChanged, written: SupplierTransaction
    ) -> None:
        past = self._pasts[written.origin, written.origin_seqno]
        own = written.origin, written.origin_seqno
        stamps = (one for one in row.all_stamps() if one.origin and (one.origin, one.origin_seqno) != own)
        unseen = frozenset(one for one in stamps if past.get(one.origin, 0) < one.origin_seqno)
        stamp = Stamp(written.csn, written.origin, written.origin_seqno)
        self.lost += [(self.seqno, key, one) for one in lost(row, change, stamp, groups, unseen)]

    def check_rows(self) -> None:
        """The region has what the journal comes to; of rows with one name it has one, until another transaction says
        which of them go."""
        rows = self.content.rows
        expected = {**self.rows, "named": self.rows["named"]} if "named" in self.rows else self.rows
        if "named" in expected:
            here = rows["named"]
            taken = {image[1] for image in here.values()} - {None}
            if len(taken) < sum(image[1] is not None for image in here.values()):
                raise ViolationError("unique", f"{self._name} has rows of one name: {here}")
            lacking = {key for key, image in expected["named"].items() if key not in here and image[1] in taken}
            self.waited += bool(lacking)
            expected["named"] = {key: image for key, image in expected["named"].items() if key not in lacking}
        if rows != expected:
            raise ViolationError("I1 rows", self.difference(rows))

    def check_gave_way(self, *, is_first: bool, has_waited: bool) -> None:
        """Each row that was removed for its name was kept once where that was decided. `is_first`: this site was never
        anything but what it is. `has_waited`: it wrote nothing for a while, and keeps besides what waited and went by
        the word of others."""
        kept = [one.merged for one in self.content.merges if one.merged.lost.what == "unique"]
        found = Counter(one.key[0] for one in kept)
        lacking, more = self.removed - found, found - self.removed
        if is_first and (lacking or (more and not has_waited)):
            raise ViolationError("losses", f"{self._name} lacks {dict(lacking)}, has too much {dict(more)}")

    def check_lost(self) -> None:
        """Each losing value was kept once."""
        merges = [
            (one.merged.seqno, one.merged.key[0], one.merged.lost)
            for one in self.content.merges
            if one.merged.lost.what != "unique"
        ]
        expected, found = Counter(map(repr, self.lost)), Counter(map(repr, merges))
        if expected != found:
            raise ViolationError(
                "losses", f"{self._name} lacks {dict(expected - found)}, and has too much {dict(found - expected)}"
            )

    def difference(self, rows: Mapping[str, Mapping[Any, Image]]) -> str:
        """What rows are others than they should be."""
        wrong = [
            f"{table} {key}: {rows[table].get(key)}, not {self.rows[table].get(key)}"
            for table in rows
            for key in sorted({*rows[table], *self.rows.get(table, {})})
            if rows[table].get(key) != self.rows.get(table, {}).get(key)
        ]
        return f"{self._name}: {'; '.join(wrong[:4])}"


def follow_place(name: str, places: Places, written: SupplierTransaction) -> None:
    """Of its origin it is the next one."""
    origin, last = written.origin, places.get(written.origin)
    expected = 0 if written.kind == Kind.HISTORY else 1 if last is None else last[0] + 1
    if written.origin_seqno != expected or (written.kind == Kind.HISTORY and last is not None):
        raise ViolationError("I1 order", f"{name} has {last} of origin {origin:08x}, and takes {written.origin_seqno}")
    places[origin] = written.origin_seqno, written.chain
