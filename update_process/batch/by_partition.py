"""How much of what is applied changes which partition, for the figures: transactions, rows, bytes of frames.

A transaction over several partitions counts in each of them, with all bytes of its frame; a row counts in its own.

Guarantees: where all tables are in DEFAULT nothing is counted; what is not wanted here, or is settled by an operator's
decision, counts for none. What one thread adds another one may read.
Leaves to others: when a batch is committed, and names (figures.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from operator import sub
from typing import Any, Final

from replicate.journal.record import CHANGES_BEGIN
from replicate.model.transaction import Op
from update_process.plan import Window

_ROWS: Final = frozenset((int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE)))

PartitionOf = Callable[[int], int | None]


class PartitionCounts:
    """By partition. `found`: of each its transactions, rows and bytes."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: dict[int, list[int]] = {}

    def add(self, partition: int, transactions: int, rows: int, frame_bytes: int) -> None:
        """So many more of that one."""
        counts = self.found.setdefault(partition, [0, 0, 0])
        counts[0] += transactions
        counts[1] += rows
        counts[2] += frame_bytes

    def join(self, other: PartitionCounts) -> None:
        """All that `other` has."""
        for partition, counts in other.found.items():
            self.add(partition, *counts)

    def add_window(self, window: Window, start: int, stop: int, partition_of: PartitionOf) -> None:
        """The transactions `start` to `stop` (exclusive) of the window."""
        plain = window.plain
        if plain is None or plain.ends is not None or not _ROWS.issuperset(plain.columns.ops[start:stop]):
            self._add_bodies(window, start, stop, partition_of)
            return
        ends = window.ends[start:stop]
        sizes = list(map(sub, ends, [window.offset(start), *ends]))
        table_ids = plain.columns.table_ids[start:stop]
        if table_ids.count(table_ids[0]) == len(table_ids):
            self._add_ones(table_ids[0], sizes, partition_of)
            return
        by_table: defaultdict[int, list[int]] = defaultdict(list)
        for table_id, size in zip(table_ids, sizes, strict=True):
            by_table[table_id].append(size)
        for table_id, of_it in by_table.items():
            self._add_ones(table_id, of_it, partition_of)

    def add_single(self, changes: Sequence[Any], frame_bytes: int, partition_of: PartitionOf) -> None:
        """One transaction, by its flat changes."""
        self.add_large(Counter(row_tables(changes)), frame_bytes, partition_of, changes[1::4])

    def add_large(
        self, rows: Mapping[int, int], frame_bytes: int, partition_of: PartitionOf, table_ids: Iterable[int] = ()
    ) -> None:
        """One transaction with so many rows of each table; `table_ids`: tables that it changes besides."""
        found = dict.fromkeys(filter(None, map(partition_of, table_ids)), 0)
        for table_id, number in rows.items():
            partition = partition_of(table_id)
            if partition is not None:
                found[partition] = found.get(partition, 0) + number
        for partition, number in found.items():
            self.add(partition, 1, number, frame_bytes)

    def _add_ones(self, table_id: int, sizes: Sequence[int], partition_of: PartitionOf) -> None:
        partition = partition_of(table_id)
        if partition is not None:
            self.add(partition, len(sizes), len(sizes), sum(sizes))

    def _add_bodies(self, window: Window, start: int, stop: int, partition_of: PartitionOf) -> None:
        """Those that change the same tables in the same way are counted together: most are like others."""
        ends, bodies, plain = window.ends, window.bodies, window.plain
        places: Iterable[int] = range(start, stop)
        if plain is not None and plain.ends is not None:  # numbers that hold nothing are passed over in C
            changes = [plain.ends[start - 1] if start else 0, *plain.ends[start:stop]]
            places = compress(places, map(sub, changes[1:], changes))
        alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for place in places:
            body = bodies[place]
            begin = CHANGES_BEGIN.get(body[0])
            if begin is not None:
                alike[*body[begin::4], *body[begin + 1 :: 4]].append(ends[place] - (ends[place - 1] if place else 0))
        for shape, sizes in alike.items():
            ops, table_ids = shape[: len(shape) // 2], shape[len(shape) // 2 :]
            found = dict.fromkeys(map(partition_of, set(table_ids)), 0)
            for op, table_id in zip(ops, table_ids, strict=True):
                found[partition_of(table_id)] += op in _ROWS
            for partition, rows in found.items():
                if partition is not None:
                    self.add(partition, len(sizes), rows * len(sizes), sum(sizes))


def row_tables(changes: Sequence[Any]) -> Iterable[int]:
    """Of flat changes the table of each row that is changed."""
    ops, table_ids = changes[0::4], changes[1::4]
    if _ROWS.issuperset(ops):
        return table_ids
    return [table_id for op, table_id in zip(ops, table_ids, strict=True) if op in _ROWS]
