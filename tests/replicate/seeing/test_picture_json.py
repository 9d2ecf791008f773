"""seeing/picture_json.py: pictures as the page gets them."""

from __future__ import annotations

import json

from msgspec.structs import replace

from replicate.compare.index_found import IndexDamage, IndexesFound
from replicate.compare.patrol_found import Different, Patrolled
from replicate.seeing.history import SeenHistory
from replicate.seeing.picture import picture_of, unreadable
from replicate.seeing.picture_json import told
from replicate.seeing.terminal import screen, text_of_line
from replicate.status.indexes import index_findings
from replicate.status.patrol import patrol_findings
from tests.replicate.seeing.test_history import PRIMARY, us
from tests.replicate.seeing.test_picture import STOPPED
from tests.replicate.status.test_collect import PEER


def test_figures_are_as_they_are_and_curves_are_short() -> None:
    history = SeenHistory(0)
    for second in range(3):
        history.status(replace(PRIMARY, peers=(replace(PEER, lag_s=1 / 3),)), us(98 + second))
    picture = picture_of(replace(PRIMARY, findings=(STOPPED,)), history, now_us=us(100), past_s=10, columns=10)
    broken = unreadable("x", "/x", "GONE", now_us=us(100), past_s=10)
    found = json.loads(told([picture, broken], now_us=us(101), past_s=10))
    assert (found["now_us"], found["past_s"]) == (us(101), 10)
    one, other = found["instances"]
    assert (one["name"], one["role"], one["is_wrong"]) == ("east", "primary", True)
    assert one["rows"][0]["ways"][0]["seqno"] == 100
    assert one["findings"][0]["commands"] == ["replicate -i 'a b' update start --set x=1,y"]
    lag = next(curve for curve in one["curves"] if curve["key"] == "lag_s:west")
    assert lag["now"] == 0.333
    assert lag["values"][-3:] == [0.333] * 3
    assert lag["values"][0] is None
    assert lag["at_least"] == []
    assert other["error"] == "GONE"


def test_a_page_shows_no_key_of_a_row() -> None:
    """A terminal does: who may read the instance may read its rows."""
    rows = Different("main", "person", "'ann@example.org'", "'bob@example.org'", 7, 1, 9, "a" * 32, 10, "b" * 32)
    index = IndexDamage("main", "person", "by_name", "lacks the entry of the row", "'cy@example.org'", 1)
    findings = (
        *patrol_findings(Patrolled("west", different=(rows,)), 2, source="west", here=()),
        *index_findings(IndexesFound(damaged=(index,)), 2, role="secondary"),
    )
    picture = picture_of(replace(PRIMARY, findings=findings), SeenHistory(0), now_us=us(100), past_s=10, columns=10)
    page = told([picture], now_us=us(101), past_s=10)
    assert b"example.org" not in page
    assert b"main.person differs at transaction 7; 9 rows with digest" in page
    assert b"index by_name of main.person lacks the entry of the row; found" in page
    shown = "\n".join(text_of_line(line) for line in screen([picture], 200))
    assert all(f"'{name}@example.org'" in shown for name in ("ann", "bob", "cy"))
