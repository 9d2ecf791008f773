"""What is printed for people, and as CSV."""

from __future__ import annotations

import csv
import io
import json
import unicodedata

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.audit.changes import ChangeRecord
from replicate.audit.record_lines import Text, cells_of, csv_line, printable


def a_record(op: str, before: tuple[object, ...] | None, after: tuple[object, ...] | None) -> ChangeRecord:
    key = (after or before or (None,))[:1]
    names = ("id", "name", "note")
    changed = (1,) if before and after else ()
    return ChangeRecord(7, 0, 1 << 40, 5, "east", 2, 9, op, "main", "t", 1, key, names, before, after, changed, "")


def test_an_update_is_told_as_what_has_changed() -> None:
    text = Text()
    assert text.line(a_record("update", (1, "a", None), (1, "b", None))) == "    UPDATE   main.t [1] name: 'a' → 'b'"
    assert text.line(a_record("insert", None, (1, "a", None))) == "    INSERT   main.t [1] (id=1, name='a', note=NULL)"
    assert text.head(a_record("insert", None, (1, "a", None))) == "7  1970-01-01 00:04:28.435456 UTC  east/2"


@pytest.mark.slow
@given(st.text(), st.binary(), st.integers(12, 60))
def test_a_line_holds_no_control_character_and_is_as_wide_as_the_terminal(text: str, data: bytes, width: int) -> None:
    line = Text(width).line(a_record("insert", None, (text, data, msgpack.ExtType(1, data))))
    assert cells(line) <= width
    assert line.isprintable()
    assert printable(text).isprintable()


def cells(line: str) -> int:
    """Of a terminal, as wcwidth counts them."""
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in line)


@pytest.mark.parametrize(
    ("note", "room", "end"),
    [
        ("abcdef", 8, "note='abcdef')"),
        ("abcdef", 7, "note='abcdef…"),
        ("漢字漢字", 10, "note='漢字漢字')"),
        ("漢字漢字", 9, "note='漢字漢字…"),
        ("漢字漢字", 8, "note='漢字漢…"),
        ("漢字漢字", 7, "note='漢字漢…"),
        ("e\u0301" * 6, 8, "note='" + "e\u0301" * 6 + "')"),
    ],
)
def test_wide_letters_are_counted_as_a_terminal_shows_them(note: str, room: int, end: str) -> None:
    """`room`: cells from the note's first letter on."""
    width = Text().line(a_record("insert", None, (1, "a", note))).index(note) + room
    line = Text(width).line(a_record("insert", None, (1, "a", note)))
    assert line.endswith(end), line
    assert cells(line) <= width


def test_a_terminal_has_colours() -> None:
    line = Text(30, colour=True).line(a_record("delete", (1, "a" * 100, None), None))
    assert line.startswith("\x1b[31m")
    assert line.endswith("…\x1b[0m")


@given(st.lists(st.one_of(st.none(), st.integers(), st.text().filter(lambda text: "\0" not in text)), min_size=2))
def test_csv_is_read_as_it_was_written(cells: list[object]) -> None:
    (found,) = csv.reader(io.StringIO(csv_line(cells) + "\r\n", newline=""))
    assert found == ["" if cell is None else str(cell) for cell in cells]


def test_cells_have_every_value_whole() -> None:
    cells = cells_of(a_record("insert", None, (b"\x00", float("inf"), "é\n")))
    assert json.loads(cells["after"]) == {"id": {"blob": "00"}, "name": {"real": "inf"}, "note": "é\n"}
    assert json.loads(cells["key"]) == [{"blob": "00"}]
    assert (cells["before"], cells["origin"], cells["time"]) == (None, "east", "1970-01-01T00:04:28.435456Z")
