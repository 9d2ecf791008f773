"""In whose words a secondary holds what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.filters.whose_words import NAME, Content, forget_content, mismatch, note_content, read_content, told_by

EAST = Content("aa" * 16, "east", "mask 1")
PLAIN = Content("aa" * 16, "east", "")
NORTH = Content("bb" * 16, "north", "mask 1")


def test_several_filters_are_told_in_their_order() -> None:
    assert [told_by(), told_by("", "a"), told_by("a", "", "b")] == ["", "a", "a > b"]


@pytest.mark.parametrize(
    ("known", "now", "is_refused"),
    [
        (None, EAST, False),
        (EAST, EAST, False),
        (EAST, PLAIN, False),
        (EAST, NORTH, False),
        (PLAIN, NORTH, True),
        (EAST, Content("bb" * 16, "north", ""), True),
        (EAST, Content("bb" * 16, "north", "mask 2"), True),
    ],
)
def test_another_source_needs_the_same_filter(known: Content | None, now: Content, is_refused: bool) -> None:
    reason = mismatch(known, now)
    assert bool(reason) is is_refused
    if is_refused:
        assert known is not None
        assert f"came from {known.name} through {known.filter or 'no filter'}" in reason
        assert f"{now.name} sends it through {now.filter or 'no filter'}" in reason


def test_nothing_is_kept_where_no_filter_ever_was(tmp_path: Path) -> None:
    note_content(tmp_path, None, PLAIN)
    assert list(tmp_path.iterdir()) == []
    note_content(tmp_path, None, EAST)
    assert read_content(tmp_path) == EAST
    note_content(tmp_path, EAST, PLAIN)
    assert read_content(tmp_path) == PLAIN
    forget_content(tmp_path)
    forget_content(tmp_path)
    assert read_content(tmp_path) is None


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"format":2}', b'{"format":1,"source":1,"name":"a","filter":""}']
)
def test_what_cannot_be_read_counts_as_not_there(tmp_path: Path, data: bytes) -> None:
    (tmp_path / NAME).write_bytes(data)
    assert read_content(tmp_path) is None
