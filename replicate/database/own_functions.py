"""Functions and collations of an application that stand in the place of SQLite's own: where they would be felt.

Guarantees: names that the region's indexes and generated columns use, and collations of its columns, are found, all of
them; a connection with another function of such a name would write what the other site can not compute again.
Refuses to know: who brings functions, and what is done about it. (CHECKs and defaults are evaluated where a row is
made, and only there: they may use what they like.)
"""

from __future__ import annotations

from typing import Final

import apsw

from replicate.database.names import fold, is_internal, quote
from replicate.database.statements import tokens, unquote

OPERATORS: Final = frozenset(("like", "glob", "regexp", "match"))
"""Words that call the function of their name without a parenthesis."""


def names_used(connection: apsw.Connection, schema: str = "main") -> frozenset[str]:
    """The functions and collations, in lower case, that stored values and the order of indexes depend on."""
    generated = {
        table
        for (table,) in connection.execute(
            "SELECT DISTINCT t.name FROM pragma_table_list AS t, pragma_table_xinfo(t.name, ?1) AS x "
            "WHERE t.schema = ?1 AND t.type = 'table' AND x.hidden IN (2, 3)",
            (schema,),
        )
    }
    found: set[str] = set()
    for kind, name, sql in connection.execute(
        f"SELECT type, name, sql FROM {quote(schema)}.sqlite_schema WHERE type IN ('table', 'index') "
        "AND sql IS NOT NULL"
    ):
        if not is_internal(name):
            found |= _names(sql, functions=kind == "index" or name in generated)
    return frozenset(found)


def _names(sql: str, *, functions: bool) -> set[str]:
    """Collations, and what stands before a parenthesis (which may be a table or a type; such a name is found too)."""
    found: set[str] = set()
    before = ""
    for token in tokens(sql):
        name = fold(unquote(token.text)) if token.kind in ("word", "quoted") else ""
        if before == "collate":
            found.add(name)
        elif functions and (name in OPERATORS or (token.text == "(" and before)):
            found.add(name or before)
        before = name
    return found
