"""What a connection's transaction has under way beside the statement that it is given: changes that no hook has told
of yet, BLOBs open for writing, statements that call functions of the application, which use the connection.

Guarantees: while we ask SQLite for what is pending, the application's authorizer and progress handler are kept away; a
BLOB is written to within the transaction in which it was opened, or not at all; rows that a statement has written
behind the end of its transaction are never committed.
Refuses to know: how transactions begin and end (dbapi/transaction.py, of which this is a part).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NoReturn

import apsw

from replicate.database.capture import Capture
from replicate.database.capture_several import SeveralCaptures
from replicate.database.statements import Statement, parameter_count
from replicate.dbapi.stage import Stage
from replicate.errors import NotSupportedError, ReplicateError


def prepare(connection: apsw.Connection, sql: str) -> bool:
    """Have SQLite say what is wrong with a statement, which is not run. Returns whether it takes it for a reader."""
    reads = True

    def stop(cursor: apsw.Cursor, text: str, values: object) -> bool:
        nonlocal reads
        reads = cursor.is_readonly
        return False

    cursor = connection.cursor()
    cursor.exec_trace = stop
    with contextlib.suppress(apsw.ExecTraceAbort):
        cursor.execute(sql, (None,) * parameter_count(sql))  # kept by APSW for when it is
    return reads


class Pending:
    """The part of a connection's transactions that looks after what is pending.

    `begun`: how often the region was taken. `blobs_open`: BLOBs open for writing. `unclean`: SQLite's cache holds rows
    of no transaction.
    """

    connection: apsw.Connection
    stage: Stage
    begin_text: str
    capture: Capture | SeveralCaptures
    region: str
    inside: bool
    unclean: bool
    begun: int
    blobs_open: int

    def _become_writer(self, text: str = "") -> bool:
        raise AssertionError("the transaction's own")

    def _commit_own(self, rows: int = 0) -> None:
        raise AssertionError("the transaction's own")

    def rollback(self) -> None:
        raise AssertionError("the transaction's own")

    def prepare(self, statement: Statement, *, fresh: bool = False) -> bool:
        """For a statement that may not be run: what is wrong with its text is said first, as in sqlite3. Returns
        whether it only reads. `fresh`: the transaction begins with it, and ends if the text is no SQL."""
        try:
            return prepare(self.connection, statement.text)
        except BaseException:
            if fresh:
                self.rollback()
            raise

    def prepare_and_begin(self, statement: Statement, implicit: bool) -> None:
        """What comes of a statement before its parameters are looked at."""
        self.prepare(statement)
        if implicit and statement.dml and self.stage is Stage.NONE:
            self._become_writer(self.begin_text)

    def _settle(self) -> None:
        """Have everything that is pending captured. Raises what SQLite says."""
        inside, self.inside = self.inside, True
        try:
            self.capture.settle()
        finally:
            self.inside = inside

    def _cleanse(self, why: BaseException) -> NoReturn:
        """A statement wrote behind the end of its transaction, which a function of the application had ended: in
        SQLite's cache its rows have been left, for the next COMMIT to write (measured). A ROLLBACK throws them away.
        Raises `why`."""
        self.capture.clear()
        self.unclean = True
        with contextlib.suppress(ReplicateError, apsw.Error):  # while others write, the next transaction does it
            self.rollback()  # of a reader that was begun since
            self._become_writer()
            self.rollback()
        raise why

    def _is_writing(self) -> bool:
        """Whether a writing statement runs, so that what is asked for is asked by a function of the application."""
        if self.blobs_open:  # SQLite takes one for such a statement
            return False
        inside, self.inside = self.inside, True
        try:
            self.connection.execute("SAVEPOINT _replicate_ask").close()
            self.connection.execute("RELEASE _replicate_ask").close()
        except apsw.BusyError:
            return True
        finally:
            self.inside = inside
        return False

    def _may_count(self, statement: Statement) -> bool:
        """Whether a statement may move a counter of AUTOINCREMENT: by itself or by a trigger, of which nobody has read
        the temporary ones."""
        capture = self.capture
        return capture.counted and (statement.counts or capture.foreign or capture.tables.triggers_count)

    def _watch_sequences(self) -> None:
        """Before a statement that `_may_count`. The application's progress handler is not to stop it: in sqlite3 there
        is nothing here that it could stop."""
        self.inside = True  # what an application runs never comes from within us
        try:
            self.capture.watch_sequences()
        finally:
            self.inside = False

    def _can_prepare(self, statement: Statement, error: BaseException) -> bool:
        if not isinstance(error, apsw.SQLError | apsw.AuthError | NotSupportedError):
            return True
        try:
            self.connection.execute("EXPLAIN " + statement.text, can_cache=False).close(True)
        except apsw.BindingsError:
            return True
        except (apsw.Error, NotSupportedError):
            return False
        return True

    def write_blob(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Take the region for a BLOB that is to be written in place. Gives what to call before each write, and when the
        BLOB has been closed: that commits, if this began the transaction and it still stands."""
        own = self.connection.in_transaction is False
        if not self.capture.active:
            self._become_writer()
        elif self.capture.pressing:  # or the rows of all BLOBs that are written one after the other would be kept
            self._settle()
        begun, self.blobs_open = self.begun, self.blobs_open + 1

        def stands() -> bool:
            return self.capture.active and self.begun == begun

        def check() -> None:
            if not stands():
                raise NotSupportedError(
                    "the transaction in which this BLOB was opened for writing has ended",
                    where=self.region,
                    do="Open it again",
                )

        def end() -> None:
            self.blobs_open -= 1  # SQLite counts it until then, also in a later transaction
            if own and stands():
                self._commit_own()

        return check, end
