"""model/table_wish.py: one text for rows and columns; what is written is read again, a condition alone is its own
text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import UsageError
from replicate.limits import COLUMNS_MAX
from replicate.model.table_wish import (
    TableWish,
    fold,
    has_list,
    named_columns,
    read_wish,
    told_what,
    told_wish,
    told_wishes,
)

NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=("Cc", "Cs")), min_size=1)


@given(st.lists(NAMES, max_size=6, unique_by=fold), st.sampled_from(["", "a > 3", "a = 'WHERE ) COLUMNS ('"]))
def test_what_is_written_is_read(columns: list[str], condition: str) -> None:
    wish = TableWish(tuple(columns), condition)
    assert read_wish(wish.text) == wish
    assert has_list(wish.text) is bool(columns)


def test_texts() -> None:
    assert TableWish((), "a > 3").text == "a > 3"
    both = TableWish(("id", "two words", 'say "x"'), "a > 3")
    assert both.text == 'COLUMNS (id, "two words", "say ""x""") WHERE a > 3'
    assert TableWish(("id",)).text == "COLUMNS (id)"
    assert read_wish("  COLUMNS ( id ,b )   WHERE  a > 3 ") == TableWish(("id", "b"), "a > 3")
    assert told_wish("a > 3") == "where a > 3"
    assert told_what("a > 3") == "the rows where a > 3"
    assert told_wish(TableWish(("id", "b"), "a > 3").text) == "the columns id, b where a > 3"
    assert told_what("COLUMNS (id)") == "the columns id"
    assert told_wish("COLUMNS (") == "COLUMNS ("  # of a peer
    assert told_wishes([]) == ""
    assert told_wishes([("t", "a > 3")]) == "of table t where a > 3, no other rows"
    assert told_wishes([("t", "a > 3"), ("u", "COLUMNS (id)")]) == (
        "of table t where a > 3, and of u the columns id, no others"
    )


def test_lists() -> None:
    assert named_columns(' id, B ,"c,d",é') == ("id", "B", "c,d", "é")
    for text, told in (
        ("", "cannot be read"),
        ("a,", "cannot be read"),
        (",a", "cannot be read"),
        ("a b", "cannot be read"),
        ("a)", "cannot be read"),
        ('"a', "cannot be read"),
        ("1", "cannot be read"),
        ('"a\nb"', "cannot be read"),
        ("a, b, A", "column A is named twice"),
        (", ".join(f"c{number}" for number in range(COLUMNS_MAX + 1)), f"{COLUMNS_MAX} are the most"),
    ):
        with pytest.raises(UsageError, match=told):
            named_columns(text)


def test_a_text_of_a_peer_that_is_none_is_refused() -> None:
    for text, told in (
        ("COLUMNS (", "cannot be read"),
        ("COLUMNS ()", "cannot be read"),
        ("COLUMNS (a", "cannot be read"),
        ("COLUMNS (a) a > 3", "WHERE was expected"),
        ("COLUMNS (a), b", "WHERE was expected"),
    ):
        with pytest.raises(UsageError, match=told):
            read_wish(text)
