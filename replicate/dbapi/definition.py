"""Schema changes of an application: run in a savepoint of their own, captured as text and as what they made of the
tables.

Guarantees: a schema change is captured whole, guards of new tables included, or it leaves the transaction as it was;
what could not be replicated exactly is refused by name before it runs. Refuses to know: how transactions begin and
end (dbapi/transaction.py, of which this is a part).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from replicate.database.capture import Capture
from replicate.database.capture_several import SeveralCaptures
from replicate.database.capture_tables import TableMap, read_table_map
from replicate.database.guards import install_guards
from replicate.database.names import OWN_PREFIX, fold, quote
from replicate.database.own_functions import names_used
from replicate.database.row_statements import LEGACY_ALTER
from replicate.database.schema import (
    ROWID_NAMES,
    guarded_tables,
    record_definitions,
    recorded_definitions,
    rowid_name,
)
from replicate.database.statements import Statement, qualifies
from replicate.database.virtual_tables import check_module
from replicate.dbapi.returned import Rows
from replicate.errors import NotSupportedError


class SchemaChanges:
    """The part of a connection's transactions that changes the schema."""

    connection: apsw.Connection
    capture: Capture | SeveralCaptures
    region: str
    inside: bool
    own_changes: int
    functions: set[str]
    _execute: Callable[..., apsw.Cursor]
    _settle: Callable[[], None]
    _map: tuple[int, TableMap] | None
    _used: dict[str, tuple[int, frozenset[str]]]

    def _region_schemas(self) -> tuple[str, ...]:
        raise AssertionError("the transaction's own")

    def _capture_of(self, schema: str) -> Capture:
        raise AssertionError("the transaction's own")

    def _forget_map(self, schema: str) -> None:
        raise AssertionError("the transaction's own")

    def _define(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> Rows:
        """Run and capture a schema change of a region, or of several (ANALYZE); they are held."""
        connection, capture = self.connection, self.capture
        last_rowid, before = connection.last_insert_rowid(), connection.total_changes()
        if capture.restless:
            self._settle()
        self.inside = True
        capture.close_sequences()
        capture.deaf = statement.kind == "VIRTUAL TABLE"
        mark, saved = capture.mark(), False
        try:
            connection.execute("SAVEPOINT _replicate_define")  # refused while a writing statement calls us
            saved = True
            versions = {schema: self._schema_version(schema) for schema in self._region_schemas()}
            self.inside = False
            cursor.execute(statement.text, bindings)
            rows: Rows = list(cursor)
            self.inside = True
            for schema, version in versions.items():
                if self._schema_version(schema) != version:
                    self._capture_definition(statement, schema)
            refused = capture.refused if mark.refusal is None else None
            if refused is not None:
                raise refused
        except BaseException:
            self.inside = True
            if saved and connection.in_transaction:
                connection.execute("ROLLBACK TO _replicate_define")
                connection.execute("RELEASE _replicate_define")
                capture.cut(mark)
            raise
        finally:
            self.inside = capture.deaf = False
        connection.execute("RELEASE _replicate_define")
        connection.set_last_insert_rowid(last_rowid)
        self.own_changes += connection.total_changes() - before
        return rows

    def _check_definable(self, statement: Statement) -> None:
        kind, words = statement.kind, statement.words
        # SQLite would keep the name in the text, and could not read the file under another one.
        if (
            kind in ("VIEW", "TRIGGER")
            and statement.schema not in ("", "main")
            and statement.qualifier is not None
            and qualifies(statement.text, statement.schema, statement.qualifier[1] + 1)
        ):
            raise NotSupportedError(
                f"the text of {kind.lower()} {statement.name} names its own database as {statement.schema}: the file "
                "could not be opened under another name",
                where=self.region,
                do=f"Leave {statement.schema}. out behind the name of the {kind.lower()}",
            )
        if statement.keyword == "ALTER" and self._legacy() and self.connection.pragma("foreign_keys"):
            raise NotSupportedError(
                "ALTER TABLE under legacy_alter_table does something else with foreign_keys on than with them off, as "
                "they are on the other site",
                where=self.region,
                do="PRAGMA legacy_alter_table = OFF, or PRAGMA foreign_keys = OFF before the transaction",
            )
        if kind == "VIRTUAL TABLE":
            check_module(statement.name, statement.argument or "", where=self.region)
        ours = next((word for word in sorted(words) if word.startswith(OWN_PREFIX)), None)
        if ours is not None:
            raise NotSupportedError(
                f"{ours} belongs to replication's bookkeeping, or bears a name that is kept for it",
                where=self.region,
                do="Use another name; to take the bookkeeping out run: replicate -i INSTANCE region release NAME",
            )
        mine = sorted(words & self.functions) if kind in ("TABLE", "INDEX", "UNIQUE") else []
        if mine and statement.keyword in ("CREATE", "ALTER"):
            raise NotSupportedError(
                f"{statement.kind} {statement.name} would need {mine[0]}, a function or collation that only this "
                "connection has; the other site could not write such a table",
                where=self.region,
                do="Register it on both sites (region.init), or use what SQLite itself brings",
            )

    def _capture_definition(self, statement: Statement, schema: str) -> None:
        """The schema has changed under the region lock: the statement's text travels, then what it made of the
        tables."""
        connection, capture = self.connection, self._capture_of(schema)
        text = statement.text if schema == "main" else statement.as_main(schema)
        if statement.selects:
            text = str(
                connection.execute(
                    f"SELECT sql FROM {quote(schema)}.sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE",
                    (statement.name,),
                ).get
            )
        on, off = LEGACY_ALTER if statement.keyword == "ALTER" and self._legacy() else ("", "")
        for one in (on, text, off):
            if one:
                capture.statement(one)
        if statement.kind == "TABLE":
            install_guards(connection, guarded_tables(connection, schema), schema)
        recorded = record_definitions(connection, region=capture.region, schema=schema)
        capture.redefine(recorded.changed, read_table_map(connection, recorded.definitions, schema))
        self._forget_map(schema)
        if statement.selects or statement.kind == "VIRTUAL TABLE":  # no hook told of these rows, or it was not heard
            for definition in recorded.changed:
                hidden = rowid_name([column.name for column in definition.columns]) or ROWID_NAMES[0]
                names = ([hidden] if definition.rowid else []) + [quote(c.name) for c in definition.columns]
                table = quote(definition.table)
                capture.insert(
                    definition.table,
                    connection.execute(f"SELECT {', '.join(names)} FROM {quote(schema)}.{table}", can_cache=False),
                )

    def bring(self, name: str) -> None:
        """The connection is to get a function or collation of its own. NotSupportedError if that would be felt."""
        known = fold(name) in self.functions
        self.functions.add(fold(name))
        try:
            self._check_functions()
        except NotSupportedError:
            if not known:
                self.functions.discard(fold(name))
            raise

    def _check_functions(self) -> None:
        if not self.functions:
            return
        inside, self.inside = self.inside, True  # the application's authorizer is not asked about what we read
        try:
            names = {name for schema in self._region_schemas() for name in self._names_used(schema)}
        finally:
            self.inside = inside
        used = sorted(self.functions & names)
        if used:
            raise NotSupportedError(
                f"an index, a generated column or a collation of this region depends on {used[0]}; with a function or "
                "collation of that name which only this connection has, the other site would hold other values",
                where=self.region,
                do=f"Register it under another name than {used[0]}",
            )

    def _names_used(self, schema: str) -> frozenset[str]:
        """`names_used`, read once for each version of the schema: an application may register dozens of functions with
        each connection (Django does), and reading all of it for each took seconds."""
        version = self._schema_version(schema)
        known = self._used.get(schema)
        if known is None or known[0] != version:
            known = (version, names_used(self.connection, schema))
            if not self.capture.active:  # else this version may be taken back, and the next schema bear its number
                self._used[schema] = known
        return known[1]

    def _legacy(self) -> bool:
        return bool(self.connection.config(apsw.SQLITE_DBCONFIG_LEGACY_ALTER_TABLE, -1))

    def _schema_version(self, schema: str = "main") -> int:
        version: Any = self._execute(f"PRAGMA {quote(schema)}.schema_version").get
        return int(version)

    def _tables(self) -> TableMap:
        version = self._schema_version()
        if self._map is None or self._map[0] != version:
            self._check_functions()
            self._map = (version, read_table_map(self.connection, recorded_definitions(self.connection)))
        return self._map[1]
