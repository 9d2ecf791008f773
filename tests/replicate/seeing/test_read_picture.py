"""seeing/read_picture.py: what is told is read as it was; whatever else comes is refused, or can be shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from replicate.errors import FormatUnknownError
from replicate.seeing.curve import CurvePoint
from replicate.seeing.history import SeenHistory
from replicate.seeing.picture import InstancePicture, picture_of, unreadable
from replicate.seeing.picture_json import RecordTable, told, told_tables
from replicate.seeing.read_picture import read_tables, read_told
from replicate.seeing.terminal import screen, text_of_line
from tests.harness.logs import SOURCE, line
from tests.replicate.seeing.test_history import PRIMARY, SECONDARY, us
from tests.replicate.seeing.test_picture import STOPPED
from tests.replicate.status.test_collect import PEER


def some_pictures() -> list[InstancePicture]:
    history = SeenHistory(0)
    history.line(line(90, SOURCE, "streaming"))
    history.line(line(95, SOURCE, "daemon started", role="primary"))
    for second in range(3):
        history.status(replace(PRIMARY, peers=(replace(PEER, lag_s=1 / 4),)), us(98 + second))
    one = picture_of(replace(PRIMARY, findings=(STOPPED,)), history, now_us=us(100), past_s=10, columns=10)
    other = picture_of(SECONDARY, SeenHistory(0), now_us=us(99), past_s=10, columns=10)
    return [one, other, unreadable("x", "/x", "GONE", now_us=us(97), past_s=10)]


TOLD = told(some_pictures(), now_us=us(101), past_s=10)


def test_what_is_told_is_read_as_it_was() -> None:
    page = read_told(TOLD)
    assert page.now_us == us(101)
    assert page.pictures == tuple(some_pictures())
    assert page.ages_us == (1_000_000, 2_000_000, 4_000_000)
    assert page.pictures[0].lanes
    assert page.pictures[0].events
    assert page.pictures[0].curves[0].points[-1] == CurvePoint(0.0)


def test_what_a_newer_release_tells_besides_is_left_out() -> None:
    document = json.loads(TOLD)
    document["more"] = document["instances"][0]["more"] = document["instances"][0]["rows"][0]["more"] = [1]
    assert read_told(json.dumps(document).encode()).pictures == tuple(some_pictures())


def test_a_text_that_a_terminal_would_obey_loses_what_it_would() -> None:
    found = read_told(TOLD.replace(b'"/srv/east"', json.dumps("/srv/\x1b[2J\u202e\ud800\neast").encode()))
    assert found.pictures[0].path == "/srv/ [2J   east"


@pytest.mark.parametrize(
    ("was", "wrong", "what"),
    [
        (b'"now_us":', b'"now_us":-', "now_us"),
        (b'"now_us":', b'"then_us":', "now_us"),
        (b'"lag"', b"7", "label"),
        (b'"mood":"error"', b'"mood":"merry"', "mood"),
        (b'"streaming"]', b'"dancing"]', "lanes"),
        (b'"values":[', b'"values":[NaN,', "no JSON"),
        (b'"values":[', b'"values":[1e999,', "values"),
        (b'"values":[', b'"values":[' + b"9" * 400 + b",", "values"),
        (b'"values":[', b'"values":[true,', "values"),
        (b'"seqno":100', b'"seqno":"100"', "seqno"),
        (b'"per_s":', b'"per_s":[],"x":', "per_s"),
        (b'"incarnation":1', b'"incarnation":true', "incarnation"),
        (b'"title":', b'"subtitle":', "lacks instances[0].rows[0].parts[0].title"),
        (b'"ways":[', b'"ways":[],"roads":[', "instances[0]"),
        (b'"instances":[', b'"instances":7,"x":[', "instances"),
        (b'"text":"', b'"text":"' + b"x" * 9000, "text"),
        (b'{"now_us"', b"[" * 100_000 + b'{"now_us"', "no JSON"),
        (b'{"now_us"', b'\xff{"now_us"', "no JSON"),
    ],
)
def test_what_no_page_tells_is_refused_with_its_place(was: bytes, wrong: bytes, what: str) -> None:
    assert was in TOLD
    with pytest.raises(FormatUnknownError) as caught:
        read_told(TOLD.replace(was, wrong, 1))
    assert what in str(caught.value)


@pytest.mark.parametrize("wrong", [{"at_us": 1 << 60}, {"at_us": -1}, {"at_us": us(1), "from_us": us(2)}])
def test_a_time_that_no_clock_shows_is_refused(wrong: dict[str, int]) -> None:
    document = json.loads(TOLD)
    document["instances"][0].update(wrong)
    with pytest.raises(FormatUnknownError, match=r"instances\[0\]"):
        read_told(json.dumps(document).encode())


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every value in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


PLACES = places(json.loads(TOLD))
WRONG = some.one_of(
    some.none(), some.booleans(), some.integers(), some.floats(), some.text(), some.just([]), some.just({}),
    some.lists(some.lists(some.integers(), max_size=3), max_size=3), some.just(10**30), some.just(-1),
)  # fmt: skip


@given(some.sampled_from(PLACES[1:]), WRONG)
def test_whatever_is_told_is_refused_or_can_be_shown(place: tuple[Any, ...], wrong: Any) -> None:
    document = json.loads(TOLD)
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = wrong
    try:
        page = read_told(json.dumps(document).encode())
    except FormatUnknownError:
        return
    for width in (40, 150):
        "\n".join(map(text_of_line, screen(page.pictures, width, now_us=us(200)))).encode()
    told(page.pictures, now_us=us(200), past_s=10)


def test_tables_are_read_too() -> None:
    tables = (
        RecordTable("scr", "Records", "About", ("a", "b"), (("1", "2"),)),
        RecordTable("x", "X", "", why_not="no"),
    )
    assert read_tables(told_tables("east", tables)) == tables
    with pytest.raises(FormatUnknownError, match="rows"):
        read_tables(told_tables("east", tables).replace(b'"2"', b"2"))
