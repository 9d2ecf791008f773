"""Values between an application and SQLite: parameters in (adapters), rows out (converters, text factory, row factory).

Guarantees: adapters and converters are the standard library's own registries, so what an application registered with
sqlite3 works here; `sqlite3.Row` works as a row factory and gives real `sqlite3.Row` objects.
Leaves to others: what a statement means, and transactions.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import apsw

from replicate.dbapi.errors import OperationalError, ProgrammingError
from replicate.region.sqlite.sql.statements import parameter_names

PARSE_DECLTYPES: Final = sqlite3.PARSE_DECLTYPES
PARSE_COLNAMES: Final = sqlite3.PARSE_COLNAMES

_BASIC: Final[frozenset[type]] = frozenset((int, float, str, bytearray, bytes, type(None)))
_native: tuple[int, frozenset[type]] = (-1, _BASIC)

_adapters: dict[Any, Any] = sqlite3.adapters
_converters: dict[str, Callable[[bytes], Any]] = sqlite3.converters


def native_types() -> frozenset[type]:
    """Types that are bound as they are: SQLite's own, but for those that have an adapter."""
    global _native
    if _native[0] != len(_adapters):
        _native = (len(_adapters), _BASIC - {kind for kind, _ in _adapters})
    return _native[1]


def bindings(parameters: Any, text: str) -> Any:
    """`parameters` as APSW takes them, adapted. ProgrammingError for what sqlite3 refuses."""
    native = _native[1] if _native[0] == len(_adapters) else native_types()
    kind = type(parameters)
    if kind is tuple or kind is list:
        for value in parameters:
            if type(value) not in native:
                return tuple(_adapt(parameters[at], at + 1, native) for at in range(len(parameters)))
        return parameters
    if isinstance(parameters, Mapping):
        return _named(parameters, text, native)
    if isinstance(parameters, str | bytes | bytearray) or (
        hasattr(parameters, "__len__") and hasattr(parameters, "__getitem__")
    ):
        length = len(parameters)
        return tuple(_adapt(parameters[at], at + 1, native) for at in range(length))
    raise ProgrammingError("parameters are of unsupported type")


def _named(parameters: Mapping[str, Any], text: str, native: frozenset[type]) -> dict[str, Any]:
    found = {}
    for place, name in enumerate(parameter_names(text), 1):
        try:
            value = parameters[name]
        except LookupError:
            raise ProgrammingError(f"You did not supply a value for binding parameter :{name}.") from None
        found[name] = _adapt(value, place, native)
    return found


def _adapt(value: Any, place: int, native: frozenset[type]) -> Any:
    if type(value) in native:
        return value
    adapted = sqlite3.adapt(value, sqlite3.PrepareProtocol, value)
    if adapted is None or isinstance(adapted, int | float | str | bytes | bytearray):
        return adapted
    try:
        return contiguous(adapted)
    except TypeError:
        raise ProgrammingError(
            f"Error binding parameter {place}: type '{type(adapted).__name__}' is not supported"
        ) from None


def contiguous(value: Any) -> bytes:
    """The bytes of a buffer. TypeError if it is none, BufferError if it is not contiguous."""
    view = memoryview(value)
    if not view.c_contiguous:
        raise BufferError("underlying buffer is not C-contiguous")
    return view.tobytes()


Description = tuple[tuple[str, None, None, None, None, None, None], ...]


@lru_cache(maxsize=256)
def describe(columns: tuple[tuple[str, str | None], ...], detect_types: int) -> Description:
    """PEP 249's description for (name, declared type) pairs."""
    names = [name.split("[", 1)[0].rstrip(" ") if detect_types & PARSE_COLNAMES else name for name, _ in columns]
    return tuple((name, None, None, None, None, None, None) for name in names)


