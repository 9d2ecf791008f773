"""Rows of whole partitions, put into a region from a copy that stands at the same transaction; or taken out.

Guarantees: within the caller's transaction each of their tables has exactly the rows of the copy, hidden rowids,
counters, and what full-text indexes and R*Trees keep included; no other table is touched, no trigger fires, and nothing
is captured. A copy whose tables are other ones is refused, and nothing is done then.
Leaves to others: how the copy has come to that transaction (transfer/seed/partition.py), and the COMMIT.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import apsw

from replicate.errors import CopyTooOldError
from replicate.model.transaction import TableDefinition
from replicate.region.protocol import ScrRow
from replicate.region.sqlite.apply.statements import local_rowid_name
from replicate.region.sqlite.bookkeeping import read_scr, write_scr
from replicate.region.sqlite.functions import bring
from replicate.region.sqlite.listed_columns import take_notes
from replicate.region.sqlite.schema import check_definition, record_definition, recorded_definitions
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.virtual_tables import allow_shadow_rows, shadow_tables, virtual_tables

SIDE: Final = "replicate_side"
Told = Callable[[str, int, int], None]
"""Called with a table's name, tables done and tables in all; what it raises ends the work."""


@contextmanager
def beside(connection: apsw.Connection, copy: str | os.PathLike[str]) -> Iterator[None]:
    """The copy is attached in the block, in which transactions may begin and end. What SQLite says."""
    connection.execute(f"ATTACH ? AS {SIDE}", (os.fspath(copy),))
    try:
        yield
    finally:
        connection.execute(f"DETACH {SIDE}")


def take_rows(connection: apsw.Connection, keeps: Callable[[int], bool], told: Told, *, has_copy: bool) -> int:
    """Replace the rows of all tables of partitions that `keeps` knows by those of the copy `beside`; how many tables
    there are. Inside a transaction that writes.

    CopyTooOldError where the copy's tables are not those that are here, or where there is no copy and they are needed;
    ConflictError where one is missing whose statement has not come.
    """
    recorded = {one.table: one for one in recorded_definitions(connection)}
    here = {name: one for name, one in recorded.items() if keeps(one.partition)}
    copied = recorded_definitions(connection, SIDE) if has_copy else ()
    there = {one.table: one for one in copied if keeps(one.partition)}
    for name in sorted(there.keys() - recorded.keys()):
        here[name] = _made_here(connection, there[name])
    if different := sorted(name for name in {*here, *there} if not _alike(here.get(name), there.get(name))):
        raise CopyTooOldError(
            f"table {different[0]} of the copy is not the one that is here",
            where=connection.filename,
        )
    allow_shadow_rows(connection)
    for name in here:
        connection.execute(f"DELETE FROM main.{quote(name)}")
    for done, definition in enumerate(here.values()):
        told(definition.table, done, len(here))
        rowid = local_rowid_name(connection, definition) if definition.rowid else ""
        columns = ", ".join([*([rowid] if rowid else []), *(quote(column.name) for column in definition.columns)])
        table = quote(definition.table)
        connection.execute(f"INSERT OR ABORT INTO main.{table} ({columns}) SELECT {columns} FROM {SIDE}.{table}")
    take_notes(connection, here, SIDE if has_copy else "")
    if connection.table_exists("main", "sqlite_sequence"):  # of the primary, not what the inserts have made of them
        names = [(name,) for name in here]
        connection.executemany("DELETE FROM main.sqlite_sequence WHERE name = ?", names)
        if has_copy:
            counters = f"SELECT name, seq FROM {SIDE}.sqlite_sequence WHERE name = ?"
            connection.executemany(f"INSERT INTO main.sqlite_sequence {counters}", names)
    return len(here)


def _made_here(connection: apsw.Connection, definition: TableDefinition) -> TableDefinition:
    """The same, once it is recorded: of a table that came while nothing of its partition did, without its statement.
    ConflictError while the operator has not made it."""
    check_definition(connection, definition, seqno=0)
    record_definition(connection, definition)
    return definition


def _alike(one: TableDefinition | None, other: TableDefinition | None) -> bool:
    return one is not None and other is not None and one.table_id == other.table_id


def drop_some(connection: apsw.Connection, keeps: Callable[[int], bool], rows_max: int) -> int:
    """Delete at most so many rows of tables of partitions that `keeps` knows, and what virtual tables keep as a whole;
    how many were deleted (0: none is left). Inside a transaction that writes."""
    tables = {one.table: one for one in recorded_definitions(connection) if keeps(one.partition)}
    shadows = shadow_tables(connection).intersection(tables)
    left = rows_max
    for name in sorted(tables.keys() - shadows):
        if left > 0:
            connection.execute(_delete_some(connection, tables[name]), (left,))
            left -= connection.changes()
    if left == rows_max:
        left -= _empty_shadows(connection, shadows)
    if left == rows_max and connection.table_exists("main", "sqlite_sequence"):
        connection.executemany("DELETE FROM main.sqlite_sequence WHERE name = ?", [(name,) for name in tables])
    return rows_max - left


def _delete_some(connection: apsw.Connection, definition: TableDefinition) -> str:
    """Of a table whose hidden rowid cannot be named, and that has no key: all rows."""
    table, rowid = f"main.{quote(definition.table)}", local_rowid_name(connection, definition)
    keys = [] if definition.rowid else [quote(definition.columns[one].name) for one in definition.key]
    chosen = ", ".join([rowid] if rowid else keys)
    if not chosen:
        return f"DELETE FROM {table} WHERE ?"
    return f"DELETE FROM {table} WHERE ({chosen}) IN (SELECT {chosen} FROM {table} LIMIT ?)"


def _empty_shadows(connection: apsw.Connection, shadows: Collection[str]) -> int:
    """Have these tables keep what those of new virtual tables would: how many of them were not so."""
    changed = 0
    if shadows:
        allow_shadow_rows(connection)
    for name in sorted(virtual_tables(connection)) if shadows else ():
        new = apsw.Connection(":memory:")
        try:
            bring(new, connection.filename)
            new.execute(connection.execute("SELECT sql FROM main.sqlite_schema WHERE name = ?", (name,)).get)
            for shadow in sorted(shadow_tables(new).intersection(shadows)):
                query = f"SELECT * FROM main.{quote(shadow)} ORDER BY 1, 2"
                first = new.execute(query).fetchall()
                count = connection.execute(f"SELECT count(*) FROM main.{quote(shadow)}").get
                if count == len(first) and connection.execute(query).fetchall() == first:
                    continue
                connection.execute(f"DELETE FROM main.{quote(shadow)}")
                marks = ", ".join("?" * len(first[0])) if first else ""
                connection.executemany(f"INSERT INTO main.{quote(shadow)} VALUES ({marks})", first)
                changed += 1
        finally:
            new.close(True)
    return changed


def take_checkpoint(connection: apsw.Connection, keeps: Callable[[int], bool], rows: Sequence[ScrRow]) -> None:
    """Have the checkpoint records of partitions that `keeps` knows be those among `rows`. Inside a transaction that
    writes."""
    gone = [(one.partition,) for one in read_scr(connection) if keeps(one.partition)]
    connection.executemany("DELETE FROM main._replicate_scr WHERE partition = ?", gone)
    write_scr(connection, [one for one in rows if keeps(one.partition)])
