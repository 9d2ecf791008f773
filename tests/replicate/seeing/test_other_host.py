"""seeing/other_host.py: the picture of another host's page, as it is there; and when it is not reached any more."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from replicate.errors import PeerUnreachableError
from replicate.logs.line import US
from replicate.seeing.curve import CurvePoint
from replicate.seeing.other_host import PERIOD_S, WANTED_S, ElsewhereView, cut, names_on, page_past_s
from replicate.seeing.page_client import PageAddress, PageClient
from replicate.seeing.picture import InstancePicture, ShownCurve, ShownEvent, ShownLane
from replicate.seeing.picture_json import RecordTable, told, told_tables
from tests.replicate.seeing.test_history import us
from tests.replicate.seeing.test_read_picture import some_pictures

URL = "https://db2:7480"


class Answers(PageClient):
    """A page without a socket. `ahead_us`: how far its clock is before ours."""

    def __init__(self, name: str = "east") -> None:
        super().__init__(PageAddress.parse(f"{URL}#{name}", where="-i"), None)
        self.asked: list[str] = []
        self.is_gone = False
        self.pictures = some_pictures()
        self.now_us = us(101)

    def get(self, target: str) -> bytes:
        self.asked.append(target)
        if self.is_gone:
            raise PeerUnreachableError("nobody is reached: refused", where=URL, do="See there")
        if target.startswith("/records"):
            return told_tables("east", [RecordTable("scr", "Records", "", ("a",), (("1",),))])
        past_s = int(target.partition("past=")[2])
        shown = [replace(one, from_us=one.at_us - past_s * US) for one in self.pictures]
        return told(shown, now_us=self.now_us, past_s=past_s)


@pytest.fixture
def page() -> Answers:
    return Answers()


class Clock:
    """Ours: an hour after the one of the page."""

    def __init__(self) -> None:
        self.s = 3600.0

    def monotonic(self) -> float:
        return self.s

    def wall_ns(self) -> int:
        return (us(101) + round(self.s * US)) * 1000


def view_of(page: Answers, clock: Clock, past_s: float = 60) -> ElsewhereView:
    return ElsewhereView(page, past_s=past_s, wall_ns=clock.wall_ns, monotonic=clock.monotonic)


def test_it_shows_what_the_page_there_shows(page: Answers) -> None:
    clock = Clock()
    view = view_of(page, clock)
    assert (view.name, view.period_s) == ("east", PERIOD_S)
    assert view.picture(past_s=60).error == "not looked at yet"
    view.look()
    found = view.picture(past_s=60)
    there = page.pictures[0]
    assert found.path == f"{URL}: /srv/east"
    assert replace(found, path=there.path, from_us=there.from_us, seen_us=0) == there
    assert found.age_us(clock.wall_ns() // 1000) == US  # by its own clock, as old as it was there


def test_it_is_asked_for_what_somebody_wants_and_for_nothing_else(page: Answers) -> None:
    clock = Clock()
    view = view_of(page, clock, past_s=3600)
    view.look()
    assert page.asked == ["/pictures?past=3600"]
    page.asked.clear()
    found = view.picture(past_s=60)
    assert (found.curves, found.name, found.rows) == ((), "east", page.pictures[0].rows)
    view.picture(past_s=90)
    clock.s += 1
    view.look()
    assert page.asked == ["/pictures?past=60", "/pictures?past=300"]
    assert view.picture(past_s=60).curves
    clock.s += WANTED_S / 2
    view.picture(past_s=300)
    clock.s += WANTED_S / 2 + 1
    page.asked.clear()
    view.look()
    assert page.asked == ["/pictures?past=300"]
    assert view.picture(past_s=3600).curves == ()


def test_one_that_is_gone_says_since_when_and_comes_back(page: Answers) -> None:
    clock = Clock()
    view = view_of(page, clock)
    page.is_gone = True
    view.look()
    first = view.picture(past_s=60)
    assert first.error == f"UNREACHABLE: nobody is reached: refused [{URL}]. See there"
    assert first.is_wrong
    page.is_gone = False
    view.look()
    assert not view.picture(past_s=60).error
    page.is_gone = True
    clock.s += 40
    view.look()
    gone = view.picture(past_s=60)
    assert gone.error.startswith("not reached since ")
    assert gone.error.endswith(f"UTC: UNREACHABLE: nobody is reached: refused [{URL}]. See there")
    assert (gone.rows, gone.findings, gone.mood) == ((), (), "error")
    assert {one.now for one in gone.curves} == {CurvePoint(None)}
    assert gone.events == page.pictures[0].events
    assert gone.age_us(clock.wall_ns() // 1000) == 41 * US
    page.is_gone = False
    view.look()
    assert view.picture(past_s=60).rows


def test_an_instance_that_is_not_on_the_page_is_said_with_those_that_are(page: Answers) -> None:
    view = view_of(Answers("north"), Clock())
    view.look()
    assert (
        "that page shows no instance north [https://db2:7480]. It shows east, west, x" in view.picture(past_s=60).error
    )


def test_another_release_is_said(page: Answers) -> None:
    view = view_of(page, Clock())
    page.pictures = [replace(page.pictures[0], mood="merry")]  # type: ignore[arg-type]
    view.look()
    assert view.picture(past_s=60).error.startswith("FORMAT_UNKNOWN: what the other page tells is not understood")


def test_the_tables_are_those_of_that_instance(page: Answers) -> None:
    west = Answers("west")
    view = view_of(west, Clock())
    view.look()
    (table,) = view.records()
    assert table.rows == (("1",),)
    assert west.asked[-1] == "/records?instance=1"
    west.is_gone = True
    (table,) = view.records()
    assert table.why_not.startswith("UNREACHABLE")


def test_the_names_on_a_page(page: Answers) -> None:
    assert names_on(page) == ["east", "west", "x"]
    assert json.loads(page.get("/pictures?past=900"))["past_s"] == 900


def test_the_next_longer_time_of_a_page() -> None:
    assert [page_past_s(one) for one in (1, 60, 61, 7200, 7 * 86_400)] == [60, 60, 300, 21_600, 604_800]


def test_a_shorter_past_is_cut_out_of_a_longer_one() -> None:
    curve = ShownCurve("lag_s", "lag", "seconds", CurvePoint(9), tuple(CurvePoint(float(one)) for one in range(10)))
    events = tuple(ShownEvent(us(at), "update", what, "", "error") for at, what in ((3, "died"), (7, "died"), (9, "x")))
    lane = ShownLane("update", ((us(0), us(4), "running"), (us(4), us(10), "not running")))
    picture = InstancePicture(
        "east", "/e", us(10), us(0), curves=(curve,), events=events, lanes=(lane,), tally=(("died", 2),)
    )
    assert cut(picture, 10) == picture
    assert cut(picture, 60) == picture
    short = cut(picture, 5)
    assert short.from_us == us(5)
    assert [point.value for point in short.curves[0].points] == [5, 6, 7, 8, 9]
    assert short.lanes[0].spans == ((us(5), us(10), "not running"),)
    assert [one.at_us for one in short.events] == [us(7), us(9)]
    assert short.tally == (("died", 1),)
