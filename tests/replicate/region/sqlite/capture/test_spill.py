"""The spill of touched rows: nothing is lost when it leaves memory, cuts go back, a full disk is named."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import replicate.region.sqlite.capture.spill as module
from replicate.errors import DiskFullError
from replicate.region.sqlite.capture.spill import Spill


@pytest.fixture
def spill() -> Iterator[Spill]:
    made = Spill()
    yield made
    made.clear()


@pytest.mark.parametrize("buffered", [1, 7, 100_000])
def test_every_touched_row_comes_once_by_table_and_rowid(
    spill: Spill, buffered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUFFERED_MAX", buffered)
    dice = random.Random(4)
    touched = [(dice.randrange(3), dice.randrange(-(2**63), 2**63) >> dice.randrange(60)) for _ in range(500)]
    for place, row in touched + touched[::2]:
        spill.touch(place, row)
    assert list(spill.touched()) == sorted(set(touched))
    spill.untouch()
    assert list(spill.touched()) == []


@pytest.mark.parametrize("buffered", [1, 100_000])
def test_what_was_told_last_and_what_a_cut_takes_back(
    spill: Spill, buffered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUFFERED_MAX", buffered)
    assert spill.last(0, 1) is None
    for row in (1, 2):
        spill.touch(0, row)
    spill.tell(0, 1, 3, [1, "x", b"\xff", None, -0.0])
    spill.tell(0, 2, 3, None)
    assert list(spill.told_at(3)) == [(0, [1, "x", b"\xff", None, -0.0]), (0, None)]
    spill.untouch()
    spill.touch(0, 1)
    spill.tell(0, 1, 9, None)
    assert list(spill.told_at(9)) == [(0, None)]
    assert spill.last(0, 1) == (9, None)
    spill.cut(8)
    assert spill.last(0, 1) == (3, [1, "x", b"\xff", None, -0.0])
    assert spill.last(0, 2) == (3, None)
    spill.cut(2)
    assert spill.last(0, 1) is None
    spill.clear()
    assert not spill.has_told
    assert list(spill.touched()) == []


def test_a_full_disk_names_the_temporary_directory(spill: Spill) -> None:
    spill.tell(0, 0, 1, [b"x" * 100_000])
    connection = spill._connection
    assert connection is not None
    connection.pragma("max_page_count", 100)
    with pytest.raises(DiskFullError, match="SQLITE_TMPDIR"):
        spill.tell(0, 1, 1, [b"x" * 1_000_000])
