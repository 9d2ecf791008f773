"""Making changes of another site's rows here as an application would: in its own right, but only where they fit.

Guarantees: a change is made only if the row here equals the whole before-image; what was made is given back as it must
stand in the journal, counters of AUTOINCREMENT included, which are raised and never lowered; triggers do not fire, and
neither do foreign keys act (their effects are changes of their own), but a row that would be left without its parent is
refused. Nothing is renumbered.
Leaves to others: transactions (the caller's), what the changes are for, what happens after a refusal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from replicate.errors import ConflictError
from replicate.model.transaction import Op, TableDefinition
from replicate.region.sqlite.apply.overwrite import change_of, instead
from replicate.region.sqlite.apply.rows import Conflict, RowApplier
from replicate.region.sqlite.schema import is_autoincrement, sequence_value
from replicate.region.sqlite.sql.names import quote

Image = tuple[Any, ...]


class PutBack:
    """One region's changes, through a writer's connection. `begin` at the begin of each transaction, and after a
    rollback to a savepoint."""

    def __init__(self, connection: apsw.Connection, definitions: Iterable[TableDefinition], *, region: str) -> None:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        connection.execute("PRAGMA foreign_keys = OFF")
        known = {one.table_id: one for one in definitions}
        self._connection = connection
        self._rows = RowApplier(connection, known, region=region)
        self._counters: dict[int, tuple[str, int | None]] = {}
        self._orphans = self._find_orphans()

    def begin(self, seqno: int) -> None:
        """`seqno`: what errors name the transaction by."""
        self._rows.begin()
        self._rows.seqno = seqno
        self._counters.clear()

    def put(
        self, op: Op, definition: TableDefinition, before: Image | None, after: Image | None, *, overwrite: bool
    ) -> tuple[list[Any], bool]:
        """Make one change; what was made (op, id, argument, values; nothing where there was nothing to do), and whether
        another row than the expected one gave way.

        `overwrite`: it may. ConflictError otherwise, and where a constraint forbids it.
        """
        self._note_counter(definition)
        change = change_of(op, definition.table_id, before, after)
        try:
            self._rows.apply_all(change)
            return change, False
        except ConflictError as error:
            conflict = error.conflict
            if not overwrite or not isinstance(conflict, Conflict):
                raise
            over = instead(conflict, definition.table_id)
            if over is None:
                raise
            self._rows.apply_all(over)
            return over, True

    def finish(self) -> list[Any]:
        """At the end of a transaction: the counters that its rows have raised, as changes. ConflictError when a row
        would be left without its parent."""
        orphans = self._find_orphans()
        new = orphans - self._orphans
        if new:
            table, rowid, parent, _ = min(new, key=repr)
            raise ConflictError(
                f"row {rowid} of table {table} would have no parent in table {parent}",
                where=self._connection.filename,
                do="Apply the transaction that its parent comes from first, or skip this one",
                kind="no parent",
            )
        self._orphans = orphans
        made: list[Any] = []
        for table_id, (table, before) in self._counters.items():
            now = sequence_value(self._connection, table)
            if now != before:
                made += [int(Op.SEQUENCE), table_id, 0, [before, now]]
        return made

    def _note_counter(self, definition: TableDefinition) -> None:
        if definition.table_id not in self._counters and is_autoincrement(self._connection, definition.table):
            value = sequence_value(self._connection, definition.table)
            self._counters[definition.table_id] = definition.table, value

    def _find_orphans(self) -> set[tuple[Any, ...]]:
        """Rows whose foreign keys lead nowhere: (table, rowid, parent, number of the key)."""
        tables = [one.table for one in self._rows.definitions.values()]
        children = {one for one in tables if self._connection.execute(f"PRAGMA foreign_key_list({quote(one)})").get}
        return {
            row
            for one in sorted(children)
            for row in self._connection.execute(f"PRAGMA foreign_key_check({quote(one)})")
        }
