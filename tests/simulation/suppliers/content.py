"""What a supplier's region holds beside its numbers: tables of rows, who writes what, and what merging remembers.

A commit replaces a region's `Content` by another one, so to go back to what stood before it is to keep that one.

Guarantees: a change fits the row that is there, value by value, or is a ConflictError and nothing has happened.
Leaves to others: transactions (regions.py), how rows are merged (merging.py), what is right (oracle.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from replicate.errors import ConflictError, InternalError
from replicate.model.registers import Lost, Row, Stamp
from replicate.model.seen import merged_told
from replicate.model.transaction import OF_WRITERS, SHARED, Op, TableDefinition, changed_of, told_of
from replicate.model.writers import Writers
from replicate.region.protocol import Merged, MergedRow

Image = tuple[Any, ...]
UNIQUE: Final = {"named": 1}
"""Table -> the ordinal of a value that no two rows of it have, unless it is None."""
Name = tuple[str, Any]
"""Of a row: its table, and its key."""


@dataclass(slots=True)
class Content:
    """`rows`: table -> key -> image. `stamps`: of rows that several write. `merges`: what was lost in merges."""

    rows: dict[str, dict[Any, Image]] = field(default_factory=dict)
    stamps: dict[Name, Row] = field(default_factory=dict)
    absorbed: int = 0
    seen: dict[int, dict[int, int]] = field(default_factory=dict)
    writers: Writers = field(default_factory=Writers)
    merges: list[MergedRow] = field(default_factory=list)

    def copy(self) -> Content:
        """One that may be changed while this one stays as it is."""
        return Content(
            {table: dict(rows) for table, rows in self.rows.items()},
            dict(self.stamps),
            self.absorbed,
            dict(self.seen),
            self.writers,
            list(self.merges),
        )

    def told_of_writers(self, partition: int, values: Sequence[Any], seqno: int) -> None:
        """What a REGION change of transaction `seqno` says of who writes a partition."""
        if values[0] == SHARED and not self.writers.was_shared:
            self.absorbed = seqno
        self.writers = self.writers.told(partition, values)

    def told_of_seen(self, teller: int, told: Mapping[int, int]) -> None:
        """What an origin has told that it has seen."""
        self.seen[teller] = merged_told(self.seen.get(teller, {}), told)

    def note_merges(self, merges: Iterable[Merged]) -> None:
        """Keep what was lost in merges."""
        for one in merges:
            self.merges.append(MergedRow(len(self.merges) + 1, "open", one))

    def change(self, definition: TableDefinition, op: int, argument: Any, values: Sequence[Any]) -> None:
        """Make one change of one row."""
        before, after = images_of(op, argument, values)
        rows = self.rows.setdefault(definition.table, {})
        if after is not None and (rival := self.rival(definition, after)) is not None:
            raise ConflictError(f"table {definition.table}: row {rival[0]} has the name of {after}", unique=True)
        if before is not None:
            key = before[definition.key[0]]
            if key not in rows or not is_same(rows[key], before):
                raise ConflictError(
                    f"table {definition.table}: {rows.get(key)} stands there, {before} is expected", key=key
                )
            del rows[key]
        if after is not None:
            key = after[definition.key[0]]
            if key in rows:
                raise ConflictError(f"table {definition.table}: row {key} is there already", key=key)
            rows[key] = after

    def rival(self, definition: TableDefinition, image: Image) -> Image | None:
        """Another row that has a unique value of that one."""
        at, key_at = UNIQUE.get(definition.table), definition.key[0]
        if at is None or image[at] is None:
            return None
        rows = self.rows[definition.table].values()
        return next((one for one in rows if one[at] == image[at] and one[key_at] != image[key_at]), None)


def images_of(op: int, argument: Any, values: Sequence[Any]) -> tuple[Image | None, Image | None]:
    """The row before a change, and behind it; None where there is none."""
    if op == Op.INSERT:
        return None, tuple(values)
    if op == Op.DELETE:
        return tuple(values), None
    changed = changed_of(argument)
    before = tuple(values[len(changed) :])
    after = list(before)
    for ordinal, value in zip(changed, values[: len(changed)], strict=True):
        after[ordinal] = value
    return before, tuple(after)


def is_same(one: Image, other: Image) -> bool:
    """Whether two rows are, type and all."""
    return one == other and list(map(type, one)) == list(map(type, other))


def pack_merge(one: Merged) -> bytes:
    """What was lost in a merge, but for the transaction's number."""
    told = one.lost
    facts = [told.what, [*told.winner], [*told.loser], [*told.values], [*told.ordinals]]
    packed: bytes = msgpack.packb([one.table, [*one.columns], [*one.key], *facts, one.left])
    return packed


