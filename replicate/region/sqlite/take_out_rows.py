"""Taking rows out of a copy of a region, so that they never leave this host, or never arrive: those of whole
partitions, of a table those that a condition does not find, and what columns hold that are not listed.

The copy is written again after that: pages that were free, and what is left of old rows in pages that others use now,
may hold rows that were deleted long before.

Guarantees: of what is taken out nothing is left in the file, also not of what was there once, nor in the samples of
ANALYZE; the tables stay, with their definitions, indexes and guards, and so does every other row, under its rowid. A
table that cannot do without a column is refused by name.
Leaves to others: which rows go. Only for a copy that nobody else has open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from replicate.errors import InternalError
from replicate.model.column_list import WHOLE, TableShare
from replicate.model.transaction import Catalogue, TableDefinition
from replicate.region.sqlite.adopt_copy import becoming_whole
from replicate.region.sqlite.bookkeeping import clear_ring
from replicate.region.sqlite.listed_columns import note_listed
from replicate.region.sqlite.schema import recorded_definitions
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.table_facts import require_bearable
from replicate.region.sqlite.virtual_tables import shadow_tables, virtual_tables

_SAMPLES: Final = "sqlite_stat4"
"""What ANALYZE has seen in indexes: values of rows."""

Shares = Callable[[TableDefinition], TableShare]
"""What of a table is kept; WHOLE for all of it."""


def _all_of_it(_definition: TableDefinition) -> TableShare:
    return WHOLE


def take_out(
    path: Path, keeps: Callable[[int], bool], known: Catalogue | None = None, *, shares: Shares = _all_of_it
) -> list[str]:
    """Take the rows of each table out of the copy whose partition `keeps` does not know, and of each other table what
    `shares` does not keep; the tables that have lost something. `known`: what was in force at the copy; where all of it
    is kept the copy is not opened.

    Raises UsageError (a table needs a column), RegionDamagedError, DiskFullError, InternalError and what SQLite says;
    the copy must be thrown away then.
    """
    if known is not None and all(keeps(one.partition) and shares(one) == WHOLE for one in known.in_force().values()):
        return []
    again = path.with_name(f"{path.name}.again")
    again.unlink(missing_ok=True)
    try:
        with becoming_whole(path, plain=True) as connection:
            if all(keeps(one.partition) and shares(one) == WHOLE for one in recorded_definitions(connection)):
                return []
            emptied = _take_out(connection, keeps, shares)
            connection.execute("VACUUM INTO ?", (os.fspath(again),))
            _check_rowids(connection, again)
        os.chmod(again, 0o600)
        with becoming_whole(again, plain=True):
            pass  # all of it is on the disk
        os.replace(again, path)
    finally:
        again.unlink(missing_ok=True)
    return emptied


def _check_rowids(connection: apsw.Connection, again: Path) -> None:
    """InternalError where SQLite has given rows other rowids. VACUUM may, VACUUM INTO does not (measured); but no
    promise of SQLite's says so."""
    written = apsw.Connection(os.fspath(again), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        written.pragma("journal_mode", "WAL")  # as every region's file
        for one in recorded_definitions(connection):
            if not one.rowid:
                continue
            names = {column.name.lower() for column in one.columns}
            rowid = next((name for name in ("rowid", "_rowid_", "oid") if name not in names), "rowid")
            query = f"SELECT count(*), min({rowid}), max({rowid}), total({rowid}) FROM main.{quote(one.table)}"
            if connection.execute(query).fetchall() != written.execute(query).fetchall():
                raise InternalError(f"the copy of table {one.table} has other rowids", where=os.fspath(again))
    finally:
        written.close(True)


def _take_out(connection: apsw.Connection, keeps: Callable[[int], bool], shares: Shares) -> list[str]:
    tables = recorded_definitions(connection)
    gone = [one.table for one in tables if not keeps(one.partition)]
    some = {one.table: shares(one) for one in tables if keeps(one.partition) and shares(one) != WHOLE}
    for one in tables:
        if one.table in some and some[one.table].blanks:
            require_bearable(connection, one, some[one.table].blanks)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.pragma("foreign_keys", False)
    shadows = shadow_tables(connection)
    made_by = {
        shadow: name
        for name in sorted(virtual_tables(connection))
        for shadow in shadows
        if shadow.startswith(f"{name}_")
    }
    remade = dict.fromkeys(made_by[table] for table in gone if table in made_by)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for name in remade:  # its module keeps more in its tables than rows
            sql = connection.execute("SELECT sql FROM main.sqlite_schema WHERE name = ?", (name,)).get
            connection.execute(f"DROP TABLE main.{quote(name)}")
            connection.execute(sql)
        for table in gone:
            if table not in made_by:
                connection.execute(f"DELETE FROM main.{quote(table)}")
        for table, kept in some.items():
            if kept.where:
                connection.execute(f"DELETE FROM main.{quote(table)} WHERE ({kept.where}) IS NOT TRUE")
            if kept.listed:
                note_listed(connection, table, kept.listed)
            if kept.blanks:
                blanks = ", ".join(f"{quote(name)} = {blank}" for name, blank in kept.blanks.items())
                connection.execute(f"UPDATE OR ABORT main.{quote(table)} SET {blanks}")
        if connection.table_exists("main", _SAMPLES):
            connection.executemany(
                f"DELETE FROM main.{_SAMPLES} WHERE tbl = ? COLLATE NOCASE", [(table,) for table in (*gone, *some)]
            )
        if connection.table_exists("main", "sqlite_sequence"):
            connection.executemany("DELETE FROM main.sqlite_sequence WHERE name = ?", [(table,) for table in gone])
        clear_ring(connection)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return [*gone, *some]
