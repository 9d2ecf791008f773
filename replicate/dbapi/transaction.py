"""One connection's transactions: which way a statement takes through the commit door, and what is captured of it.

Guarantees: no change of a replicated table is committed but by the door; reading takes no lock of ours; a statement
that fails leaves exactly what SQLite left; a transaction of which something could not be captured can only be rolled
back. (Whatever we took a statement for: SQLite's commit hook turns a COMMIT that is not the door's, in a transaction
that changed replicated rows, into a rollback.)
Leaves to others: PEP 249 (cursors, rows, adapters, error classes): errors leave here as APSW's and as ReplicateError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final, NoReturn

import apsw

from replicate.dbapi.attachments import Attachments
from replicate.dbapi.comments import register_comment, write_comment
from replicate.dbapi.connection_functions import ConnectionFunctions
from replicate.dbapi.definitions import Definitions
from replicate.dbapi.prepare import can_prepare, prepare
from replicate.dbapi.region_access import Opened
from replicate.dbapi.region_tables import RegionTables
from replicate.dbapi.regions import Regions
from replicate.dbapi.returned_rows import Rows, keep_rows
from replicate.dbapi.savepoints import Savepoints
from replicate.dbapi.transaction_stages import TRANSITIONS, Act, Stage, TransactionStep
from replicate.errors import NotSupportedError, ReplicateError
from replicate.model.elements import DEFINITION
from replicate.region.sqlite.capture.capture import ELEMENTS_PER_CHANGE
from replicate.region.sqlite.capture.marks import Mark
from replicate.region.sqlite.sql import pragmas
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.sql.statements import Statement, Verb

_NO_ROWS: Final[Rows] = []
# Looking a member up in its class costs more than a global; these stand in the way of every statement.
_NONE, _WRITER = Stage.NONE, Stage.WRITER
_WRITE, _READ = Verb.WRITE, Verb.READ
_NOTHING, _BEGIN, _THE_DOOR_COMMITS = Act.NOTHING, Act.BEGIN, Act.COMMIT
_TAKE, _COMMIT, _ROLLBACK, _LOSE = (
    TRANSITIONS[step]
    for step in (TransactionStep.TAKE, TransactionStep.COMMIT, TransactionStep.ROLLBACK, TransactionStep.LOSE)
)


class ConnectionTransaction:
    """The transaction of one connection: one after the other. Used by one thread at a time.

    `stage`: where it stands (transaction_stages.py). `changed`: rows that the last statement changed. `last_seqno`: the
    number of the last commit. `begin_text`: what the trace callback is told where a data change begins a transaction.
    `tell`: told the text of every transaction control statement that is not run as it is (the trace callback). `begun`:
    how often the regions were taken.
    """

    def __init__(self, opened: Opened, timeout_s: float) -> None:
        self.session = opened.session
        self.connection = opened.session.connection
        self.regions = Regions(self.connection, opened.region, opened.new_spool, opened.partitions)
        self.functions = ConnectionFunctions(self.regions)
        register_comment(self.regions)
        self._tables = RegionTables(self.regions, self.functions, opened.neighbours)
        self.attachments = Attachments(self.regions, self.functions, self._tables, opened.neighbours)
        self._definitions = Definitions(self.regions, self.functions, self._tables)
        self._savepoints = Savepoints()
        self.timeout_s = timeout_s
        self.stage = _NONE
        self.changed = 0
        self.last_seqno = 0
        self.tell: Callable[[str], object] | None = None
        self.begin_text = "BEGIN "
        self.begun = 0
        self._changes = self.connection.changes
        self._blobs_open = 0
        """BLOBs open for writing. SQLite counts each until it is closed, also in a later transaction."""
        self._journaled = 0
        """Changes of which the journal knows: with more of them, our own COMMIT is refused, too."""
        self._is_unclean = False
        """Whether SQLite's cache holds rows of no transaction."""
        self._is_torn = False
        """Whether a ROLLBACK TO came in the midst of a writing statement."""
        self.connection.set_commit_hook(self._forbid_commit, id=self)

    def close(self) -> None:
        """Roll back what is open, take our hooks off, close the session."""
        try:
            self.regions.capture.close()
            self.connection.set_commit_hook(None, id=self)
            self.regions.inside = True
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
            self._change_files(cursor, statement, bindings)
            return None
        self._control(cursor, statement, bindings)
        return _NO_ROWS

    def run_many(self, cursor: apsw.Cursor, statement: Statement, sets: Iterable[Any], *, implicit: bool) -> None:
        """Run a data change once for each set of bindings; `changed` is the sum. Rows that it returns are thrown away,
        and such a run does not count (as in CPython 3.11)."""
        total = 0
        if statement.rows or (self.stage is _NONE and not (implicit and statement.dml)):
            self.prepare_and_begin(statement, implicit)  # once: the caller's iterator may end it
            for bindings in sets:
                rows = self.write(cursor, statement, bindings, False)
                total += 0 if rows else self.changed
            self.changed = total
            return
        fresh = self.take(self.begin_text)
        regions, capture = self.regions, self.regions.capture
        changes, begun, rest = self._changes, self.begun, iter(sets)
        place: tuple[Any, ...] | None = None  # where the row that runs began; () between two, None before the first
        after: list[Any] = []

        def feed() -> Iterator[Any]:
            nonlocal place, total
            place_now, functions = capture.place, self.functions.names
            counts = regions.may_count(statement)
            for bindings in rest:
                # The caller's iterator may use this connection meanwhile: end the transaction, or take a part back.
                if self.stage is not _WRITER or self.begun != begun:
                    after.append(bindings)
                    return
                if counts:
                    regions.watch_sequences()
                if capture.pressing or (capture.restless and functions):
                    regions.settle()
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
        for bindings in chain(after, rest) if after else ():  # each for itself, as in sqlite3
            self.write(cursor, statement, bindings, False)
            total += self.changed
        self.changed = total
        if place is None and not after:  # APSW prepares nothing without a set
            self.prepare(statement, fresh=fresh and self.begun == begun)
        self._check_refusal(None, own=False)

    def commit(self) -> None:
        """COMMIT, through the door if anything was written. After a failure `stage` says whether the transaction
        still stands."""
        act, _ = _COMMIT[self.stage]
        regions = self.regions
        capture, connection = regions.capture, self.connection
        if act is not _THE_DOOR_COMMITS:
            if act is Act.SQLITE:
                if capture.refused is not None:
                    raise capture.refused
                connection.execute("COMMIT")
                self._end()
            return
        if self._blobs_open:  # SQLite would say so too, but after the append
            raise apsw.BusyError("cannot commit transaction - a BLOB is open for writing")
        if self.functions.names and self._is_writing():  # this, too, it would say too late
            raise apsw.BusyError("cannot commit transaction - SQL statements in progress")
        before = connection.total_changes()
        regions.inside = True
        try:
            if capture.restless:
                regions.settle()
            captured = capture.finish()
            self._journaled = captured.count // ELEMENTS_PER_CHANGE
            self.last_seqno = self.session.commit(captured)
            self._end(captured.spool is not None)
        except BaseException:
            if not connection.in_transaction:
                self.last_seqno = self.session.last_seqno
                self.session.rollback()
                self._end()
            raise
        finally:
            regions.inside = False
            regions.own_changes += connection.total_changes() - before

    def rollback(self) -> None:
        """ROLLBACK, and give the region up."""
        act, _ = _ROLLBACK[self.stage]
        if act is _NOTHING:
            return
        regions = self.regions
        regions.inside = True
        try:
            if act is Act.ROLLBACK:
                self.session.rollback()
                self._is_unclean = False
            elif self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            self._end()
        except BaseException:
            if not self.connection.in_transaction:  # else it stands: an interrupt came before the ROLLBACK
                self.session.rollback()
                self._end()
            raise
        finally:
            regions.inside = False

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
        if self.stage is not _NONE:
            if not self.connection.in_transaction:
                act, _ = _LOSE[self.stage]
                if act is Act.ROLLBACK:
                    self.session.rollback()
                self._end()
        elif (refused := self.regions.capture.refused) is not None:
            self._cleanse(refused)

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
        if implicit and statement.dml and self.stage is _NONE:
            self.take(self.begin_text)

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
            fresh = self.take("" if own else self.begin_text)
        regions = self.regions
        capture = regions.capture
        try:
            if capture.counted and regions.may_count(statement):
                regions.watch_sequences()
            # Or rows of earlier statements would be told of in the midst of this one, which may fail.
            if capture.pressing or (capture.restless and self.functions.names):
                regions.settle()
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

    def comment(self, text: str) -> None:
        """A comment in the transaction that is open, or in one of its own. Raises what a write raises."""
        own = self.stage is _NONE
        self.take()
        try:
            write_comment(self.regions, text)
        except BaseException:
            if own:
                self.rollback()
            raise
        if own:
            self._commit_own()

    def _change_schema(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> Rows:
        regions = self.regions
        if statement.temporary or not regions.is_region(statement.schema):
            regions.capture.foreign = True
            self._natively(cursor, statement, bindings)
            return _NO_ROWS
        self._definitions.check(statement)
        own = self.stage is _NONE
        self.take()
        try:
            rows = self._definitions.run(cursor, statement, bindings)
        except BaseException:
            self.check_alive()
            if own:
                self.rollback()
            raise
        if own:
            self._commit_own()
        return rows

    def _pragma(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> Rows | None:
        verdict = pragmas.judge(statement.name, statement.argument, partial(self._present, statement))
        if verdict is pragmas.Verdict.NOTHING:
            return _NO_ROWS
        regions = self.regions
        if verdict is pragmas.Verdict.READ or not regions.is_region(statement.schema):
            if statement.name == "case_sensitive_like" and statement.argument is not None:
                self.functions.bring("like")
            if statement.name == "busy_timeout" and (statement.argument or "").isdigit():
                self.timeout_s = int(statement.argument or 0) / 1000
            self._natively(cursor, statement, bindings)
            return None
        own = self.stage is _NONE
        self.take()
        capture = regions.capture
        if capture.restless:
            regions.settle()
        capture.close_sequences()  # the other site reads counters again after a statement that travels
        mark = capture.mark()
        try:
            cursor.execute(statement.text, bindings)
            schema = regions.name_of(statement.schema)
            text = statement.text if schema == "main" else statement.as_main(schema)
            regions.capture_of(schema).statement(text, regions.partitions().place_of(DEFINITION))
        except BaseException as error:
            self._after_failure(mark, statement, error, fresh=False, own=own)
            raise
        if own:
            self._commit_own()
        return _NO_ROWS

    def _present(self, statement: Statement) -> object:
        """What a pragma's database has now."""
        query = f"PRAGMA {quote(statement.schema or 'main')}.{statement.name}"
        return self.regions.quietly(lambda: self.regions.execute(query).get)

    def _change_files(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        natively = partial(self._natively, cursor, statement, bindings)
        if statement.verb is Verb.VACUUM and statement.argument is None:
            raise NotSupportedError(
                "VACUUM renumbers rows of tables without an INTEGER PRIMARY KEY, and runs outside of every "
                "transaction: killed on its way, it would leave a schema version that nobody knows",
                where=self.regions.region,
                do="A compact copy: VACUUM INTO 'copy.db'. A compact region: replicate -i INSTANCE region release "
                f"{self.regions.region}, VACUUM with any SQLite client, replicate -i INSTANCE region add; "
                "seed --restart there",
            )
        if statement.verb is Verb.VACUUM:
            natively()
        elif statement.verb is Verb.ATTACH:
            self.attachments.attach(statement, bindings, natively, self.tell)
        else:
            self.attachments.detach(statement, bindings, natively)

    # Transaction control.

    def _control(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        verb, stage, savepoints = statement.verb, self.stage, self._savepoints
        if verb is Verb.BEGIN:
            if stage is _NONE and statement.kind in ("IMMEDIATE", "EXCLUSIVE"):
                self.take(statement.text)
            else:
                self._begin(cursor, statement, bindings)
        elif verb is Verb.COMMIT and stage is not _NONE:
            self.commit_told(statement.text)
        elif verb is Verb.ROLLBACK and stage is not _NONE:
            self.rollback_told(statement.text)
        elif verb is Verb.SAVEPOINT:
            if stage is _NONE:
                self._begin(cursor, statement, bindings)
                savepoints.add(statement.name, None, begins=True)
            else:
                capture = self.regions.capture if stage is _WRITER else None
                if capture is not None and capture.restless:
                    self.regions.settle()
                self._natively(cursor, statement, bindings)
                savepoints.add(statement.name, None if capture is None else capture.mark(), begins=False)
        elif verb is Verb.RELEASE:
            if savepoints.commits(statement.name):
                self.commit_told(statement.text)
            else:
                self._natively(cursor, statement, bindings)
                savepoints.release(statement.name)
        elif verb is Verb.ROLLBACK_TO:
            self._is_torn = self._is_torn or (stage is _WRITER and self._is_writing())
            self._natively(cursor, statement, bindings)
            found = savepoints.roll_back_to(statement.name)
            if found is not None and self.stage is _WRITER:
                capture = self.regions.capture
                capture.cut(found[0] or capture.start)
        else:
            self._natively(cursor, statement, bindings)  # an empty text, or SQLite says what is wrong

    def _begin(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        """A statement that begins a transaction which only reads yet; SQLite refuses it where one is open."""
        self._natively(cursor, statement, bindings)
        _, self.stage = TRANSITIONS[TransactionStep.BEGIN][self.stage]

    def take(self, text: str = "") -> bool:
        """Take the regions unless they are held. Returns whether this began the transaction; if so, `text` is told to
        the trace callback."""
        act, to = _TAKE[self.stage]
        if act is _NOTHING:
            return False
        fresh = act is _BEGIN
        if fresh and text and self.tell is not None:
            self.tell(text)
        session, regions, tables = self.session, self.regions, self._tables
        regions.inside = True
        try:
            if fresh:
                session.begin(timeout_s=self.timeout_s)
            else:
                session.upgrade(timeout_s=self.timeout_s)
            known = tables.own
            regions.capture.begin(known[1] if known is not None and known[0] == session.schema else tables.read_own())
            self.stage = to
            if self._is_unclean:
                why = NotSupportedError("an earlier statement outlived its transaction", do="Roll back")
                regions.capture.refuse(why)
        except BaseException:
            if fresh or session.holds_region or not self.connection.in_transaction:  # else it stands as a reader
                session.rollback()
                self._end()
            raise
        finally:
            regions.inside = False
        self.begun += 1
        return fresh

    def _commit_own(self, rows: int = 0) -> None:
        try:
            self.commit()
        except BaseException:
            self.rollback()
            self.regions.own_changes += rows  # SQLite counts none if it fails so late, but for its triggers'
            raise

    def _end(self, adopted: bool = False) -> None:
        """No transaction is open any more. `adopted`: the journal has taken the spool over."""
        self.stage = _NONE
        self._is_torn = False
        if self._savepoints.names:
            self._savepoints.clear()
        self.regions.capture.clear(adopted)

    # After failures.

    def _after_failure(self, mark: Mark, statement: Statement, error: BaseException, *, fresh: bool, own: bool) -> None:
        connection, regions = self.connection, self.regions
        capture = regions.capture
        if not capture.active and capture.poisoned:
            self._cleanse(apsw.AbortError("abort due to ROLLBACK"))
        if not connection.in_transaction:
            self.check_alive()
            return
        regions.inside = True
        try:
            rows_kept = None if self._is_torn else capture.kept(mark, statement.text)
        finally:
            regions.inside = False
        if rows_kept is None:
            capture.refuse(
                NotSupportedError(
                    "a statement failed, and it cannot be told which of its changes remain",
                    where=regions.region,
                    do="Roll back",
                )
            )
        elif rows_kept:
            capture.doubt_sequences()
        else:
            capture.cut(mark, failed=True)
            with contextlib.suppress(apsw.InterruptError):  # until the interrupted SELECT ends; it is looked at later
                regions.settle()
            rows_kept = capture.grown(mark)
        if own:
            if rows_kept:
                self._commit_own(self._changes())
            else:
                self.rollback()
        elif fresh and capture.changes == 0 and not can_prepare(connection, statement, error):
            self.rollback()  # sqlite3 prepares before it begins: a text that is no SQL leaves no transaction open

    def _check_refusal(self, mark: Mark | None, *, own: bool) -> None:
        capture = self.regions.capture
        refused = capture.refused
        if refused is None or (mark is not None and mark.refusal is not None):
            return
        if not capture.active:
            self._cleanse(apsw.AbortError("abort due to ROLLBACK"))
        why = capture.refusal
        if own:
            self.rollback()
        if not isinstance(why, Exception) and why is not None:
            raise why  # KeyboardInterrupt arrived while the hook ran
        raise refused

    def _cleanse(self, why: BaseException) -> NoReturn:
        """A statement wrote after the end of its transaction, which a function of the application had ended: its rows
        are left in SQLite's cache, for the next COMMIT to write (measured). A ROLLBACK throws them away. Raises
        `why`."""
        self.regions.capture.clear()
        self._is_unclean = True
        with contextlib.suppress(ReplicateError, apsw.Error):  # while others write, the next transaction does it
            self.rollback()  # of a reader that was begun since
            self.take()
            self.rollback()
        raise why

    def _is_writing(self) -> bool:
        """Whether a writing statement runs, so that what is asked for is asked by a function of the application."""
        if self._blobs_open:  # SQLite takes one for such a statement
            return False
        regions, execute = self.regions, self.connection.execute
        inside, regions.inside = regions.inside, True
        try:
            execute("SAVEPOINT _replicate_ask").close()
            execute("RELEASE _replicate_ask").close()
        except apsw.BusyError:
            return True
        finally:
            regions.inside = inside
        return False

    def _forbid_commit(self) -> bool:
        """SQLite's commit hook: True turns the COMMIT into a rollback. (Virtual tables have written by then: what they
        keep back beyond `flush` must not pass the journal by.)"""
        capture = self.regions.capture
        if self.regions.inside:
            return capture.changes not in (0, self._journaled)
        return capture.changes > 0 or capture.refusal is not None

    # BLOBs.

    def write_blob(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Take the region for a BLOB that is to be written in place. Gives what to call before each write, and when the
        BLOB has been closed: that commits, if this began the transaction and it still stands."""
        own = self.connection.in_transaction is False
        regions = self.regions
        capture = regions.capture
        if not capture.active:
            self.take()
        elif capture.pressing:  # or the rows of all BLOBs that are written one after the other would be kept
            regions.settle()
        begun, self._blobs_open = self.begun, self._blobs_open + 1

        def stands() -> bool:
            return regions.capture.active and self.begun == begun

        def check() -> None:
            if not stands():
                raise NotSupportedError(
                    "the transaction in which this BLOB was opened for writing has ended",
                    where=regions.region,
                    do="Open it again",
                )

        def end() -> None:
            self._blobs_open -= 1
            if own and stands():
                self._commit_own()

        return check, end
