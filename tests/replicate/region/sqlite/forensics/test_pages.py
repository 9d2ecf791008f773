"""Pages read raw: what SQLite has written is found as SQLite reads it; anything else raises NotOurPage alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.region.sqlite.forensics.pages import (
    INDEX_LEAF,
    TABLE_INNER,
    TABLE_LEAF,
    NotOurPage,
    children,
    kind_of,
    rows,
)

PAGE_BYTES = 1024
INTEGERS = (0, 1, 2, -1, 127, 128, -129, 2**15, -(2**23), 2**31, -(2**47), 2**63 - 1, -(2**63))


def drawn(dice: random.Random) -> Any:
    kind = dice.randrange(5)
    if kind == 0:
        return None
    if kind == 1:
        return dice.choice((dice.uniform(-1e9, 1e9), 0.5))
    if kind == 2:
        return "é" * dice.randrange(20)
    if kind == 3:
        return dice.randbytes(dice.randrange(30))
    return dice.choice(INTEGERS)


def expected(value: Any) -> Any:
    """As `Value` has it: bytes for a text, None for a REAL."""
    if isinstance(value, float):
        return None
    return value.encode() if isinstance(value, str) else value


def pages_of(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]


def leaves(pages: list[bytes], number: int) -> list[bytes]:
    """The leaf pages below page `number`, in their order."""
    page = pages[number - 1]
    if kind_of(page, is_first=number == 1) != TABLE_INNER:
        return [page]
    return [leaf for _, child in children(page, is_first=number == 1) for leaf in leaves(pages, child)]


@pytest.mark.parametrize("seed", range(8))
def test_all_rows_of_a_table_are_found_as_sqlite_has_them(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    connection = apsw.Connection(str(tmp_path / "a.db"))
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c)")
    wanted = {}
    with connection:
        for _ in range(dice.choice((0, 1, 400))):
            key = dice.choice((dice.choice(INTEGERS), dice.randint(-500, 500)))
            wanted[key] = [drawn(dice) for _ in range(3)]
            connection.execute("INSERT OR REPLACE INTO t VALUES (?, ?, ?, ?)", (key, *wanted[key]))
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 't'").get
    connection.close()
    found = [row for leaf in leaves(pages_of(tmp_path / "a.db"), root) for row in rows(leaf, 4)]
    # The key is NULL in the record: it is the rowid.
    assert found == [(key, [None, *map(expected, wanted[key])]) for key in sorted(wanted)]


def test_children_are_told_with_the_highest_rowid_below_them(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "a.db"))
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("CREATE TABLE t (a)")
    connection.executemany("INSERT INTO t VALUES (?)", [(b"x" * 100,)] * 300)
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 't'").get
    connection.close()
    pages = pages_of(tmp_path / "a.db")
    last = 0
    found = children(pages[root - 1])
    assert len(found) > 10
    for highest, child in found:
        below = [rowid for leaf in leaves(pages, child) for rowid, _ in rows(leaf, 1)]
        assert below == list(range(last + 1, below[-1] + 1))
        assert below[-1] <= highest
        last = below[-1]
    assert (last, found[-1][0]) == (300, 1 << 63)


def test_the_first_page_begins_after_the_header_and_a_table_without_rowids_is_an_index(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "a.db"))
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("CREATE TABLE t (a TEXT PRIMARY KEY, b) WITHOUT ROWID; INSERT INTO t VALUES ('x', 7)").fetchall()
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 't'").get
    connection.close()
    pages = pages_of(tmp_path / "a.db")
    assert kind_of(pages[0], is_first=True) == TABLE_LEAF
    assert [row[1][:2] for row in rows(pages[0], 5, is_first=True)] == [[b"table", b"t"]]
    assert kind_of(pages[root - 1]) == INDEX_LEAF
    assert list(rows(pages[root - 1], 2)) == [(0, [b"x", 7])]
    with pytest.raises(NotOurPage):
        list(rows(pages[root - 1], 3))  # it has two
    with pytest.raises(NotOurPage):
        children(pages[root - 1])


@given(
    st.sampled_from((b"", bytes((TABLE_LEAF,)), bytes((INDEX_LEAF,)), bytes((TABLE_INNER,)))),
    st.binary(max_size=200),
    st.integers(0, 6),
    st.booleans(),
)
def test_whatever_the_bytes_nothing_else_is_raised(kind: bytes, rest: bytes, columns: int, is_first: bool) -> None:
    page = bytes(100 if is_first else 0) + kind + rest
    for ask in (lambda: list(rows(page, columns, is_first=is_first)), lambda: children(page, is_first=is_first)):
        try:
            assert isinstance(ask(), list)  # type: ignore[no-untyped-call]
        except NotOurPage:
            pass
