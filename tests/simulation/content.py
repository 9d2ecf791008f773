"""What a model's region holds beside its numbers where its rows have values: tables of rows, who writes what, and what
merging remembers. Regions of suppliers and of sites that change their roles are such.

A commit replaces a region's `Content` by another one, so to go back to what stood before it is to keep that one.

Guarantees: a change fits the row that is there, value by value, or is a ConflictError and nothing has happened.
Leaves to others: transactions (regions.py), changes as they come to be applied (rows.py), how rows are merged
(merging.py), what is right (the oracles).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from replicate.errors import ConflictError, NotSupportedError
from replicate.model.merged_row import Lost, Row, Stamp
from replicate.model.seen import merged_told
from replicate.model.transaction import SHARED, Op, TableDefinition, changed_of
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
    schema_changes: int = 0

    def copy(self) -> Content:
        """One that may be changed while this one stays as it is."""
        return Content(
            {table: dict(rows) for table, rows in self.rows.items()},
            dict(self.stamps),
            self.absorbed,
            dict(self.seen),
            self.writers,
            list(self.merges),
            self.schema_changes,
        )

    def told_of_writers(self, partition: int, values: Sequence[Any], seqno: int) -> None:
        """What a REGION change of transaction `seqno` says of who writes a partition."""
        if values[0] == SHARED and not self.writers.was_shared:
            self.absorbed = seqno
        self.writers = self.writers.told(partition, values)

    def schema_changed(self, seqno: int) -> None:
        """Transaction `seqno`, or a later one, changes the schema: all stamps go."""
        if any(row.waits for row in self.stamps.values()):
            raise NotSupportedError("the schema changes while a row waits for its name")
        self.stamps.clear()
        self.absorbed = max(self.absorbed, seqno)
        self.schema_changes += 1

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
    """The row before a change, and after it; None where there is none."""
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
    region = [one.region] if one.region else []
    packed: bytes = msgpack.packb([one.table, [*one.columns], [*one.key], *facts, one.left, *region])
    return packed


def unpack_merge(packed: bytes, seqno: int) -> Merged:
    """What `pack_merge` gave."""
    table, columns, key, what, winner, loser, values, ordinals, left, *region = msgpack.unpackb(packed, use_list=False)
    told = Lost(what, Stamp(*winner), Stamp(*loser), values, ordinals)
    return Merged(seqno, table, columns, key, told, left, *region)
