"""Incremental reading of BLOBs, with the methods of sqlite3.Blob.

Guarantees: reads what the row holds; writing is refused by name (the preupdate hook does not report what is written).
Refuses to know: transactions.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import apsw

from replicate.dbapi_errors import ProgrammingError, surface
from replicate.errors import NotSupportedError

if TYPE_CHECKING:
    from replicate.dbapi_connection import Connection


class Blob:
    """A BLOB opened for reading, from `Connection.blobopen`."""

    def __init__(self, connection: Connection, blob: apsw.Blob) -> None:
        self._connection = connection
        self._blob: apsw.Blob | None = blob
        self._at = 0

    def _opened(self) -> apsw.Blob:
        self._connection._check()
        if self._blob is None:
            raise ProgrammingError("Cannot operate on a closed blob.")
        return self._blob

    def __len__(self) -> int:
        return self._opened().length()

    def read(self, length: int = -1, /) -> bytes:
        """Up to `length` bytes from the present offset; all that are left if negative."""
        left = len(self) - self._at
        return self._read(self._at, left if length < 0 else min(length, left), move=True)

    def _read(self, at: int, length: int, *, move: bool = False) -> bytes:
        blob = self._opened()
        if length <= 0:
            return b""
        try:
            blob.seek(at)
            data = blob.read(length)
        except apsw.Error as error:
            raise surface(error) from error
        if move:
            self._at = at + length
        return data

    def write(self, data: Any, /) -> None:
        """Refused."""
        self._opened()
        raise surface(NotSupportedError("incremental BLOB writing can not be captured", do="Use UPDATE"))

    def seek(self, offset: int, origin: int = os.SEEK_SET, /) -> None:
        """Set the offset of the next read."""
        length = len(self)
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: length}
        if origin not in bases:
            raise ValueError("'origin' should be os.SEEK_SET, os.SEEK_CUR, or os.SEEK_END")
        if not -(1 << 31) <= offset < 1 << 31:
            raise OverflowError("seek offset results in offset overflow")
        at = bases[origin] + offset
        if not 0 <= at <= length:
            raise ValueError("offset out of blob range")
        self._at = at

    def tell(self) -> int:
        """The offset of the next read."""
        self._opened()
        return self._at

    def __getitem__(self, key: int | slice) -> int | bytes:
        length = len(self)
        if isinstance(key, slice):
            places = range(length)[key]
            if not places:
                return b""
            low, high = min(places), max(places)
            return self._read(low, high - low + 1)[:: abs(places.step)][:: 1 if places.step > 0 else -1]
        if not isinstance(key, int):
            raise TypeError("Blob indices must be integers")
        at = key + length if key < 0 else key
        if not 0 <= at < length:
            raise IndexError("Blob index out of range")
        return self._read(at, 1)[0]

    def __setitem__(self, key: object, value: object) -> None:
        self.write(value)

    def close(self) -> None:
        """Close it. May be called twice."""
        self._connection._check()
        if self._blob is not None:
            self._blob.close(True)
            self._blob = None

    def __enter__(self) -> Blob:
        self._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._opened()
        self.close()
        return False
