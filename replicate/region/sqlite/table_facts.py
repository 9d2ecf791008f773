"""Reading what a table is held together by, for the judgement whether some of its columns can be left out.

Guarantees: all of its indexes, those that constraints made among them; all foreign keys in the file that it is in, at
either end; every virtual table that has it as its content.
Leaves to others: the judgement (model/column_list.py). Reads only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import apsw

from replicate.model.column_list import IndexFacts, TableFacts, blank_of, left_out_error, unfit_table
from replicate.model.table_wish import fold
from replicate.model.transaction import TableDefinition
from replicate.region.sqlite.virtual_tables import tables_together, virtual_tables

_REFERRED: Final = (
    'SELECT DISTINCT f."to" FROM main.sqlite_schema AS s, pragma_foreign_key_list(s.name) AS f '
    'WHERE s.type = \'table\' AND s.rootpage <> 0 AND lower(f."table") = lower(?1) AND f."to" IS NOT NULL'
)
"""One that names no columns is to the primary key, which is never left out."""


def _all(connection: apsw.Connection, query: str, name: str) -> list[Any]:
    return connection.execute(query, (name,)).fetchall()


def table_facts(connection: apsw.Connection, table: str) -> TableFacts:
    """Of a table of the main schema."""
    ((sql,),) = _all(connection, "SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?1", table)
    columns = _all(connection, "SELECT name, pk FROM pragma_table_info(?1) ORDER BY cid", table)
    virtual = virtual_tables(connection)
    with_it = {
        one for together in tables_together(connection) if fold(table) in map(fold, together) for one in together
    }
    return TableFacts(
        sql,
        tuple(name for name, place in columns if place),
        tuple(_indexes(connection, table)),
        tuple(one for (one,) in _all(connection, 'SELECT DISTINCT "from" FROM pragma_foreign_key_list(?1)', table)),
        tuple(one for (one,) in _all(connection, _REFERRED, table)),
        tuple(sorted(with_it & virtual.keys())),
    )


def _indexes(connection: apsw.Connection, table: str) -> Iterator[IndexFacts]:
    listed = _all(connection, 'SELECT name, "unique", partial FROM pragma_index_list(?1) ORDER BY seq', table)
    for name, unique, partial in listed:
        columns = _all(connection, 'SELECT name FROM pragma_index_xinfo(?1) WHERE "key" ORDER BY seqno', name)
        found = _all(connection, "SELECT sql FROM main.sqlite_schema WHERE type = 'index' AND name = ?1", name)
        sql = found[0][0] if found else None  # the key of a table without rowid is no index of its own
        yield IndexFacts(name, bool(unique), tuple(one for (one,) in columns), bool(partial), sql or "")


def require_bearable(connection: apsw.Connection, definition: TableDefinition, left: Collection[str]) -> None:
    """UsageError where that table cannot do without these columns."""
    folded = {fold(name) for name in left}
    blanks = {
        fold(one.name): blank_of(one, strict=definition.strict)
        for one in definition.columns
        if fold(one.name) in folded
    }
    if blanks and (why := unfit_table(table_facts(connection, definition.table), blanks)):
        raise left_out_error(definition, why)
