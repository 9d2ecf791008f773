"""The rows that a data change returns (RETURNING), kept until the application fetches them: by then the change is done,
and may be committed.

SQLite makes all changes before it gives the first of these rows. sqlite3 leaves them with SQLite and hands them out one
by one; until the last one a COMMIT fails there ("SQL statements in progress").

Guarantees: memory is bounded, however many rows there are: what goes beyond MEMORY_BYTES is in a file without a name,
which is gone with them at the latest. Where no such file can be written, rows stay in memory.
Leaves to others: which statement it was.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Final

import msgpack

from replicate.limits import KIB, MIB

MEMORY_BYTES: Final = 4 * MIB
CHUNK_BYTES: Final = 256 * KIB
_VALUE_BYTES: Final = 40
"""What a value costs besides the bytes of a text or BLOB, about."""

Row = tuple[Any, ...]


class ReturnedRows:
    """Rows beyond MEMORY_BYTES. Never empty."""

    def __init__(self, first: list[Row], rows: Iterator[Row]) -> None:
        """`first`, and then all of `rows`, which are read now; what reading raises is raised here."""
        self._first = first
        self._chunks: list[bytes | tuple[int, int]] = []
        self._file: IO[bytes] | None = None
        self._end = 0
        while chunk := _some(rows, CHUNK_BYTES):
            self._chunks.append(self._put(msgpack.packb(chunk)))

    def _put(self, packed: bytes) -> bytes | tuple[int, int]:
        """Where the bytes are in the file, or themselves if they cannot be there."""
        start = self._end
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="dualsite-rows-", buffering=0)  # noqa: SIM115 (it stays open)
            written = 0
            while written < len(packed):
                written += os.pwrite(self._file.fileno(), packed[written:], start + written)
        except OSError:
            return packed
        self._end = start + len(packed)
        return start, len(packed)

    def _get(self, chunk: bytes | tuple[int, int]) -> bytes:
        if isinstance(chunk, bytes):
            return chunk
        assert self._file is not None
        return os.pread(self._file.fileno(), chunk[1], chunk[0])

    def __iter__(self) -> Iterator[Row]:
        yield from self._first
        for chunk in self._chunks:
            yield from msgpack.unpackb(self._get(chunk), use_list=False)


Rows = list[Row] | ReturnedRows


def keep_rows(rows: Iterator[Row]) -> Rows:
    """All of `rows`, read now."""
    first = _some(rows, MEMORY_BYTES)
    row = next(rows, None)
    if row is None:
        return first
    first.append(row)
    return ReturnedRows(first, rows)


def _some(rows: Iterator[Row], limit_bytes: int) -> list[Row]:
    """Rows until they are about as large as `limit_bytes`; all if they are smaller."""
    taken: list[Row] = []
    size = 0
    for row in rows:
        taken.append(row)
        size += len(row) * _VALUE_BYTES
        for value in row:
            if isinstance(value, str | bytes):
                size += len(value)
        if size >= limit_bytes:
            break
    return taken
