"""What must be true where a secondary releases what it removes: as oracle.py has it, and of what is released more.

All of it is here as of one transaction when it is removed; it is given so; and here it stays so, whatever fails, until
its rows are deleted, after which none is here again.
Guarantees: as there. Leaves to others: how anything is done (releasing.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain as flatten
from typing import Any

from tests.simulation.oracle import Lane, ViolationError
from tests.simulation.parts.oracle import PartsOracle
from tests.simulation.parts.template import name_of
from tests.simulation.regions import Region


class ReleaseOracle(PartsOracle):
    """`frozen`: name of a table that is released -> its rows here, when it was about to be removed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.frozen: dict[str, list[int]] = {}
        self.is_frozen = self.has_released = False
        """It is removed, and stays as it is; its copy has come to its place."""
        self.has_dropped = False
        """Its rows are gone from here."""

    def rows_of(self, region: Region, table: str) -> list[int]:
        """Those of a table that are in a region, in their order."""
        return [row for row in region.rows if name_of(self._table_of[row]) == table]

    def on_freezing(self, tables: Sequence[str]) -> None:
        """The secondary is about to remove the partitions of these tables, and nobody applies anything to it. Of each
        transaction all is there that it gets, or nothing."""
        there = set().union(*(lane.secondary.present for lane in self.lanes))
        for parts in self.transactions:
            rows = list(filter(self.holds, flatten.from_iterable(parts)))
            if (found := there.intersection(rows)) and len(found) < len(rows):
                raise ViolationError("released", f"{tables} are removed when of {rows} only {sorted(found)} are there")
        self.frozen = {
            table: self.rows_of(lane.secondary, table)
            for table in tables
            for lane in self.lanes
            if lane.primary.number == self._climate.placed[int(table[1:])][0]
        }

    def on_released(self, released: Mapping[str, list[int]]) -> None:
        """The copy is in its place, with these rows of each table."""
        self.has_released = True
        if lost := self.frozen.keys() - released.keys():
            raise ViolationError("released", f"tables {sorted(lost)} were removed, and not given")
        for table, rows in released.items():
            if (known := self.frozen.setdefault(table, rows)) != rows:
                raise ViolationError("released", f"of {table} {known} were removed, and {rows} given")

    def _check_rows(self, lane: Lane, told: str) -> None:
        """What is removed stays as it was, too."""
        for table, rows in self.frozen.items() if self.is_frozen else ():
            if self._climate.placed[int(table[1:])][0] != lane.primary.number:
                continue
            found = self.rows_of(lane.secondary, table)
            if int(table[1:]) in self.dropped and set(found) <= set(rows) and not (found and self.has_dropped):
                continue
            if found != rows:
                raise ViolationError("released", f"of {table} {rows} were removed, and {found} stand there ({told})")
        super()._check_rows(lane, told)
