"""Applying a net change, wherever it was found, to the open regions of an apply session. No engine has another way in.

Guarantees: every row that is changed must equal its first before-image here (RowApplier's whole comparison), else
ConflictError with the seqno of that row's first change; with `verify` rows without a net effect are compared too. The
caller begins and commits, so nothing of it is seen unless everything is.
Refuses to know: journals, positions, Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from replicate.apply_session import ApplySession
from replicate.database.rows import RowApplier
from replicate.errors import ConflictError
from replicate.failpoint import hit
from replicate.transaction import Op, TableDefinition
from update_process.replay import net
from update_process.replay.net import EVERY_PART, NetRow, NetSequence, Part, Unique

CHUNK_CHANGES: Final = 4096
_INSERT: Final = int(Op.INSERT)


@dataclass(slots=True)
class Applied:
    """Rows written in each phase (an update of a unique column counts as a delete and an insert), and rows seen."""

    seen: int = 0
    deleted: int = 0
    updated: int = 0
    inserted: int = 0

    @property
    def written(self) -> int:
        """Rows written in all phases."""
        return self.deleted + self.updated + self.inserted


@dataclass(frozen=True, slots=True)
class Progress:
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

    def sequences(self) -> Iterable[NetSequence]:
        """The AUTOINCREMENT counters that moved."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Changes of one table that go into it together, and the rows that they were made of."""

    applier: RowApplier
    changes: list[Any]
    rows: list[NetRow]


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
        """Apply all. Raises what `RowApplier.apply_all` raises; the caller rolls back then."""
        for table_id in found.table_ids():
            self._unique[table_id] = self._applier(table_id).unique_ordinals(table_id)
        # Rows that stay are come to once, unless some table has unique columns: those are removed and inserted anew.
        movers = Part.STAYED if any(unique or unique is None for unique in self._unique.values()) else Part(0)
        gone, done_gone = self._phase(found.rows(Part.GONE | movers), net.as_delete, "removing")
        change = partial(net.as_update, verify=self._verify)
        stayed, done_stayed = self._phase(found.rows(Part.STAYED), change, "changing")
        passed = sum(1 for _ in map(self._pass, found.rows(Part.PASSED)))
        came, done_came = self._phase(found.rows(Part.CAME | movers), net.as_insert, "inserting")
        counters = list(found.sequences())
        for one in counters:
            self._applier(one.table_id).apply(int(Op.SEQUENCE), one.table_id, 0, [one.old, one.new])
        for table_id in done_came.keys() - {one.table_id for one in counters}:
            self._applier(table_id).keep_sequence(table_id)
        seen = gone + stayed + passed + came - (2 * stayed if movers else 0)
        return Applied(seen, done_gone.total(), done_stayed.total(), done_came.total())

    def _phase(
        self, rows: Iterable[NetRow], change: Callable[[NetRow, Unique], list[Any] | None], what: str
    ) -> tuple[int, Counter[int]]:
        """Rows seen, and rows written of each table."""
        all_waiting = {table_id: _Waiting(self._applier(table_id), [], []) for table_id in self._unique}
        done: Counter[int] = Counter()
        seen = 0
        for row in rows:
            seen += 1
            table_id = row[0]
            made = change(row, self._unique[table_id])
            if made is None:
                continue
            waiting = all_waiting[table_id]
            waiting.rows.append(row)
            waiting.changes.extend(made)
            if len(waiting.rows) >= CHUNK_CHANGES:
                done[table_id] += self._apply(waiting)
                self._told(what, seen, self._written + done.total())
        for table_id, waiting in all_waiting.items():
            if waiting.rows:
                done[table_id] += self._apply(waiting)
        self._written += done.total()
        hit(f"replay.{what}")
        self._told(what, seen, self._written)
        return seen, done

    def _apply(self, waiting: _Waiting) -> int:
        """How many there were."""
        changes, count = waiting.changes, len(waiting.rows)
        try:
            if changes[0] == _INSERT:  # and so all of them: a phase has changes of one kind
                waiting.applier.apply_columns(changes[::4], changes[1::4], changes[2::4], changes[3::4])
            else:
                waiting.applier.apply_all(changes)
        except ConflictError as error:
            raise self._named(error, waiting.rows) from error
        changes.clear()
        waiting.rows.clear()
        return count

    def _pass(self, row: NetRow) -> None:
        """A row that came and went is not here, either."""
        if row.passed is None or not self._verify:
            return
        try:
            self._applier(row.table_id).check_absent(row.table_id, tuple(row.passed))
        except ConflictError as error:
            error.facts["seqno"] = row.seqno
            raise

    def _named(self, error: ConflictError, rows: list[NetRow]) -> ConflictError:
        """The conflict under the number of the transaction that first touched its row."""
        conflict: Any = error.conflict
        if conflict is not None:
            for row in rows:
                image = row.after if row.before is None else row.before
                key = self._known_table(row.table_id).key
                if image is not None and tuple(image[at] for at in key) == tuple(conflict.key):
                    error.facts["seqno"] = row.seqno
                    break
        return error

    def _applier(self, table_id: int) -> RowApplier:
        return self._session.rows[self._known_table(table_id).region]
