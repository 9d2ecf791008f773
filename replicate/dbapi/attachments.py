"""ATTACH and DETACH on a connection to a region: other regions of its instance, plain databases, and those in memory.

Guarantees: a region of the same instance that is attached is written like the connection's own, in the same
transaction. A plain SQLite file is attached for reading only; a write to it is refused by name. A region of another
instance, one that is here already, and one that is attached or detached within a transaction are refused by name, and
nothing is attached then. No file is created.
Leaves to others: locks and commits (door/primary.py), and how an instance is opened (dbapi/open.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import apsw

from replicate.dbapi.connection_functions import ConnectionFunctions
from replicate.dbapi.region_access import Neighbours
from replicate.dbapi.region_tables import RegionTables
from replicate.dbapi.regions import Regions
from replicate.errors import NotSupportedError
from replicate.region.sqlite.sql.names import fold, quote
from replicate.region.sqlite.sql.statements import Statement, file_query

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


class Attachments:
    """What one connection has attached. `neighbours`: None where nothing can be attached but databases in memory."""

    def __init__(
        self, regions: Regions, functions: ConnectionFunctions, tables: RegionTables, neighbours: Neighbours | None
    ) -> None:
        self._regions = regions
        self._functions = functions
        self._tables = tables
        self._neighbours = neighbours
        self._plain: frozenset[str] = frozenset()
        """Names under which databases are attached for reading only."""

    def attach(
        self, statement: Statement, bindings: Any, natively: Callable[[], None], tell: Callable[[str], object] | None
    ) -> None:
        """Run an ATTACH. `natively` has SQLite run it as it is; `tell` is told its text otherwise.

        Raises NotSupportedError for what must not be attached, and what SQLite says; nothing is attached then.
        """
        regions, neighbours = self._regions, self._neighbours
        told = self._told(statement, bindings)
        if told is not None and not told[1]:
            raise NotSupportedError(
                "a database cannot be attached without a name",
                where=regions.region,
                do="Give it one: ATTACH … AS name",
            )
        if told is None or told[0] in _IN_MEMORY:
            natively()
            regions.capture.foreign = True
            return
        if tell is not None:
            tell(statement.text)
        file, schema = told[:2]
        if neighbours is None:
            raise NotSupportedError(
                "this connection can attach databases in memory only",
                where=regions.region,
                do="Open the other database with a connection of its own",
            )
        if file.startswith("file:"):
            raise NotSupportedError(
                "a URI cannot be attached",
                where=regions.region,
                do="Name the file by its path: ATTACH 'other.db' AS x",
            )
        region = neighbours.region_at(file)
        if region is None:
            neighbours.attach_plain(file, schema, self._run)
            self._plain |= {schema}
        else:
            self._attach_region(neighbours, region, schema)
        regions.capture.foreign = True

    def detach(self, statement: Statement, bindings: Any, natively: Callable[[], None]) -> None:
        """Run a DETACH. Raises NotSupportedError for a region within a transaction, and what SQLite says."""
        regions, neighbours = self._regions, self._neighbours
        told = self._told(statement, bindings)
        wanted = fold(told[0]) if told is not None else ""
        schema = next((name for name in (*regions.schemas[1:], *self._plain) if fold(name) == wanted), None)
        if schema in regions.schemas and regions.connection.in_transaction:
            raise NotSupportedError(
                f"{schema} is a region, and cannot be detached within a transaction",
                where=regions.region,
                do="Commit or roll back first",
            )
        natively()
        if schema is not None and neighbours is not None and not self._is_attached(schema):
            self._gone(neighbours, schema)

    def refuse_plain(self, action: int, name: str | None, database: str | None) -> None:
        """For an authorizer: NotSupportedError for a write to a database that is attached for reading."""
        if database in self._plain and action in _WRITES:
            raise NotSupportedError(
                f"{database} is no region of this instance, and attached for reading only: what is written there "
                "could not be one transaction with the region",
                where=self._regions.region,
                do="Write to it through a connection of its own, or make it a region: replicate -i INSTANCE region add",
                table=name,
            )

    def _told(self, statement: Statement, bindings: Any) -> list[str] | None:
        """The values that the statement is given, as SQLite sees them; None if SQLite should say what is wrong."""
        query = file_query(statement.text)
        if query is None:
            return None
        regions = self._regions
        values = regions.quietly(lambda: regions.connection.execute(query, bindings, can_cache=False).fetchone())
        assert values is not None
        return [
            os.fsdecode(value) if isinstance(value, bytes) else str("" if value is None else value) for value in values
        ]

    def _run(self, text: str) -> None:
        """An ATTACH of the application's: its authorizer is asked."""
        regions = self._regions
        inside, regions.inside = regions.inside, False
        try:
            regions.connection.execute(text, can_cache=False)
        finally:
            regions.inside = inside

    def _attach_region(self, neighbours: Neighbours, region: str, schema: str) -> None:
        regions = self._regions
        if regions.connection.in_transaction:
            raise NotSupportedError(
                f"region {region} cannot be attached within a transaction: its lock is taken before that begins",
                where=regions.region,
                do="ATTACH it before BEGIN and before the first write",
            )
        # An interrupt may come after SQLite's ATTACH: nothing is written there before its changes are captured.
        is_taken = self._is_attached(schema)  # by another one, and SQLite will say so
        if not is_taken:
            self._plain |= {schema}
        regions.inside = True
        try:
            neighbours.attach(region, schema, self._run, self._functions.names)
        except BaseException:
            if not is_taken and not self._is_attached(schema):
                self._plain -= {schema}
            raise
        finally:
            regions.inside = False
        regions.add(region, schema, self._tables.read_attached)
        try:
            self._functions.check()
        except BaseException:
            regions.connection.execute(f"DETACH {quote(schema)}", can_cache=False)
            self._gone(neighbours, schema)
            raise
        self._plain -= {schema}

    def _is_attached(self, schema: str) -> bool:
        regions = self._regions
        query = "PRAGMA database_list"
        found = regions.quietly(lambda: regions.connection.execute(query, can_cache=False).fetchall())
        return any(fold(str(row[1])) == fold(schema) for row in found)

    def _gone(self, neighbours: Neighbours, schema: str) -> None:
        neighbours.detached(schema)
        self._plain -= {schema}
        if schema in self._regions.schemas:
            self._regions.remove(schema)
            self._tables.forget(schema)
            self._functions.forget(schema)
