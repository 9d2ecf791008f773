"""Schema changes of an application: run in a savepoint of their own, captured as text and as what they made of the
tables.

Guarantees: a schema change is captured whole, guards of new tables included, or it leaves the transaction as it was;
what could not be replicated exactly is refused by name before it runs.
Leaves to others: taking the region, and committing (dbapi/transaction.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from replicate.dbapi.connection_functions import ConnectionFunctions
from replicate.dbapi.region_tables import RegionTables
from replicate.dbapi.regions import Regions
from replicate.dbapi.returned_rows import Rows
from replicate.errors import NotSupportedError
from replicate.limits import PARTITION_STREAM
from replicate.model.elements import DEFINITION
from replicate.model.rowid import ROWID_NAMES, rowid_name
from replicate.model.transaction import TableDefinition
from replicate.region.sqlite.allowed_definitions import check_definable, check_travelling
from replicate.region.sqlite.apply.statements import LEGACY_ALTER
from replicate.region.sqlite.capture.capture import Capture
from replicate.region.sqlite.capture.marks import Mark
from replicate.region.sqlite.capture.tables import read_table_map
from replicate.region.sqlite.guards import install_guards
from replicate.region.sqlite.schema import guarded_tables, record_definitions
from replicate.region.sqlite.sql.elements import element_of
from replicate.region.sqlite.sql.names import fold, quote
from replicate.region.sqlite.sql.statements import Statement, qualifies
from replicate.region.sqlite.wide_rows import read_rows


class Definitions:
    """The schema changes of one connection."""

    def __init__(self, regions: Regions, functions: ConnectionFunctions, tables: RegionTables) -> None:
        self._regions = regions
        self._functions = functions
        self._tables = tables

    def check(self, statement: Statement) -> None:
        """NotSupportedError for what could not be replicated exactly."""
        where = self._regions.region
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
                where=where,
                do=f"Leave {statement.schema}. out after the name of the {kind.lower()}",
            )
        if statement.keyword == "ALTER" and self._legacy() and self._regions.connection.pragma("foreign_keys"):
            raise NotSupportedError(
                "ALTER TABLE under legacy_alter_table does something else with foreign_keys on than with them off, as "
                "they are on the other site",
                where=where,
                do="PRAGMA legacy_alter_table = OFF, or PRAGMA foreign_keys = OFF before the transaction",
            )
        check_definable(statement, where=where)
        mine = sorted(words & self._functions.names) if kind in ("TABLE", "INDEX", "UNIQUE") else []
        if mine and statement.keyword in ("CREATE", "ALTER"):
            raise NotSupportedError(
                f"{statement.kind} {statement.name} would need {mine[0]}, a function or collation that only this "
                "connection has; the other site could not write such a table",
                where=where,
                do="Register it on both sites (region.init), or use what SQLite itself brings",
            )

    def run(self, cursor: apsw.Cursor, statement: Statement, bindings: Any) -> Rows:
        """Run and capture a schema change of a region, or of several (ANALYZE); they are held. Returns its rows."""
        regions = self._regions
        connection, capture = regions.connection, regions.capture
        last_rowid, before = connection.last_insert_rowid(), connection.total_changes()
        if capture.restless:
            regions.settle()
        mark: Mark | None = None
        emptied: Capture | None = None
        saved = False
        regions.inside = True
        try:
            capture.close_sequences()
            capture.deaf = statement.kind == "VIRTUAL TABLE"
            mark = capture.mark()
            connection.execute("SAVEPOINT _replicate_define")  # refused while a writing statement calls us
            saved = True
            emptied = self._tell_of_rows(statement)
            versions = {schema: regions.schema_version(schema) for schema in regions.schemas}
            regions.inside = False
            cursor.execute(statement.text, bindings)
            rows: Rows = list(cursor)
            regions.inside = True
            for schema, version in versions.items():
                if regions.schema_version(schema) != version:
                    self._capture(statement, schema)
            refused = capture.refused if mark.refusal is None else None
            if refused is not None:
                raise refused
        except BaseException:
            regions.inside = True
            if mark is not None and saved and connection.in_transaction:
                connection.execute("ROLLBACK TO _replicate_define")
                connection.execute("RELEASE _replicate_define")
                capture.cut(mark)
            if emptied is not None:
                emptied.hear_again()
            raise
        finally:
            regions.inside = capture.deaf = False
        connection.execute("RELEASE _replicate_define")
        connection.set_last_insert_rowid(last_rowid)
        regions.own_changes += connection.total_changes() - before
        return rows

    def _tell_of_rows(self, statement: Statement) -> Capture | None:
        """Where definitions have a partition, the rows of a table that is dropped are told of: a secondary that does
        not hear of the statement keeps the table, and would take them for rows of the next one of its name."""
        regions = self._regions
        if (statement.keyword, statement.kind) != ("DROP", "TABLE") or not regions.partitions().place_of(DEFINITION):
            return None
        connection = regions.connection
        rows: list[Any] = connection.execute(
            "SELECT schema, name FROM pragma_table_list(?1)", (statement.name,)
        ).fetchall()
        found = dict(rows)
        order = [str(name) for (name,) in connection.execute("SELECT name FROM pragma_database_list ORDER BY seq")]
        if statement.schema:
            order = [name for name in order if fold(name) == statement.schema]
        schema = next((name for name in ("temp", *order) if name in order and name in found), "")
        if schema not in regions.schemas:
            return None
        capture = regions.capture_of(schema)
        table = capture.tables.tables.get(found[schema])
        if table is None:  # a virtual one
            return None
        capture.delete_all(found[schema], self._rows_of(table.definition, schema))
        return capture

    def _rows_of(self, definition: TableDefinition, schema: str) -> Iterable[Any]:
        """The images of all rows of a table, in the order of its key."""
        hidden = rowid_name([column.name for column in definition.columns]) or ROWID_NAMES[0]
        names = ([hidden] if definition.rowid else []) + [quote(c.name) for c in definition.columns]
        key = ", ".join(names[ordinal] for ordinal in definition.key)
        source = f"FROM {quote(schema)}.{quote(definition.table)} ORDER BY {key}"
        return read_rows(self._regions.connection, names, source, can_cache=False)

    def _capture(self, statement: Statement, schema: str) -> None:
        """The schema has changed under the region lock: the statement's text travels, then what it made of the
        tables."""
        regions = self._regions
        connection, capture = regions.connection, regions.capture_of(schema)
        text = statement.text if schema == "main" else statement.as_main(schema)
        if statement.selects:
            text = str(
                connection.execute(
                    f"SELECT sql FROM {quote(schema)}.sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE",
                    (statement.name,),
                ).get
            )
            check_travelling(text, where=regions.region)  # its columns may bear names that stand in no statement
        known = regions.partitions()
        place = known.place_of(element_of(statement)) if known.elements else PARTITION_STREAM
        on, off = LEGACY_ALTER if statement.keyword == "ALTER" and self._legacy() else ("", "")
        for one in (on, text, off):
            if one:
                capture.statement(one, place)
        if statement.kind == "TABLE":
            install_guards(connection, guarded_tables(connection, schema), schema)
        recorded = record_definitions(connection, region=capture.region, schema=schema, default=known.default)
        capture.redefine(recorded.changed, read_table_map(connection, recorded.definitions, schema))
        self._tables.forget(schema)
        if statement.selects or statement.kind == "VIRTUAL TABLE":  # no hook told of these rows, or it was not heard
            for definition in recorded.changed:
                capture.insert(definition.table, self._rows_of(definition, schema))

    def _legacy(self) -> bool:
        return bool(self._regions.connection.config(apsw.SQLITE_DBCONFIG_LEGACY_ALTER_TABLE, -1))
