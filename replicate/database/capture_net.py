"""Tables with VIRTUAL generated columns: the hook can give no row of these (measured), only which row changes.

Guarantees: what is told of such a table is the net change of the rows that were touched, between the state before and
now: first all that go, then all that come, so that no unique value is there twice on the way. A row whose state before
can not be read is refused by name. Memory is bounded (capture_spill.py).
Refuses to know: the change stream's format, and when there is time to read (never inside the hook).

The state before is what this transaction told last, or else what a second connection sees that begins to read while we
hold the write lock: the state before the transaction. A table that the transaction itself has made or altered is not
there; if it was empty then, it is known all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import apsw
import msgpack

from replicate.database.capture_blobs import find_row
from replicate.database.capture_spill import Image, Spill
from replicate.database.capture_tables import CapturedTable
from replicate.database.names import quote
from replicate.database.sqlite import open_region
from replicate.errors import NotSupportedError


class NetChange(NamedTuple):
    """One row that goes, or comes."""

    table: CapturedTable
    goes: bool
    image: list[Any]


class _Made(NamedTuple):
    """A table was made or altered as change `at`. `empty`: it had no row then."""

    at: int
    empty: bool


class NetChanges:
    """The touched rows of one connection's transactions. `pending`: how often rows were touched since the last `take`;
    0 if there is nothing to look at."""

    def __init__(self, schema: str) -> None:
        self.pending = 0
        self._schema = schema
        self._spill = Spill()
        self._places: dict[str, int] = {}
        self._tables: list[CapturedTable] = []
        self._made: dict[str, list[_Made]] = {}
        self._before: apsw.Connection | None = None

    def clear(self) -> None:
        """The transaction has ended."""
        if self._tables:
            self.pending = 0
            self._spill.clear()
            self._places.clear()
            self._tables.clear()
        if self._made:
            self._made.clear()
        if self._before is not None:
            self.end_reading()

    def end_reading(self) -> None:
        """Give up the state before the transaction, if it is being read: a reader would keep COMMIT from writing back
        the WAL."""
        if self._before is not None:
            before, self._before = self._before, None
            before.close(True)

    def cut(self, changes: int) -> None:
        """Forget what was told behind the first `changes` changes. Touched rows stay: they are looked at again."""
        self._spill.cut(changes)
        for name in list(self._made):
            self._made[name] = [made for made in self._made[name] if made.at <= changes]
            if not self._made[name]:
                del self._made[name]

    def touch(self, table: CapturedTable, row: int, other: int) -> None:
        """A row changes, or may; `other`: its rowid afterwards. DiskFullError and JournalIOError of the spill."""
        name = table.definition.table
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = len(self._tables)
            self._tables.append(table)
        elif self._tables[place] is not table:
            self._tables[place] = table
        self.pending += 1
        self._spill.touch(place, row)
        if other != row:
            self._spill.touch(place, other)

    def untouch(self) -> None:
        """What was touched has been taken back, and need not be looked at."""
        if self.pending:
            self.pending = 0
            self._spill.untouch()

    @property
    def names(self) -> str:
        """The tables that rows were touched of, for what an error says."""
        return ", ".join(sorted(self._places))

    def redefined(self, connection: apsw.Connection, table: CapturedTable, changes: int) -> None:
        """A table has been made or altered, as the change of that number."""
        name = table.definition.table
        empty = connection.execute(f"SELECT 1 FROM {quote(self._schema)}.{quote(name)} LIMIT 1").get is None
        self._made.setdefault(name, []).append(_Made(changes, empty))

    def take(self, connection: apsw.Connection, changes: int) -> Iterator[NetChange]:
        """The net changes of the touched rows: all that go, then all that come. `changes`: told so far. Raises
        NotSupportedError, DiskFullError, JournalIOError and SQLite's errors."""
        spill, tables = self._spill, self._tables
        at = changes + 1  # behind the changes that are told now: a cut before them takes this back
        known = spill.has_told
        for place, row in spill.touched():
            table = tables[place]
            told = self._told(place, row) if known else None
            old: Image
            if told is not None:
                old = told[0]
            elif table.definition.table in self._made:
                if not self._made[table.definition.table][-1].empty:
                    raise _unreadable(table.definition.table)
                old = None
            else:
                old = find_row(self._before or self._begin_reading(connection), table, row)
            new = find_row(connection, table, row, self._schema)
            if msgpack.packb(old) == msgpack.packb(new):
                continue
            spill.tell(place, row, at, new)
            if old is not None:
                yield NetChange(table, True, old)
        for place, image in spill.told_at(at):
            if image is not None:
                yield NetChange(tables[place], False, image)
        self.untouch()

    def _begin_reading(self, connection: apsw.Connection) -> apsw.Connection:
        before = self._before = open_region(connection.db_filename(self._schema), readonly=True)
        before.execute("BEGIN")  # one snapshot, and no lock taken for each row
        return before

    def _told(self, place: int, row: int) -> tuple[Image] | None:
        """What was told last of a row; None if nothing was since its table was made or altered."""
        told = self._spill.last(place, row)
        if told is None:
            return None
        made = self._made.get(self._tables[place].definition.table)
        return None if made and told[0] <= made[-1].at else (told[1],)


def _unreadable(table: str) -> NotSupportedError:
    return NotSupportedError(
        f"rows of table {table}, which has a VIRTUAL generated column, are changed in the transaction that alters it",
        do="Roll back; commit the schema change first, or make the generated column STORED",
        table=table,
    )
