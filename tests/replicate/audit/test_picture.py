"""The picture of changes over time is one, whatever was counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.audit.picture import TABLES_MAX, draw
from replicate.errors import JournalIOError

ROWS: list[tuple[object, ...]] = [
    (f"2030-01-31 {hour:02}:00:00", f"main.t{table}", 1, table * hour + 1)
    for hour in range(3)
    for table in range(TABLES_MAX + 3)
]


def test_tables_beyond_the_most_are_drawn_as_one(tmp_path: Path) -> None:
    draw(ROWS, "hour", tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text.count("others") >= 1
    assert "changes per hour" in text
    draw([], "day", tmp_path / "none.png")
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(JournalIOError):
        draw(ROWS, "hour", tmp_path / "none" / "a.svg")
