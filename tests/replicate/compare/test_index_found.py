"""What is kept of a site's own indexes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from replicate.compare.index_found import (
    DAMAGED_MAX,
    LEFT_OUT_MAX,
    IndexDamage,
    IndexesFound,
    IndexRound,
    Looked,
    OrphanRows,
    forget_indexes,
    indexes_path,
    look_at_indexes,
    note_indexes,
    now_at,
    standing_at,
    with_part,
)
from replicate.compare.patrol_rounds import Place

ONE = IndexDamage("main", "t", "i", "lacks the entry of the row", "7", 100)
LONELY = OrphanRows("main", "t", "parent", "7", 2, 100)


def told(found: IndexesFound, began: int, *parts: Looked, ends: bool = True) -> IndexesFound:
    """After a round of these parts."""
    for at, part in enumerate(parts, 1):
        found = with_part(found, began, part, is_last=ends and at == len(parts), wall_ns=began + 50)
    return found


def test_a_round_counts_entries_and_names_what_it_left_out() -> None:
    part = Looked("main.t", 5, (), {"main.t.i": "no such function: f"})
    found = told(IndexesFound(), 90, part, part, Looked("main.u", 3))
    assert found.here == IndexRound()
    assert found.whole == IndexRound(90, 13, ("main.t.i: no such function: f",), "", 140)


def test_what_is_wrong_stays_until_a_whole_round_has_not_found_it() -> None:
    found = told(IndexesFound(), 90, Looked("main.t", 5, (ONE,)), Looked("main.t", 5, (replace(ONE, key="9"),)))
    assert found.damaged == (ONE,)  # the first one of a round is shown
    half = told(found, 200, Looked("main.t", 5), ends=False)
    assert half.damaged == (ONE,)
    assert told(half, 200, Looked("main.t", 5)).damaged == ()
    again = told(half, 200, Looked("main.t", 1, (replace(ONE, key="8", wall_ns=210),)))
    assert [(one.key, one.wall_ns) for one in again.damaged] == [("8", 210)]


@pytest.mark.parametrize("name", ["main", "main.t", "main.t.i"])
def test_what_could_not_be_looked_at_again_stays(name: str) -> None:
    found = told(IndexesFound(), 90, Looked("main.t", 5, (ONE,)))
    assert told(found, 200, Looked("main", 0, (), {name: "locked"})).damaged == (ONE,)
    assert told(found, 200, Looked("main", 0, (), {"main.u": "locked"})).damaged == ()


def test_so_many_are_kept() -> None:
    many = tuple(replace(ONE, index=f"i{n}") for n in range(50))
    found = told(IndexesFound(), 90, Looked("main.t", 5, many, {f"main.t.i{n}": "why" for n in range(50)}))
    assert len(found.damaged) == DAMAGED_MAX
    assert len(found.whole.left_out) == LEFT_OUT_MAX


def test_rows_without_a_parent_are_counted_and_stay_until_a_whole_round_has_not_found_them() -> None:
    more = replace(LONELY, key="9", count=3, wall_ns=110)
    found = told(IndexesFound(), 90, Looked("main.t", orphans=(LONELY,)), Looked("main.t", orphans=(more,)))
    assert found.orphans == (replace(LONELY, count=5),)
    half = told(found, 200, Looked("main.t", 5), ends=False)
    assert half.orphans == found.orphans
    assert told(half, 200, Looked("main.t", 5)).orphans == ()
    again = told(half, 200, Looked("main.t", orphans=(replace(LONELY, key="8", count=1, wall_ns=210),)))
    assert [(one.key, one.count) for one in again.orphans] == [("8", 1)]
    others = (replace(LONELY, parent="other"), replace(LONELY, table="u"))
    assert len(told(found, 90, Looked("main.t", orphans=others)).orphans) == 3
    many = tuple(replace(LONELY, table=f"t{n}") for n in range(50))
    assert len(told(IndexesFound(), 90, Looked("main.t", orphans=many)).orphans) == DAMAGED_MAX


@pytest.mark.parametrize("name", ["main", "main.t", "main.t.foreign keys"])
def test_foreign_keys_that_could_not_be_looked_at_again_stay(name: str) -> None:
    found = told(IndexesFound(), 90, Looked("main.t", orphans=(LONELY,)))
    assert told(found, 200, Looked("main", 0, (), {name: "locked"})).orphans == (LONELY,)
    assert told(found, 200, Looked("main", 0, (), {"main.t.i": "locked"})).orphans == ()


def test_where_no_row_lacks_a_parent_the_file_is_as_it_was(tmp_path: Path) -> None:
    """And one of a release before this one is read."""
    (tmp_path / "consumers").mkdir()
    note_indexes(tmp_path, told(IndexesFound(), 9, Looked("main.t", 5, (ONE,))))
    assert json.loads(indexes_path(tmp_path).read_text()).keys() == {"format", "here", "whole", "damaged", "place"}
    found = told(IndexesFound(), 90, Looked("main.t", 5, (ONE,), orphans=(LONELY,)))
    note_indexes(tmp_path, found)
    assert look_at_indexes(tmp_path) == found


def test_it_says_what_is_wrong() -> None:
    assert str(ONE) == "index i of main.t lacks the entry of the row 7"
    assert str(replace(ONE, index="", what="cannot be read", key="")) == "main.t cannot be read"


@pytest.mark.parametrize("place", [None, Place(90, 0, "main", "t\0i", (b"\x91\x07",)), Place(90, 0, "main", "t\0")])
def test_it_is_kept_as_it_is(tmp_path: Path, place: Place | None) -> None:
    (tmp_path / "consumers").mkdir()
    assert look_at_indexes(tmp_path) == IndexesFound()
    found = told(told(IndexesFound(), 9, Looked("main.t", 5, (ONE,), {"a": "b"})), 90, Looked("main.t", 2), ends=False)
    found = now_at(found if place is not None else told(found, 90, Looked()), place)
    note_indexes(tmp_path, found)
    assert look_at_indexes(tmp_path) == found
    assert standing_at(found) == place
    forget_indexes(tmp_path)
    forget_indexes(tmp_path)
    assert look_at_indexes(tmp_path) == IndexesFound()


def test_a_place_that_makes_no_sense_is_the_regions_beginning() -> None:
    found = replace(IndexesFound(), here=IndexRound(90), place=("main", "t\0i", "xyz"))
    assert standing_at(found) == Place(90, 0, "main")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"here": {}}, {"place": ["main", 1, ""]}, {"place": []}, {"damaged": [{}]},
        {"orphans": [{}]}, {"orphans": 7},
        {"whole": {"began_wall_ns": -1, "entries": 0, "left_out": [], "at": "", "ended_wall_ns": 0}},
        {"whole": {"began_wall_ns": 1, "entries": 0, "left_out": [7], "at": "", "ended_wall_ns": 0}},
    ],
)  # fmt: skip
def test_what_makes_no_sense_counts_as_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "consumers").mkdir()
    note_indexes(tmp_path, told(IndexesFound(), 9, Looked("main.t", 5, (ONE,))))
    path = indexes_path(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert look_at_indexes(tmp_path) == IndexesFound()
