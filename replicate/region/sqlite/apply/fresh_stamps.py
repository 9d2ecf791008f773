"""Stamping rows that have no stamps, each of which one transaction writes, and that once: nearly all of what is new.

Guarantees: what is kept of such a row is what `merged` and `pack_row` come to (model/merged_row.py), byte for byte,
without making either; nothing is written here.
Leaves to others: every other row. Of a table with sums, or of a change that changes a key, each row is such a one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from replicate.model.merged_row import Groups, Stamp, pack_single
from replicate.model.transaction import Op, TableDefinition, changed_of
from replicate.region.sqlite.row_stamps import KeptRow, RowName, key_of

_UPDATE: Final = int(Op.UPDATE)
_DELETE: Final = int(Op.DELETE)

Change = tuple[int, int, Any, Sequence[Any], Stamp, bool]
"""Op, table id, argument and values of a change of a row, its transaction's stamp, and whether everybody has that."""


class FreshStamps:
    """Of some changes, in their order. `kept`: of each row that is written once, what is to be kept if it has no
    stamps; None: nothing. `others`: rows that are not to be stamped so, whatever they have. `names`: of each change its
    row; None: it changes a key, so it is of two of `others`."""

    def __init__(self, changes: Iterable[Change], tables: Callable[[int], StampedTable]) -> None:
        self.kept: dict[RowName, KeptRow | None] = {}
        self.others: set[RowName] = set()
        self.names: list[RowName | None] = []
        kept, others, add = self.kept, self.others, self.names.append
        for op, table_id, argument, values, stamp, is_stable in changes:
            table = tables(table_id)
            if op == _UPDATE:
                changed = changed_of(argument)
                before = values[len(changed) :]
                name, written = (table_id, key_of(table.key(before))), frozenset(map(table.groups.__getitem__, changed))
                if not table.key_at.isdisjoint(changed):
                    others.update((name, (table_id, key_of(table.key(_after(before, changed, values))))))
                    add(None)
                    continue
            else:
                name, written = (table_id, key_of(table.key(values))), table.every
            add(name)
            if name in kept or not table.is_simple:
                others.add(name)
            elif is_stable and not table.has_unique:
                kept[name] = None
            elif op == _DELETE:
                kept[name] = (*name, stamp.origin, stamp.origin_seqno, pack_single(stamp, b"", values))
            else:
                kept[name] = (*name, stamp.origin, stamp.origin_seqno, pack_single(stamp, bytes(written)))

    def all_names(self) -> set[RowName]:
        """Every row that is changed."""
        return self.others.union(self.kept)


def _after(before: Sequence[Any], changed: Sequence[int], values: Sequence[Any]) -> list[Any]:
    image = list(before)
    for ordinal, value in zip(changed, values, strict=False):
        image[ordinal] = value
    return image


class StampedTable:
    """What of a table is asked for each of its rows."""

    __slots__ = ("every", "groups", "has_unique", "is_simple", "key", "key_at", "sums")

    def __init__(self, definition: TableDefinition, groups: Groups, *, has_unique: bool) -> None:
        self.has_unique = has_unique
        """Rows get stamps of what everybody has, too."""
        self.groups = groups
        """Of its columns."""
        self.every = frozenset(groups)
        self.sums = frozenset(group for group in groups if group < 0)
        self.is_simple = not self.sums and max(groups, default=0) < 256
        self.key_at = frozenset(definition.key)
        self.key: Callable[[Sequence[Any]], tuple[Any, ...]]
        """A row's key, of its image."""
        if len(definition.key) == 1:
            at = definition.key[0]
            self.key = lambda image: (image[at],)
        else:
            self.key = itemgetter(*definition.key)
