"""Taking the rows of whole partitions out of a copy of a region, so that they never leave this host, or never arrive.

Guarantees: of the rows nothing is left in the file, also not in its free pages or in the ring; the tables stay, with
their definitions, indexes and guards, and so does every other row. The number of pages does not change.
Leaves to others: which partitions go. Only for a copy that nobody else has open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from replicate.model.transaction import Catalogue
from replicate.region.sqlite.adopt_copy import becoming_whole
from replicate.region.sqlite.bookkeeping import clear_ring
from replicate.region.sqlite.schema import recorded_definitions
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.virtual_tables import shadow_tables, virtual_tables

_INCREMENTAL_AT = 64
"""Where in a file's header it stands that free pages are given back when somebody asks, and not at each commit."""


def take_out(path: Path, keeps: Callable[[int], bool], known: Catalogue | None = None) -> list[str]:
    """Take the rows of each table out of the copy whose partition `keeps` does not know; the tables that are empty now.
    `known`: what was in force at the copy; where all of it is kept the copy is not opened.

    Raises RegionDamagedError, DiskFullError and what SQLite says; the copy must be thrown away then.
    """
    if known is not None and all(keeps(one.partition) for one in known.in_force().values()):
        return []
    with becoming_whole(path, plain=True) as connection:
        if all(keeps(one.partition) for one in recorded_definitions(connection)):
            return []
        frees = int(connection.pragma("auto_vacuum")) == 1
        if frees:
            connection.pragma("auto_vacuum", 2)
        emptied = _take_out(connection, keeps)
    if frees:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(fd, bytes(4), _INCREMENTAL_AT)
            os.fsync(fd)
        finally:
            os.close(fd)
    return emptied


def _take_out(connection: apsw.Connection, keeps: Callable[[int], bool]) -> list[str]:
    gone = [one.table for one in recorded_definitions(connection) if not keeps(one.partition)]
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.pragma("foreign_keys", False)
    connection.pragma("secure_delete", 1)
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
        if connection.table_exists("main", "sqlite_sequence"):
            connection.executemany("DELETE FROM main.sqlite_sequence WHERE name = ?", [(table,) for table in gone])
        clear_ring(connection)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return gone
