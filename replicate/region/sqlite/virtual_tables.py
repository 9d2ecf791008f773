"""Virtual tables that can be replicated: full-text indexes and R*Trees, whose content is in ordinary shadow tables.

Guarantees: what passes `check_module` keeps everything in its shadow tables (or keeps nothing), and brings no code
that only one site has; after `flush` all that a connection's virtual tables hold in memory is in their shadow tables.
Leaves to others: how shadow tables' rows travel: as those of any other table. The CREATE travels as a statement; the
rows that the module makes of it at once are not trusted to be the same on another release, so the applier throws its
own away (`forget_first_rows`) and takes the stream's.

Shadow tables bear no guards: a trigger on one of FTS5's makes SQLite crash (measured). So a write of another client to
a virtual table is not refused; the next write through our connection meets another before-image on the secondary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import apsw

from replicate.errors import NotSupportedError
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.sql.statements import classify

MODULES: Final = frozenset(("fts3", "fts4", "fts5", "rtree", "rtree_i32", "geopoly"))
"""These write shadow tables."""

_CONTENT: Final = re.compile(r"""\bcontent\s*=\s*(["'`\[]?)([^"'`\],)\s]*)""", re.IGNORECASE)

VIEWS: Final = frozenset(("fts5vocab", "fts4aux"))
"""These show what another virtual table holds, and hold nothing themselves."""


def virtual_tables(connection: apsw.Connection, schema: str = "main") -> dict[str, str]:
    """Name -> module, in lower case, of a schema's virtual tables."""
    return {
        name: classify(sql).argument or ""
        for name, sql in connection.execute(
            f"SELECT name, sql FROM {quote(schema)}.sqlite_schema WHERE type = 'table' AND rootpage = 0 ORDER BY name"
        )
    }


def check_module(name: str, module: str, *, where: str) -> None:
    """NotSupportedError unless a virtual table of this module can be replicated."""
    if module not in MODULES and module not in VIEWS:
        raise NotSupportedError(
            f"virtual table {name} of module {module or '(none)'} cannot be replicated: nobody knows where such a "
            "module keeps its content",
            where=where,
            do="Keep it in another database file; FTS3, FTS4, FTS5, R*Tree and Geopoly can be replicated",
            table=name,
        )


def shadow_tables(connection: apsw.Connection, schema: str = "main") -> set[str]:
    """The tables in which virtual tables keep their content."""
    text = "SELECT name FROM pragma_table_list WHERE schema = ? AND type = 'shadow'"
    return {name for (name,) in connection.execute(text, (schema,))}


def tables_together(connection: apsw.Connection) -> list[frozenset[str]]:
    """Sets of tables that only make sense together: a virtual table, those that keep its content, and the one that it
    is an index of (FTS's content=)."""
    shadows = shadow_tables(connection)
    made = []
    for name, sql in connection.execute(
        "SELECT name, sql FROM main.sqlite_schema WHERE type = 'table' AND rootpage = 0 ORDER BY name"
    ):
        content = {one[1] for one in _CONTENT.findall(sql) if one[1]}
        made.append(frozenset({name, *content, *(one for one in shadows if one.startswith(f"{name}_"))}))
    return made


def flush(connection: apsw.Connection) -> None:
    """Have the virtual tables write what they keep in memory until COMMIT; inside a transaction. (FTS does so before
    every savepoint, and writes nothing then if it has nothing: measured.)"""
    connection.execute("SAVEPOINT _replicate_flush")
    connection.execute("RELEASE _replicate_flush")


def forget_first_rows(connection: apsw.Connection, shadows: Iterable[str]) -> None:
    """Empty shadow tables that a CREATE has just made: their first rows come with the stream."""
    flush(connection)
    for name in shadows:
        connection.execute(f"DELETE FROM main.{quote(name)}")


def allow_shadow_rows(connection: apsw.Connection) -> None:
    """Let an applier write shadow tables, once the region has virtual tables: SQLite's defensive mode would not."""
    if connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1) and virtual_tables(connection):
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
