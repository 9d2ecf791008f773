"""Applying row changes that already happened elsewhere: the hot path of the Update Process and of every redo.

Guarantees: a change is applied only if the row here equals the whole before-image, column by column and type by type
(collations do not soften it), and changes exactly one row; otherwise ConflictError, with both images in
`error.conflict`, and the row is as it was. Hidden rowids are replicated. Identifiers are those of local tables, which
were compared with the definition first.
Leaves to others: transactions, savepoints, batches and positions: the caller opens, commits and rolls back.

Measured (5 columns, one core): `execute` on one kept cursor with a `changes()` check for each row costs 15 % more than
`executemany`; `Connection.execute`, which makes a cursor each time, half a microsecond more again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

import apsw
import msgpack
from msgspec import Struct
from msgspec.structs import replace

from replicate.errors import (
    ConflictError,
    FormatUnknownError,
    InternalError,
    JournalDamagedError,
    NotFoundError,
    NotSupportedError,
    ReplicateError,
    UsageError,
)
from replicate.model.transaction import OF_WRITERS, TELLS_ONLY, Op, TableDefinition, told_of
from replicate.region.sqlite.apply import statements
from replicate.region.sqlite.apply.order import arranged
from replicate.region.sqlite.apply.runs import insert_run
from replicate.region.sqlite.bookkeeping import store_schema_version, write_seen, write_writer
from replicate.region.sqlite.data_feed import own_tables
from replicate.region.sqlite.guards import install_guards
from replicate.region.sqlite.listed_columns import blank_new_columns, listed_tables
from replicate.region.sqlite.open import translate
from replicate.region.sqlite.own_counters import OwnCounters
from replicate.region.sqlite.row_stamps import forget_stamps, losses_in, note_losses
from replicate.region.sqlite.schema import (
    check_definition,
    forget_dropped,
    guarded_tables,
    have_tables_read_again,
    is_autoincrement,
    record_definition,
    recorded_definition,
    recorded_definitions,
    sequence_value,
)
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.virtual_tables import allow_shadow_rows

PLANS_MAX: Final = 10_000
"""Statements kept as text; a table of many columns could have as many sets of changed columns as rows."""

Image = tuple[Any, ...]

_INSERT: Final = int(Op.INSERT)
_UPDATE: Final = int(Op.UPDATE)
_DELETE: Final = int(Op.DELETE)
_EXPLAINED: Final = (apsw.Error, TypeError, OverflowError, UnicodeEncodeError)


class Conflict(Struct, frozen=True):
    """A change that does not fit the row here. Holds row values: never log it.

    `expected` is the before-image (None for an insert), `found` the row here (None: no such row), `after` the
    after-image (None for a delete). `columns` are the images' names; the hidden rowid's is "rowid".
    """

    region: str
    table: str
    op: int
    seqno: int
    reason: str
    columns: tuple[str, ...]
    key: Image
    expected: Image | None
    found: Image | None
    after: Image | None


def lacks_region(region: object, where: str) -> NotFoundError:
    """The error for changes of a region that is not here."""
    return NotFoundError(
        f"the primary replicates region {region!r}, which this secondary does not have",
        where=where,
        do="Seed this secondary again: replicate -i INSTANCE seed --restart",
    )


class RowApplier:
    """Applies one region's changes through one `open_region(applier=True)` connection, in the caller's transaction.

    `seqno` is set by the caller before each transaction; it only appears in errors. After any rollback (also to a
    savepoint), and at the begin of each local transaction, call `begin()`.
    """

    def __init__(
        self, connection: apsw.Connection, definitions: Mapping[int, TableDefinition], *, region: str = ""
    ) -> None:
        """`definitions`: table id -> definition, those in force; DEFINE changes add to the applier's own copy."""
        if connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, -1):
            raise InternalError("rows are applied with triggers off: open the region with applier=True")
        self.seqno = 0
        self.passes_over: Callable[[int], bool] = lambda _partition: False
        self.region = region
        self._connection = connection
        self._definitions = dict(definitions)
        cursor = connection.cursor()
        self._execute: Callable[..., object] = cursor.execute
        self._execute_many: Callable[..., object] = cursor.executemany
        self._changes = connection.changes
        self._plans: dict[tuple[int, int, Any], str] = {}
        self.known_places: dict[tuple[int, int, Any], int | None] = {}
        self._counted: dict[tuple[int, int, Any], str] = {}
        self._sequences: dict[str, int | None] = {}
        self._own_counters = OwnCounters(connection)
        self._schema_changed = False
        self._awaited: dict[str, TableDefinition] = {}
        """Definitions that came without a statement: the last one of each table must fit in the end."""
        allow_shadow_rows(connection)

    @property
    def definitions(self) -> Mapping[int, TableDefinition]:
        """The definitions in force, by table id."""
        return self._definitions

    def begin(self) -> None:
        """Forget what an earlier local transaction may have taken back: values of sqlite_sequence, rules of ALTER."""
        if self._schema_changed:
            self._schema_changed = False
            self._connection.config(apsw.SQLITE_DBCONFIG_LEGACY_ALTER_TABLE, 0)
            self._plans.clear()
            self.known_places.clear()
        self._awaited.clear()
        for plan in self._counted:
            self._plans.pop(plan, None)
        self._counted.clear()
        self._sequences.clear()
        self._own_counters.forget()

    def define(self, table_id: int, definition: TableDefinition) -> None:
        """Take a definition into force (from the catalogue at a start or a switch). It is checked at its first use."""
        self._definitions[table_id] = definition

    def apply(self, op: int, table_id: int, arg: Any, values: Sequence[Any]) -> None:
        """Apply one change. Raises as `apply_all`."""
        self.apply_all((op, table_id, arg, values))

    def apply_all(self, changes: Sequence[Any], start: int = 0) -> int:
        """Apply a flat stream op, id, arg, values, op, … from element `start` on; returns the number of changes.

        Raises ConflictError (a row, a definition or a sequence value that is not as it should be), NotFoundError (a
        table of another region: two may have tables of one name), NotSupportedError (text that is not UTF-8, a schema
        change that is none), JournalDamagedError (images that do not fit their definition), BusyError, DiskFullError
        and what else SQLite says. The changes before the failing one have been made, the failing one has not.
        """
        if (len(changes) - start) % 4:
            raise JournalDamagedError("a change stream ends inside a change", seqno=self.seqno)
        plans = self._plans
        execute = self._execute
        changed = self._changes
        elements = islice(changes, start, None) if start else iter(changes)
        op = table_id = arg = values = None
        try:
            for op, table_id, arg, values in zip(elements, elements, elements, elements):  # noqa: B905 (checked above)
                statement = plans.get((op, table_id, arg)) or self._prepare(op, table_id, arg, values)
                if statement:
                    execute(statement, values)
                    if changed() != 1:
                        raise self._conflict(op, table_id, arg, values, None)
        except _EXPLAINED as error:
            raise self._explain(error, op, table_id, arg, values) from error
        return (len(changes) - start) // 4

    def apply_columns(
        self, ops: Sequence[Any], table_ids: Sequence[Any], arguments: Sequence[Any], values: Sequence[Any]
    ) -> None:
        """The same for changes that come by columns, as long as each other. Raises as `apply_all`."""
        done = 0
        if ops and ops.count(_INSERT) == table_ids.count(table_ids[0]) == arguments.count(0) == len(ops):
            done = self._insert_run(table_ids[0], values)
        if done < len(ops):
            columns = (ops[done:], table_ids[done:], arguments[done:], values[done:])
            self.apply_all(list(chain.from_iterable(zip(*columns, strict=True))))

    def _insert_run(self, table_id: Any, values: Sequence[Any]) -> int:
        """Insert many rows at a time; how many from the first on. Where it stops, `apply_all` says why."""
        try:
            statement = self._plans.get((_INSERT, table_id, 0)) or self._prepare(_INSERT, table_id, 0, values[0])
            assert statement is not None
            columns = self._definition(table_id).image_length
            return insert_run(self._connection, self._execute, statement, columns, values)
        except _EXPLAINED as error:
            raise self._explain(error, _INSERT, table_id, 0, values[0]) from error

    def apply_sorted(
        self, ops: Sequence[Any], table_ids: Sequence[Any], arguments: Sequence[Any], values: Sequence[Any]
    ) -> None:
        """The same changes, in the order of the rows where that comes to the same (order.py): three times as quick
        for changes here and there in a large table. Raises as `apply_all`, with one difference: after any error all
        that is known is that the changes do not fit. Roll back and apply them as they came to learn which one it is.
        """
        for run in arranged(ops, table_ids, arguments, values, self.place_of):
            if run.is_uniform and run.ops[0] != _INSERT:
                self._change_many(run.ops[0], run.table_ids[0], run.arguments[0], run.values)
            else:
                self.apply_columns(*run[:4])

    def _change_many(self, op: Any, table_id: Any, arg: Any, values: Sequence[Any]) -> None:
        """Changes of one kind, each of which must meet exactly one row."""
        before = self._connection.total_changes()
        try:
            self._execute_many(self._plans.get((op, table_id, arg)) or self._prepare(op, table_id, arg, None), values)
            missed = len(values) - (self._connection.total_changes() - before)
        except apsw.ConstraintError:
            missed = len(values)
        except _EXPLAINED as error:
            raise self._explain(error, op, table_id, arg, None) from error
        if missed:
            raise ConflictError(
                f"of {len(values)} changes up to seqno {self.seqno}, {missed} do not fit",
                where=self._connection.filename,
                seqno=self.seqno,
            )

    def has_rows(self, table: str) -> bool:
        """Whether a table of the region has any; one that is missing has none."""
        if not self._connection.table_exists("main", table):
            return False
        return bool(self._connection.execute(f"SELECT EXISTS (SELECT 1 FROM main.{quote(table)})").get)

    def place_of(self, op: Any, table_id: Any, arg: Any) -> int | None:
        """See order.PlaceOf."""
        kind = (op, table_id, arg)
        if kind not in self.known_places:
            try:
                self._prepare(op, table_id, arg, None)
                definition = self._definition(table_id)
                mask = self._mask(definition, arg) if op == _UPDATE else None
                place = statements.place_of_rowid(self._connection, definition, mask)
            except (ReplicateError, apsw.Error):
                return None  # it is said where the change is made
            self.known_places[kind] = place
        return self.known_places[kind]

    # What has no statement yet.

    def _prepare(self, op: Any, table_id: Any, arg: Any, values: Any) -> str | None:
        """The statement for (op, table, changed columns); or None after doing what is no row change."""
        if op in (_INSERT, _UPDATE, _DELETE):
            definition = self._definition(table_id)
            if len(self._plans) >= PLANS_MAX:
                # Not `forget_plans`: a counter is compared with what it was before this transaction's own inserts.
                self._plans.clear()
                self.known_places.clear()
            check_definition(self._connection, definition, seqno=self.seqno)
            rowid = statements.local_rowid_name(self._connection, definition)
            if op == _UPDATE:
                statement = statements.update(definition, rowid, self._mask(definition, arg))
            elif arg != 0:
                raise self._unfit(table_id, f"a change of kind {op} carries an argument")
            elif op == _DELETE:
                statement = statements.delete(definition, rowid)
            else:
                statement = statements.insert(definition, rowid)
                if is_autoincrement(self._connection, definition.table):
                    self._counted[op, table_id, arg] = definition.table
                    self._sequence(definition.table)
                    self._own_counters.expect(definition)
            self._plans[op, table_id, arg] = statement
            return statement
        if op == Op.SCHEMA:
            self._change_schema(values)
        elif op == Op.DEFINE:
            self._take_definition(table_id, values)
        elif op == Op.SEQUENCE:
            self._set_sequence(table_id, values)
        elif op == Op.REGION and values[0] in OF_WRITERS:
            write_writer(self._connection, table_id, values, self.seqno)
            self._own_counters.take_places()
        elif op == Op.SEEN:
            write_seen(self._connection, *told_of(values))
        elif op == Op.RESOLVED:
            self._note_losses(values)
        elif op not in TELLS_ONLY:
            raise FormatUnknownError(f"a change of the unknown kind {op}", seqno=self.seqno)
        return None

    def forget_plans(self) -> None:
        """Prepare all statements again at their next use (the schema has changed)."""
        self._plans.clear()
        self.known_places.clear()
        self._counted.clear()
        self._sequences.clear()

    def _definition(self, table_id: Any) -> TableDefinition:
        try:
            found = self._definitions[table_id]
            if found.region != self.region and self.region:  # it may have a table here of the same name and columns
                raise lacks_region(found.region, self._connection.filename)
            return found
        except (KeyError, TypeError):
            raise JournalDamagedError(
                f"a change of table id {table_id!r}, which was not defined before it",
                where=self._connection.filename,
                seqno=self.seqno,
            ) from None

    def _mask(self, definition: TableDefinition, arg: Any) -> int:
        if isinstance(arg, bytes):
            arg = int.from_bytes(arg, "little")
        if not isinstance(arg, int) or arg < 0 or arg >> definition.image_length:
            raise JournalDamagedError(
                f"the changed-column mask {arg!r} does not fit table {definition.table}", seqno=self.seqno
            )
        return arg

    def _change_schema(self, values: Any) -> None:
        if not isinstance(values, list | tuple) or len(values) != 1 or not isinstance(values[0], str):
            raise JournalDamagedError("a schema change carries no statement", seqno=self.seqno)
        self.forget_plans()
        self._schema_changed = True
        others, listed = own_tables(self._connection), listed_tables(self._connection)
        statements.run_schema_change(self._connection, values[0], seqno=self.seqno)
        blank_new_columns(self._connection, listed)
        forget_dropped(self._connection)
        forget_stamps(self._connection, self.seqno)
        install_guards(self._connection, [one for one in guarded_tables(self._connection) if one not in others])
        allow_shadow_rows(self._connection)
        store_schema_version(self._connection)

    def _note_losses(self, values: Any) -> None:
        """A transaction that was merged elsewhere, or here by a process that was killed, tells what was lost."""
        if values:
            note_losses(self._connection, self.seqno, losses_in(self.region, values[2]))

    def _take_definition(self, table_id: Any, values: Any) -> None:
        definition = TableDefinition.unpack(values)
        if definition.table_id != table_id:
            raise JournalDamagedError(
                f"the definition of table {definition.table} does not carry its own id", seqno=self.seqno
            )
        known = recorded_definition(self._connection, definition.table)
        if self._schema_changed:
            check_definition(self._connection, definition, seqno=self.seqno)
        elif self.passes_over(definition.partition) and not self._connection.table_exists("main", definition.table):
            self._definitions[table_id] = definition  # a load asks for the table
            return
        else:
            self._refuse_made_again(known, definition)
            self._awaited[definition.table] = definition
        record_definition(self._connection, definition)
        if known not in (None, definition) and not self._schema_changed:
            # No statement came with it: its partition, or what tells its rows, is another one.
            have_tables_read_again(self._connection)
            store_schema_version(self._connection)
        self._definitions[table_id] = definition

    def _refuse_made_again(self, known: TableDefinition | None, definition: TableDefinition) -> None:
        """ConflictError where the primary has dropped a table and made it again, the statements have not come, and rows
        of the former one are here."""
        is_again = known is not None and known != definition == replace(known, version=definition.version)
        if is_again and self.has_rows(definition.table):
            raise ConflictError(
                f"table {definition.table} was dropped and made again on the primary (transaction {self.seqno}): rows "
                "of the former one are here",
                where=self._connection.filename,
                do="Drop it and make it again here, too: replicate -i INSTANCE schema run FILE",
                table=definition.table,
                seqno=self.seqno,
            )

    def check_awaited(self) -> None:
        """At the end of a transaction: each table fits what it was last defined as, where the statement that changed it
        has not come. ConflictError."""
        for definition in self._awaited.values():
            check_definition(self._connection, definition, seqno=self.seqno)
        self._awaited.clear()

    def change_own(self, texts: Sequence[str]) -> None:
        """Run schema changes of the operator's, which are in no stream. What was recorded of a table that is dropped
        and made again stays. UsageError names the one that fails; the caller rolls back then."""
        before = recorded_definitions(self._connection)
        for number, text in enumerate(texts, 1):
            try:
                self._change_schema([text])
            except (ConflictError, NotSupportedError) as error:
                raise UsageError(
                    f"statement {number} fails here: {error.__cause__ or error.what}",
                    where=self._connection.filename,
                    do="Nothing was changed: correct the file, and run it again",
                ) from error
        for one in before:
            if self._connection.table_exists("main", one.table) and not recorded_definition(
                self._connection, one.table
            ):
                record_definition(self._connection, one)

    # sqlite_sequence: inserts raise it here as they did there; what counts is its value before the transaction.

    def _sequence(self, table: str) -> int | None:
        if table not in self._sequences:
            self._sequences[table] = sequence_value(self._connection, table)
        return self._sequences[table]

    def _set_sequence(self, table_id: Any, values: Any) -> None:
        definition = self._definition(table_id)
        if not isinstance(values, list | tuple) or len(values) != 2:
            raise self._unfit(table_id, "a sequence change carries no two values")
        old, new = values
        if self._own_counters.is_own(definition.partition):
            return
        found = self._sequence(definition.table)
        if found != old and not self._own_counters.may_differ():
            raise self._error(
                definition,
                int(Op.SEQUENCE),
                "the AUTOINCREMENT sequence differs",
                ("seq",),
                (),
                (old,),
                (found,),
                (new,),
            )
        statements.set_sequence(self._connection, definition.table, new)
        self._sequences[definition.table] = new

    def look_at_own_counters(self) -> None:
        """Have `finish` look at every table that several suppliers write."""
        self._own_counters.take_places()

    def finish(self) -> None:
        """Before COMMIT: `check_awaited`, and counters of tables that several suppliers write are in the own range.
        ConflictError."""
        if self._awaited:
            self.check_awaited()
        if self._own_counters.moved:
            self._own_counters.settle()

    def settle_sequences(self) -> None:
        """At the end of a local transaction that took changes back: a row that was put back may have raised a counter
        that its deletion had left alone. Each stands where the changes say."""
        for table in self._sequences:
            self._put_back_sequence(table)

    def _put_back_sequence(self, table: str) -> None:
        if sequence_value(self._connection, table) != self._sequences[table]:
            statements.set_sequence(self._connection, table, self._sequences[table])

    # For a replay, which applies the net change of many transactions.

    def apply_run(self, op: int, table_id: int, arg: Any, values: Sequence[Any]) -> None:
        """Changes of one kind, each of another row. Raises as `apply_sorted`, and no more is known then, either."""
        done = self._insert_run(table_id, values) if op == _INSERT else 0
        if done < len(values):
            self._change_many(op, table_id, arg, values[done:])

    def unique_ordinals(self, table_id: int) -> frozenset[int] | None:
        """Ordinals in the image of all columns that stand in a unique index here; None: it may depend on any column."""
        return statements.unique_ordinals(self._connection, self._definition(table_id))

    def check_absent(self, table_id: int, key: Image) -> None:
        """ConflictError, as for an insert, when a row with exactly this key is here."""
        definition = self._definition(table_id)
        check_definition(self._connection, definition, seqno=self.seqno)
        rowid = statements.local_rowid_name(self._connection, definition)
        found = statements.read_image(self._connection, definition, rowid, definition.key, key)
        # The table may take other values for the same key: 1 and 1.0, or 'a' and 'A' under a collation.
        here = None if found is None else tuple(found[ordinal] for ordinal in definition.key)
        if here == key and list(map(type, here)) == list(map(type, key)):
            columns = (("rowid",) if definition.rowid else ()) + tuple(column.name for column in definition.columns)
            raise self._error(definition, _INSERT, "the row exists already", columns, key, None, found, None)

    def keep_sequence(self, table_id: int) -> None:
        """Put the AUTOINCREMENT counter back to where it was at this transaction's begin, if inserts moved it."""
        table = self._definition(table_id).table
        if table in self._sequences:
            self._put_back_sequence(table)

    # Errors.

    def _explain(self, error: Exception, op: Any, table_id: Any, arg: Any, values: Any) -> ReplicateError:
        """Our error for what SQLite or the binding of a value raised."""
        if isinstance(error, apsw.ConstraintError):
            return self._conflict(op, table_id, arg, values, error)
        if isinstance(error, apsw.BindingsError):
            return self._unfit(table_id, f"an image does not fit the table's definition: {error}")
        if isinstance(error, apsw.Error):
            return translate(error, where=self._connection.filename)
        return self._unbound(table_id, values, error)

    def _conflict(
        self, op: Any, table_id: Any, arg: Any, values: Any, error: apsw.ConstraintError | None
    ) -> ConflictError | JournalDamagedError:
        """The ConflictError of a row change that met another row than it expected."""
        definition = self._definition(table_id)
        expected: Image | None = tuple(values)
        after: Image | None = tuple(values)
        if op == _UPDATE:
            mask = self._mask(definition, arg)
            expected = tuple(values[mask.bit_count() :])
            changed = iter(values)
            after = tuple(next(changed) if mask >> i & 1 else value for i, value in enumerate(expected))
        elif op == _INSERT:
            expected = None
        else:
            after = None
        rowid = statements.local_rowid_name(self._connection, definition)
        before = after if expected is None else expected
        assert before is not None
        key = tuple(before[ordinal] for ordinal in definition.key)
        found = statements.read_image(self._connection, definition, rowid, definition.key, key)
        if error is not None and (op != _INSERT or found is None):
            reason = str(error)
            assert after is not None
            found = statements.read_rival(self._connection, definition, rowid, reason, after) or found
        elif op == _INSERT:
            reason = "the row exists already"
        elif found is None:
            reason = "the row is missing"
        else:
            reason = "the row differs from its before-image"
        columns = (("rowid",) if definition.rowid else ()) + tuple(column.name for column in definition.columns)
        return self._error(definition, op, reason, columns, key, expected, found, after)

    def _error(
        self,
        definition: TableDefinition,
        op: int,
        reason: str,
        columns: tuple[str, ...],
        key: Image,
        expected: Image | None,
        found: Image | None,
        after: Image | None,
    ) -> ConflictError:
        names = {_INSERT: "insert", _UPDATE: "update", _DELETE: "delete"}
        error = ConflictError(
            f"{names.get(op, 'sequence')} in table {definition.table}, key {_key_text(key)}, "
            f"seqno {self.seqno}: {reason}",
            where=self._connection.filename,
            do="Another client wrote here, or an earlier step failed: compare the sites, then seed this region again",
            table=definition.table,
            key=_key_text(key),
            seqno=self.seqno,
            reason=reason,
        )
        error.conflict = Conflict(
            self.region, definition.table, int(op), self.seqno, reason, columns, key, expected, found, after
        )
        return error

    def _unfit(self, table_id: Any, what: str) -> JournalDamagedError:
        definition = self._definitions.get(table_id) if isinstance(table_id, int) else None
        table = definition.table if definition else repr(table_id)
        return JournalDamagedError(f"{what} (table {table}, seqno {self.seqno})", table=table, seqno=self.seqno)

    def _unbound(self, table_id: Any, values: Any, error: Exception) -> NotSupportedError | JournalDamagedError:
        raw = isinstance(values, list | tuple) and any(isinstance(value, msgpack.ExtType) for value in values)
        if raw or isinstance(error, UnicodeEncodeError):
            table = self._definition(table_id).table
            return NotSupportedError(
                f"table {table}, seqno {self.seqno}: a text value is not valid UTF-8",
                where=self._connection.filename,
                do="Store such bytes as BLOB on the primary, and seed this region again",
                table=table,
                seqno=self.seqno,
            )
        return self._unfit(table_id, f"a value cannot be stored: {error}")


def _key_text(key: Image) -> str:
    text = ", ".join(repr(value) for value in key)
    return f"({text if len(text) <= 200 else text[:200] + '…'})"
