"""Which region a received change belongs to: transactions taken apart, each change given to its region's applier.

Guarantees: within a region changes keep their order; a change of a table or region that is not known here, a region
that was added again, and an incarnation that begins below what is applied here are refused by name; what is of a region
that waits for its seed is left out, and so are rows of partitions that are not here, or not yet.
Leaves to others: where transactions come from, batches, positions, commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from replicate.door.secondary import ApplySession
from replicate.errors import DamagedError, HardResyncNeededError, RollbackNeededError, UsageError
from replicate.journal.record import changes_of
from replicate.limits import PARTITION_DEFAULT, PARTITION_MAX, PARTITION_NONE, PARTITION_STREAM
from replicate.model.partition_moves import moves_in
from replicate.model.region_record import without_making
from replicate.model.transaction import (
    OF_WRITERS,
    TELLS_ONLY,
    Catalogue,
    History,
    Kind,
    Op,
    TableDefinition,
)
from replicate.region.protocol import RowsOfRegion
from replicate.region.sqlite.apply.order import RowRun
from replicate.region.sqlite.apply.overwrite import overwrite
from replicate.region.sqlite.apply.rows import lacks_region
from update_process.batch.by_partition import PartitionCounts
from update_process.window.columns import PAYLOAD, Changes

_OF_ALL: Final = frozenset((int(Op.SEEN), int(Op.RESOLVED)))
"""What suppliers tell: each region has it."""
_SPECIAL: Final = frozenset((int(Op.DEFINE), int(Op.SCHEMA), int(Op.REGION)))
_OF_ROWS: Final = frozenset((int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE), int(Op.SEQUENCE)))


class Routes:
    """The way of changes into the regions of one apply session."""

    def __init__(self, session: ApplySession, counted: PartitionCounts | None = None) -> None:
        """`counted`: where is counted what is applied of each partition."""
        self._session = session
        self._counted = counted
        self._is_parted = False
        self.tables: dict[int, TableDefinition] = {}
        """Every definition that is known here, by table id."""
        self._waiting: frozenset[str] = frozenset()
        self.is_replay = False
        """Whether journals are read as they are: nobody has left out what never leaves its instance."""
        self._counts_all = not session.door.instance.is_supplier
        self._only: RowsOfRegion | None = None
        """The region that every change is of, where there is but one."""
        self._passed: set[int] = set()
        """Tables whose rows are not here: their changes are journalled, and passed over."""
        self.take_regions()

    def take_regions(self) -> None:
        """Learn which regions the session has, and which are waiting."""
        regions = self._session.rows
        self._waiting = self._session.waiting
        self._only = next(iter(regions.values())) if len(regions) == 1 and not self._waiting else None
        for rows in regions.values():
            self._know(rows.definitions)

    def _know(self, definitions: Mapping[int, TableDefinition]) -> None:
        self.tables.update(definitions)
        self._is_parted = self._is_parted or any(one.partition != PARTITION_DEFAULT for one in definitions.values())
        content = self._session.door.instance.content
        if content.held is not None:
            self._passed.update(key for key, one in definitions.items() if content.passes_over(one.partition))

    def leave_out(self, region: str) -> None:
        """Take a region for one that waits, though nobody is told (in a replay that writes nothing)."""
        self._waiting |= {region}
        self._only = None

    def take_definitions(self, catalogue: Catalogue) -> None:
        """Learn what a received catalogue defines in our regions, and in those that wait."""
        for table_id, definition in catalogue.definitions.items():
            if table_id in self.tables:
                continue
            self._check_leaves(definition)
            rows = self._session.rows.get(definition.region)
            if rows is not None:
                rows.define(table_id, definition)
            if rows is not None or definition.region in self._waiting:
                self._know({table_id: definition})

    @property
    def counted(self) -> PartitionCounts | None:
        """Where is counted what is applied of each partition; None where all tables are in DEFAULT."""
        return self._counted if self._is_parted else None

    def partition_of(self, table_id: int) -> int | None:
        """The partition of a table; None when it is not known, or passed over. On a secondary also the one that stands
        in the place of a table's id, in a change of none. (Among suppliers only what is of tables has a writer.)"""
        definition = self.tables.get(table_id)
        if definition is not None:
            return None if table_id in self._passed else definition.partition
        return table_id if self._counts_all and PARTITION_STREAM < table_id <= PARTITION_MAX else None

    def apply_bodies(self, bodies: Sequence[Any]) -> None:
        """Apply decoded transactions, or one history record. Raises what `RowsOfRegion.apply_all` raises, and
        RollbackNeededError, HardResyncNeededError, NotFoundError, DamagedError."""
        for rows in self._session.rows.values():
            rows.seqno = bodies[-1][1]
        if len(bodies) == 1 and bodies[0][0] == Kind.HISTORY:
            self._check_history(History.unpack(bodies[0][PAYLOAD:], bodies[0][1]))
            return
        self.apply_changes(list(chain.from_iterable(map(changes_of, bodies))))
        self.check_awaited()

    def check_awaited(self) -> None:
        """At the end of a transaction: as `RowsOfRegion.check_awaited`, in all regions."""
        for rows in self._session.rows.values():
            rows.check_awaited()

    def apply_single(self, body: Sequence[Any], seqno: int) -> None:
        """Apply one decoded transaction that only changes rows. Raises as `apply_bodies`."""
        only = self._only
        if only is None or (self._passed and not self._passed.isdisjoint(body[PAYLOAD + 1 :: 4])):
            self.apply_bodies((body,))
            return
        only.seqno = seqno
        only.apply_all(body, PAYLOAD)

    def apply_plain(self, changes: Changes, seqno: int, *, is_sorted: bool = False) -> None:
        """Apply changes of rows, the last of which is of transaction `seqno`. Raises as `apply_bodies`.

        `is_sorted`: in the order of the rows where that comes to the same; an error then does not say which change
        it was.
        """
        for rows in self._session.rows.values():
            rows.seqno = seqno
        only = self._only
        if self._passed and not self._passed.isdisjoint(changes[1]):
            here = [place for place, table_id in enumerate(changes[1]) if table_id not in self._passed]
            if not here:
                return
            changes = Changes(*([column[place] for place in here] for column in changes))
        if only is not None:
            (only.apply_sorted if is_sorted else only.apply_columns)(*changes)
        elif is_sorted:
            for region, run in self._by_region(changes).items():
                self._session.rows[region].apply_sorted(*zip(*run, strict=True))
        else:
            self.apply_changes(list(chain.from_iterable(zip(*changes, strict=True))))

    def place_of(self, op: Any, table_id: Any, argument: Any) -> int | None:
        """See order.PlaceOf. None, too, for a table or region that is not known here."""
        known = None if table_id in self._passed else self.tables.get(table_id)
        rows = None if known is None else self._session.rows.get(known.region)
        return None if rows is None else rows.place_of(op, table_id, argument)

    def known_place_of(self, op: Any, table_id: Any, argument: Any) -> int | None:
        """The same without the region's connection, which another thread may be using: None, too, for what has not been
        asked before."""
        known = self.tables.get(table_id)
        rows = None if known is None else self._session.rows.get(known.region)
        return None if rows is None else rows.known_places.get((op, table_id, argument))

    def apply_runs(self, runs: Iterable[RowRun], seqno: int) -> None:
        """Apply changes that `place_of` lets be moved, the last of which is of transaction `seqno`. Raises as
        `apply_bodies`; an error does not say which change it was."""
        for rows in self._session.rows.values():
            rows.seqno = seqno
        for ops, table_ids, arguments, values, is_uniform in runs:
            rows = self._session.rows[self.known_table(table_ids[0]).region]
            if is_uniform:
                rows.apply_run(ops[0], table_ids[0], arguments[0], values)
            else:
                rows.apply_columns(ops, table_ids, arguments, values)

    def apply_changes(self, changes: list[Any]) -> None:
        """Apply flat changes in their order, each in its region. Raises as `apply_bodies`."""
        regions = self._session.rows
        special = not _SPECIAL.isdisjoint(changes[0::4])
        only = self._only
        passes = bool(self._passed) and not self._passed.isdisjoint(changes[1::4])
        if only is not None and not special and not passes:
            if len(changes) % 4:
                only.apply_all(changes)  # says what is wrong
            only.apply_columns(changes[0::4], changes[1::4], changes[2::4], changes[3::4])
            return
        # The order within a region is what counts; a schema change only concerns its own region.
        runs: dict[str, list[Any]] = {}
        kept = without_making(changes)
        if special:
            self._check_moves(kept)
        for place in range(0, len(kept), 4):
            op, table_id, argument, values = kept[place : place + 4]
            if op in _OF_ALL:
                for one in regions:
                    runs.setdefault(one, []).extend((op, table_id, argument, values))
                continue
            region = self._region_of(op, table_id, argument, values)
            if region is not None and not (op in _OF_ROWS and table_id in self._passed):
                runs.setdefault(region, []).extend((op, table_id, argument, values))
        for region in self._waiting:
            runs.pop(region, None)
        for region, run in runs.items():
            regions[region].apply_all(run)
        if special:
            for rows in regions.values():
                self._know(rows.definitions)

    def overwrite(self, changes: Sequence[Any], seqno: int) -> list[Any]:
        """Make flat changes of transaction `seqno`, none of which is of the schema, over whatever rows are here: what
        was made, in their order. What is passed over is given back as it is. Raises as `apply_bodies`."""
        made: list[Any] = []
        for place in range(0, len(changes), 4):
            change = changes[place : place + 4]
            region = self._region_of(*change)
            if region is None or region in self._waiting or change[1] in self._passed:
                made += change
                continue
            rows = self._session.rows[region]
            rows.seqno = seqno
            made += overwrite(rows, change)
        return made

    def _by_region(self, changes: Changes) -> dict[str, list[tuple[Any, ...]]]:
        """Each region's changes in their order; it is nobody's business which of two regions is changed first."""
        runs: dict[str, list[tuple[Any, ...]]] = {}
        known: dict[Any, list[tuple[Any, ...]]] = {}
        for change in zip(*changes, strict=True):
            if change[0] in _OF_ALL:
                for region in self._session.rows:
                    runs.setdefault(region, []).append(change)
            if change[0] in TELLS_ONLY:
                continue
            run = known.get(change[1])
            if run is None:
                run = known[change[1]] = runs.setdefault(self.known_table(change[1]).region, [])
            run.append(change)
        for region in self._waiting:
            runs.pop(region, None)
        return runs

    def known_table(self, table_id: Any) -> TableDefinition:
        """The definition of a table of ours, or of a region that waits. DamagedError when it was never defined,
        NotFoundError for its region."""
        known = self.tables.get(table_id)
        if known is None:
            raise DamagedError(f"a change of table id {table_id!r}, which was not defined before it")
        self._known(known.region)
        return known

    def _region_of(self, op: Any, table_id: Any, argument: Any, values: Any) -> str | None:
        if op in _OF_ALL:
            return next(iter(self._session.rows))  # of an overwrite, which changes rows: one is enough
        if op in TELLS_ONLY:
            return None
        if op == Op.REGION:
            if values[0] in OF_WRITERS:
                return self._known(argument)
            if values[0] == "added":
                self._check_added(self._known(argument), values[1])
            return None
        if op == Op.SCHEMA:
            return self._known(argument)
        if op == Op.DEFINE:
            definition = TableDefinition.unpack(values)
            self._check_leaves(definition)
            self._know({definition.table_id: definition})
            return self._known(definition.region)
        return self.known_table(table_id).region

    def _check_leaves(self, definition: TableDefinition) -> None:
        """UsageError where rows would come that never leave their instance."""
        if self.is_replay and definition.partition == PARTITION_NONE:
            raise UsageError(
                f"table {definition.table} of region {definition.region} is in no partition: its rows stay in their "
                "instance, and a replay cannot leave them out",
                where=str(self._session.door.instance.path),
                do="Let the stream bring the backlog",
            )

    def _check_moves(self, changes: Sequence[Any]) -> None:
        """HardResyncNeededError for a table that comes from a partition that is not here into one that is: with rows,
        or without any where some are here, from when it was in a partition of ours before."""
        for definition, before, is_empty in moves_in(changes):
            instance = self._session.door.instance
            known, after = instance.partitions_now(), definition.partition
            if not instance.content.holds(after) or instance.content.holds(before):
                continue
            rows = self._session.rows.get(definition.region)
            if not is_empty or (rows is not None and rows.has_rows(definition.table)):
                raise HardResyncNeededError(
                    f"table {definition.table} of region {definition.region} was put into partition "
                    f"{known.name(after)}; what it had in {known.name(before)} is not here",
                    where=str(instance.path),
                    do=(
                        f"End its load first: replicate -i INSTANCE seed --partition {known.name(before)}; where that "
                        "waits for a later transaction, seed this secondary again: replicate -i INSTANCE seed --restart"
                        if before in instance.content.choice.loading
                        else "Seed this secondary again: replicate -i INSTANCE seed --restart"
                    ),
                )

    def _check_added(self, region: str, uuid: object) -> None:
        """HardResyncNeededError for a region that we have from before: it was released there and added again, and what
        was written in between is in no journal."""
        if region in self._waiting or self._session.added_as(region) == uuid:
            return
        raise HardResyncNeededError(
            f"region {region} was added again on the primary; its rows from before that did not pass here",
            where=str(self._session.door.instance.path),
            do="Seed this secondary again: replicate -i INSTANCE seed --restart",
        )

    def _known(self, region: object) -> str:
        if isinstance(region, str) and (region in self._session.rows or region in self._waiting):
            return region
        raise lacks_region(region, str(self._session.door.instance.path))

    def _check_history(self, history: History) -> None:
        if self._session.door.instance.is_supplier:
            return  # what an origin has more than its successor knew comes back to it (model/ruv.py)
        before = history.previous_origin
        position = self._session.position
        ours, theirs = position.vector.last(before), history.base.last(before)
        if before and ours > theirs:
            raise RollbackNeededError(
                f"incarnation {history.incarnation} of {history.name} began at {theirs} of the origin before it, "
                f"but {ours} of that one are applied here",
                do="Look at what it has more (replicate -i INSTANCE journal show), then seed it again: replicate -i "
                "INSTANCE seed --restart",
                seqno=history.seqno,
            )
