"""Merging rows in several regions of a supplier: each change by what merges rows into its table's region.

Guarantees: a transaction that changes several regions is merged in all of them, in the order of its changes within
each; what it tells, each region has. What is said of rows is of all regions together: what was lost, what gave way, up
to where all have their stamps.
Leaves to others: the merge in one region (region/sqlite/apply/merge.py), commits. A supplier with one region has none
of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from replicate.errors import InternalError
from replicate.model.merged_row import Stamp
from replicate.model.transaction import Op
from replicate.region.protocol import Absorbed, MergingRows, RowKeys, RowsOfRegion

_OF_TABLES: Final = frozenset(map(int, (Op.INSERT, Op.UPDATE, Op.DELETE, Op.SEQUENCE)))
_OF_ALL: Final = frozenset(map(int, (Op.SEEN, Op.RESOLVED)))
"""What is told in each region."""


class MergedRegion(Struct, frozen=True):
    """One of several. `rows`: what changes its rows."""

    name: str
    rows: RowsOfRegion
    merging: MergingRows

    def has(self, table_id: int) -> bool:
        """Whether that table is one of its own."""
        known = self.rows.definitions.get(table_id)
        return known is not None and known.region == self.name


class MergingRegions:
    """A `MergingRows` of several regions."""

    def __init__(self, regions: Sequence[MergedRegion]) -> None:
        self.regions = tuple(regions)

    def _of(self, table_id: int) -> MergedRegion:
        found = next((one for one in self.regions if one.has(table_id)), None)
        if found is None:
            raise InternalError(f"a row of table id {table_id} is merged, which no region has")
        return found

    @property
    def absorbed(self) -> int:
        return min(one.merging.absorbed for one in self.regions)

    @property
    def lost_count(self) -> int:
        return sum(one.merging.lost_count for one in self.regions)

    @property
    def is_empty(self) -> bool:
        return all(one.merging.is_empty for one in self.regions)

    @property
    def kept_since_purge(self) -> int:
        return sum(one.merging.kept_since_purge for one in self.regions)

    def begin(self) -> None:
        for one in self.regions:
            one.merging.begin()

    @property
    def removed(self) -> Sequence[Any]:
        return [element for one in self.regions for element in one.merging.removed]

    def take(
        self,
        changes: Sequence[Any],
        stamp: Stamp,
        told: Mapping[int, int],
        is_shared: Callable[[int], bool],
        removing: Stamp | None,
        *,
        is_stable: bool = False,
        removes: bool = False,
    ) -> list[Any] | None:
        tells, runs = self._parted(changes)
        removes = removes or Op.RESOLVED in tells[0::4]
        done, is_merged = list(tells), False
        for one in self.regions:
            one.rows.apply_all(tells)
            run = runs[one.name]
            took = one.merging.take(run, stamp, told, is_shared, removing, is_stable=is_stable, removes=removes)
            is_merged = is_merged or took is not None
            done += run if took is None else took
        return done if is_merged else None

    def _parted(self, changes: Sequence[Any]) -> tuple[list[Any], dict[str, list[Any]]]:
        """What is of no region, and each region's own."""
        tells, runs = list[Any](), {one.name: list[Any]() for one in self.regions}
        for place in range(0, len(changes), 4):
            change = changes[place : place + 4]
            op, table_id, argument, _ = change
            if op in _OF_TABLES:
                runs[self._of(table_id).name] += change
            elif op in (Op.SCHEMA, Op.REGION, Op.DEFINE):
                raise InternalError(f"a change of kind {op}, of {argument!r}, is merged with rows")
            else:
                tells += change
        return tells, runs

    @property
    def has_waiting(self) -> bool:
        return any(one.merging.has_waiting for one in self.regions)

    @property
    def waiting(self) -> Sequence[Any]:
        return [element for one in self.regions for element in one.merging.waiting]

    def may_meet(self, rows: RowKeys, told: Mapping[int, int], writer: int) -> bool:
        return any(
            one.merging.may_meet(own, told, writer)
            for one in self.regions
            if (own := {table_id: keys for table_id, keys in rows.items() if one.has(table_id)})
        )

    def absorb(self, transactions: Sequence[Absorbed], is_shared: Callable[[int], bool]) -> None:
        for one, is_its_own in self.each(is_shared):
            one.absorb(transactions, is_its_own)

    def each(self, is_shared: Callable[[int], bool]) -> list[tuple[MergingRows, Callable[[int], bool]]]:
        """Those of one region each, with `is_shared` for its own tables: regions may have their stamps up to different
        places of the journal."""

        def of(region: MergedRegion) -> Callable[[int], bool]:
            return lambda table_id: region.has(table_id) and is_shared(table_id)

        return [(one.merging, of(one)) for one in self.regions]

    def losses(self, seqno: int) -> list[bytes]:
        return [packed for one in self.regions for packed in one.merging.losses(seqno)]

    def mark(self) -> None:
        for one in self.regions:
            one.merging.mark()

    def take_back(self) -> None:
        for one in self.regions:
            one.merging.take_back()

    def give_way(self, deletes: Sequence[Any], stamp: Stamp) -> tuple[list[Any], list[Any]]:
        _, runs = self._parted(deletes)
        told, done = list[Any](), list[Any]()
        for one in self.regions:
            told_there, done_there = one.merging.give_way(runs[one.name], stamp)
            told += told_there
            done += done_there
        return told, done

    def write_stamps(self) -> None:
        for one in self.regions:
            one.merging.write_stamps()

    def finish(self, absorbed: int) -> None:
        for one in self.regions:
            one.merging.finish(absorbed)

    def purge(self, stable: Mapping[int, int]) -> int:
        return sum(one.merging.purge(stable) for one in self.regions)
