"""How rows and events are written for a filter, as JSON Lines or as msgpack, and how single values are read back.

Guarantees: a value that is written and comes back is the same value of the same type: BLOBs, text that is not UTF-8,
infinite numbers and integers beyond 2^53 too, which JSON or its readers lack. A value that is none of a database's is
refused by its table, column and type.
Leaves to others: what events there are (events.py), and the order in which they come (conversation.py). Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from enum import Enum
from json.encoder import encode_basestring
from typing import Any, Final

import msgpack
from msgspec import Struct

from replicate.errors import FilterError
from replicate.model.rowid import rowid_name
from replicate.model.transaction import RAW_TEXT_CODE, TableDefinition

EXACT_MAX: Final = 2**53 - 1
"""The largest integer that every reader of JSON takes exactly."""
_SHOWN_MAX: Final = 60


class Form(Enum):
    """What stands on the filter's standard input and output."""

    JSON = "json"
    """A line of JSON for each event."""
    MSGPACK = "msgpack"
    """A map of msgpack for each event, one after the other."""


def refuse(what: str) -> FilterError:
    """The error for what a filter said."""
    return FilterError(what, do=DO)


DO: Final = "Nothing of the transaction was taken. Mend the filter; the stream goes on by itself"


# Writing.


def _integer(value: int) -> str:
    return repr(value) if -EXACT_MAX <= value <= EXACT_MAX else f'{{"int":"{value}"}}'


def _real(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'{{"real":"{value!r}"}}'


_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    int: _integer,
    str: encode_basestring,
    float: _real,
    bytes: lambda value: f'{{"blob":"{value.hex()}"}}',
    msgpack.ExtType: lambda value: f'{{"text":"{value.data.hex()}"}}',
    type(None): lambda _: "null",
}


def json_value(value: Any) -> str:
    """The JSON text of one database value."""
    return _TEXTS[type(value)](value)


def json_event(event: object) -> str:
    """A line of JSON for an event without values of rows."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n"


def msgpack_event(event: object) -> bytes:
    """An event as msgpack."""
    return bytes(msgpack.packb(event, use_bin_type=True))


# Reading.


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


_decode = json.JSONDecoder(parse_constant=_no_number).decode


def read_line(line: bytes) -> Any:
    """What stands on one line of JSON. FilterError when that is nothing."""
    try:
        return _decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise refuse(f"a line is no JSON ({error}): {shown(line)}") from None


def shown(value: object) -> str:
    """What a filter said, shortened for an error."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


_SPECIAL: Final[dict[str, Callable[[Any], Any]]] = {
    "blob": bytes.fromhex,
    "text": lambda data: msgpack.ExtType(RAW_TEXT_CODE, bytes.fromhex(data)),
    "int": int,
    "real": float,
}


def _special(value: dict[str, Any]) -> Any:
    """A value that JSON has no form for. ValueError and its kin."""
    ((name, text),) = value.items()
    if type(text) is not str:
        raise TypeError(name)
    return _SPECIAL[name](text)


_STRICT: Final[dict[str, tuple[type, ...]]] = {
    "INT": (int,),
    "INTEGER": (int,),
    "REAL": (float, int),
    "TEXT": (str, msgpack.ExtType),
    "BLOB": (bytes,),
}


class Layout(Struct, frozen=True):
    """The images of one table: what their values are called, in their order, and what may stand there."""

    definition: TableDefinition
    names: tuple[str, ...]
    keys: tuple[str, ...]
    """Each name as it stands before its value in JSON."""
    place: str
    """`"region":…,"table":…` in JSON."""
    bounds: tuple[tuple[int, tuple[type, ...] | None, bool], ...]
    """Of the columns that take not every value: ordinal, types (None: all), whether NULL is taken."""

    @classmethod
    def of(cls, definition: TableDefinition) -> Layout:
        """The layout of a table."""
        columns = definition.columns
        hidden = [shown_rowid(definition)] if definition.rowid else []
        names = (*hidden, *(column.name for column in columns))
        bounds = [
            (ordinal, _STRICT.get(column.type.upper()) if definition.strict else None, not column.not_null)
            for ordinal, column in enumerate(columns, len(hidden))
            if column.not_null or definition.strict
        ]
        if hidden:
            bounds.insert(0, (0, (int,), False))
        place = f'"region":{encode_basestring(definition.region)},"table":{encode_basestring(definition.table)}'
        return cls(definition, names, tuple(f"{encode_basestring(name)}:" for name in names), place, tuple(bounds))

    @property
    def name(self) -> str:
        """The table, for an error."""
        return f"{self.definition.region}.{self.definition.table}"

    def json_values(self, values: Sequence[Any]) -> list[str]:
        """Each value of an image, with its name before it."""
        return [
            key + (encode_basestring(value) if type(value) is str else _TEXTS[type(value)](value))
            for key, value in zip(self.keys, values, strict=True)
        ]

    def image(self, values: Any, what: str) -> list[Any]:
        """The image whose values are called so. FilterError for a name too many or too few, or a value that the table
        cannot take."""
        if type(values) is not dict:
            raise refuse(f"{what} of {self.name} should be values by column, is {shown(values)}")
        try:
            image = [values[name] for name in self.names]
        except KeyError:
            missing = next(name for name in self.names if name not in values)
            raise refuse(f"{what} of {self.name} lacks the column {missing}") from None
        if len(values) != len(image):
            unknown = next(name for name in values if name not in self.names)
            raise refuse(f"{self.name} has no column {shown(unknown)}; {what} has one")
        for ordinal, value in enumerate(image):
            kind = type(value)
            if kind is str or value is None or kind is bytes:
                continue
            image[ordinal] = self._value(value, ordinal, what)
        for ordinal, types, takes_null in self.bounds:
            value = image[ordinal]
            if not takes_null if value is None else types is not None and type(value) not in types:
                raise self._wrong(value, ordinal, what)
        return image

    def _value(self, value: Any, ordinal: int, what: str) -> Any:
        kind = type(value)
        if kind is dict:
            try:
                value = _special(value)
            except (ValueError, TypeError, KeyError, OverflowError):
                raise self._wrong(value, ordinal, what) from None
            kind = type(value)
        if kind is int:
            is_one = -(2**63) <= value < 2**63
        elif kind is float:
            is_one = value == value  # a database has no NaN
        elif kind is msgpack.ExtType:
            is_one = value.code == RAW_TEXT_CODE
        else:
            is_one = kind is bytes
        if not is_one:
            raise self._wrong(value, ordinal, what)
        return value

    def _wrong(self, value: object, ordinal: int, what: str) -> FilterError:
        return refuse(f"{what} of {self.name}: the column {self.names[ordinal]} cannot take {shown(value)}")


def shown_rowid(definition: TableDefinition) -> str:
    """What the hidden rowid is called in a filter's lines."""
    return rowid_name(column.name for column in definition.columns) or "rowid of the table"
