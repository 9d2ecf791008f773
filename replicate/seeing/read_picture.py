"""What another host's page tells, read back into pictures and tables.

Guarantees: what is not such a text, is cut, or bears a number or word that no picture has, is refused as a whole, with
the place; nothing in it is taken on trust: texts lose what a terminal would obey, times and numbers have bounds. What a
newer release tells besides is left out. A picture that was told and read is the same picture, its curves rounded.
Leaves to others: sockets and limits of length (other_host.py). Pure.
"""

from __future__ import annotations

import json
import types
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from replicate.errors import FormatUnknownError
from replicate.logs.story import FILES, Being
from replicate.seeing.curve import CurvePoint
from replicate.seeing.picture import InstancePicture, ShownCurve
from replicate.seeing.picture_json import RecordTable

NUMBER_MAX: Final = 1 << 63
TIME_MAX_US: Final = 1 << 53
"""No time is later, in microseconds since 1970: the year 2255, and what a browser's numbers hold."""
TEXT_MAX: Final = 8192
_BEINGS: Final = frozenset({FILES, *(being.value for being in Being)})
_Made = TypeVar("_Made", bound=Struct)


class ToldPage(Struct, frozen=True):
    """All instances of a page. `ages_us`: how long before it was told each was looked at."""

    now_us: int
    pictures: tuple[InstancePicture, ...]
    ages_us: tuple[int, ...]


def read_told(data: bytes) -> ToldPage:
    """What picture_json.py has told. FormatUnknownError."""
    document = _object(_json(data), "the page")
    now_us = _time(document.get("now_us"), "now_us")
    found = _list(document.get("instances"), "instances")
    pictures = tuple(_picture(one, f"instances[{place}]") for place, one in enumerate(found))
    ages = tuple(_time(one.get("age_us", 0), f"instances[{place}].age_us") for place, one in enumerate(found))
    return ToldPage(now_us, pictures, ages)


def read_tables(data: bytes) -> tuple[RecordTable, ...]:
    """The tables of one instance. FormatUnknownError."""
    found = _list(_object(_json(data), "the records").get("tables"), "tables")
    return tuple(_made(RecordTable, one, f"tables[{place}]") for place, one in enumerate(found))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _unknown("is no JSON text") from error


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _unknown(what: str) -> FormatUnknownError:
    return FormatUnknownError(
        f"what the other page tells {what}", do="Have the same release of Dualsite Replicate on both hosts"
    )


# Values.


def _object(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unknown(f"is not understood: {place}")
    return value


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise _unknown(f"is not understood: {place}")
    return value


def _time(value: object, place: str) -> int:
    if type(value) is not int or not 0 <= value <= TIME_MAX_US:
        raise _unknown(f"is not understood: {place}")
    return value


def _plain(kind: object, value: object, place: str) -> Any:
    """A text, a number, or a truth. Numbers of a float may be told as whole ones."""
    if kind is str and isinstance(value, str) and len(value) <= TEXT_MAX:
        return value if value.isprintable() else "".join(one if one.isprintable() else " " for one in value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and type(value) is int and abs(value) < NUMBER_MAX:
        return _time(value, place) if place.endswith("_us") else value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < NUMBER_MAX:
        return value
    raise _unknown(f"is not understood: {place}")


def _value(kind: Any, value: object, place: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value not in inner or not isinstance(value, str):
            raise _unknown(f"is not understood: {place}")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        kinds = [one for one in inner if one is not type(None)]
        return _value(float if float in kinds else kinds[0], value, place)
    if origin is tuple:
        found = _list(value, place)
        if inner[-1] is ...:
            return tuple(_value(inner[0], one, f"{place}[{at}]") for at, one in enumerate(found))
        if len(found) != len(inner):
            raise _unknown(f"is not understood: {place}")
        return tuple(
            _value(each, one, f"{place}[{at}]") for at, (each, one) in enumerate(zip(inner, found, strict=True))
        )
    return (
        _made(kind, value, place) if isinstance(kind, type) and issubclass(kind, Struct) else _plain(kind, value, place)
    )


_FIELDS: Final[dict[type[Struct], tuple[FieldInfo, ...]]] = {}


def _fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """Its fields with their types; looked up once."""
    found = _FIELDS.get(kind)
    if found is None:
        found = _FIELDS[kind] = fields(kind)
    return found


def _made(kind: type[_Made], value: object, place: str, **known: object) -> _Made:
    """A Struct of an object; `known`: fields that are read elsewhere."""
    given, made = _object(value, place), dict(known)
    for one in _fields(kind):
        if one.name in known:
            continue
        if one.name in given:
            made[one.name] = _value(one.type, given[one.name], f"{place}.{one.name}")
        elif one.required:
            raise _unknown(f"lacks {place}.{one.name}")
    return kind(**made)


# Pictures.


def _picture(value: object, place: str) -> InstancePicture:
    given = _object(value, place)
    curves = tuple(
        _curve(one, f"{place}.curves[{at}]") for at, one in enumerate(_list(given.get("curves"), f"{place}.curves"))
    )
    made = _made(InstancePicture, given, place, curves=curves, seen_us=0)
    for lane in made.lanes:
        for from_us, until_us, what in lane.spans:
            if what not in _BEINGS or not 0 <= from_us <= until_us <= TIME_MAX_US:
                raise _unknown(f"is not understood: {place}.lanes")
    if made.from_us > made.at_us or any(len(row.ways) != len(row.parts) - 1 for row in made.rows):
        raise _unknown(f"is not understood: {place}")
    return made


def _curve(value: object, place: str) -> ShownCurve:
    given = _object(value, place)
    at_least = {one for one in _list(given.get("at_least"), f"{place}.at_least") if type(one) is int}
    values = _list(given.get("values"), f"{place}.values")
    points = tuple(
        CurvePoint(_value(float | None, one, f"{place}.values"), number in at_least)
        for number, one in enumerate(values)
    )
    now = CurvePoint(_value(float | None, given.get("now"), f"{place}.now"), given.get("is_at_least") is True)
    return _made(ShownCurve, given, place, now=now, points=points)
