"""Which tables several suppliers may write, and which columns of them stand together.

Guarantees: a table that cannot be merged exactly is refused by name, with the way out; columns that one constraint
names are one group, so that what a merge puts together was valid where it was written. A table with a CHECK is one
group: what it reads is not taken apart.
Leaves to others: the merge (model/registers.py), whose the tables are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

from replicate.model.registers import Groups, groups_of
from replicate.model.transaction import TableDefinition
from replicate.region.protocol import Unmergeable
from replicate.region.sqlite.apply.statements import unique_ordinals
from replicate.region.sqlite.schema import is_autoincrement, read_definition
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.virtual_tables import shadow_tables


def unmergeable(connection: apsw.Connection, definition: TableDefinition, *, keys_chosen: bool) -> Unmergeable | None:
    """None where they can. `keys_chosen`: the application gives every row a key that no other site gives."""
    table = definition.table
    if table in shadow_tables(connection):
        return Unmergeable(table, "it keeps the content of a virtual table", "Leave it to one supplier")
    if definition.rowid:
        definition = read_definition(connection, table, region=definition.region, by_key=True)
        if definition.rowid:
            return Unmergeable(
                table,
                "its rows are found by a hidden rowid alone, which two sites give to different rows",
                "Give it a primary key: TEXT, which the application gives (a UUID), or INTEGER PRIMARY KEY "
                "AUTOINCREMENT",
            )
    if definition.is_by_key and (why := _without_key(connection, definition)):
        return why
    for ordinal in definition.key:
        column = definition.columns[ordinal]
        if column.collation != "BINARY":
            return Unmergeable(
                table,
                f"its key {column.name} takes different texts for the same ({column.collation})",
                "Make the key's collation BINARY",
            )
    if unique_ordinals(connection, definition) is None:
        return Unmergeable(
            table,
            "a unique index of it is partial, or over an expression or a generated column",
            "Make that index one of plain columns, or one that is not unique; or leave the table to one supplier",
        )
    if any(not frozenset(one) - frozenset(definition.key) for one in _unique_together(connection, definition)):
        return Unmergeable(
            table,
            "a unique index of it has columns of the key alone",
            "Drop that index, or leave the table to one supplier",
        )
    is_chosen = definition.without_rowid or definition.is_by_key or keys_chosen
    if not is_chosen and not is_autoincrement(connection, table):
        return Unmergeable(
            table,
            "SQLite gives its rows the next free key, and two sites would give one to different rows",
            "Declare the key AUTOINCREMENT: each site counts from a number of its own then. Where the application "
            "chooses keys that no other site chooses: --keys-chosen",
        )
    return None


def _without_key(connection: apsw.Connection, definition: TableDefinition) -> Unmergeable | None:
    """Of a table whose primary key will tell its rows: what keeps it from that."""
    table, names = definition.table, [definition.columns[at].name for at in definition.key]
    virtual = "SELECT count(*) FROM pragma_table_xinfo(?1, 'main') WHERE hidden = 2"
    if connection.execute(virtual, (table,)).get:
        return Unmergeable(
            table,
            "it has a VIRTUAL generated column, whose rows are found by the hidden rowid alone",
            "Make that column STORED, or the table WITHOUT ROWID",
        )
    no_key = " OR ".join(f"{quote(name)} IS NULL" for name in names)
    if connection.execute(f"SELECT EXISTS (SELECT 1 FROM main.{quote(table)} WHERE {no_key})").get:
        return Unmergeable(
            table,
            f"rows of it have no key: {', '.join(names)} is NULL",
            "Give each row a key, such as a UUID",
        )
    return None


def column_groups(connection: apsw.Connection, definition: TableDefinition, *, by_row: bool) -> Groups:
    """Of each ordinal of the table's image, the number of its group. `by_row`: all of it is one."""
    table = definition.table
    sql = connection.execute("SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?", (table,)).get
    places = {column.name: at for at, column in enumerate(definition.columns, int(definition.rowid))}
    keys: dict[int, list[int]] = {}
    rows: list[Any] = connection.execute('SELECT id, "from" FROM pragma_foreign_key_list(?1)', (table,)).fetchall()
    for number, name in rows:
        if name in places:
            keys.setdefault(number, []).append(places[name])
    together = [*keys.values(), *_unique_together(connection, definition)]
    return groups_of(definition.image_length, together, whole=by_row or "CHECK" in str(sql).upper())


def _unique_together(connection: apsw.Connection, definition: TableDefinition) -> Iterator[list[int]]:
    """The ordinals of each unique index, but for the key's own."""
    places = {column.name: at for at, column in enumerate(definition.columns, int(definition.rowid))}
    text = "SELECT name FROM pragma_index_list(?1, 'main') WHERE \"unique\" AND origin <> 'pk' ORDER BY 1"
    for (index,) in connection.execute(text, (definition.table,)).fetchall():
        columns = connection.execute("SELECT name FROM pragma_index_info(?1, 'main')", (index,))
        yield [places[name] for (name,) in columns if name in places]
