"""A second database that committed transactions are played into, one row at a time, in the simplest possible way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import apsw

from replicate.model.rowid import rowid_name
from replicate.model.transaction import Op, TableDefinition
from replicate.region.sqlite.guards import register_guard
from replicate.region.sqlite.schema import recorded_definitions
from replicate.region.sqlite.sql.names import quote
from tests.harness.fake_door import FakeDoor


class Replica:
    """Copied from a region's file at the start; `check` plays what was committed since and compares everything."""

    def __init__(self, door: FakeDoor, path: Path) -> None:
        self._door = door
        self._played = 0
        shutil.copy(door.path, path)
        self._own = apsw.Connection(str(path))
        self._own.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        register_guard(self._own)
        self._definitions = {d.table_id: d for d in recorded_definitions(self._own)}

    def check(self) -> None:
        """Play, then compare every table of the application, rowid by rowid, typed value by typed value."""
        for commit in self._door.commits[self._played :]:
            with self._own:
                for op, number, argument, values in commit.changes:
                    self._apply(op, number, argument, values)
            self._played += 1
        theirs = apsw.Connection(str(self._door.path), flags=apsw.SQLITE_OPEN_READONLY)
        assert _content(self._own) == _content(theirs)
        theirs.close()

    def _apply(self, op: Op, number: int, argument: Any, values: list[Any]) -> None:
        if op is Op.SCHEMA:
            self._own.execute(values[0])
            return
        if op is Op.DEFINE:
            definition = TableDefinition.unpack(values)
            assert definition.table_id == number
            self._definitions[number] = definition
            return
        definition = self._definitions[number]
        if op is Op.SEQUENCE:
            self._own.execute("DELETE FROM sqlite_sequence WHERE name = ?", (definition.table,))
            if values[1] is not None:
                self._own.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (definition.table, values[1]))
            return
        names = _names(definition)
        table = f"main.{quote(definition.table)}"
        where = " AND ".join(f"+{name} IS ?" for name in names)
        if op is Op.INSERT:
            marks = ", ".join("?" * len(names))
            self._own.execute(f"INSERT INTO {table}({', '.join(names)}) VALUES ({marks})", values)
        elif op is Op.DELETE:
            self._own.execute(f"DELETE FROM {table} WHERE {where}", values)
        else:
            mask = argument if isinstance(argument, int) else int.from_bytes(argument, "little")
            changed = [name for at, name in enumerate(names) if mask >> at & 1]
            if not changed:
                changed, values = [names[0]], [values[0], *values]
            self._own.execute(f"UPDATE {table} SET {', '.join(n + ' = ?' for n in changed)} WHERE {where}", values)
        assert self._own.changes() == 1, (op, definition.table, values)


def _names(definition: TableDefinition) -> list[str]:
    names = [quote(column.name) for column in definition.columns]
    if definition.rowid:
        names.insert(0, str(rowid_name([column.name for column in definition.columns])))
    return names


def _content(connection: apsw.Connection) -> dict[str, Any]:
    found: dict[str, Any] = {"user_version": connection.pragma("user_version")}
    tables = connection.execute(
        "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' "
        "AND name NOT GLOB '_replicate_*' AND name NOT GLOB 'sqlite_s*'"
    ).fetchall()
    for table, without in tables:
        rowid = "" if without else "rowid, "
        rows = connection.execute(f"SELECT {rowid}* FROM {quote(str(table))}").fetchall()
        found[str(table)] = sorted(repr(row) for row in rows)
    if connection.table_exists("main", "sqlite_sequence"):
        found["sequence"] = sorted(connection.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    found["schema"] = sorted(
        connection.execute(
            "SELECT type, name FROM sqlite_schema WHERE name NOT GLOB '_replicate_*' AND name NOT GLOB 'sqlite_*'"
        ).fetchall()
    )
    return found
