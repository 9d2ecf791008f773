"""ATTACH and DETACH on a connection to a region: other regions of its instance, plain databases, and those in memory.

Guarantees: a region of the same instance that is attached is written like the connection's own, in the same
transaction; a plain SQLite file is attached for reading only, and a write to it is refused by name; a region of
another instance, one that is here already, and one that is attached or detached in the midst of a transaction are
refused by name, and nothing is attached then. Nothing is created.
Refuses to know: locks and commits (commit/attached.py), and how an instance is opened (dbapi/open.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final, Protocol

import apsw

from replicate.database.capture import Capture
from replicate.database.capture_several import SeveralCaptures
from replicate.database.capture_tables import TableMap, read_table_map
from replicate.database.guards import OURS
from replicate.database.names import fold, quote
from replicate.database.schema import recorded_definitions
from replicate.database.statements import Statement, file_query
from replicate.dbapi.definition import SchemaChanges
from replicate.errors import NotSupportedError

if TYPE_CHECKING:
    from replicate.journal.spool import Spool

_IN_MEMORY: Final = ("", ":memory:")
_WRITES: Final = frozenset(
    (
        apsw.SQLITE_INSERT,
        apsw.SQLITE_UPDATE,
        apsw.SQLITE_DELETE,
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_CREATE_VIEW,
        apsw.SQLITE_CREATE_VTABLE,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_DROP_VIEW,
        apsw.SQLITE_DROP_VTABLE,
        apsw.SQLITE_DROP_TRIGGER,
        apsw.SQLITE_DROP_INDEX,
    )
)


class Neighbours(Protocol):
    """What else a connection may attach (dbapi/open.py)."""

    def region_at(self, file: str) -> str | None:
        """The region of the connection's instance that is in that file; None if it is none."""

    def path_of(self, region: str) -> str:
        """Where the file of a region of the connection's instance is."""

    def attach(self, region: str, schema: str, run: Callable[[str], object], taken: AbstractSet[str]) -> None:
        """Attach that region to the session's connection. `run` runs the statement; `taken`: names of functions and
        collations that the application has given the connection."""

    def attach_plain(self, file: str, schema: str, run: Callable[[str], object]) -> None:
        """Attach a plain database for reading."""

    def detached(self, schema: str) -> None:
        """What was attached under that name is no longer."""

    def version_of(self, schema: str) -> int:
        """The schema version of an attached region as the open transaction found it."""


