"""region/sqlite/capture/marks.py: a mark tells the first reason why its transaction could only be rolled back."""

from __future__ import annotations

from replicate.region.sqlite.capture.marks import Context, Mark


def mark(refusal: BaseException | None, *others: Mark) -> Mark:
    return Mark(0, 0, Context({}, None, frozenset(), False, False, refusal), others)


def test_its_own_reason_comes_before_those_of_attached_regions() -> None:
    one, two, three = (ValueError(text) for text in ("one", "two", "three"))
    assert mark(None).refusal is None
    assert mark(None, mark(None), mark(None)).refusal is None
    assert mark(one).refusal is one
    assert mark(one, mark(two)).refusal is one
    assert mark(None, mark(None), mark(two), mark(three)).refusal is two
    assert mark(None, mark(None, mark(three))).refusal is three, "also of one that is attached to an attached one"