def unpack_merge(packed: bytes, seqno: int) -> Merged:
    """What `pack_merge` gave."""
    table, columns, key, what, winner, loser, values, ordinals, left = msgpack.unpackb(packed, use_list=False)
    return Merged(seqno, table, columns, key, Lost(what, Stamp(*winner), Stamp(*loser), values, ordinals), left)


class SupplierRows:
    """A `RowsOfRegion` over the content of a connection's open transaction."""

    def __init__(self, connection: Any, definitions: Mapping[int, TableDefinition]) -> None:
        self._connection = connection
        self.definitions = dict(definitions)
        self.known_places: dict[tuple[Any, Any, Any], int | None] = {}
        self.seqno = 0

    def begin(self) -> None:
        """The model's rows need nothing."""

    def forget_plans(self) -> None:
        """It has none."""

    def look_at_own_counters(self) -> None:
        """The model's tables count no keys."""

    def settle_own_counters(self) -> None:
        """Likewise."""

    def check_awaited(self) -> None:
        """No definition comes without its statement."""

    def settle_sequences(self) -> None:
        """Likewise."""

    def has_rows(self, table: str) -> bool:
        """Whether a table has any."""
        return bool(self._connection.content.rows.get(table))

    def place_of(self, op: Any, table_id: Any, arg: Any) -> int | None:
        """No change may be moved."""

    def define(self, table_id: int, definition: TableDefinition) -> None:
        self.definitions[table_id] = definition

    def apply_columns(
        self, ops: Sequence[Any], table_ids: Sequence[Any], arguments: Sequence[Any], values: Sequence[Any]
    ) -> None:
        for op, table_id, argument, value in zip(ops, table_ids, arguments, values, strict=True):
            self._apply(op, table_id, argument, value)

    def apply_sorted(
        self, ops: Sequence[Any], table_ids: Sequence[Any], arguments: Sequence[Any], values: Sequence[Any]
    ) -> None:
        self.apply_columns(ops, table_ids, arguments, values)

    def apply_run(self, op: int, table_id: int, arg: Any, values: Sequence[Any]) -> None:
        for one in values:
            self._apply(op, table_id, arg, one)

    def apply_all(self, changes: Sequence[Any], start: int = 0) -> int:
        flat = changes[start:]
        self.apply_columns(flat[0::4], flat[1::4], flat[2::4], flat[3::4])
        return len(flat) // 4

    def _apply(self, op: int, table_id: int, argument: Any, values: Any) -> None:
        content: Content = self._connection.working()
        if op in (Op.INSERT, Op.UPDATE, Op.DELETE):
            try:
                content.change(self.definitions[table_id], op, argument, values)
            except ConflictError as error:
                error.facts.setdefault("seqno", self.seqno)
                raise
        elif op == Op.DEFINE:
            self.definitions[table_id] = TableDefinition.unpack(values)
        elif op == Op.REGION and values[0] in OF_WRITERS:
            content.told_of_writers(table_id, values, self.seqno)
        elif op == Op.SEEN:
            content.told_of_seen(*told_of(values))
        elif op == Op.RESOLVED:
            losses = values[2] if values else ()
            content.note_merges(unpack_merge(packed, self.seqno) for packed in losses)
        else:
            raise InternalError(f"a change of kind {op} comes to no supplier of these worlds")
