"""Applying a net change, wherever it was found, to the open regions of an apply session. No engine has another way in.

There are two ways, which make the same changes in the same three phases: in bulk, in runs of one kind and statement,
and row by row. In bulk all that is known of a row that does not fit is that there is one; row by row it is named.

Guarantees: every row that is changed must equal its first before-image here (RowApplier's whole comparison), else
ConflictError, row by row with the seqno of that row's first change; with `verify` rows without a net effect are
compared too. The caller begins and commits, so nothing of it is seen unless everything is.
Leaves to others: journals, positions, Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from msgspec import Struct

from replicate.door.secondary import ApplySession
from replicate.errors import ConflictError, JournalDamagedError
from replicate.model.transaction import Op, TableDefinition
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.system.failpoint import hit
from update_process.replay import bulk, net
from update_process.replay.net import EVERY_PART, NetColumns, NetRow, NetSequence, Part, Unique

CHUNK_CHANGES: Final = 4096
"""Rows after which it is told how far we are."""
_INSERT: Final = int(Op.INSERT)
_UPDATE: Final = int(Op.UPDATE)
_DELETE: Final = int(Op.DELETE)
_PHASES: Final = {_DELETE: "removing", _UPDATE: "changing", _INSERT: "inserting"}


class Applied(Struct):
    """Rows written in each phase (an update of a unique column counts as a delete and an insert), and rows seen."""

    seen: int = 0
    deleted: int = 0
    updated: int = 0
    inserted: int = 0


class Progress(Struct, frozen=True):
    """How far a replay is. `done` and `whole` are of what is being done: transactions, rows or parts; `whole` is 0
    where nobody knows. The rest counts from the replay's beginning; `keys`: rows touched, once for each piece."""

    what: str
    done: int
    whole: int = 0
    seqno: int = 0
    changes: int = 0
    keys: int = 0
    written: int = 0


Told = Callable[[Progress], None]
"""Whatever it raises ends the replay."""


class NetSource(Protocol):
    """A net change, whole: what NetApply asks for, some of it several times."""

    def table_ids(self) -> Iterable[int]:
        """Every table of which rows were touched."""

    def rows(self, parts: Part = EVERY_PART) -> Iterable[NetRow]:
        """The net change of each row of those parts; the same each time."""

    def columns(self, parts: Part = EVERY_PART) -> Iterable[NetColumns]:
        """The same by columns."""

    def sequences(self) -> Iterable[NetSequence]:
        """The AUTOINCREMENT counters that moved."""


class _Here(Struct, frozen=True):
    """A net change without the tables that are not `here`: those of a region that waits for its seed."""

    found: NetSource
    here: Callable[[int], bool]

    def table_ids(self) -> Iterable[int]:
        return filter(self.here, self.found.table_ids())

    def rows(self, parts: Part = EVERY_PART) -> Iterable[NetRow]:
        return (row for row in self.found.rows(parts) if self.here(row.table_id))

    def columns(self, parts: Part = EVERY_PART) -> Iterable[NetColumns]:
        return (columns for columns in self.found.columns(parts) if self.here(columns.table_id))

    def sequences(self) -> Iterable[NetSequence]:
        return (one for one in self.found.sequences() if self.here(one.table_id))


_Written = Iterator[tuple[int, int, int]]
"""A table, rows of it that were seen, rows of it that were written."""


