"""How many changes and transactions there are, by table, operation, origin and time.

Guarantees: a transaction counts once in each group in which it has a change, and each change once; of a transaction
with one change, as nearly all are, nothing is decoded. Memory grows with the groups, not with the journal.
Leaves to others: which transactions and changes (selection.py), and how the groups are printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from replicate.audit.read import Frames, Match, decoded, large_changes
from replicate.audit.selection import Chooser
from replicate.errors import UsageError
from replicate.journal.frame import AUDITED, FIXED_ELEMENTS, FRAME_HEAD_BYTES
from replicate.journal.record import CHANGES_BEGIN
from replicate.model.moment import shown_us, wall_us
from replicate.model.partitions import ONLY_DEFAULT
from replicate.model.transaction import TABLE_ID_MIN, Catalogue, Kind, Op, TableDefinition

BY: Final = ("table", "op", "origin", "minute", "hour", "day", "partition")
SPANS_US: Final = {"minute": 60_000_000, "hour": 3_600_000_000, "day": 86_400_000_000}
_ONE: Final = bytes([0xDC, 0, FIXED_ELEMENTS + 4])
"""The array's head of a body with one change, after the frame's prefix."""
_COUNT_AT: Final = 10
_TRANSACTION: Final = int(Kind.TRANSACTION)

Group = tuple[object, ...]


class Counts:
    """Counts by what `by` names, in this order. UsageError for a word that is none of BY, or two times of a day."""

    def __init__(self, by: Sequence[str]) -> None:
        unknown = [word for word in by if word not in BY]
        if unknown or not by:
            raise UsageError(f"nothing is counted by {(unknown or [''])[0]!r}", do=f"Say --by {','.join(BY[:3])},hour")
        times = [word for word in by if word in SPANS_US]
        if len(times) > 1 or len(set(by)) != len(by):
            raise UsageError(f"--by {','.join(by)} names one thing twice", do="Leave one out")
        self.by = tuple(by)
        self._span_us = SPANS_US[times[0]] if times else 0
        # By origin, span of time, and what tells operation and table: bytes of a frame, or both as they are decoded.
        self._changes: Counter[tuple[int, int, Any]] = Counter()
        self._transactions: Counter[tuple[int, int, Any]] = Counter()
        self._tables: dict[int, str] = {}
        self._partitions: dict[int, str] = {}
        self._origins: dict[int, str] = {}

    def add(self, found: Iterable[Frames | Match]) -> None:
        """Count what a reader gives. JournalDamagedError and its kin: what came before is counted."""
        for one in found:
            if isinstance(one, Match):
                self._learn(one.catalogue)
                self._add_large(one)
            else:
                self._learn(one.catalogue)
                self._add_frames(one)

    def _learn(self, catalogue: Catalogue) -> None:
        self._learn_tables(catalogue.definitions)
        for history in catalogue.histories:
            self._origins[history.origin.key] = f"{history.name}/{history.incarnation}"

    def _learn_tables(self, definitions: Mapping[int, TableDefinition]) -> None:
        for key, definition in definitions.items():
            self._tables[key] = f"{definition.region}.{definition.table}"
            self._partitions[key] = ONLY_DEFAULT.name(definition.partition)

    def _add_frames(self, frames: Frames) -> None:
        data, places, chooser, catalogue = frames
        wanted = chooser.selection
        simple = wanted.key is None and wanted.comment is None and not wanted.elements
        span_us, at_head = self._span_us, AUDITED.unpack_from
        changes = self._changes
        singles: Counter[tuple[int, int, Any]] = Counter()
        others: list[tuple[int, int]] = []
        for place in places:
            begin = place[0]
            _, kind, origin, csn = at_head(data, begin)
            if simple and kind == _TRANSACTION and data[begin + _COUNT_AT : begin + _COUNT_AT + 3] == _ONE:
                payload = begin + FRAME_HEAD_BYTES
                what = data[payload : payload + 6]
                bucket = (csn >> 12) // span_us if span_us else 0
                singles[origin, bucket, what] += 1
            else:
                others.append(place)
        for (origin, bucket, what), count in singles.items():
            op, ident = what[0], int.from_bytes(what[2:], "big") if what[1] == 0xCE and what[0] != Op.COMMENT else 0
            if wanted.chooses_changes and not chooser.takes(op, ident, None, ()):
                continue
            group = (origin, bucket, (op, ident))
            changes[group] += count
            self._transactions[group] += count
        if others:
            for match in decoded(Frames(data, others, chooser, catalogue)):
                self._add_match(match)

    def _place(self, match: Match) -> tuple[int, int]:
        return match.body[4], wall_us(match.body[6]) // self._span_us if self._span_us else 0

    def _add_match(self, match: Match) -> None:
        body = match.body
        origin, bucket = self._place(match)
        start = CHANGES_BEGIN.get(body[0])
        if start is None:
            self._transactions[origin, bucket, (Kind(body[0]).name.lower(), 0)] += 1
            return
        self._add_changes(origin, bucket, [(body, start, match.chooser)])

    def _add_large(self, match: Match) -> None:
        chooser = match.chooser
        if chooser.selection.comment is not None and not any(
            part.has_comment(flat) for flat, part in large_changes(match)
        ):
            return
        self._add_changes(*self._place(match), ((flat, 0, part) for flat, part in large_changes(match)))

    def _add_changes(self, origin: int, bucket: int, parts: Iterable[tuple[Sequence[Any], int, Chooser]]) -> None:
        found: Counter[tuple[int, int]] = Counter()
        known: Mapping[int, TableDefinition] = {}
        for flat, start, chooser in parts:
            if chooser.selection.chooses_changes:
                found.update((flat[at], flat[at + 1]) for at in chooser.chosen(flat, start))
            else:
                found.update(zip(flat[start::4], flat[start + 1 :: 4], strict=False))
            known = chooser.definitions
        # A comment is of no table, whatever its id says: its section, or which table was put into another partition.
        # Nor is what names a partition's writers.
        of_no_table = [one for one in found if one[1] and (one[0] == Op.COMMENT or one[1] < TABLE_ID_MIN)]
        for op, ident in of_no_table:
            found[op, 0] += found.pop((op, ident))
        self._learn_tables(known)  # some may be defined in these very changes
        for what, count in found.items():
            self._changes[origin, bucket, what] += count
        # A transaction counts once in a group, however many tables or operations it has in it.
        for what in {self._group(origin, bucket, one): one for one in found}.values():
            self._transactions[origin, bucket, what] += 1

    def _group(self, origin: int, bucket: int, what: tuple[Any, int]) -> Group:
        made: list[object] = []
        for word in self.by:
            if word == "origin":
                made.append(self._origins.get(origin, f"{origin:08x}"))
            elif word == "table":
                made.append(self._tables.get(what[1], f"{what[1]:08x}") if what[1] else "")
            elif word == "partition":
                made.append(self._partitions.get(what[1], ""))
            elif word == "op":
                made.append(Op(what[0]).name.lower() if isinstance(what[0], int) else what[0])
            else:
                made.append(shown_us(bucket * self._span_us))
        return tuple(made)

    def rows(self) -> Iterator[tuple[object, ...]]:
        """For each group what it is, its transactions and its changes; sorted."""
        transactions: Counter[Group] = Counter()
        changes: Counter[Group] = Counter()
        for (origin, bucket, what), count in self._transactions.items():
            transactions[self._group(origin, bucket, what)] += count
        for (origin, bucket, what), count in self._changes.items():
            changes[self._group(origin, bucket, what)] += count
        yield from in_order((*group, count, changes[group]) for group, count in transactions.items())


def in_order(rows: Iterable[Group]) -> list[Group]:
    """Groups with their counts, as they are told."""
    return sorted(rows, key=lambda one: tuple(map(str, one)))
