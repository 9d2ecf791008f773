"""The region as SQL text: sqlite3's `iterdump`, without replication's bookkeeping tables and guards.

Guarantees: the text, run on an empty database by any SQLite, gives the application's tables, rows, indexes, triggers
and views.
Leaves to others: transactions; it reads through the connection as any application does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicate.region.sqlite.sql.names import is_own, quote, quote_text


def dump(connection: Any) -> Iterator[str]:
    """The statements, one by one, each with its semicolon."""
    cursor = connection.cursor()
    cursor.row_factory = None
    yield "BEGIN TRANSACTION;"
    sequence: list[str] = []
    tables = cursor.execute(
        "SELECT name, sql, rootpage FROM main.sqlite_master WHERE sql NOT NULL AND type = 'table' ORDER BY name"
    ).fetchall()
    virtual = [name for name, _, rootpage in tables if rootpage == 0]
    for name, sql, _ in tables:
        if name == "sqlite_sequence":
            sequence = ['DELETE FROM "sqlite_sequence";']
            for table, value in cursor.execute('SELECT name, seq FROM "sqlite_sequence"').fetchall():
                sequence.append(f'INSERT INTO "sqlite_sequence" VALUES({quote_text(table)},{value});')
            continue
        if name == "sqlite_stat1":
            yield 'ANALYZE "sqlite_master";'
        elif name.startswith("sqlite_") or is_own(name):
            continue
        elif name in virtual:
            if name == min(virtual):
                yield "PRAGMA writable_schema=ON;"  # so that its shadow tables, which follow, are not made by it
            yield (
                "INSERT INTO sqlite_master(type,name,tbl_name,rootpage,sql)"
                f"VALUES('table',{quote_text(name)},{quote_text(name)},0,{quote_text(sql)});"
            )
            continue  # its rows are those of its shadow tables
        else:
            yield f"{sql};"
        yield from _rows(cursor, name)
    others = cursor.execute(
        "SELECT name, sql FROM main.sqlite_master WHERE sql NOT NULL AND type IN ('index', 'trigger', 'view')"
    ).fetchall()
    for name, sql in others:
        if not is_own(name):
            yield f"{sql};"
    if virtual:
        yield "PRAGMA writable_schema=OFF;"
    yield from sequence
    yield "COMMIT;"


def _rows(cursor: Any, table: str) -> Iterator[str]:
    names = [str(row[1]) for row in cursor.execute(f"PRAGMA table_info({quote(table)})").fetchall()]
    values = ",".join(f"'||quote({quote(name)})||'" for name in names)
    into = quote(table).replace("'", "''")
    for (text,) in cursor.execute(f"SELECT 'INSERT INTO {into} VALUES({values})' FROM {quote(table)}"):
        yield f"{text};"
