"""Tables with VIRTUAL generated columns: the hook can give no row of these (measured), only which row changes.

Guarantees: what is told of such a table is the net change of the rows that were touched, between the state before and
now: first all that go, then all that come, so that no unique value is there twice on the way. A row whose state before
cannot be read is refused by name. Memory is bounded (spill.py).
Leaves to others: the change stream's format, and when there is time to read (never inside the hook).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import apsw
import msgpack

from replicate.errors import NotSupportedError
from replicate.region.sqlite.capture.blobs import find_row
from replicate.region.sqlite.capture.spill import Image, Spill
from replicate.region.sqlite.capture.stream import rows_named
from replicate.region.sqlite.capture.tables import CapturedTable, TableMap
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.sql.names import quote


class NetImage(NamedTuple):
    """One row that goes, or comes."""

    table: CapturedTable
    goes: bool
    image: list[Any]


class _Boundary(NamedTuple):
    """A table was made, altered or dropped as change `at`. `whole`: each row that it had then is told."""

    at: int
    whole: bool


class NetChanges:
    """The touched rows of one connection's transactions. `pending`: how often rows were touched since the last `take`;
    0 if there is nothing to look at. `is_used`: whether there is something to `clear`, or to `end_reading`.

    The state before a change is what this transaction told last, or else what a second connection sees that begins to
    read while we hold the write lock: the state before the transaction. A schema change that has a table captured in
    another way is a boundary (`cross`): what the stream told of the table's rows before it is read again there, since
    the hook may have told it, and what the second connection sees counts no longer if the definition is another one.
    """

    def __init__(self, schema: str) -> None:
        self.pending = 0
        self.is_used = False
        self._schema = schema
        self._spill = Spill()
        self._places: dict[str, int] = {}
        self._tables: list[CapturedTable] = []
        self._boundaries: dict[str, list[_Boundary]] = {}
        self._before: apsw.Connection | None = None

    def clear(self) -> None:
        """The transaction has ended."""
        if self._tables:
            self.pending = 0
            self._spill.clear()
            self._places.clear()
            self._tables.clear()
        if self._boundaries:
            self._boundaries.clear()
        self.end_reading()
        self.is_used = False

    def end_reading(self) -> None:
        """Give up the state before the transaction, if it is being read: a reader would keep COMMIT from writing back
        the WAL."""
        if self._before is not None:
            before, self._before = self._before, None
            before.close(True)

    def cut(self, changes: int) -> None:
        """Forget what was told after the first `changes` changes. Touched rows stay: they are looked at again."""
        self._spill.cut(changes)
        for name in list(self._boundaries):
            self._boundaries[name] = [one for one in self._boundaries[name] if one.at <= changes]
            if not self._boundaries[name]:
                del self._boundaries[name]

    def touch(self, table: CapturedTable, row: int, other: int) -> None:
        """A row changes, or may; `other`: its rowid afterwards. DiskFullError and JournalIOError of the spill."""
        place = self._place_of(table)
        self.pending += 1
        self._spill.touch(place, row)
        if other != row:
            self._spill.touch(place, other)

    def _place_of(self, table: CapturedTable) -> int:
        place = self._places.get(table.definition.table)
        if place is None:
            self.is_used = True
            place = self._places[table.definition.table] = len(self._tables)
            self._tables.append(table)
        elif self._tables[place] is not table:
            self._tables[place] = table
        return place

    def untouch(self) -> None:
        """What was touched has been taken back, and need not be looked at."""
        if self.pending:
            self.pending = 0
            self._spill.untouch()

    @property
    def names(self) -> str:
        """The tables that rows were touched of, for what an error says."""
        return ", ".join(sorted(self._places))

    def cross(
        self,
        connection: apsw.Connection,
        crossed: Iterable[str],
        before: TableMap,
        after: TableMap,
        changes: int,
        stream: Callable[[], Iterable[bytes]],
    ) -> None:
        """The change of number `changes` was a boundary for the tables `crossed`: they are captured as `after` says
        from here on, and were as `before` said. Nothing is pending but what the schema change itself has touched.

        `stream`: all that was told so far. Raises as `take`."""
        self.is_used = True
        net: dict[str, int] = {}
        for name in crossed:
            old, new = before.tables.get(name), after.tables.get(name)
            if new is None:
                self._forget_dropped(name)
            if new is not None and new.net:
                net[name] = self._place_of(new)
            if old is None or new is None or old.definition != new.definition:
                whole = new is not None and (self._is_empty(connection, name) or self._is_whole(name))
                self._boundaries.setdefault(name, []).append(_Boundary(changes, whole))
        if net:
            known = [table.definition for table in before.tables.values()]
            for name, row in rows_named(stream(), known, net):
                place = net[name]
                self._spill.tell(place, row, changes, find_row(connection, self._tables[place], row, self._schema))

    def _is_empty(self, connection: apsw.Connection, name: str) -> bool:
        return connection.execute(f"SELECT 1 FROM {quote(self._schema)}.{quote(name)} LIMIT 1").get is None

    def _is_whole(self, name: str) -> bool:
        """Whether every row of the table is in the stream: it was empty at a boundary, and none came by a RENAME."""
        boundaries = self._boundaries.get(name)
        return boundaries is not None and boundaries[-1].whole

    def _forget_dropped(self, name: str) -> None:
        """A table is gone, and with it what its DROP has touched: rows that references were to be kept for."""
        place = self._places.get(name)
        if place is not None and self.pending and not self._spill.untouch_table(place):
            self.pending = 0

    def take(self, connection: apsw.Connection, changes: int) -> Iterator[NetImage]:
        """The net changes of the touched rows: all that go, then all that come. `changes`: told so far. Raises
        NotSupportedError, DiskFullError, JournalIOError and SQLite's errors."""
        spill, tables = self._spill, self._tables
        at = changes + 1  # after the changes that are told now: a cut before them takes this back
        known = spill.has_told
        for place, row in spill.touched():
            table = tables[place]
            told = self._told(place, row) if known else None
            old: Image
            if told is not None:
                old = told[0]
            elif table.definition.table in self._boundaries:
                if not self._is_whole(table.definition.table):
                    raise _unreadable(table.definition.table)
                old = None
            else:
                old = find_row(self._before or self._begin_reading(connection), table, row)
            new = find_row(connection, table, row, self._schema)
            if msgpack.packb(old) == msgpack.packb(new):
                continue
            spill.tell(place, row, at, new)
            if old is not None:
                yield NetImage(table, True, old)
        for place, image in spill.told_at(at):
            if image is not None:
                yield NetImage(tables[place], False, image)
        self.untouch()

    def _begin_reading(self, connection: apsw.Connection) -> apsw.Connection:
        before = self._before = open_region(connection.db_filename(self._schema), readonly=True)
        before.execute("BEGIN")  # one snapshot, and no lock taken for each row
        return before

    def _told(self, place: int, row: int) -> tuple[Image] | None:
        """What was told last of a row; None if nothing was since the last boundary of its table, nor there."""
        told = self._spill.last(place, row)
        if told is None:
            return None
        boundaries = self._boundaries.get(self._tables[place].definition.table)
        return None if boundaries and told[0] < boundaries[-1].at else (told[1],)


def _unreadable(table: str) -> NotSupportedError:
    return NotSupportedError(
        f"rows of table {table}, which has a VIRTUAL generated column, are changed in the transaction that alters it",
        do="Roll back; commit the schema change first, or make the generated column STORED",
        table=table,
    )
