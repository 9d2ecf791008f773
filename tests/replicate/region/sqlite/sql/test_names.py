"""Names inside SQL text: SQLite reads a quoted one as it was meant, and compares as `fold` does."""

from __future__ import annotations

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.region.sqlite.sql.names import fold, is_internal, is_own, quote, quote_text

CONNECTION = apsw.Connection(":memory:")
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=20)


@given(NAMES)
def test_a_quoted_name_is_that_name(name: str) -> None:
    found = CONNECTION.execute(f"SELECT 1 AS {quote(name)}")
    assert found.get_description()[0][0] == name


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20))
def test_a_quoted_text_is_that_text(text: str) -> None:
    assert CONNECTION.execute(f"SELECT {quote_text(text)}").get == text


@given(NAMES, NAMES)
def test_names_are_one_where_sqlite_finds_them_so(one: str, other: str) -> None:
    for a, b in ((one, other), (one, one.swapcase()), (one.upper(), one.lower())):
        same = CONNECTION.execute("SELECT ? = ? COLLATE NOCASE", (a, b)).get
        assert (fold(a) == fold(b)) == bool(same), (a, b)


@pytest.mark.parametrize(
    ("name", "ours", "internal"),
    [
        ("_replicate_ring", True, True),
        ("_REPLICATE_x", True, True),
        ("_replicate", False, False),
        ("sqlite_sequence", False, True),
        ("SQLite_stat1", False, True),
        ("sqlitex", False, False),
        ("item", False, False),
        ("", False, False),
    ],
)
def test_whose_it_is(name: str, ours: bool, internal: bool) -> None:
    assert (is_own(name), is_internal(name)) == (ours, internal)
