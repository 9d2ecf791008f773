"""Tables with VIRTUAL generated columns: the hook can give no row of these (measured), only which row changes.

Guarantees: what is told of such a table is the net change of the rows that were touched, between the state before and
now: first all that go, then all that come, so that no unique value is there twice on the way. A row whose state before
can not be read is refused by name.
Refuses to know: the change stream's format, and when there is time to read (never inside the hook).

The state before is what this transaction told last, or else what a second connection sees that begins to read while we
hold the write lock: the state before the transaction. A table that the transaction itself has made or altered is not
there; if it was empty then, it is known all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import apsw
import msgpack

from replicate.database.capture_blobs import find_row
from replicate.database.capture_tables import CapturedTable
from replicate.database.names import quote
from replicate.database.sqlite import open_region
from replicate.errors import NotSupportedError

TOUCHED_MAX: Final = 1_000_000
"""Rows of one statement: they are held in memory."""

_Image = list[Any] | None
_STALE: Final[list[Any]] = []
"""In an image's place: the table has been altered since."""


class NetChange(NamedTuple):
    """One row that goes, or comes."""

    table: CapturedTable
    goes: bool
    image: list[Any]


class NetChanges:
    """The touched rows of one connection's transactions."""

    def __init__(self) -> None:
        self.touched: dict[tuple[str, int], CapturedTable] = {}
        self._known: dict[tuple[str, int], list[tuple[int, _Image]]] = {}
        self._made: dict[str, list[tuple[int, bool]]] = {}

    def clear(self) -> None:
        """The transaction has ended."""
        self.touched.clear()
        self._known.clear()
        self._made.clear()

    def cut(self, changes: int) -> None:
        """Forget what was told behind the first `changes` changes. Touched rows stay: they are looked at again."""
        for kept in cast("tuple[dict[Any, list[Any]], ...]", (self._known, self._made)):
            for key in list(kept):
                kept[key] = [entry for entry in kept[key] if entry[0] <= changes]
                if not kept[key]:
                    del kept[key]

    def touch(self, table: CapturedTable, *rowids: int) -> None:
        """Rows change, or may."""
        for rowid in rowids:
            self.touched[table.definition.table, rowid] = table
        if len(self.touched) > TOUCHED_MAX:
            raise NotSupportedError(
                f"one statement changes more than {TOUCHED_MAX} rows of table {table.definition.table}, which has a "
                "VIRTUAL generated column",
                do="Roll back; change fewer rows at a time, or make the generated column STORED",
                table=table.definition.table,
            )

    def redefined(self, connection: apsw.Connection, table: CapturedTable, changes: int) -> None:
        """A table has been made or altered, as the change of that number."""
        name = table.definition.table
        for (known, _), entries in self._known.items():
            if known == name:
                entries.append((changes, _STALE))
        empty = connection.execute(f"SELECT 1 FROM main.{quote(name)} LIMIT 1").get is None
        self._made.setdefault(name, []).append((changes, empty))

    def take(self, connection: apsw.Connection, changes: int) -> Iterator[NetChange]:
        """The net changes of the touched rows. `changes`: told so far. Raises NotSupportedError and SQLite's errors."""
        touched, self.touched = self.touched, {}
        going: list[NetChange] = []
        coming: list[NetChange] = []
        before: apsw.Connection | None = None
        try:
            for (name, rowid), table in touched.items():
                known = self._known.get((name, rowid))
                old: _Image
                if known is not None and known[-1][1] is not _STALE:
                    old = known[-1][1]
                elif name in self._made:
                    if not self._made[name][-1][1]:
                        raise _unreadable(name)
                    old = None
                else:
                    before = before or open_region(connection.filename, readonly=True)
                    old = find_row(before, table, rowid)
                new = find_row(connection, table, rowid)
                if msgpack.packb(old) == msgpack.packb(new):
                    continue
                if old is not None:
                    going.append(NetChange(table, True, old))
                if new is not None:
                    coming.append(NetChange(table, False, new))
                # Behind the changes that are told now: a cut before them takes this back.
                self._known.setdefault((name, rowid), []).append((changes + 1, new))
        finally:
            if before is not None:
                before.close(True)
        yield from going
        yield from coming


def _unreadable(table: str) -> NotSupportedError:
    return NotSupportedError(
        f"rows of table {table}, which has a VIRTUAL generated column, are changed in the transaction that alters it",
        do="Roll back; commit the schema change first, or make the generated column STORED",
        table=table,
    )
