"""Incremental writes to BLOBs: the hook tells of each, but gives only the row as it was.

Guarantees: such a row's change becomes one UPDATE between the row before the first write and the row after the last
one, and stands before any other change of that row. (SQLite opens no column for writing in place that an index or a
foreign key uses, so its order among other rows' changes does not matter.)
Leaves to others: the change stream, and when there is time to read a row (never inside the hook).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

from replicate.errors import InternalError
from replicate.region.sqlite import wide_rows
from replicate.region.sqlite.apply.statements import local_rowid_name
from replicate.region.sqlite.capture.tables import CapturedTable
from replicate.region.sqlite.sql.names import quote


class BlobWrites:
    """Rows with writes that have not been told yet. False if there are none; so is `rows`, which is always the same
    object: the hook asks it."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], tuple[CapturedTable, list[Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self.rows)

    def clear(self) -> None:
        """Forget them: the database has taken them back."""
        self.rows.clear()

    def note(self, table: CapturedTable, rowid: int, before: list[Any]) -> None:
        """A write to a row whose image is `before`."""
        self.rows.setdefault((table.definition.table, rowid), (table, before))

    def take(self, table: CapturedTable, rowid: int) -> list[Any] | None:
        """The image of a row before its writes, which the caller tells of now; None if there were none."""
        found = self.rows.pop((table.definition.table, rowid), None)
        return None if found is None else found[1]

    def take_all(self) -> Iterator[tuple[CapturedTable, int, list[Any]]]:
        """(table, rowid, image before) of every row, whose writes the caller tells of now."""
        rows = list(self.rows.items())
        self.rows.clear()
        for (_, rowid), (table, before) in rows:
            yield table, rowid, before


def read_row(connection: apsw.Connection, table: CapturedTable, rowid: int, schema: str = "main") -> list[Any]:
    """The image of a row as it is now. Raises UnicodeDecodeError, InternalError and what SQLite says."""
    found = find_row(connection, table, rowid, schema)
    if found is None:
        raise InternalError(f"a row of table {table.definition.table} is gone, and no change told of it")
    return found


def find_row(connection: apsw.Connection, table: CapturedTable, rowid: int, schema: str = "main") -> list[Any] | None:
    """The image of a row as it is now; None if there is none. Raises UnicodeDecodeError, and what SQLite says."""
    definition = table.definition
    hidden = local_rowid_name(connection, definition, schema)
    names = [quote(column.name) for column in definition.columns]
    where = hidden or names[definition.key[0]]
    names[:0] = [hidden] if definition.rowid else []
    source = f"FROM {quote(schema)}.{quote(definition.table)} WHERE {where} = ?"
    found = wide_rows.read_row(connection, names, source, (rowid,))
    return None if found is None else list(found)
