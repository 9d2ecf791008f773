"""Which tables several suppliers may write, and which columns of them stand together.

Guarantees: a table that cannot be merged exactly is refused by name, with the way out; columns that one constraint
names are one group, so that what a merge puts together was valid where it was written. Of a unique index that is
partial, or over an expression, these are all columns that its text may name. A table with a CHECK is one group: what
it reads is not taken apart; and so is one with a unique index over a generated column.
Leaves to others: the merge (model/merged_row.py), whose the tables are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import apsw

from replicate.model.merged_row import Groups, groups_of
from replicate.model.rowid import ROWID_NAMES
from replicate.model.transaction import TableDefinition
from replicate.region.protocol import Unmergeable
from replicate.region.sqlite.schema import is_autoincrement, read_definition
from replicate.region.sqlite.sql.names import fold, quote
from replicate.region.sqlite.sql.statements import tokens, unquote
from replicate.region.sqlite.virtual_tables import shadow_tables


def unmergeable(
    connection: apsw.Connection, definition: TableDefinition, *, keys_chosen: bool, schema: str = "main"
) -> Unmergeable | None:
    """None where they can. `keys_chosen`: the application gives every row a key that no other site gives. `schema`: the
    name under which the region is attached."""
    table = definition.table
    if table in shadow_tables(connection, schema):
        return Unmergeable(table, "it keeps the content of a virtual table", "Leave it to one supplier")
    if definition.rowid:
        definition = read_definition(connection, table, region=definition.region, by_key=True, schema=schema)
        if definition.rowid:
            return Unmergeable(
                table,
                "its rows are found by a hidden rowid alone, which two sites give to different rows",
                "Give it a primary key: TEXT, which the application gives (a UUID), or INTEGER PRIMARY KEY "
                "AUTOINCREMENT",
            )
    if definition.is_by_key and (why := _without_key(connection, definition, schema)):
        return why
    for ordinal in definition.key:
        column = definition.columns[ordinal]
        if column.collation != "BINARY":
            return Unmergeable(
                table,
                f"its key {column.name} takes different texts for the same ({column.collation})",
                "Make the key's collation BINARY",
            )
    if any(not one - frozenset(definition.key) for one in unique_together(connection, definition, schema)):
        return Unmergeable(
            table,
            "a unique index of it has columns of the key alone",
            "Drop that index, or leave the table to one supplier",
        )
    if definition.is_by_key and (index := _reads_rowid(connection, definition, schema)):
        return Unmergeable(
            table,
            f"its unique index {index} reads the hidden rowid, which each site gives to a row for itself",
            "Drop that index, or make it one of the table's own columns",
        )
    is_chosen = definition.without_rowid or definition.is_by_key or keys_chosen
    if not is_chosen and not is_autoincrement(connection, table, schema):
        return Unmergeable(
            table,
            "SQLite gives its rows the next free key, and two sites would give one to different rows",
            "Declare the key AUTOINCREMENT: each site counts from a number of its own then. Where the application "
            "chooses keys that no other site chooses: --keys-chosen",
        )
    return None


def _without_key(connection: apsw.Connection, definition: TableDefinition, schema: str) -> Unmergeable | None:
    """Of a table whose primary key will tell its rows: what keeps it from that."""
    table, names = definition.table, [definition.columns[at].name for at in definition.key]
    virtual = "SELECT count(*) FROM pragma_table_xinfo(?1, ?2) WHERE hidden = 2"
    if connection.execute(virtual, (table, schema)).get:
        return Unmergeable(
            table,
            "it has a VIRTUAL generated column, whose rows are found by the hidden rowid alone",
            "Make that column STORED, or the table WITHOUT ROWID",
        )
    no_key = " OR ".join(f"{quote(name)} IS NULL" for name in names)
    if connection.execute(f"SELECT EXISTS (SELECT 1 FROM {quote(schema)}.{quote(table)} WHERE {no_key})").get:
        return Unmergeable(
            table,
            f"rows of it have no key: {', '.join(names)} is NULL",
            "Give each row a key, such as a UUID",
        )
    return None


def column_groups(
    connection: apsw.Connection, definition: TableDefinition, *, by_row: bool, sums: Collection[str] = ()
) -> Groups:
    """Of each ordinal of the table's image, the number of its group. `by_row`: all of it is one, but for the columns
    that are `sums`."""
    table = definition.table
    sql = connection.execute("SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?", (table,)).get
    places = {column.name: at for at, column in enumerate(definition.columns, int(definition.rowid))}
    keys: dict[int, list[int]] = {}
    rows: list[Any] = connection.execute('SELECT id, "from" FROM pragma_foreign_key_list(?1)', (table,)).fetchall()
    for number, name in rows:
        if name in places:
            keys.setdefault(number, []).append(places[name])
    together = [*keys.values(), *map(sorted, unique_together(connection, definition))]
    summed = sorted(places[name] for name in sums if name in places)
    return groups_of(definition.image_length, together, whole=by_row or "CHECK" in str(sql).upper(), summed=summed)


def unsummable(connection: apsw.Connection, definition: TableDefinition, column: str, schema: str = "main") -> str:
    """Why what two sites add to that column at once cannot be added up; "" if it can."""
    places = {one.name: at for at, one in enumerate(definition.columns, int(definition.rowid))}
    if column not in places:
        return f"table {definition.table} has no column {column}"
    at = places[column]
    if "INT" not in definition.columns[at - int(definition.rowid)].type.upper():
        return "only an INTEGER can be a sum: of other numbers one order of adding gives another sum"
    if at in definition.key:
        return "it is of the table's key"
    if any(at in ordinals for ordinals in unique_together(connection, definition, schema)):
        return "a unique index reads it"
    keys = 'SELECT count(*) FROM pragma_foreign_key_list(?1, ?3) WHERE "from" = ?2'
    if connection.execute(keys, (definition.table, column, schema)).get:
        return "it is of a foreign key"
    if _is_checked(connection, definition, column, schema):
        return "a CHECK reads it, and a sum of what each site may add may be what none may write"
    return ""


def _is_checked(connection: apsw.Connection, definition: TableDefinition, column: str, schema: str) -> bool:
    """Whether a CHECK of the table may read that column, also by a generated one."""
    text = f"SELECT sql FROM {quote(schema)}.sqlite_schema WHERE type = 'table' AND name = ?"
    sql = connection.execute(text, (definition.table,)).get
    wanted = {fold(column), *_generated(connection, definition, schema)}
    is_check, depth = False, 0
    for token in tokens(str(sql)):
        if token.upper == "CHECK" and not depth:
            is_check = True
        elif is_check:
            depth += (token.text == "(") - (token.text == ")")
            is_check = depth > 0
            if token.kind in ("word", "quoted") and fold(unquote(token.text)) in wanted:
                return True
    return False


def unique_together(
    connection: apsw.Connection, definition: TableDefinition, schema: str = "main"
) -> list[frozenset[int]]:
    """Of each unique index but the key's own: the ordinals of the columns that decide which rows are in it, and with
    what values."""
    places = {fold(column.name): at for at, column in enumerate(definition.columns, int(definition.rowid))}
    computed = _generated(connection, definition, schema)
    found: list[frozenset[int]] = []
    for _, names in _names_of_uniques(connection, definition, schema):
        ordinals = places.values() if names & computed else (places[name] for name in names & places.keys())
        found.append(frozenset(ordinals))
    return found


def _generated(connection: apsw.Connection, definition: TableDefinition, schema: str) -> frozenset[str]:
    """Its generated columns, folded."""
    text = "SELECT name FROM pragma_table_xinfo(?1, ?2) WHERE hidden IN (2, 3)"
    names: list[Any] = connection.execute(text, (definition.table, schema)).fetchall()
    return frozenset(fold(name) for (name,) in names)


def _names_of_uniques(
    connection: apsw.Connection, definition: TableDefinition, schema: str
) -> list[tuple[str, frozenset[str]]]:
    """Each unique index but the key's own, with the names that it reads, and perhaps some more: those in the text of
    one that is partial or over an expression. Folded."""
    indexes: list[Any] = connection.execute(
        "SELECT found.name, partial, sql FROM pragma_index_list(?1, ?2) AS found "
        f"LEFT JOIN {quote(schema)}.sqlite_schema AS made ON made.type = 'index' AND made.name = found.name "
        "WHERE \"unique\" AND origin <> 'pk' ORDER BY 1",
        (definition.table, schema),
    ).fetchall()
    found = []
    for index, partial, sql in indexes:
        columns = "SELECT name FROM pragma_index_info(?1, ?2)"
        names: list[Any] = [name for (name,) in connection.execute(columns, (index, schema)).fetchall()]
        found.append((index, _names_in(sql) if partial or None in names else frozenset(map(fold, names))))
    return found


def _names_in(sql: str) -> frozenset[str]:
    """The words of an index's text after the table's name: columns, and what else stands there."""
    words = [token for token in tokens(sql) if token.kind in ("word", "quoted") or token.text == "("]
    begin = next(at for at, token in enumerate(words) if token.text == "(")
    return frozenset(fold(unquote(token.text)) for token in words[begin:])


def _reads_rowid(connection: apsw.Connection, definition: TableDefinition, schema: str) -> str:
    """The name of a unique index that may read the hidden rowid; "" if none does."""
    hidden = frozenset(ROWID_NAMES) - {fold(column.name) for column in definition.columns}
    named = (index for index, names in _names_of_uniques(connection, definition, schema) if names & hidden)
    return next(named, "")
