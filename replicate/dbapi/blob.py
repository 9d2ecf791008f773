"""Incremental reading and writing of BLOBs, with the methods of sqlite3.Blob.

Guarantees: reads what the row holds; what is written is captured as an UPDATE of the row
(region/sqlite/capture/blobs.py).
Leaves to others: transactions; `end` is called when a BLOB is closed that began one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

import apsw

from replicate.dbapi.connection_state import AnyConnection
from replicate.dbapi.errors import OperationalError, ProgrammingError, coded, surface, surfaced
from replicate.dbapi.row import contiguous
from replicate.errors import ReplicateError


def refuse_write() -> None:
    """Of a BLOB that was opened for reading. SQLite says so too, but only after the hook that captures the write."""
    raise coded(OperationalError("attempt to write a readonly database"), apsw.SQLITE_READONLY)


class Blob:
    """A BLOB opened for reading or writing, from `Connection.blobopen`."""

    def __init__(
        self,
        connection: AnyConnection,
        blob: apsw.Blob,
        check: Callable[[], None] | None = None,
        end: Callable[[], None] | None = None,
    ) -> None:
        """`check`: raises unless it may be written to now (None: of no region)."""
        self._connection = connection  # or it would be closed, when nobody else has it
        self._state = connection._state
        self._check, self._end = check, end
        self._blob: apsw.Blob | None = blob
        self._at = 0

    def _opened(self) -> apsw.Blob:
        self._state.check()
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
        """Write bytes at the present offset; the BLOB's length stays. ValueError if they do not fit."""
        written = contiguous(data)
        if len(written) > len(self) - self._at:
            raise ValueError("data longer than blob length")
        self._write(self._at, written)
        self._at += len(written)

    def _write(self, at: int, data: bytes) -> None:
        blob = self._opened()
        try:
            if self._check is not None:
                self._check()
            blob.seek(at)
            blob.write(data)
        except (apsw.Error, ReplicateError) as error:
            raise surface(error) from error

    def seek(self, offset: int, origin: int = os.SEEK_SET, /) -> None:
        """Set the offset of the next read."""
        length = len(self)
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: length}
        if origin not in bases:
            raise ValueError("'origin' should be os.SEEK_SET, os.SEEK_CUR, or os.SEEK_END")
        at = bases[origin] + offset
        if not -(1 << 31) <= at < 1 << 31:
            raise OverflowError("seek offset results in overflow")
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
        return self._read(self._place(key, length), 1)[0]

    @staticmethod
    def _place(key: object, length: int) -> int:
        if not isinstance(key, int):
            raise TypeError("Blob indices must be integers")
        if not -(1 << 63) <= key < 1 << 63:
            raise IndexError(f"cannot fit 'int' into an index-sized integer: {key}")
        at = key + length if key < 0 else key
        if not 0 <= at < length:
            raise IndexError("Blob index out of range")
        return at

    def __setitem__(self, key: int | slice, value: Any) -> None:
        length = len(self)
        if isinstance(key, slice):
            places = range(length)[key]
            if not places:
                return  # whatever the value is, as in sqlite3
            data = contiguous(value)
            if len(data) != len(places):
                raise IndexError("Blob slice assignment is wrong size")
            low, high = min(places), max(places)
            whole = bytearray(self._read(low, high - low + 1))
            for place, byte in zip(places, data, strict=True):
                whole[place - low] = byte
            self._write(low, bytes(whole))
            return
        at = self._place(key, length)
        if not isinstance(value, int):
            raise TypeError(f"{type(value).__name__!r} object cannot be interpreted as an integer")
        if not 0 <= value < 256:
            raise ValueError("byte must be in range(0, 256)")
        self._write(at, bytes((value,)))

    def __delitem__(self, key: object) -> None:
        raise TypeError("Blob doesn't support item deletion")

    __iter__ = None  # not by way of __getitem__

    def close(self) -> None:
        """Close it. May be called twice."""
        self._state.check()
        if self._blob is not None:
            blob, self._blob = self._blob, None
            blob.close(True)
            if self._end is not None:
                surfaced(self._end)

    def __del__(self) -> None:
        if self.__dict__.get("_blob") is not None:
            with contextlib.suppress(Exception):
                self.close()

    def __enter__(self) -> Blob:
        self._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._opened()
        self.close()
        return False
