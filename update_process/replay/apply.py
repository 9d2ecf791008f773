"""Applying a net change, wherever it was found, to the open regions of an apply session. No engine has another way in.

Guarantees: every row that is changed must equal its first before-image here (RowApplier's whole comparison), else
ConflictError with the seqno of that row's first change; with `verify` rows without a net effect are compared too. The
caller begins and commits, so nothing of it is seen unless everything is.
Refuses to know: journals, positions, Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from replicate.apply_session import ApplySession
from replicate.database.rows import RowApplier
from replicate.errors import ConflictError
from replicate.failpoint import hit
from replicate.transaction import Op, TableDefinition
from update_process.replay import net
from update_process.replay.net import NetRow, NetSequence, Unique

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
        self._appliers: dict[int, RowApplier] = {}
        self._unique: dict[int, Unique] = {}
        self._inserted: set[int] = set()
        self._written = 0
        for rows in session.rows.values():
            rows.seqno = seqno

    def apply(self, rows: Callable[[], Iterable[NetRow]], sequences: Iterable[NetSequence]) -> Applied:
        """Apply all; `rows` is called for each phase anew, and must give the same rows each time.

        Raises what `RowApplier.apply_all` raises; the caller rolls back then.
        """
        done = Applied()
        done.seen, done.deleted = self._phase(rows(), self._delete, "removing")
        _, done.updated = self._phase(rows(), self._update, "changing")
        _, done.inserted = self._phase(rows(), self._insert, "inserting")
        moved = list(sequences)
        for one in moved:
            self._applier(one.table_id).apply(int(Op.SEQUENCE), one.table_id, 0, [one.old, one.new])
        for table_id in self._inserted - {one.table_id for one in moved}:
            self._applier(table_id).keep_sequence(table_id)
        return done

    def _phase(
        self, rows: Iterable[NetRow], change: Callable[[NetRow, RowApplier, Unique], list[Any] | None], what: str
    ) -> tuple[int, int]:
        """Rows seen and rows written."""
        waiting: dict[int, list[Any]] = {}
        waiting_rows: dict[int, list[NetRow]] = {}
        seen = written = 0
        for row in rows:
            seen += 1
            table_id = row.table_id
            applier = self._appliers.get(table_id) or self._applier(table_id)
            made = change(row, applier, self._unique[table_id])
            if made is None:
                continue
            written += 1
            run = waiting.setdefault(table_id, [])
            run.extend(made)
            waiting_rows.setdefault(table_id, []).append(row)
            if len(run) >= 4 * CHUNK_CHANGES:
                self._apply(applier, run, waiting_rows[table_id])
                self._told(what, seen, self._written + written)
        for table_id, run in waiting.items():
            self._apply(self._appliers[table_id], run, waiting_rows[table_id])
        self._written += written
        hit(f"replay.{what}")
        self._told(what, seen, self._written)
        return seen, written

    def _apply(self, applier: RowApplier, run: list[Any], rows: list[NetRow]) -> None:
        try:
            if run and run[0] == _INSERT:  # and so all of them: a phase has changes of one kind
                applier.apply_columns(run[::4], run[1::4], run[2::4], run[3::4])
            else:
                applier.apply_all(run)
        except ConflictError as error:
            raise self._named(error, rows) from error
        run.clear()
        rows.clear()

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

    def _delete(self, row: NetRow, applier: RowApplier, unique: Unique) -> list[Any] | None:
        return net.as_delete(row, unique)

    def _update(self, row: NetRow, applier: RowApplier, unique: Unique) -> list[Any] | None:
        if row.passed is not None and self._verify:
            try:
                applier.check_absent(row.table_id, tuple(row.passed))
            except ConflictError as error:
                error.facts["seqno"] = row.seqno
                raise
        return net.as_update(row, unique, verify=self._verify)

    def _insert(self, row: NetRow, applier: RowApplier, unique: Unique) -> list[Any] | None:
        made = net.as_insert(row, unique)
        if made is not None:
            self._inserted.add(row.table_id)
        return made

    def _applier(self, table_id: int) -> RowApplier:
        applier = self._session.rows[self._known_table(table_id).region]
        if table_id not in self._appliers:
            self._unique[table_id] = applier.unique_ordinals(table_id)
            self._appliers[table_id] = applier
        return applier
