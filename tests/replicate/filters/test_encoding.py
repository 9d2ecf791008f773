"""What the images of a table are called, and what a table cannot take."""

from __future__ import annotations

from typing import Any

import pytest

from replicate.errors import FilterError
from replicate.filters.encoding import Form, Layout, json_value, read_line, shown_rowid
from replicate.filters.events import Tables, read_change
from tests.harness.talking import LOOSE, STRICT, known, table


def test_what_json_or_its_readers_lack_has_a_form_of_its_own() -> None:
    texts = [json_value(value) for value in (2**53, -(2**53), 2**53 - 1, float("inf"), b"\x01\xff", -0.0, 1.0, None)]
    assert texts == [
        '{"int":"9007199254740992"}', '{"int":"-9007199254740992"}', "9007199254740991", '{"real":"inf"}',
        '{"blob":"01ff"}', "-0.0", "1.0", "null",
    ]  # fmt: skip
    assert read_line(b'{"a":"\\u00e4"}\n') == {"a": "ä"}


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize(
    ("column", "value"),
    [("n", None), ("n", "1"), ("n", 1.5), ("r", "x"), ("t", 1), ("t", b"x"), ("b", "x"), ("id", "x")],
)
def test_a_strict_table_takes_only_its_types(form: Form, column: str, value: Any) -> None:
    row = {"id": 1, "n": 2, "r": 1, "t": None, "b": b"x", "y": "any"}
    tables = Tables(known(STRICT))
    event = {"op": "insert", "region": "shop", "table": "strict", "after": row}
    assert read_change(event, tables)
    event["after"] = {**row, column: value}
    with pytest.raises(FilterError, match=f"shop.strict: the column {column} cannot take"):
        read_change(event, tables)


def test_a_hidden_rowid_is_a_number_under_a_name_that_no_column_has() -> None:
    assert Layout.of(LOOSE).names == ("rowid", "a", "b")
    assert shown_rowid(table("t", "RowId", rowid=True)) == "_rowid_"
    assert shown_rowid(table("t", "rowid", "_ROWID_", rowid=True)) == "oid"
    with pytest.raises(FilterError, match="the column rowid cannot take None"):
        Layout.of(LOOSE).image({"rowid": None, "a": 1, "b": 2}, "the after-image")
