"""One connection's transactions: which statement takes which way through the commit door, and what is captured of it.

Guarantees: no change of a replicated table is committed but by the door; reading takes no lock of ours; a statement that fails
leaves behind exactly what SQLite left behind; a transaction of which something could not be captured can only be rolled back.
Refuses to know: PEP 249 (cursors, rows, adapters, error classes): errors leave here as APSW's and as ReplicateError.

Behind all classification stands a commit hook: a COMMIT that is not the door's, in a transaction that changed replicated rows,
becomes a rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

import apsw

from replicate.database import pragmas
from replicate.database.capture import Capture, CapturedChanges, Mark
from replicate.database.capture_outcome import kept
from replicate.database.capture_tables import TableMap, read_table_map
from replicate.database.guards import install_guards
from replicate.database.names import OWN_PREFIX, quote
from replicate.database.schema import (
    ROWID_NAMES,
    record_definitions,
    recorded_definitions,
    rowid_name,
    user_tables,
)
from replicate.database.statements import Statement, Verb
from replicate.errors import NotSupportedError

if TYPE_CHECKING:
    from replicate.journal.spool import Spool

Rows = list[tuple[Any, ...]]
_NO_ROWS: Final[Rows] = []


class Stage(Enum):
    """Where a connection stands: no transaction; one that has only read; one that holds the region."""

    NONE = 0
    READER = 1
    WRITER = 2


class Session(Protocol):
    """The door as a connection needs it (commit.RegionSession)."""

    connection: apsw.Connection

    def begin(self, *, timeout_s: float) -> None: ...
    def upgrade(self, *, timeout_s: float) -> None: ...
    def commit(self, captured: CapturedChanges) -> int: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class Transactions:
    """The transactions of one connection, one after the other. Used by one thread at a time.

    `inside`: the door is at work (the application's authorizer, progress handler and interrupts are kept away from it).
    `own_changes`: rows that we changed for our bookkeeping, to be taken off total_changes. `functions`: names of functions
    and collations that only this connection has.
    """

    def __init__(self, session: Session, region: str, spool_factory: Callable[[], Spool], timeout_s: float) -> None:
        self.session = session
        self.connection = session.connection
        self.region = region
        self.timeout_s = timeout_s
        self.stage = Stage.NONE
        self.inside = False
        self.own_changes = 0
        self.changed = 0
        self.last_seqno = 0
        self.functions: set[str] = set()
        self.capture = Capture(self.connection, region, spool_factory)
        self._savepoints: list[tuple[str, Mark | None]] = []
        self._map: tuple[int, TableMap] | None = None
        self.connection.set_commit_hook(self._forbid_commit, id=self)

    def close(self) -> None:
        """Roll back what is open, take our hooks off, close the session."""
        self.capture.close()
        self.connection.set_commit_hook(None, id=self)
        self.inside = True
        self.stage = Stage.NONE
        self.session.close()

    # Statements.

    def run(self, cursor: apsw.Cursor, statement: Statement, bindings: Any, *, implicit: bool) -> Rows | None:
        """Run one statement. Returns the rows of a writing one; None if they are to be fetched from `cursor`.

        `implicit`: a data change begins a transaction if there is none, and leaves it open; else it is its own transaction.
        """
        verb = statement.verb
        if verb is Verb.READ:
            return self._natively(cursor, statement, bindings)
        if verb is Verb.WRITE:
            return self._write(cursor, statement, bindings, implicit and statement.dml)
        if verb is Verb.PRAGMA:
            return self._pragma(cursor, statement, bindings)
        if verb is Verb.DEFINE:
            return self._define(cursor, statement, bindings)
        if verb is Verb.ATTACH or verb is Verb.VACUUM or verb is Verb.DETACH:
            return self._file_statement(cursor, statement, bindings)
        self._control(cursor, statement, bindings)
        return _NO_ROWS

    def run_many(self, cursor: apsw.Cursor, statement: Statement, sets: Iterable[Any], *, implicit: bool) -> bool:
        """Run a data change once for each set of bindings; `changed` is the sum. Returns whether one of them gave a row."""
        total = 0
        if self.stage is Stage.NONE and not (implicit and statement.dml):
            for bindings in sets:
                if self._write(cursor, statement, bindings, False):
                    return True
                total += self.changed
            self.changed = total
            return False
        fresh = self._become_writer()
        connection, capture = self.connection, self.capture
        mark, running = capture.mark(), False

        def feed() -> Iterator[Any]:
            nonlocal mark, running, total
            for bindings in sets:
                mark, running = capture.mark(), True
                yield bindings
                running = False
                total += connection.changes()

        gives_rows = False
        try:
            cursor.executemany(statement.text, feed())
            gives_rows = statement.rows and next(cursor, None) is not None
            if gives_rows:
                cursor.close(True)
        except BaseException as error:
            if running:
                self._after_failure(mark, statement, error, fresh=fresh, own=False)
            else:
                self.check_alive()
            raise
        self.changed = total
        self._check_refusal(None, own=False)
        return gives_rows

    def commit(self) -> None:
        """COMMIT, through the door if anything was written. After a failure `stage` says whether the transaction still stands."""
        if self.stage is Stage.NONE:
            return
        capture = self.capture
        if self.stage is Stage.READER:
            if capture.refused is not None:
                raise capture.refused
            self.connection.execute("COMMIT")
            self._end()
            return
        captured = capture.finish()
        before = self.connection.total_changes()
        self.inside = True
        try:
            self.last_seqno = self.session.commit(captured)
        except BaseException:
            if not self.connection.in_transaction:
                self.session.rollback()
                self._end()
            raise
        finally:
            self.inside = False
            self.own_changes += self.connection.total_changes() - before
        self._end(adopted=captured.spool is not None)

    def rollback(self) -> None:
        """ROLLBACK, and give the region up."""
        if self.stage is Stage.NONE:
            return
        self.inside = True
        try:
            if self.stage is Stage.READER:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
            else:
                self.session.rollback()
        finally:
            self.inside = False
            self._end()

    def check_alive(self) -> None:
        """After any error: SQLite may have rolled the whole transaction back, or refused a commit that went round the door."""
        if self.stage is not Stage.NONE and not self.connection.in_transaction:
            if self.stage is Stage.WRITER:
                self.session.rollback()
            self._end()
        elif self.stage is Stage.NONE and self.capture.refusal is not None:
            refused = self.capture.refused
            self.capture.clear()
            assert refused is not None
            raise refused

    # Ways.

    def _natively(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        try:
            cursor.execute(statement.text, bindings)
        except BaseException:
            self.check_alive()
            raise

    def _write(self, cursor: apsw.Cursor, statement: Statement, bindings: Any, implicit: bool) -> Rows:
        own = False
        fresh = False
        if self.stage is not Stage.WRITER:
            own = self.stage is Stage.NONE and not implicit
            fresh = self._become_writer()
        capture = self.capture
        mark = capture.mark()
        try:
            cursor.execute(statement.text, bindings)
            rows: Rows = list(cursor) if statement.rows else _NO_ROWS
        except BaseException as error:
            self._after_failure(mark, statement, error, fresh=fresh, own=own)
            raise
        self.changed = self.connection.changes()
        if capture.refusal is not None:
            self._check_refusal(mark, own=own)
        if own:
            self._commit_own()
        return rows

    def _define(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> Rows:
        if statement.temporary or statement.schema not in ("", "main"):
            self.capture.foreign = True
            self._natively(cursor, statement, bindings)
            return _NO_ROWS
        self._check_definable(statement)
        own = self.stage is Stage.NONE
        if self.stage is not Stage.WRITER:
            self._become_writer()
        connection, capture = self.connection, self.capture
        capture.close_sequences()
        mark = capture.mark()
        last_rowid, before = connection.last_insert_rowid(), connection.total_changes()
        connection.execute("SAVEPOINT _replicate_define")
        try:
            version = self._schema_version()
            cursor.execute(statement.text, bindings)
            rows: Rows = list(cursor)
            if self._schema_version() != version:
                self._capture_definition(statement)
            refused = capture.refused if mark.refusal is None else None
            if refused is not None:
                raise refused
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK TO _replicate_define")
                connection.execute("RELEASE _replicate_define")
                capture.cut(mark)
                if own:
                    self.rollback()
            else:
                self.check_alive()
            raise
        connection.execute("RELEASE _replicate_define")
        connection.set_last_insert_rowid(last_rowid)
        self.own_changes += connection.total_changes() - before
        if own:
            self._commit_own()
        return rows

    def _check_definable(self, statement: Statement) -> None:
        kind, words = statement.kind, statement.words
        if kind == "VIRTUAL TABLE":
            raise NotSupportedError(
                f"virtual table {statement.name} can not be replicated",
                where=self.region,
                do="Keep it in another database file",
            )
        ours = next((word for word in sorted(words) if word.startswith(OWN_PREFIX)), None)
        if ours is not None:
            raise NotSupportedError(
                f"{ours} belongs to replication's bookkeeping, or bears a name that is kept for it",
                where=self.region,
                do="Use another name; to take the bookkeeping out run: replicate region release",
            )
        mine = sorted(words & self.functions) if kind in ("TABLE", "INDEX", "UNIQUE") else []
        if mine and statement.keyword in ("CREATE", "ALTER"):
            raise NotSupportedError(
                f"{statement.kind} {statement.name} would need {mine[0]}, a function or collation that only this "
                "connection has; the other site could not write such a table",
                where=self.region,
                do="Use what SQLite itself brings",
            )

    def _capture_definition(self, statement: Statement) -> None:
        """The schema has changed under the region lock: the statement's text travels, then what it made of the tables."""
        connection, capture = self.connection, self.capture
        text = statement.text
        if statement.selects:
            text = str(
                connection.execute(
                    "SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE",
                    (statement.name,),
                ).get
            )
        legacy = statement.keyword == "ALTER" and bool(connection.pragma("legacy_alter_table"))
        if legacy:
            capture.statement("PRAGMA legacy_alter_table = ON")
        capture.statement(text)
        if legacy:
            capture.statement("PRAGMA legacy_alter_table = OFF")
        if statement.kind == "TABLE":
            install_guards(connection, user_tables(connection))
        recorded = record_definitions(connection, region=self.region)
        capture.redefine(recorded.changed, read_table_map(connection, recorded.definitions))
        self._map = None
        if statement.selects:
            for definition in recorded.changed:
                hidden = rowid_name([column.name for column in definition.columns]) or ROWID_NAMES[0]
                names = ([hidden] if definition.rowid else []) + [quote(c.name) for c in definition.columns]
                table = quote(definition.table)
                capture.insert(
                    definition.table, connection.execute(f"SELECT {', '.join(names)} FROM main.{table}", can_cache=False)
                )

    def _pragma(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> Rows | None:
        verdict = pragmas.judge(statement.name, statement.argument)
        if verdict is pragmas.Verdict.NOTHING:
            return _NO_ROWS
        if verdict is pragmas.Verdict.READ or statement.schema not in ("", "main"):
            if statement.name == "busy_timeout" and (statement.argument or "").isdigit():
                self.timeout_s = int(statement.argument or 0) / 1000
            return self._natively(cursor, statement, bindings)
        own = self.stage is Stage.NONE
        if self.stage is not Stage.WRITER:
            self._become_writer()
        mark = self.capture.mark()
        try:
            cursor.execute(statement.text, bindings)
            self.capture.statement(statement.text)
        except BaseException as error:
            self._after_failure(mark, statement, error, fresh=False, own=own)
            raise
        if own:
            self._commit_own()
        return _NO_ROWS

    def _file_statement(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        if statement.verb is Verb.VACUUM and statement.argument is None:
            raise NotSupportedError(
                "VACUUM renumbers rows and pages, and is not replicated yet",
                where=self.region,
                do="Use VACUUM INTO for a compact copy",
            )
        if statement.verb is Verb.ATTACH and statement.argument not in (":memory:", ""):
            raise NotSupportedError(
                "ATTACH of a file is refused: its changes would go round the commit door",
                where=self.region,
                do="Open the other database with a connection of its own (':memory:' may be attached)",
            )
        self._natively(cursor, statement, bindings)
        self.capture.foreign = True

    # Transaction control.

    def _control(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        verb, stage = statement.verb, self.stage
        if verb is Verb.BEGIN:
            if stage is Stage.NONE and statement.kind in ("IMMEDIATE", "EXCLUSIVE"):
                self._become_writer()
            else:
                self._natively(cursor, statement, bindings)
                self.stage = Stage.READER
        elif verb is Verb.COMMIT and stage is not Stage.NONE:
            self.commit()
        elif verb is Verb.ROLLBACK and stage is not Stage.NONE:
            self.rollback()
        elif verb is Verb.SAVEPOINT:
            self._natively(cursor, statement, bindings)
            if stage is Stage.NONE:
                self.stage = Stage.READER
                self._savepoints.append(("", None))  # RELEASE of the next one commits: see below
            self._savepoints.append((statement.name, self.capture.mark() if stage is Stage.WRITER else None))
        elif verb is Verb.RELEASE:
            self._release(cursor, statement, bindings)
        elif verb is Verb.ROLLBACK_TO:
            self._natively(cursor, statement, bindings)
            at = self._find_savepoint(statement.name)
            if at is not None:
                mark = self._savepoints[at][1]
                del self._savepoints[at + 1 :]
                if self.stage is Stage.WRITER:
                    self.capture.cut(mark or self.capture.start)
        else:
            self._natively(cursor, statement, bindings)  # an empty text, or SQLite says what is wrong

    def _release(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        at = self._find_savepoint(statement.name)
        if at is not None and at == 1 and self._savepoints[0] == ("", None):
            self.commit()  # the savepoint that began the transaction
            return
        self._natively(cursor, statement, bindings)
        if at is not None:
            del self._savepoints[at:]

    def _find_savepoint(self, name: str) -> int | None:
        for at in range(len(self._savepoints) - 1, -1, -1):
            if self._savepoints[at][0] == name and name:
                return at
        return None

    def _become_writer(self) -> bool:
        """Take the region. Returns whether this began the transaction."""
        fresh = self.stage is Stage.NONE
        before = self.connection.total_changes()
        self.inside = True
        try:
            if fresh:
                self.session.begin(timeout_s=self.timeout_s)
            else:
                self.session.upgrade(timeout_s=self.timeout_s)
            try:
                self.capture.begin(self._tables())
            except BaseException:
                self.session.rollback()
                self._end()
                raise
        finally:
            self.inside = False
            self.own_changes += self.connection.total_changes() - before
        self.stage = Stage.WRITER
        return fresh

    def _commit_own(self) -> None:
        try:
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def _end(self, *, adopted: bool = False) -> None:
        self.stage = Stage.NONE
        if self._savepoints:
            self._savepoints.clear()
        self.capture.clear(adopted=adopted)

    # After failures.

    def _after_failure(
        self, mark: Mark, statement: Statement, error: BaseException, *, fresh: bool, own: bool
    ) -> None:
        connection, capture = self.connection, self.capture
        if not connection.in_transaction:
            self.check_alive()
            return
        rows_kept = kept(connection, capture, mark, statement.text)
        if rows_kept is None:
            capture.refuse(
                NotSupportedError(
                    "a statement failed, and it can not be told which of its changes remain",
                    where=self.region,
                    do="Roll back",
                )
            )
        elif not rows_kept:
            capture.cut(mark)
        if own:
            if rows_kept:
                self._commit_own()
            else:
                self.rollback()
        elif fresh and capture.changes == 0 and not self._can_prepare(statement, error):
            self.rollback()  # sqlite3 prepares before it begins: a text that is no SQL leaves no transaction open

    def _can_prepare(self, statement: Statement, error: BaseException) -> bool:
        if not isinstance(error, apsw.SQLError | apsw.AuthError):
            return True
        try:
            self.connection.execute("EXPLAIN " + statement.text, can_cache=False).close(True)
        except apsw.BindingsError:
            return True
        except apsw.Error:
            return False
        return True

    def _check_refusal(self, mark: Mark | None, *, own: bool) -> None:
        refused = self.capture.refused
        if refused is None or (mark is not None and mark.refusal is not None):
            return
        why = self.capture.refusal
        if own:
            self.rollback()
        if not isinstance(why, Exception) and why is not None:
            raise why  # KeyboardInterrupt arrived while the hook ran
        raise refused

    def _forbid_commit(self) -> bool:
        """SQLite's commit hook: True turns the COMMIT into a rollback."""
        return not self.inside and (self.capture.changes > 0 or self.capture.refusal is not None)

    # The schema.

    def _schema_version(self) -> int:
        version: Any = self.connection.execute("PRAGMA main.schema_version").get
        return int(version)

    def _tables(self) -> TableMap:
        version = self._schema_version()
        if self._map is None or self._map[0] != version:
            self._map = (version, read_table_map(self.connection, recorded_definitions(self.connection)))
        return self._map[1]

