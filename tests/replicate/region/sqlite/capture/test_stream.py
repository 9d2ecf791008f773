"""The change stream read again: whole changes from any pieces, and the images that each of them had."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from replicate.model.transaction import Op
from replicate.region.sqlite.capture.stream import changes_in, images_of, rows_named
from tests.harness.journals import make_definition

VALUE = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary()
OF_THREE = make_definition("t", rowid=False)
HIDDEN = make_definition("h", rowid=True)
OTHER = make_definition("other")

Row = tuple[Any, Any, Any]
ROW = st.tuples(VALUE, VALUE, VALUE)


def update(before: Row, after: Row, *, as_bytes: bool) -> tuple[int, Any, list[Any]]:
    """As the capture packs it: the new values of what changed, then the whole row before."""
    mask = sum(1 << at for at in range(3) if (type(before[at]), before[at]) != (type(after[at]), after[at]))
    changed = [after[at] for at in range(3) if mask >> at & 1]
    return int(Op.UPDATE), mask.to_bytes(1, "little") if as_bytes else mask, [*changed, *before]


@given(ROW, ROW, st.booleans())
def test_an_update_gives_both_rows_back(before: Row, after: Row, as_bytes: bool) -> None:
    found = images_of(OF_THREE, *update(before, after, as_bytes=as_bytes))
    assert [list(map(repr, one or ())) for one in found] == [list(map(repr, before)), list(map(repr, after))]


def test_one_row_comes_or_goes() -> None:
    assert images_of(OF_THREE, Op.INSERT, 0, [1, "a", None]) == (None, (1, "a", None))
    assert images_of(OF_THREE, Op.DELETE, 0, [1, "a", None]) == ((1, "a", None), None)


CHANGE = st.tuples(st.integers(0, 11), st.integers(2**31, 2**32 - 1), VALUE, st.lists(VALUE, max_size=4))


@given(st.lists(CHANGE, max_size=8), st.lists(st.integers(0, 200), max_size=12))
def test_the_pieces_make_no_difference(changes: list[tuple[Any, ...]], cuts: list[int]) -> None:
    data = b"".join(msgpack.packb(element) for change in changes for element in change)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[begin:end] for begin, end in pairwise(places)]
    assert list(map(repr, changes_in(pieces))) == list(map(repr, changes))


def test_a_change_that_is_not_whole_is_not_told() -> None:
    data = b"".join(map(msgpack.packb, (1, 2**31, 0, [7], 1, 2**31)))
    assert list(changes_in([data])) == [(1, 2**31, 0, [7])]


def packed(*changes: tuple[Any, ...]) -> list[bytes]:
    return [b"".join(map(msgpack.packb, change)) for change in changes]


def test_rows_are_named_by_their_rowid() -> None:
    stream = packed(
        (int(Op.INSERT), HIDDEN.table_id, 0, [5, "a", "b", "c"]),
        (int(Op.INSERT), OTHER.table_id, 0, [9, "a", "b"]),
        (int(Op.UPDATE), HIDDEN.table_id, 1, [6, 5, "a", "b", "c"]),
        (int(Op.SCHEMA), 0, 0, ["CREATE INDEX i ON h (c1)"]),
        (int(Op.DELETE), HIDDEN.table_id, 0, [7, "a", "b", "c"]),
    )
    assert list(rows_named(stream, [HIDDEN, OTHER], ["h"])) == [("h", 5), ("h", 5), ("h", 6), ("h", 7)]


def test_a_definition_in_the_stream_counts_from_there_on() -> None:
    later = make_definition("h", version=2, rowid=True)
    row = (int(Op.INSERT), later.table_id, 0, [5, "a", "b", "c"])
    define = (int(Op.DEFINE), later.table_id, 0, later.pack())
    assert list(rows_named(packed(row), [HIDDEN], ["h"])) == []
    assert list(rows_named(packed(define, row), [HIDDEN], ["h"])) == [("h", 5)]
    assert list(rows_named(packed(define, row), [HIDDEN], ["other"])) == []
