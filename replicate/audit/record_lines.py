"""How an audit is written: records as lines for people, as CSV, and counts as a table.

Guarantees: a line for people holds no control character, whatever a row holds, and is cut to the width that is given;
what an UPDATE has changed is told as before → after, and nothing else of the row. CSV is RFC 4180's, with a line of
names first.
Leaves to others: what is told, and where it is printed. Pure.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

import msgpack

from replicate.model.moment import iso, readable

COLUMNS: Final = (
    "seqno", "place", "time", "origin", "incarnation", "origin_seqno", "op", "region", "table", "key", "before",
    "after", "text",
)  # fmt: skip
"""Of a record in CSV and Parquet. `key`: a list in JSON; `before`, `after`: an object in JSON, by columns' names."""
_COLOURS: Final = {"insert": 32, "update": 33, "delete": 31, "schema": 35, "comment": 36}
_VALUE_CHARACTERS_MAX: Final = 60


def plain(value: object) -> object:
    """A value as JSON knows it: a BLOB is {"blob": HEX}, an infinite number {"real": TEXT}, text that is not UTF-8
    {"text": HEX}."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"blob": bytes(value).hex()}
    if isinstance(value, msgpack.ExtType):
        return {"text": value.data.hex()}
    return {"real": repr(value)} if isinstance(value, float) and math.isinf(value) else value


def as_json(value: object) -> str:
    """On one line; text as it is."""
    return json.dumps(value, ensure_ascii=False)


def image_of(names: Sequence[str], image: Sequence[Any] | None) -> str | None:
    """An image as an object in JSON; of a table that nobody knows as a list."""
    if image is None:
        return None
    values = list(map(plain, image))
    return as_json(dict(zip(names, values, strict=True)) if len(names) == len(values) else values)


def cells_of(record: Any) -> dict[str, Any]:
    """The columns of a record (changes.ChangeRecord)."""
    return {
        "seqno": record.seqno,
        "place": record.place,
        "time": iso(record.csn),
        "origin": record.origin_name or f"{record.origin:08x}",
        "incarnation": record.incarnation,
        "origin_seqno": record.origin_seqno,
        "op": record.op,
        "region": record.region or None,
        "table": record.table or None,
        "key": None if record.key is None else as_json(list(map(plain, record.key))),
        "before": image_of(record.names, record.before),
        "after": image_of(record.names, record.after),
        "text": record.text or None,
    }


def csv_line(cells: Sequence[object]) -> str:
    """One line of CSV; None is an empty cell, and an empty text is one in quotation marks."""
    return ",".join(map(_cell, cells))


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = str(value)
    if text and not any(mark in text for mark in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


class Text:
    """Lines for people. `width`: characters to a line, 0 for as many as there are; `colour`: of a terminal."""

    def __init__(self, width: int = 0, *, colour: bool = False) -> None:
        self._width = width
        self._colour = colour

    def head(self, record: Any) -> str:
        """The line before the changes of a transaction: its number, when and by whom."""
        origin = record.origin_name or f"{record.origin:08x}"
        if record.incarnation not in (None, 1):
            origin += f"/{record.incarnation}"
        return self._cut(f"{record.seqno}  {readable(record.csn)}  {origin}", 1)

    def line(self, record: Any) -> str:
        """A change."""
        table = f"{record.region}.{record.table}" if record.region and record.table else record.table or record.region
        table = printable(table)
        key = "" if record.key is None else f" [{', '.join(map(self._value, record.key))}]"
        told = " ".join(part for part in (f"{table}{key}", self._told(record)) if part)
        return self._cut(f"    {record.op.upper():<8} {told}".rstrip(), _COLOURS.get(record.op, 0))

    def _told(self, record: Any) -> str:
        if record.text or (record.before is None and record.after is None):
            return printable(record.text)
        names = record.names or tuple(str(at) for at in range(len(record.before or record.after)))
        if record.before is not None and record.after is not None:
            parts = [
                f"{printable(names[at])}: {self._value(record.before[at])} → {self._value(record.after[at])}"
                for at in record.changed
            ]
            return ", ".join(parts) or "(nothing changed)"
        image = record.after if record.before is None else record.before
        pairs = zip(names, image, strict=True)
        return "(" + ", ".join(f"{printable(name)}={self._value(value)}" for name, value in pairs) + ")"

    def _value(self, value: object) -> str:
        text = "NULL" if value is None else repr(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            text = f"X'{bytes(value).hex()}'"  # as --key takes it
        elif isinstance(value, msgpack.ExtType):
            text = repr(value.data)
        if self._width and len(text) > _VALUE_CHARACTERS_MAX:
            return text[:_VALUE_CHARACTERS_MAX] + "…"
        return text

    def _cut(self, line: str, colour: int) -> str:
        if self._width:
            line = _cut(line, self._width)
        return f"\x1b[{colour}m{line}\x1b[0m" if self._colour and colour else line


def _cut(line: str, width: int) -> str:
    """At most so many cells of a terminal: a Chinese letter takes two, an accent of its own none."""
    if len(line) <= width and line.isascii():
        return line
    cells, fits = 0, 0
    for at, letter in enumerate(line):
        cells += _cells_of(letter)
        if cells > width:
            return line[:fits] + "…"
        if cells < width:
            fits = at + 1
    return line


def _cells_of(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


def printable(text: str) -> str:
    """Without control characters: those are written as Python writes them in a text."""
    return text if text.isprintable() else repr(text)[1:-1]
