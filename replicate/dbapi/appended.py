"""INSERT … SELECT of an application, unheard: its rows are read back behind it, in place of a hook for each.

Guarantees: either all rows of the statement are captured, or it has been taken back and is run once more, heard; until
that is sure the transaction could only be rolled back. Only where nothing of the application's runs within such a
statement: no trigger, no function of its own.
Refuses to know: which rows these are (capture_appended.py), and how a transaction ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import apsw

from replicate.database.capture import Capture
from replicate.database.capture_appended import Appended, fitting
from replicate.database.capture_several import SeveralCaptures
from replicate.database.capture_tables import TableMap
from replicate.database.statements import STATEMENTS_KEPT, Statement

FEW_ROWS: Final = 64
"""What adds fewer is quicker heard: to read back costs 14 µs for each statement, and spares 0.8 µs a row (measured)."""


class Appending:
    """The part of a connection's transactions that runs an INSERT … SELECT unheard."""

    connection: apsw.Connection
    capture: Capture | SeveralCaptures
    inside: bool
    own_changes: int
    functions: set[str]
    _execute: Callable[..., apsw.Cursor]
    _fires: bool
    _fitting: dict[str, Appended | None]
    _fitting_of: TableMap | None = None
    _few: set[str]
    """Texts that have added few rows when they were last run."""

    def clear_fitting(self) -> None:
        """Nothing is known of any statement."""
        self._fitting, self._fitting_of, self._few = {}, None, set()

    def _learn(self, statement: Statement, added: int) -> None:
        """An INSERT … SELECT has been run: whether to hear it the next time."""
        if added >= FEW_ROWS:
            self._few.discard(statement.text)
        else:
            if len(self._few) >= STATEMENTS_KEPT:
                self._few.clear()
            self._few.add(statement.text)

    def _fitting_table(self, statement: Statement, capture: Capture) -> Appended | None:
        if self._fires or self.functions or capture.foreign or capture.poisoned or capture.tables.virtual:
            return None
        if self._fitting_of is not capture.tables:
            self._fitting, self._fitting_of = {}, capture.tables
        name = statement.into
        if name not in self._fitting:
            table = capture.tables.tables.get(name)
            self._fitting[name] = None if table is None else fitting(self.connection, table)
        return self._fitting[name]

    def _run_unheard(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> bool:
        """Run an INSERT … SELECT, and capture its rows. False: nothing has happened; run it heard.

        Raises what has ended the transaction, or an interrupt; the statement has been taken back then.
        """
        capture = self.capture
        if statement.text in self._few or not isinstance(capture, Capture):
            return False
        self.inside = True
        try:
            found = self._fitting_table(statement, capture)
            return found is not None and self._append(cursor, statement, bindings, found, capture)
        finally:
            self.inside = False

    def _append(
        self, cursor: apsw.Cursor, statement: Statement, bindings: Any, found: Appended, capture: Capture
    ) -> bool:
        connection, run = self.connection, self._execute
        last = run(found.last).get
        before, mark = connection.total_changes(), capture.mark()
        run("SAVEPOINT _replicate_append")
        capture.pause()  # whatever comes between: until `resume` this transaction can not be committed
        ran = fits = False
        try:
            self.inside = False
            cursor.execute(statement.text, bindings)
            self.inside = ran = True
            added = connection.changes()
            if connection.total_changes() - before == added and capture.changes == mark.changes:
                fits = capture.appended(found.table, connection.execute(found.behind, (last,))) == added
        except apsw.InterruptError:
            raise
        except (apsw.Error, UnicodeDecodeError):
            if not connection.in_transaction:
                raise
            # It fails, or not, when it is run heard.
        finally:
            self.inside = True
            if connection.in_transaction:
                if not fits:
                    run("ROLLBACK TO _replicate_append")
                    self.own_changes += connection.total_changes() - before
                run("RELEASE _replicate_append")
            capture.resume()
            if not fits:
                capture.cut(mark, failed=True)  # rows touched before it are still to be looked at
        if ran and not fits:
            self._fitting[statement.into] = None  # never again: where rows come between others, twice is too dear
        return fits