def column_converters(
    columns: Sequence[tuple[str, str | None]], detect_types: int
) -> tuple[Callable[[bytes], Any] | None, ...] | None:
    """A converter (or None) for each column; None if no column has one."""
    if not detect_types:
        return None
    found: list[Callable[[bytes], Any] | None] = []
    for name, declared in columns:
        converter = None
        if detect_types & PARSE_COLNAMES and "[" in name:
            key = name[name.index("[") + 1 :].split("]", 1)[0]
            converter = _converters.get(key.upper())
        if converter is None and detect_types & PARSE_DECLTYPES and declared:
            key = declared.split("(", 1)[0].split(" ", 1)[0]
            converter = _converters.get(key.upper())
        found.append(converter)
    return tuple(found) if any(found) else None


def as_bytes(value: Any) -> bytes:
    """A value as SQLite would give it as a BLOB."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        digits, exponent, power = format(value, ".15g").partition("e")
        digits = digits.replace("inf", "Inf") if "inf" in digits else digits if "." in digits else digits + ".0"
        return (digits + exponent + power).encode()
    return str(value).encode()


def text_from(factory: Any) -> Callable[[str], Any] | None:
    """How TEXT becomes a value under a text factory; None: as it comes."""
    if factory is str:
        return None
    if factory is bytes:
        return str.encode
    if factory is bytearray:
        return lambda text: bytearray(text.encode())
    return lambda text: factory(text.encode())


def row_changer(
    converters: Sequence[Callable[[bytes], Any] | None] | None, text: Callable[[str], Any] | None
) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What applies converters and text factory to a row."""

    def change(row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = []
        for at, value in enumerate(row):
            converter = converters[at] if converters is not None else None
            if converter is not None:
                value = converter(as_bytes(value)) if value not in (None, "", b"") else None
            elif text is not None and type(value) is str:
                value = text(value)
            values.append(value)
        return tuple(values)

    return change


def decode_failed(columns: Sequence[tuple[str, str | None]], error: UnicodeDecodeError) -> OperationalError:
    """The error for TEXT that is not UTF-8. (APSW does not say which column it was.)"""
    names = ", ".join(f"'{name}'" for name, _ in columns)
    text = error.object.decode(errors="replace")
    return OperationalError(f"Could not decode to UTF-8 column {names} with text '{text}'")


# sqlite3.Row takes its names from a real sqlite3.Cursor. One connection to an empty database in memory lends us
# cursors of any shape; it opens no file, so it cannot drop a lock of ours.
_shapes_lock = threading.Lock()
_shapes: sqlite3.Connection | None = None


@lru_cache(maxsize=256)
def _shape(names: tuple[str, ...]) -> sqlite3.Cursor:
    global _shapes
    with _shapes_lock:
        if _shapes is None:
            _shapes = sqlite3.connect(":memory:", check_same_thread=False)
        columns = ", ".join('NULL AS "' + name.replace('"', '""') + '"' for name in names)
        return _shapes.execute(f"SELECT {columns}")


def row_maker(factory: Any, description: Description | None) -> Callable[[Any, tuple[Any, ...]], Any] | None:
    """What makes (cursor, row of values) into what the application wants; None: the row itself."""
    if factory is None:
        return None
    if isinstance(factory, type) and issubclass(factory, sqlite3.Row):
        kind, shape = factory, _shape(tuple(column[0] for column in description or ()))
        return lambda cursor, values: kind(shape, values)
    made: Callable[[Any, tuple[Any, ...]], Any] = factory
    return made


Columns = tuple[tuple[str, str | None], ...]


def columns_of(cursor: apsw.Cursor) -> Columns:
    """(name, declared type) of the statement that the cursor is about to run, or in the midst of."""
    found: Any = cursor.get_description()
    return found or ()


def columns_of_text(connection: apsw.Connection, sql: str, parameters: Any) -> Columns:
    """The columns of a statement that gave no row: it is prepared again, and not run. Raises apsw.InterruptError where
    the connection is interrupted: the statement itself could have been, too."""
    found: Columns = ()

    def note(cursor: apsw.Cursor, text: str, values: Any) -> bool:
        nonlocal found
        found = columns_of(cursor)
        return False

    cursor = connection.cursor()
    cursor.exec_trace = note
    try:
        cursor.execute(sql, parameters)
    except apsw.Error as error:
        if isinstance(error, apsw.InterruptError):
            raise
    return found
