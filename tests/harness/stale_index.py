"""Damage to an index that no row shows: rows that were changed without it, and a bit of one of its pages.

Guarantees: the rows are as the statements left them; the index has the entries that it had before. Nobody has the
database open meanwhile. Leaves to others: how it is found.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    return connection


def change_without_index(path: Path, index: str, *statements: str) -> None:
    """Run the statements while SQLite does not know that index: it is not kept."""
    with closing(_open(path)) as connection:
        ((table, root, sql),) = connection.execute(
            "SELECT tbl_name, rootpage, sql FROM sqlite_schema WHERE type = 'index' AND name = ?", (index,)
        ).fetchall()
        (text,) = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,)
        ).fetchone()
        connection.pragma("writable_schema", "ON")
        connection.execute("DELETE FROM sqlite_schema WHERE type = 'index' AND name = ?", (index,))
        if sql is None:  # of UNIQUE in the table's own text
            assert text.count("UNIQUE") == 1, text
            connection.execute(
                "UPDATE sqlite_schema SET sql = replace(sql, 'UNIQUE', '') WHERE type = 'table' AND name = ?", (table,)
            )
    with closing(_open(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    with closing(_open(path)) as connection:
        connection.pragma("writable_schema", "ON")
        if sql is None:
            connection.execute("UPDATE sqlite_schema SET sql = ? WHERE type = 'table' AND name = ?", (text, table))
        connection.execute("INSERT INTO sqlite_schema VALUES ('index', ?, ?, ?, ?)", (index, table, root, sql))


def flip_in_tree(path: Path, name: str, text: bytes, by: int = 0) -> None:
    """A bit of the first page of that index, or table, that holds the text, as a disk changes it: nobody is told."""
    with closing(_open(path)) as connection:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        pages = [page for (page,) in connection.execute("SELECT pageno FROM dbstat WHERE name = ?", (name,))]
        size = int(connection.pragma("page_size"))
    data = bytearray(path.read_bytes())
    for page in pages:
        at = data.find(text, (page - 1) * size, page * size)
        if at >= 0:
            data[at + by] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError(f"no page of {name} holds {text!r}")
