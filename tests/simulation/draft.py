"""A transaction in the making, where rows have values: its changes, made in the regions' content and noted on the way.

Guarantees: what is noted is what was made, in its order. Everything follows from the dice.
Leaves to others: what becomes of it (actors.py), what is right (the oracles).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from replicate.model.transaction import Op, TableDefinition
from tests.simulation.content import Content, Image
from tests.simulation.template import change


class Draft:
    """`content_of`: of a region, to be changed. `by`: what its writer calls it, which each of its rows has. `flat`: its
    changes, as an oracle has them."""

    def __init__(self, world: Any, content_of: Callable[[str], Content], by: int, *, is_large: bool) -> None:
        self._world = world
        self._content_of = content_of
        self.by = by
        self.is_large = is_large
        self.flat: list[Any] = []
        self._pieces: list[bytes] = []

    @property
    def payload(self) -> bytes:
        """As it stands in a frame."""
        return b"".join(self._pieces)

    @property
    def elements(self) -> int:
        """Of the payload."""
        return 4 * len(self._pieces)

    @property
    def kinds(self) -> str:
        """For the transcript."""
        return "".join("?IUD"[op] for op in self.flat[0::4])

    def rows_of(self, table: TableDefinition) -> dict[Any, Image]:
        """As they are by now."""
        return self._content_of(table.region).rows[table.table]

    def put(self, table: TableDefinition, before: Image | None, after: Image | None) -> None:
        """One row more (no `before`), another one, or one less (no `after`)."""
        argument, values = 0, list(after or before or ())
        op = Op.INSERT if before is None else Op.DELETE
        if before is not None and after is not None:
            op = Op.UPDATE
            changed = [at for at, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
            argument, values = sum(1 << at for at in changed), [*(after[at] for at in changed), *before]
        self._content_of(table.region).change(table, op, argument, values)
        self._pieces.append(change(op, table.table_id, argument, values))
        self.flat += [int(op), table.table_id, argument, values]

    def change_some(self, table: TableDefinition, sizes: Sequence[int], *, is_small: bool) -> None:
        """Rows of a table of identity, transaction and anything. `sizes`: of what is anything, at most, where one row
        is changed alone and not `is_small`."""
        dice = self._world.dice
        count = dice.randrange(4, 9) if self.is_large else dice.choice([1, 1, 1, 2, 4])
        size = 400 if self.is_large else dice.choice([8, 8, 40, 150] if count > 1 or is_small else sizes)
        for number in range(count):
            self._change(table, size, is_first=not number)

    def _change(self, table: TableDefinition, size: int, *, is_first: bool) -> None:
        """A row more, or another one, or one less: of what this transaction has not touched."""
        dice = self._world.dice
        rows = self.rows_of(table)
        body = bytes(dice.randrange(size + 1))
        lot = dice.random()
        old = [row for row in rows.values() if row[1] != self.by]
        if lot < 0.6 or not old:
            self.put(table, None, (self._world.next_row(), self.by, body))
            return
        before = dice.choice(old)
        self.put(table, before, (before[0], self.by, body) if lot < 0.85 or is_first else None)
