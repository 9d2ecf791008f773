"""The rows that one transaction has touched and told of, of tables whose net change is told: a database of its own that
goes to disk by itself.

Guarantees: memory is bounded, however many rows there are: a buffer of touched rows and SQLite's page cache; what does
not fit these is in a file without a name in SQLite's temporary directory, which is gone with the process at the latest.
Nothing of it survives the transaction. DiskFullError and JournalIOError name that directory.
Leaves to others: what is read of rows, and when.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw
import msgpack

from replicate.errors import ReplicateError
from replicate.region.sqlite.open import translate

BUFFERED_MAX: Final = 10_000
"""Touched rows held in memory before they go to the spill: the hook that notes them should be quick."""

CACHE_KIB: Final = 4096
_WHERE: Final = "SQLite's temporary directory (SQLITE_TMPDIR, else /var/tmp or /tmp)"

# A row told of twice has two entries: the newer one is taken back when the transaction is cut between them.
_SCHEMA: Final = """
CREATE TABLE touched (place INTEGER, row INTEGER, PRIMARY KEY (place, row)) WITHOUT ROWID;
CREATE TABLE told (place INTEGER, row INTEGER, at INTEGER, image BLOB, PRIMARY KEY (place, row, at)) WITHOUT ROWID;
"""

Image = list[Any] | None


class Spill:
    """Touched and told rows, each by its table's place and its rowid. Empty until the first one."""

    def __init__(self) -> None:
        self._buffer: set[tuple[int, int]] = set()
        self._connection: apsw.Connection | None = None
        self._pack = msgpack.Packer(autoreset=True).pack
        self._last_told = -1

    def clear(self) -> None:
        """The transaction has ended: forget everything, and give the file back."""
        self._buffer.clear()
        self._last_told = -1
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close(True)

    # Touched rows.

    def touch(self, place: int, row: int) -> None:
        """A row changes, or may."""
        self._buffer.add((place, row))
        if len(self._buffer) >= BUFFERED_MAX:
            self._flush()

    def untouch(self) -> None:
        """Forget which rows were touched."""
        self._buffer.clear()
        if self._connection is not None:
            self._run("DELETE FROM touched")

    def untouch_table(self, place: int) -> bool:
        """Forget which rows of one table were touched. Whether there are touched rows of others."""
        self._buffer = {row for row in self._buffer if row[0] != place}
        if self._connection is None:
            return bool(self._buffer)
        self._run("DELETE FROM touched WHERE place = ?", (place,))
        return bool(self._buffer) or self._run("SELECT 1 FROM touched LIMIT 1").get is not None

    def touched(self) -> Iterator[tuple[int, int]]:
        """Every touched row once, by table and rowid. None may be touched meanwhile; rows may be told of."""
        if self._connection is None:
            yield from sorted(self._buffer)
            return
        self._flush()
        yield from self._rows("SELECT place, row FROM touched")

    # Rows told of.

    @property
    def has_told(self) -> bool:
        """Whether any row was told of."""
        return self._last_told >= 0

    def tell(self, place: int, row: int, at: int, image: Image) -> None:
        """What a row is as of change `at`; None: there is none."""
        self._last_told = max(self._last_told, at)
        self._run("INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?)", (place, row, at, self._pack(image)))

    def last(self, place: int, row: int) -> tuple[int, Image] | None:
        """When and what was told last of a row; None if nothing was."""
        if self._last_told < 0:
            return None
        found: Any = self._run(
            "SELECT at, image FROM told WHERE place = ? AND row = ? ORDER BY at DESC LIMIT 1", (place, row)
        ).fetchone()
        return None if found is None else (found[0], _unpack(found[1]))

    def told_at(self, at: int) -> Iterator[tuple[int, Image]]:
        """Table and image of the touched rows that were told of at `at`, by table and rowid."""
        if self._last_told < at:
            return
        self._flush()
        for place, image in self._rows(
            "SELECT place, image FROM touched JOIN told USING (place, row) WHERE at = ? ORDER BY place, row", (at,)
        ):
            yield place, _unpack(image)

    def cut(self, changes: int) -> None:
        """Forget what was told as of a change after the first `changes`."""
        if self._last_told > changes:
            self._run("DELETE FROM told WHERE at > ?", (changes,))
            self._last_told = changes

    # The database.

    def _flush(self) -> None:
        if self._buffer:
            try:
                self._open().executemany("INSERT OR IGNORE INTO touched VALUES (?, ?)", sorted(self._buffer))
            except apsw.Error as error:
                raise _named(error) from error
            self._buffer.clear()

    def _rows(self, sql: str, bindings: tuple[Any, ...] = ()) -> Iterator[Any]:
        cursor = self._open().cursor()
        try:
            yield from cursor.execute(sql, bindings)
        except apsw.Error as error:
            raise _named(error) from error
        finally:
            cursor.close(True)

    def _run(self, sql: str, bindings: tuple[Any, ...] = ()) -> apsw.Cursor:
        try:
            return self._open().execute(sql, bindings)
        except apsw.Error as error:
            raise _named(error) from error

    def _open(self) -> apsw.Connection:
        if self._connection is None:
            connection = apsw.Connection("")  # a database without a name: in memory until the page cache is full
            connection.pragma("journal_mode", "off")
            connection.pragma("cache_size", -CACHE_KIB)
            connection.execute(_SCHEMA)
            connection.execute("BEGIN")
            self._connection = connection
        return self._connection


def _unpack(packed: bytes) -> Image:
    image: Image = msgpack.unpackb(packed, strict_map_key=False)
    return image


def _named(error: apsw.Error) -> ReplicateError:
    return translate(error, where=_WHERE)