class Attaching(SchemaChanges):
    """The part of a connection's transactions that attaches. `neighbours`: None where nothing can be attached but
    databases in memory."""

    spool_factory: Callable[[], Spool]
    tell: Callable[[str], object] | None
    neighbours: Neighbours | None

    def _natively(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        raise AssertionError("the transaction's own")

    def clear_attached(self) -> None:
        """Nothing is attached."""
        self.neighbours = None
        self._schemas: tuple[str, ...] = ("main",)
        self._names: dict[str, str] = {"": "main", "main": "main"}
        self._plain: frozenset[str] = frozenset()
        self.guarded: frozenset[str | None] = OURS
        self._maps: dict[str, tuple[int, TableMap]] = {}
        self._used = {}

    # Which databases are regions.

    def is_region(self, schema: str) -> bool:
        """Whether the qualifier `schema` (in lower case; "" for none) is that of a region."""
        return schema in self._names

    def name_of(self, schema: str) -> str:
        """The name under which the region of a qualifier is attached, as it was written."""
        return self._names[schema]

    def _region_schemas(self) -> tuple[str, ...]:
        return self._schemas

    def _capture_of(self, schema: str) -> Capture:
        capture = self.capture
        return capture.of(schema) if isinstance(capture, SeveralCaptures) else capture

    def _forget_map(self, schema: str) -> None:
        self._map = None
        self._maps.pop(schema, None)

    def refuse_plain(self, action: int, name: str | None, database: str | None) -> None:
        """For an authorizer: NotSupportedError for a write to a database that is attached for reading."""
        if database in self._plain and action in _WRITES:
            raise NotSupportedError(
                f"{database} is no region, and attached for reading only: what is written there could not be one "
                "transaction with the region",
                where=self.region,
                do="Write to it through a connection of its own, or make it a region: replicate -i INSTANCE region add",
                table=name,
            )

    # ATTACH and DETACH.

    def _told(self, statement: Statement, bindings: Any) -> list[str] | None:
        """The values that the statement is given, as SQLite sees them; None if SQLite should say what is wrong."""
        query = file_query(statement.text)
        if query is None:
            return None
        inside, self.inside = self.inside, True
        try:
            values = self.connection.execute(query, bindings, can_cache=False).fetchone()
        finally:
            self.inside = inside
        assert values is not None
        return [
            os.fsdecode(value) if isinstance(value, bytes) else str("" if value is None else value) for value in values
        ]

    def _attach(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        told = self._told(statement, bindings)
        if told is not None and not told[1]:
            raise NotSupportedError(
                "a database can not be attached without a name", where=self.region, do="Give it one: ATTACH … AS name"
            )
        if told is None or told[0] in _IN_MEMORY:
            self._natively(cursor, statement, bindings)
            self.capture.foreign = True
            return
        if self.tell is not None:
            self.tell(statement.text)
        file, schema = told[:2]
        if self.neighbours is None:
            raise NotSupportedError(
                "this connection can attach databases in memory only",
                where=self.region,
                do="Open the other database with a connection of its own",
            )
        if file.startswith("file:"):
            raise NotSupportedError(
                "a URI can not be attached", where=self.region, do="Name the file by its path: ATTACH 'other.db' AS x"
            )
        region = self.neighbours.region_at(file)
        if region is None:
            self.neighbours.attach_plain(file, schema, self._run)
            self._plain |= {schema}
        else:
            self._attach_region(self.neighbours, region, schema)
        self.capture.foreign = True

    def _run(self, text: str) -> None:
        """An ATTACH of the application's: its authorizer is asked."""
        inside, self.inside = self.inside, False
        try:
            self.connection.execute(text, can_cache=False)
        finally:
            self.inside = inside

    def _attach_region(self, neighbours: Neighbours, region: str, schema: str) -> None:
        if self.connection.in_transaction:
            raise NotSupportedError(
                f"region {region} can not be attached within a transaction: its lock is taken before that begins",
                where=self.region,
                do="ATTACH it before BEGIN and before the first write",
            )
        # An interrupt may come behind SQLite's ATTACH: nothing is written there before its changes are captured.
        is_taken = self._is_attached(schema)  # by another one, and SQLite will say so
        if not is_taken:
            self._plain |= {schema}
        self.inside = True
        try:
            neighbours.attach(region, schema, self._run, self.functions)
        except BaseException:
            if not is_taken and not self._is_attached(schema):
                self._plain -= {schema}
            raise
        finally:
            self.inside = False
        capture = self.capture
        if not isinstance(capture, SeveralCaptures):
            capture = self.capture = SeveralCaptures(capture, self.spool_factory, self._tables_of)
        capture.home.foreign = True
        capture.add(self.connection, region, schema)
        self._schemas += (schema,)
        self._names[fold(schema)] = schema
        self.guarded |= {schema}
        try:
            self._check_functions()
        except BaseException:
            self.connection.execute(f"DETACH {quote(schema)}", can_cache=False)
            self._gone(neighbours, schema)
            raise
        self._plain -= {schema}

    def _is_attached(self, schema: str) -> bool:
        inside, self.inside = self.inside, True
        try:
            found = self.connection.execute("PRAGMA database_list", can_cache=False).fetchall()
        finally:
            self.inside = inside
        return any(fold(str(row[1])) == fold(schema) for row in found)

    def _detach(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> None:
        told = self._told(statement, bindings)
        wanted = fold(told[0]) if told is not None else ""
        schema = next((name for name in (*self._schemas[1:], *self._plain) if fold(name) == wanted), None)
        if schema in self._schemas and self.connection.in_transaction:
            raise NotSupportedError(
                f"{schema} is a region, and can not be detached within a transaction",
                where=self.region,
                do="Commit or roll back first",
            )
        self._natively(cursor, statement, bindings)
        if schema is not None and self.neighbours is not None and not self._is_attached(schema):
            self._gone(self.neighbours, schema)

    def _gone(self, neighbours: Neighbours, schema: str) -> None:
        neighbours.detached(schema)
        self._plain -= {schema}
        if schema not in self._schemas:
            return
        self._schemas = tuple(name for name in self._schemas if name != schema)
        del self._names[fold(schema)]
        self.guarded -= {schema}
        self._maps.pop(schema, None)
        self._used.pop(schema, None)
        capture = self.capture
        assert isinstance(capture, SeveralCaptures)
        capture.remove(schema)
        if len(self._schemas) == 1:
            self.capture = capture.home

    def _tables_of(self, schema: str) -> TableMap:
        """The tables of an attached region, as the transaction that begins sees them."""
        assert self.neighbours is not None
        version = self.neighbours.version_of(schema)
        known = self._maps.get(schema)
        if known is None or known[0] != version:
            self._check_functions()
            definitions = recorded_definitions(self.connection, schema)
            known = self._maps[schema] = (version, read_table_map(self.connection, definitions, schema))
        return known[1]
