"""filters/wishes.py: condition and columns of one text, bound together."""

from __future__ import annotations

import pytest

from replicate.errors import UsageError
from replicate.filters.wishes import parse_wish
from replicate.model.column_list import TableShare
from replicate.model.transaction import Column, TableDefinition

COLUMNS = (
    Column("id", "INTEGER", False, "BINARY"),
    Column("name", "TEXT", False, "BINARY"),
    Column("mail", "TEXT", True, "BINARY"),
)
PERSON = TableDefinition("shop", 1, "main", "person", 1, COLUMNS, (0,), False, False, False)


def test_both_either() -> None:
    rows = parse_wish("  id > 3 ")
    assert rows.text == "id > 3"
    assert rows.bind(PERSON).share == TableShare('"id" > 3')
    assert not rows.bind(PERSON).keeps([1, "a", "m"])
    columns = parse_wish("COLUMNS (id,name)")
    assert columns.text == "COLUMNS (id, name)"
    assert columns.bind(PERSON).share == TableShare("", {"mail": "''"}, ("id", "name"))
    assert columns.bind(PERSON).keeps([1, "a", "m"])
    both = parse_wish("COLUMNS (id, name) WHERE id > 3 AND name = 'x'")
    bound = both.bind(PERSON)
    assert bound.share == TableShare('("id" > 3) AND ("name" = \'x\')', {"mail": "''"}, ("id", "name"))
    assert bound.keeps([4, "x", "m"])
    assert not bound.keeps([4, "y", "m"])
    assert bound.columns.shown([4, "x", "m"]) == [4, "x", ""]
    assert parse_wish("COLUMNS (id, name, mail)").bind(PERSON).share == TableShare(listed=("id", "name", "mail"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("COLUMNS (id, name) WHERE mail = 'x' OR id = 3", "the condition names column mail of table person"),
        ("COLUMNS (id, name) WHERE NOT MAIL IS NULL", "the condition names column MAIL"),
        ("COLUMNS (id, weight)", "has no column weight"),
        ("COLUMNS (name)", "column id is of the key"),
        ("COLUMNS (id, name) WHERE weight = 3", "has no column weight"),
        ("COLUMNS (id, name) WHERE id >", "cannot be read"),
        ("COLUMNS (id, name) id > 3", "WHERE was expected"),
        ("COLUMNS (id, id)", "named twice"),
        ("", "cannot be read"),
    ],
)  # fmt: skip
def test_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_wish(text).bind(PERSON)
