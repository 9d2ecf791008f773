"""Reading a file of lost transactions: verified whole first, then transaction by transaction.

Guarantees: nothing is given out of a file that is half, changed or of a later release; memory holds one line, which is
one transaction or one part of a large one; values come back as the database had them.
Leaves to others: what is done with them (apply.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgpack
from msgspec import Struct
from msgspec.structs import replace

from replicate.errors import DamagedError, FormatUnknownError, NotFoundError
from replicate.lost.file import (
    DATA_KINDS,
    FORMAT,
    LARGE_NAMES,
    LAST_LINE_BYTES_MAX,
    digest_upto,
    is_as_written,
    last_line,
)
from replicate.model.transaction import RAW_TEXT_CODE, Kind
from replicate.system.files import open_to_read
from replicate.system.os_errors import io_error

Image = tuple[Any, ...]


class LostChange(Struct, frozen=True):
    """`what`: an Op's name. `table`: region, owner and table with dots between. Of a row the images and their
    columns."""

    what: str
    table: str
    text: str
    columns: tuple[str, ...]
    before: Image | None
    after: Image | None


class LostTransaction(Struct, frozen=True):
    """One transaction. `origin` (hexadecimal) and `origin_seqno` name it wherever it stands, and `chain` (hexadecimal)
    proves it. `places`: where its lines are in the file."""

    seqno: int
    kind: str
    origin: str
    origin_seqno: int
    chain: str
    places: tuple[int, ...]

    @property
    def is_data(self) -> bool:
        return self.kind in DATA_KINDS


class LostReader:
    """A file that is whole. `head`, `last`: its first and last line."""

    def __init__(self, path: Path) -> None:
        """Raises NotFoundError, DamagedError (half, or changed), FormatUnknownError, JournalIOError."""
        self.path = path
        try:
            self._file: IO[bytes] = open_to_read(path)
        except FileNotFoundError:
            raise NotFoundError(
                "there is no such file", where=str(path), do="replicate -i INSTANCE lost list names those there are"
            ) from None
        except OSError as error:
            raise io_error(error, "the file of lost transactions cannot be read", str(path)) from error
        try:
            self.head, self.last, self._end = self._verified()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> LostReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """May be called twice."""
        self._file.close()

    def _verified(self) -> tuple[dict[str, Any], dict[str, Any], int]:
        file, where = self._file, str(self.path)
        try:
            head = json.loads(file.readline(LAST_LINE_BYTES_MAX))
            if not isinstance(head, dict) or "format" not in head:
                raise ValueError("its first line is none of ours")
        except ValueError as error:
            raise DamagedError("this is no file of lost transactions", where=where) from error
        if head["format"] != FORMAT:
            raise FormatUnknownError(
                f"the file has format {head['format']!r}, this release knows {FORMAT}",
                where=where,
                do="Use the release that wrote it, or a newer one",
            )
        line, last_at = last_line(file)
        try:
            last = json.loads(line)
            whole = line.endswith(b"\n") and last["xxh3"] == digest_upto(file, last_at) and is_as_written(last)
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise DamagedError(
                "the file of lost transactions is not whole, or was changed by hand",
                where=where,
                do="Copy it again from the site that wrote it",
            )
        return head, last, last_at

    def transactions(self) -> Iterator[LostTransaction]:
        """Each, in order."""
        waiting: LostTransaction | None = None
        for at, facts in self._lines():
            if facts["kind"] == Kind.PART.name:
                assert waiting is not None
                waiting = replace(waiting, places=(*waiting.places, at))
                continue
            if waiting is not None:
                yield waiting
            places = () if facts["kind"] in LARGE_NAMES else (at,)  # its rows are in its parts
            waiting = LostTransaction(
                facts["seqno"], facts["kind"], facts["origin"], facts["origin_seqno"], facts["chain"], places
            )
        if waiting is not None:
            yield waiting

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        self._file.seek(0)
        at = len(self._file.readline())
        while at < self._end:
            self._file.seek(at)
            line = self._file.readline()
            yield at, json.loads(line)
            at += len(line)

    def changes(self, transaction: LostTransaction) -> Iterator[LostChange]:
        """All of it, in order."""
        for at in transaction.places:
            self._file.seek(at)
            for one in json.loads(self._file.readline())["changes"]:
                images = (None if one[name] is None else tuple(map(_value, one[name])) for name in ("before", "after"))
                yield LostChange(one["what"], one["table"], one["text"], tuple(one["columns"]), *images)


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "blob" in value:
        return bytes.fromhex(value["blob"])
    return float(value["real"]) if "real" in value else msgpack.ExtType(RAW_TEXT_CODE, bytes.fromhex(value["text"]))