class NetApply:
    """One net change on its way into the regions. `known_table` raises for a table that is not known."""

    def __init__(
        self,
        session: ApplySession,
        known_table: Callable[[int], TableDefinition],
        *,
        seqno: int,
        verify: bool,
        told: Callable[[str, int, int], None],
    ) -> None:
        """`told`: called with what is being done, rows seen so far in this phase, and rows written so far in all."""
        self._session = session
        self._known_table = known_table
        self._verify = verify
        self._told = told
        self._unique: dict[int, Unique] = {}
        self._written = 0
        for rows in session.rows.values():
            rows.seqno = seqno

    def apply(self, found: NetSource) -> Applied:
        """Apply all, in bulk. Raises what `RowApplier.apply_run` and `check_absent` raise; the caller rolls back then,
        and learns from `apply_singly` which row it was."""
        return self._apply(self._of_regions_here(found), self._in_runs)

    def apply_singly(self, found: NetSource) -> Applied:
        """Apply all, row by row. Raises what `RowApplier.apply_all` raises; the caller rolls back then."""
        return self._apply(self._of_regions_here(found), self._row_by_row)

    def _of_regions_here(self, found: NetSource) -> NetSource:
        return _Here(found, lambda ident: not self._is_waiting(ident)) if self._session.waiting else found

    def _is_waiting(self, table_id: int) -> bool:
        return self._known_table(table_id).region in self._session.waiting

    def _apply(self, found: NetSource, way: Callable[[NetSource, Part, int], _Written]) -> Applied:
        for table_id in found.table_ids():
            self._unique[table_id] = self._applier(table_id).unique_ordinals(table_id)
        # Rows that stay are come to once, unless some table has unique columns: those are removed and inserted again.
        movers = Part.STAYED if any(unique or unique is None for unique in self._unique.values()) else Part(0)
        gone, done_gone = self._phase(way(found, Part.GONE | movers, _DELETE), _DELETE)
        stayed, done_stayed = self._phase(way(found, Part.STAYED, _UPDATE), _UPDATE)
        passed = self._pass(found)
        came, done_came = self._phase(way(found, Part.CAME | movers, _INSERT), _INSERT)
        counters = list(found.sequences())
        for one in counters:
            self._applier(one.table_id).apply(int(Op.SEQUENCE), one.table_id, 0, [one.old, one.new])
        for table_id in done_came.keys() - {one.table_id for one in counters}:
            self._applier(table_id).keep_sequence(table_id)
        seen = gone + stayed + passed + came - (2 * stayed if movers else 0)
        return Applied(seen, done_gone.total(), done_stayed.total(), done_came.total())

    def _phase(self, written: _Written, op: int) -> tuple[int, Counter[int]]:
        """Rows seen, and rows written of each table."""
        done: Counter[int] = Counter()
        seen = told = 0
        for table_id, rows, count in written:
            seen += rows
            if count:
                done[table_id] += count
            if seen - told >= CHUNK_CHANGES:
                told = seen
                self._told(_PHASES[op], seen, self._written + done.total())
        self._written += done.total()
        hit(f"replay.{_PHASES[op]}")
        self._told(_PHASES[op], seen, self._written)
        return seen, done

    def _in_runs(self, found: NetSource, parts: Part, op: int) -> _Written:
        for columns in found.columns(parts):
            table_id = columns.table_id
            length = self._known_table(table_id).image_length
            if not {*map(len, columns.befores), *map(len, columns.afters)} <= {length}:
                raise JournalDamagedError("an image does not fit the table's definition")
            count = 0
            for argument, values in bulk.runs(op, columns, self._unique[table_id], verify=self._verify):
                self._applier(table_id).apply_run(op, table_id, argument, values)
                count += len(values)
            yield table_id, columns.rows, count

    def _row_by_row(self, found: NetSource, parts: Part, op: int) -> _Written:
        for row in found.rows(parts):
            made = net.change_of(op, row, self._unique[row.table_id], verify=self._verify)
            if made is not None:
                try:
                    self._applier(row.table_id).apply_all(made)
                except ConflictError as error:
                    error.facts["seqno"] = row.seqno
                    raise
            yield row.table_id, 1, int(made is not None)

    def _pass(self, found: NetSource) -> int:
        """How many rows came and went; they are not here, either."""
        if not self._verify:
            return sum(columns.rows for columns in found.columns(Part.PASSED))
        count = 0
        for row in found.rows(Part.PASSED):
            count += 1
            if row.passed is not None:
                self._check_absent(row, tuple(row.passed))
        return count

    def _check_absent(self, row: NetRow, key: tuple[object, ...]) -> None:
        try:
            self._applier(row.table_id).check_absent(row.table_id, key)
        except ConflictError as error:
            error.facts["seqno"] = row.seqno
            raise

    def _applier(self, table_id: int) -> RowApplier:
        rows = self._session.rows[self._known_table(table_id).region]
        assert isinstance(rows, RowApplier)  # a replay in bulk asks more than every kind can do
        return rows
