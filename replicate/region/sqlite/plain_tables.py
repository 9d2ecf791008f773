"""A copy of a region becomes a plain database that has the tables of some partitions, and no others.

Guarantees: these tables have their rows, rowids, indexes, counters, full-text indexes and R*Trees; nothing of any other
table's rows is in the file, nor of our bookkeeping and guards. A view or a trigger stays where all that it names is
there; each other one is left out, and told by name: it would bar changes of the schema.
Leaves to others: where the copy comes from, and who is given it. Only for a copy that nobody else has open.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import apsw
from msgspec import Struct

from replicate.region.sqlite.adopt_copy import becoming_whole
from replicate.region.sqlite.open import remove, write_transaction
from replicate.region.sqlite.schema import recorded_definitions
from replicate.region.sqlite.sql.names import is_own, quote
from replicate.region.sqlite.take_out_rows import take_out
from replicate.region.sqlite.virtual_tables import VIEWS, shadow_tables, virtual_tables

_OBJECTS: Final = "SELECT name, sql, tbl_name FROM main.sqlite_schema WHERE type = ? AND sql IS NOT NULL ORDER BY rowid"


class PlainTables(Struct, frozen=True):
    """`left_out`: views, triggers, and virtual tables that show another one. `outside`: (table, the table that it
    refers to by a foreign key, which is not there)."""

    tables: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    outside: tuple[tuple[str, str], ...] = ()


def make_plain(path: Path, keeps: Callable[[int], bool]) -> PlainTables:
    """Have the copy of a region be plain, with the tables of partitions that `keeps` knows.

    Raises RegionDamagedError, DiskFullError, InternalError and what SQLite says; the copy must be thrown away then.
    """
    take_out(path, keeps)
    with becoming_whole(path, plain=True) as connection:
        kept = {one.table for one in recorded_definitions(connection) if keeps(one.partition)}
        shadows = shadow_tables(connection)
        virtual = virtual_tables(connection)
        kept |= {name for name in virtual if any(one.startswith(f"{name}_") for one in shadows.intersection(kept))}
        remove(connection)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)  # else their statements are not looked at
        with write_transaction(connection, str(path)):
            views = _objects(connection, "view")
            triggers = _objects(connection, "trigger")
            showing = {name for name, module in virtual.items() if module in VIEWS}
            views += [one for one in _objects(connection, "table") if one[0] in showing]
            for kind, objects in (("TRIGGER", triggers), ("VIEW", views)):
                for name, _, _ in objects:
                    connection.execute(f"DROP {'TABLE' if name in showing else kind} main.{quote(name)}")
            tables = [name for name, _, _ in _objects(connection, "table")]
            for name in tables:
                if name not in kept and name not in shadows and not name.lower().startswith("sqlite_"):
                    connection.execute(f"DROP TABLE main.{quote(name)}")
            left_out = [*_without_sense(connection, views, showing), *_barred(connection, triggers)]
        outside = [
            (name, str(row[2]))
            for name in sorted(kept - shadows)
            for row in connection.execute(f"PRAGMA main.foreign_key_list({quote(name)})").fetchall()
            if not connection.table_exists("main", str(row[2]))
        ]
    return PlainTables(tuple(sorted(kept - shadows)), tuple(sorted(left_out)), tuple(dict.fromkeys(outside)))


def _objects(connection: apsw.Connection, kind: str) -> list[tuple[str, str, str]]:
    rows: list[Any] = connection.execute(_OBJECTS, (kind,)).fetchall()
    return [row for row in rows if not is_own(row[0])]


def _without_sense(connection: apsw.Connection, views: list[tuple[str, str, str]], showing: set[str]) -> list[str]:
    """Make the views again whose tables, and views, are all there; the names of the others."""
    left = {name: sql for name, sql, _ in views}
    count = -1
    while len(left) != count:
        count = len(left)
        for name, sql in list(left.items()):
            connection.execute("SAVEPOINT made")
            try:
                connection.execute(sql)
                connection.execute(f"SELECT * FROM main.{quote(name)} LIMIT 1").fetchall()
                del left[name]
            except apsw.SQLError:
                connection.execute("ROLLBACK TO made")
            connection.execute("RELEASE made")
    return list(left)


def _barred(connection: apsw.Connection, triggers: list[tuple[str, str, str]]) -> list[str]:
    """Make the triggers again whose statements SQLite understands; the names of the others."""
    left = []
    for name, sql, table in triggers:
        before = _refusals(connection, table)
        connection.execute("SAVEPOINT made")
        try:
            connection.execute(sql)
            if not _refusals(connection, table) <= before:
                raise apsw.SQLError(name)
        except apsw.SQLError:
            connection.execute("ROLLBACK TO made")
            left.append(name)
        connection.execute("RELEASE made")
    return left


def _refusals(connection: apsw.Connection, table: str) -> set[str]:
    """What SQLite says to writes of that table or view, which it compiles with all triggers; nothing is written."""
    found = set()
    columns = connection.execute("SELECT name FROM pragma_table_xinfo(?, 'main') WHERE hidden = 0", (table,))
    names = [quote(name) for (name,) in columns]
    listed, target = ", ".join(names), f"main.{quote(table)}"
    for statement in (
        f"INSERT INTO {target} ({listed}) SELECT {listed} FROM {target}",
        f"UPDATE {target} SET {', '.join(f'{one} = {one}' for one in names)}",
        f"DELETE FROM {target}",
    ):
        try:
            connection.execute(f"EXPLAIN {statement}", can_cache=False).fetchall()  # it would not be compiled again
        except apsw.SQLError as error:
            found.add(str(error))
    return found
