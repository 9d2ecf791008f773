"""Functions and collations of an application that stand in the place of SQLite's own: where they would be felt.

Guarantees: names that the region's indexes and generated columns use, and collations of its columns, are found, all of
them; a connection with another function of such a name would write what the other site cannot compute again.
Leaves to others: who brings functions, and what is done about it. (CHECKs and defaults are evaluated where a row is
made, and only there: they may use what they like.)
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import apsw

from replicate.region.sqlite.sql.names import fold, is_internal, quote
from replicate.region.sqlite.sql.statements import tokens, unquote

OPERATORS: Final = frozenset(("like", "glob", "regexp", "match"))
"""Words that call the function of their name without a parenthesis."""
_MAY_GENERATE: Final = re.compile(r"\bas\b", re.IGNORECASE)
"""In the text of every table with a generated column, and of few others: SQLite need not be asked about those without,
which costs as much as all the rest."""
_TEXTS_KEPT: Final = 4096


def names_used(connection: apsw.Connection, schema: str = "main") -> frozenset[str]:
    """The functions and collations, in lower case, that stored values and the order of indexes depend on."""
    found: set[str] = set()
    asked: Final = "SELECT 1 FROM pragma_table_xinfo(?, ?) WHERE hidden IN (2, 3) LIMIT 1"
    objects: list[Any] = connection.execute(
        f"SELECT type, name, sql FROM {quote(schema)}.sqlite_schema WHERE type IN ('table', 'index') "
        "AND sql IS NOT NULL"
    ).fetchall()
    for kind, name, sql in objects:
        if not is_internal(name):
            computes = kind == "index" or (
                _MAY_GENERATE.search(sql) is not None
                and not sql.startswith("CREATE VIRTUAL")  # its module may be missing, and it generates nothing
                and bool(connection.execute(asked, (name, schema)).get)
            )
            found |= _names(sql, functions=computes)
    return frozenset(found)


@functools.lru_cache(maxsize=_TEXTS_KEPT)  # one that opens a connection for each request reads the same texts each time
def _names(sql: str, *, functions: bool) -> frozenset[str]:
    """Collations, and what stands before a parenthesis (which may be a table or a type; such a name is found too)."""
    found: set[str] = set()
    if not functions and "collate" not in sql.lower():
        return frozenset()  # as most tables: taking a text apart takes a thousand times as long
    before = ""
    for token in tokens(sql):
        name = fold(unquote(token.text)) if token.kind in ("word", "quoted") else ""
        if before == "collate":
            found.add(name)
        elif functions and (name in OPERATORS or (token.text == "(" and before)):
            found.add(name or before)
        before = name
    return frozenset(found)
