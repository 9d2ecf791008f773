"""One connection's transactions: which statement takes which way through the commit door, and what is captured of it.

Guarantees: no change of a replicated table is committed but by the door; reading takes no lock of ours; a statement
that fails leaves behind exactly what SQLite left behind; a transaction of which something could not be captured can
only be rolled back. Refuses to know: PEP 249 (cursors, rows, adapters, error classes): errors leave here as APSW's
and as ReplicateError.

Behind all classification stands a commit hook: a COMMIT that is not the door's, in a transaction that changed
replicated rows, becomes a rollback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import apsw

from replicate.database import pragmas
from replicate.database.capture import Capture, Mark
from replicate.database.capture_several import SeveralCaptures
from replicate.database.capture_tables import TableMap
from replicate.database.statements import Statement, Verb
from replicate.dbapi.attach import Attaching
from replicate.dbapi.pending import Pending
from replicate.dbapi.returned import Rows, keep_rows
from replicate.dbapi.stage import Session as Session
from replicate.dbapi.stage import Stage as Stage
from replicate.errors import NotSupportedError

if TYPE_CHECKING:
    from replicate.journal.spool import Spool

_NO_ROWS: Final[Rows] = []
_NONE, _READER, _WRITER = Stage
_WRITE, _READ = Verb.WRITE, Verb.READ
"""Looking a member up in its class costs more than a global; these stand in the way of every statement."""


class Transactions(Attaching, Pending):
    """The transactions of one connection, one after the other. Used by one thread at a time.

    `tell`: told the text of every transaction control statement that is not run as it is (the trace callback).
    `inside`: the door is at work (the application's authorizer, progress handler and interrupts are kept away from it).
    `describing`: a statement is prepared once more, for its columns (the progress handler alone is kept away).
    `own_changes`: rows that we changed for our bookkeeping, to be taken off total_changes. `functions`: names of
    functions and collations that only this connection has.
    """

    def __init__(self, session: Session, region: str, spool_factory: Callable[[], Spool], timeout_s: float) -> None:
        self.session = session
        self.connection = session.connection
        self.region = region
        self.timeout_s = timeout_s
        self.stage = _NONE
        self.inside = self.describing = False
        self.own_changes = 0
        self.changed = 0
        self.last_seqno = 0
        self.functions: set[str] = set()
        self.tell: Callable[[str], object] | None = None
        self.begin_text = "BEGIN "
        self.spool_factory = spool_factory
        self.capture: Capture | SeveralCaptures = Capture(self.connection, region, spool_factory)
        self._changes = self.connection.changes
        self._execute = self.connection.cursor().execute  # a kept cursor, for short questions of ours
        self._savepoints: list[tuple[str | None, Mark | None]] = []
        self._map: tuple[int, TableMap] | None = None
        self._journaled = self.begun = self.blobs_open = 0
        self.unclean = self._torn = False
        self.clear_attached()
        self.connection.set_commit_hook(self._forbid_commit, id=self)

    def close(self) -> None:
        """Roll back what is open, take our hooks off, close the session."""
        try:
            self.capture.close()
            self.connection.set_commit_hook(None, id=self)
            self.inside = True
            self.stage = _NONE
        finally:
            self.session.close()

    # Statements.

    def run(self, cursor: apsw.Cursor, statement: Statement, bindings: Any, implicit: bool) -> Rows | None:
        """Run one statement. Returns the rows of a writing one; None if they are to be fetched from `cursor`.

        `implicit`: a data change begins a transaction if there is none, and leaves it open; else it is its own
        transaction.
        """
        verb = statement.verb
        if verb is _READ:
            self._natively(cursor, statement, bindings)
            return None
        if verb is _WRITE:
            return self.write(cursor, statement, bindings, implicit)
        if verb is Verb.PRAGMA:
            return self._pragma(cursor, statement, bindings)
        if verb is Verb.DEFINE:
            return self._change_schema(cursor, statement, bindings)
        if verb is Verb.ATTACH or verb is Verb.VACUUM or verb is Verb.DETACH:
            self._file_statement(cursor, statement, bindings)
            return None
        self._control(cursor, statement, bindings)
        return _NO_ROWS

    def run_many(self, cursor: apsw.Cursor, statement: Statement, sets: Iterable[Any], *, implicit: bool) -> None:
        """Run a data change once for each set of bindings; `changed` is the sum. Rows that it returns are thrown away,
        and such a run does not count (as in CPython 3.11)."""
        total = 0
        if statement.rows or (self.stage is _NONE and not (implicit and statement.dml)):
            self.prepare_and_begin(statement, implicit)  # once: whoever gives the sets may end it
            for bindings in sets:
                rows = self.write(cursor, statement, bindings, False)
                total += 0 if rows else self.changed
            self.changed = total
            return
        fresh = self.stage is not _WRITER and self._become_writer(self.begin_text)
        changes, capture, begun, rest = self._changes, self.capture, self.begun, iter(sets)
        place: tuple[Any, ...] | None = None  # where the row that runs began; () between two, None before the first
        behind: list[Any] = []

        def feed() -> Iterator[Any]:
            nonlocal place, total
            place_now = capture.place
            counts = self._may_count(statement)
            for bindings in rest:
                # Whoever gives the sets may use this connection meanwhile: end the transaction, or take a part back.
                if self.stage is not _WRITER or self.begun != begun:
                    behind.append(bindings)
                    return
                if counts:
                    self._watch_sequences()
                if capture.pressing or (capture.restless and self.functions):
                    self._settle()
                place = place_now()
                yield bindings
                place = ()
                total += changes()

        try:
            cursor.executemany(statement.text, feed())
        except BaseException as error:
            if place:
                self._after_failure(Mark(*place), statement, error, fresh=fresh, own=False)
            else:
                self.check_alive()
                if place is None:
                    self.prepare(statement, fresh=fresh and self.begun == begun)  # as below
            raise
        for bindings in chain(behind, rest) if behind else ():  # each for itself, as in sqlite3
            self.write(cursor, statement, bindings, False)
            total += self.changed
        self.changed = total
        if place is None and not behind:  # APSW prepares nothing without a set
            self.prepare(statement, fresh=fresh and self.begun == begun)
        self._check_refusal(None, own=False)

    def commit(self) -> None:
        """COMMIT, through the door if anything was written. After a failure `stage` says whether the transaction
        still stands."""
        capture, connection = self.capture, self.connection
        if self.stage is not _WRITER:
            if self.stage is _READER:
                if capture.refused is not None:
                    raise capture.refused
                connection.execute("COMMIT")
                self._end()
            return
        if self.blobs_open:  # SQLite would say so too, but behind the append
            raise apsw.BusyError("cannot commit transaction - a BLOB is open for writing")
        if self.functions and self._is_writing():  # as well
            raise apsw.BusyError("cannot commit transaction - SQL statements in progress")
        before = connection.total_changes()
        self.inside = True
        try:
            if capture.restless:
                self._settle()
            captured = capture.finish()
            self._journaled = capture.changes
            self.last_seqno = self.session.commit(captured)
            self._end(captured.spool is not None)
        except BaseException:
            if not connection.in_transaction:
                self.last_seqno = self.session.last_seqno
                self.session.rollback()
                self._end()
            raise
        finally:
            self.inside = False
            self.own_changes += connection.total_changes() - before

    def rollback(self) -> None:
        """ROLLBACK, and give the region up."""
        if self.stage is _NONE:
            return
        self.inside = True
        try:
            if self.stage is _READER:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
            else:
                self.session.rollback()
                self.unclean = False
            self._end()
        except BaseException:
            if not self.connection.in_transaction:  # else it stands: an interrupt came before the ROLLBACK
                self.session.rollback()
                self._end()
            raise
        finally:
            self.inside = False

    def commit_told(self, text: str = "COMMIT") -> None:
        """`commit`, told to the trace callback."""
        if self.tell is not None and self.stage is not _NONE:
            self.tell(text)
        self.commit()

    def rollback_told(self, text: str = "ROLLBACK") -> None:
        """`rollback`, told to the trace callback."""
        if self.tell is not None and self.stage is not _NONE:
            self.tell(text)
        self.rollback()

    def check_alive(self) -> None:
        """After any error: SQLite may have rolled the whole transaction back, or refused a commit that went round
        the door."""
        if self.stage is not _NONE and not self.connection.in_transaction:
            if self.stage is _WRITER:
                self.session.rollback()
            self._end()
        elif self.stage is _NONE and (refused := self.capture.refused) is not None:
            self._cleanse(refused)

    # Ways.

    def _natively(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        try:
            cursor.execute(statement.text, bindings)
        except BaseException:
            self.check_alive()
            raise

    def write(self, cursor: apsw.Cursor, statement: Statement, bindings: Any, implicit: bool) -> Rows:
        """`run`, for a statement that writes rows."""
        own = fresh = False
        if self.stage is not _WRITER:
            own = self.stage is _NONE and not (implicit and statement.dml)
            fresh = self._become_writer("" if own else self.begin_text)
        capture = self.capture
        try:
            if capture.counted and self._may_count(statement):
                self._watch_sequences()
            # Or rows of earlier statements would be told of in the midst of this one, which may fail.
            if capture.pressing or (capture.restless and self.functions):
                self._settle()
        except BaseException:
            if own or fresh:
                self.rollback()
            raise
        place = capture.place()
        try:
            cursor.execute(statement.text, bindings)
            rows: Rows = keep_rows(cursor) if statement.rows else _NO_ROWS
        except BaseException as error:
            self._after_failure(Mark(*place), statement, error, fresh=fresh, own=own)
            raise
        self.changed = self._changes()
        if capture.poisoned:
            self._check_refusal(Mark(*place), own=own)
        if own:
            self._commit_own(self.changed)
        return rows

    def _change_schema(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> Rows:
        if statement.temporary or not self.is_region(statement.schema):
            self.capture.foreign = True
            self._natively(cursor, statement, bindings)
            return _NO_ROWS
        self._check_definable(statement)
        own = self.stage is _NONE
        if self.stage is not _WRITER:
            self._become_writer()
        try:
            rows = self._define(cursor, statement, bindings)
        except BaseException:
            self.check_alive()
            if own:
                self.rollback()
            raise
        if own:
            self._commit_own()
        return rows

    def _pragma(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> Rows | None:
        verdict = pragmas.judge(statement.name, statement.argument)
        if verdict is pragmas.Verdict.NOTHING:
            return _NO_ROWS
        if verdict is pragmas.Verdict.READ or not self.is_region(statement.schema):
            if statement.name == "case_sensitive_like" and statement.argument is not None:
                self.bring("like")
            if statement.name == "busy_timeout" and (statement.argument or "").isdigit():
                self.timeout_s = int(statement.argument or 0) / 1000
            self._natively(cursor, statement, bindings)
            return None
        own = self.stage is _NONE
        if self.stage is not _WRITER:
            self._become_writer()
        if self.capture.restless:
            self._settle()
        self.capture.close_sequences()  # the other site reads counters anew behind a statement that travels
        mark = self.capture.mark()
        try:
            cursor.execute(statement.text, bindings)
            schema = self.name_of(statement.schema)
            text = statement.text if schema == "main" else statement.as_main(schema)
            self._capture_of(schema).statement(text)
        except BaseException as error:
            self._after_failure(mark, statement, error, fresh=False, own=own)
            raise
        if own:
            self._commit_own()
        return _NO_ROWS

    def _file_statement(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        if statement.verb is Verb.VACUUM and statement.argument is None:
            raise NotSupportedError(
                "VACUUM renumbers rows of tables without an INTEGER PRIMARY KEY, and runs outside of every "
                "transaction: killed on its way, it would leave a schema version that nobody knows",
                where=self.region,
                do="A compact copy: VACUUM INTO 'copy.db'. A compact region: replicate -i INSTANCE region release "
                f"{self.region}, VACUUM with any SQLite client, replicate -i INSTANCE region add; seed --restart there",
            )
        if statement.verb is Verb.VACUUM:
            self._natively(cursor, statement, bindings)
        elif statement.verb is Verb.ATTACH:
            self._attach(cursor, statement, bindings)
        else:
            self._detach(cursor, statement, bindings)

    # Transaction control.

    def _control(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        verb, stage = statement.verb, self.stage
        if verb is Verb.BEGIN:
            if stage is _NONE and statement.kind in ("IMMEDIATE", "EXCLUSIVE"):
                self._become_writer(statement.text)
            else:
                self._natively(cursor, statement, bindings)
                self.stage = _READER
        elif verb is Verb.COMMIT and stage is not _NONE:
            self.commit_told(statement.text)
        elif verb is Verb.ROLLBACK and stage is not _NONE:
            self.rollback_told(statement.text)
        elif verb is Verb.SAVEPOINT:
            if stage is _WRITER and self.capture.restless:
                self._settle()
            self._natively(cursor, statement, bindings)
            if stage is _NONE:
                self.stage = _READER
                self._savepoints.append((None, None))  # RELEASE of the next one commits: see below
            self._savepoints.append((statement.name, self.capture.mark() if stage is _WRITER else None))
        elif verb is Verb.RELEASE:
            self._release(cursor, statement, bindings)
        elif verb is Verb.ROLLBACK_TO:
            self._torn = self._torn or (stage is _WRITER and self._is_writing())
            self._natively(cursor, statement, bindings)
            at = self._find_savepoint(statement.name)
            if at is not None:
                mark = self._savepoints[at][1]
                del self._savepoints[at + 1 :]
                if self.stage is _WRITER:
                    self.capture.cut(mark or self.capture.start)
        else:
            self._natively(cursor, statement, bindings)  # an empty text, or SQLite says what is wrong

    def _release(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        at = self._find_savepoint(statement.name)
        if at is not None and at == 1 and self._savepoints[0] == (None, None):
            if self.tell is not None:
                self.tell(statement.text)
            self.commit()  # the savepoint that began the transaction
            return
        self._natively(cursor, statement, bindings)
        if at is not None:
            del self._savepoints[at:]

    def _find_savepoint(self, name: str) -> int | None:
        for at in range(len(self._savepoints) - 1, -1, -1):
            if self._savepoints[at][0] == name:
                return at
        return None

    def _become_writer(self, text: str = "") -> bool:
        """Take the region. Returns whether this began the transaction; if so, `text` is told to the trace callback."""
        fresh = self.stage is _NONE
        if fresh and text and self.tell is not None:
            self.tell(text)
        session = self.session
        self.inside = True
        try:
            if fresh:
                session.begin(timeout_s=self.timeout_s)
            else:
                session.upgrade(timeout_s=self.timeout_s)
            known = self._map
            self.capture.begin(known[1] if known is not None and known[0] == session.schema else self._tables())
            self.stage = _WRITER
            if self.unclean:
                self.capture.refuse(NotSupportedError("an earlier statement outlived its transaction", do="Roll back"))
        except BaseException:
            if fresh or session.holds_region or not self.connection.in_transaction:  # else it stands as a reader
                session.rollback()
                self._end()
            raise
        finally:
            self.inside = False
        self.begun += 1
        return fresh

    def _commit_own(self, rows: int = 0) -> None:
        try:
            self.commit()
        except BaseException:
            self.rollback()
            self.own_changes += rows  # SQLite counts none if it fails so late, but for its triggers'
            raise

    def _end(self, adopted: bool = False) -> None:
        self.stage = _NONE
        self._torn = False
        if self._savepoints:
            self._savepoints.clear()
        self.capture.clear(adopted)

    # After failures.

    def _after_failure(self, mark: Mark, statement: Statement, error: BaseException, *, fresh: bool, own: bool) -> None:
        connection, capture = self.connection, self.capture
        if not capture.active and capture.poisoned:
            self._cleanse(apsw.AbortError("abort due to ROLLBACK"))
        if not connection.in_transaction:
            self.check_alive()
            return
        self.inside = True
        try:
            rows_kept = None if self._torn else capture.kept(mark, statement.text)
        finally:
            self.inside = False
        if rows_kept is None:
            capture.refuse(
                NotSupportedError(
                    "a statement failed, and it can not be told which of its changes remain",
                    where=self.region,
                    do="Roll back",
                )
            )
        elif rows_kept:
            capture.doubt_sequences()
        else:
            capture.cut(mark, failed=True)
            with contextlib.suppress(apsw.InterruptError):  # until the interrupted SELECT ends; it is looked at later
                self._settle()
            rows_kept = capture.grown(mark)
        if own:
            if rows_kept:
                self._commit_own(self._changes())
            else:
                self.rollback()
        elif fresh and capture.changes == 0 and not self._can_prepare(statement, error):
            self.rollback()  # sqlite3 prepares before it begins: a text that is no SQL leaves no transaction open

    def _check_refusal(self, mark: Mark | None, *, own: bool) -> None:
        refused = self.capture.refused
        if refused is None or (mark is not None and mark.refusal is not None):
            return
        if not self.capture.active:
            self._cleanse(apsw.AbortError("abort due to ROLLBACK"))
        why = self.capture.refusal
        if own:
            self.rollback()
        if not isinstance(why, Exception) and why is not None:
            raise why  # KeyboardInterrupt arrived while the hook ran
        raise refused

    def _forbid_commit(self) -> bool:
        """SQLite's commit hook: True turns the COMMIT into a rollback. (Virtual tables have written by then: what they
        keep back beyond `flush` must not pass the journal by.)"""
        if self.inside:
            return self.capture.changes not in (0, self._journaled)
        return self.capture.changes > 0 or self.capture.refusal is not None
