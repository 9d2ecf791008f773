"""dbapi/row.py beside the standard library's sqlite3: the same parameters, converters, factories and values."""

from __future__ import annotations

import datetime
import sqlite3
from typing import Any

import pytest

from replicate.dbapi.row import (
    PARSE_COLNAMES,
    PARSE_DECLTYPES,
    as_bytes,
    bindings,
    column_converters,
    describe,
    native_types,
    row_changer,
    row_maker,
    text_from,
)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __conform__(self, protocol: object) -> str | None:
        return f"point {self.x}" if protocol is sqlite3.PrepareProtocol else None


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ((1, 2.5, "x", b"y", None), "SELECT ?, ?, ?, ?, ?"), ([True, bytearray(b"z")], "SELECT ?, ?"),
        ((Point(3), datetime.date(2024, 2, 29)), "SELECT ?, ?"), ({"a": 1, "b": Point(2)}, "SELECT :a, $b, @a"),
        ((memoryview(b"abc"),), "SELECT ?"), ((memoryview(b"abcdef")[::2],), "SELECT ?"), (({},), "SELECT ?"),
        ({"a": 1}, "SELECT :a, :b"), (7, "SELECT ?"), ({1, 2}, "SELECT ?, ?"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parameters_are_bound_as_sqlite3_binds_them(parameters: Any, text: str) -> None:
    theirs = sqlite3.connect(":memory:")
    try:
        expected: Any = theirs.execute(text, parameters).fetchone()
    except Exception as error:
        with pytest.raises(type(error)):
            bindings(parameters, text)
        return
    found = bindings(parameters, text)
    assert theirs.execute(text, found).fetchone() == expected
    assert all(type(value) in native_types() or isinstance(value, bool) for value in _values(found))


def _values(found: Any) -> list[Any]:
    return list(found.values()) if isinstance(found, dict) else list(found)


COLUMNS = "CREATE TABLE t (a, b upper, c \"upper(3)\", d DATE, e TEXT); INSERT INTO t VALUES (1, 2, 3.5, NULL, 'x')"


@pytest.mark.parametrize("detect_types", [0, PARSE_DECLTYPES, PARSE_COLNAMES, PARSE_DECLTYPES | PARSE_COLNAMES])
def test_converters_are_found_and_given_the_bytes_that_sqlite3_gives(
    monkeypatch: pytest.MonkeyPatch, detect_types: int
) -> None:
    monkeypatch.setitem(sqlite3.converters, "UPPER", lambda data: ("upper", data))
    theirs = sqlite3.connect(":memory:", detect_types=detect_types)
    theirs.executescript(COLUMNS)
    cursor = theirs.execute('SELECT a AS "a [upper]", b, c, d, e AS "e [nothing]" FROM t')
    row = cursor.fetchone()
    columns = (("a [upper]", None), ("b", "upper"), ("c", "upper(3)"), ("d", "DATE"), ("e [nothing]", "TEXT"))
    assert describe(columns, detect_types) == cursor.description
    converters = column_converters(columns, detect_types)
    assert (converters is None) is (detect_types == 0)
    assert row_changer(converters, None)((1, 2, 3.5, None, "x")) == row


@pytest.mark.parametrize(
    "value", [0, -7, 2**63 - 1, 1.0, -2.5, 0.1, 1e15, 1e300, -1e-7, 1.5e20, float("inf"), float("-inf"), "hä", b"y"]
)
def test_a_converter_gets_the_bytes_that_sqlite3_gives_it(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    """1e300 came as 1e+300 for 1.0e+300, and Inf as inf."""
    monkeypatch.setitem(sqlite3.converters, "KEPT", bytes)
    theirs = sqlite3.connect(":memory:", detect_types=PARSE_COLNAMES)
    theirs.execute("CREATE TABLE t (a BLOB)")
    theirs.execute("INSERT INTO t VALUES (?)", (value,))
    assert as_bytes(value) == theirs.execute('SELECT a AS "a [kept]" FROM t').fetchone()[0]


@pytest.mark.parametrize("factory", [str, bytes, bytearray, lambda data: data.decode()[::-1]])
def test_a_text_factory_makes_what_sqlite3s_makes(factory: Any) -> None:
    theirs = sqlite3.connect(":memory:")
    theirs.text_factory = factory
    row = theirs.execute("SELECT 'häuser', 7, x'00', NULL").fetchone()
    assert row_changer(None, text_from(factory))(("häuser", 7, b"\x00", None)) == row


def test_a_row_factory_gets_rows_that_know_their_names() -> None:
    description = describe((("id", None), ('odd "name"', None)), 0)
    make = row_maker(sqlite3.Row, description)
    assert make is not None
    row = make(None, (1, 2))
    assert (isinstance(row, sqlite3.Row), row.keys(), row["ID"], row['odd "name"']) == (
        True, ["id", 'odd "name"'], 1, 2,
    )  # fmt: skip
    assert row_maker(None, description) is None
