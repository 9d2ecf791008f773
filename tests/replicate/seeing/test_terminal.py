"""seeing/terminal.py: lines for a wide terminal and a narrow one, in ASCII too, with signs and words beside colours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from replicate.model.findings import Finding
from replicate.seeing.curve import NOT_KNOWN, CurvePoint
from replicate.seeing.history import SeenHistory
from replicate.seeing.picture import InstancePicture, ShownCurve, picture_of, unreadable
from replicate.seeing.street import ShownFigure
from replicate.seeing.terminal import columns_of, figure_text, fitted, rate_text, screen, text_of_line, value_text
from replicate.status.report import Status
from tests.harness.logs import SOURCE, line
from tests.replicate.seeing.test_history import PRIMARY, SECONDARY, us
from tests.replicate.seeing.test_picture import STOPPED
from tests.replicate.status.test_collect import PEER, RECEIVING


def made(status: Status = PRIMARY, history: SeenHistory | None = None) -> InstancePicture:
    return picture_of(status, history or SeenHistory(0), now_us=us(100), past_s=60, columns=60)


def lines(*pictures: InstancePicture, width: int = 160, **options: Any) -> list[str]:
    return [text_of_line(line) for line in screen(pictures, width, **options)]


def test_a_wide_terminal_has_the_street_from_left_to_right() -> None:
    found = lines(made())
    (titles,) = [line for line in found if "Applications" in line]
    words = ["Applications", "written 100", "Journal", "from pool", "Source Server", "sent 100", "west"]
    assert [word for word in words if word in titles] == words
    assert sorted(titles.index(word) for word in words) == [titles.index(word) for word in words]
    arrows = found[found.index(titles) + 1]
    assert arrows.count("►") == 3
    assert "══" in arrows
    assert found[0].startswith("● primary east (incarnation 1), active")
    assert found[0].endswith("17:48:20 UTC")
    assert any("bottleneck: none, everything is level" in line for line in found)


def test_a_narrow_one_has_it_from_top_to_bottom() -> None:
    found = lines(made(), width=60)
    titles = [line for line in found if line and line[0] in "●·▼"]
    assert [title.split()[1] for title in titles] == [
        "primary", "Applications", "written", "Journal:", "from", "Source", "sent", "west:",
    ]  # fmt: skip
    assert "    received 100, applied 100, durable 100, backlog 0," in found


SEVERAL = replace(
    SECONDARY,
    peers=(PEER, replace(PEER, name="a-peer-with-a-long-name", is_connected=False, last_applied_seqno=None)),
    findings=(STOPPED, Finding("NO_SOURCE", "no source is connected " * 9, "on the primary: replicate -i east status")),
)


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", [1, 40, 59, 60, 80, 100, 132, 400])
def test_no_line_is_longer_than_the_terminal_is_wide(width: int, ascii_only: bool) -> None:
    history = SeenHistory(0)
    for second in range(3):
        history.status(SEVERAL, us(97 + second))
    history.line(line(50, SOURCE, "connection closed", reason="connection lost", error="é" * 300))
    for text in lines(made(SEVERAL, history), width=width, ascii_only=ascii_only):
        assert len(text) <= max(width, 40) or "replicate -i" in text
        assert text.isascii() or not ascii_only


def test_what_is_broken_is_said_in_words_and_signs() -> None:
    cut = replace(PRIMARY, peers=(replace(PEER, is_connected=False, backlog=None, lag_s=None),), findings=(STOPPED,))
    found = "\n".join(lines(made(cut)))
    assert "not connected" in found
    assert "═ ✖ ═" in found
    assert "backlog unknown" in found
    assert "▲ DAEMON_STOPPED warning: update does not run" in found
    assert "Next: mend it; then replicate -i 'a b' update start --set x=1,y" in found
    plain = "\n".join(lines(made(cut), ascii_only=True))
    assert "= X =" in plain
    assert "! DAEMON_STOPPED" in plain


def test_what_is_wrong_stands_before_the_street_and_what_is_worth_knowing_at_the_end() -> None:
    """A short terminal shows the first lines, and the others by its arrows."""
    equal = Finding("COMPARED", "west was equal", "nothing")
    found = lines(made(replace(PRIMARY, findings=(equal, STOPPED))))
    words = ("bottleneck", "DAEMON_STOPPED", "replicate -i 'a b' update", "┌", "written", "COMPARED")
    at = [next(number for number, line in enumerate(found) if word in line) for word in words]
    assert at == sorted(at)
    assert at[2] < 8


def test_curves_stand_over_the_lanes_of_the_daemons() -> None:
    history = SeenHistory(0)
    history.line(line(10, SOURCE, "streaming"))
    history.line(line(70, SOURCE, "connection closed", reason="connection lost", error="gone"))
    history.line(line(90, SOURCE, "streaming"))
    history.line(line(91, SOURCE, "now reading from journal files; not there"))
    for second in range(60):
        lag = 9.0 if 30 < second < 50 else 0.0
        history.status(replace(PRIMARY, peers=(replace(PEER, lag_s=lag),)), us(41 + second))
    found = lines(made(PRIMARY, history), width=26 + 60 + 15)
    lag = next(line for line in found if line.startswith("  lag "))[26:86]
    assert lag[1:30] == "▁" * 29
    assert "█" * 19 in lag
    (lane,) = [line for line in found if line.startswith("  source-west")]
    assert lane[26:86] == "█" * 30 + "x" * 20 + "█" + "f" * 9
    assert lane.endswith("streaming")
    assert any("in that time: stream lost, reads files" in line for line in found)
    assert any("stream lost: gone" in line for line in found)


def test_the_most_of_a_curve_is_not_less_than_it_is_now() -> None:
    curve = ShownCurve("written_per_s", "written", "per second", CurvePoint(58.5), (CurvePoint(47.6),) * 60)
    (found,) = [line for line in lines(replace(made(), curves=(curve,))) if line.startswith("  written ")]
    assert "58.5/s" in found
    assert found.endswith("most 58.5/s")


def test_an_old_picture_is_said_to_be_old() -> None:
    assert lines(made(), now_us=us(102))[0].endswith("17:48:20 UTC")
    assert lines(made(), now_us=us(109))[0].endswith("17:48:20 UTC, 9 s ago")


def test_an_instance_that_cannot_be_read_stands_beside_the_others() -> None:
    broken = unreadable("east", "/srv/east", "NOT_FOUND: there is no such instance", now_us=us(1), past_s=60)
    found = lines(broken, made(SECONDARY))
    assert found[0].startswith("✖ east")
    assert "  NOT_FOUND: there is no such instance" in found
    assert any(line.startswith("● secondary west") for line in found)


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (ShownFigure("x", "x", None, "seconds"), "unknown"),
        (ShownFigure("x", "x", 12, "seqno"), "12"),
        (ShownFigure("x", "x", 0.04, "seconds"), "0.1 s"),
        (ShownFigure("x", "x", 93.6, "percent"), "94 %"),
        (ShownFigure("x", "x", 7, "transactions", is_at_least=True), "≥ 7"),
    ],
)
def test_figures_read_as_people_say_them(figure: ShownFigure, text: str) -> None:
    assert figure_text(figure) == text


def test_rates_and_values() -> None:
    assert [rate_text(one) for one in (None, 0.0, 3.25, 99.96, 12345.6)] == ["", "0/s", "3.2/s", "100.0/s", "12,346/s"]
    assert value_text(CurvePoint(1234.0, True), "transactions") == "≥ 1,234"
    assert value_text(CurvePoint(5.0), "per second") == "5.0/s"
    assert value_text(NOT_KNOWN, "seconds") == "unknown"


@given(some.lists(some.none() | some.floats(0, 100), min_size=1, max_size=300), some.integers(1, 120))
def test_a_curve_for_a_smaller_terminal_keeps_its_peaks(values: list[float | None], count: int) -> None:
    points = [NOT_KNOWN if value is None else CurvePoint(value) for value in values]
    found = fitted(points, count)
    assert len(found) <= max(count, 1)
    known = [value for value in values if value is not None]
    assert max((point.value for point in found if point.value is not None), default=None) == max(known, default=None)


def test_a_curve_of_nothing_but_zeros_lies_at_the_bottom() -> None:
    zeros = ShownCurve("lag_s", "lag", "seconds", CurvePoint(0.0), (CurvePoint(0.0),) * 60)
    found = lines(replace(made(replace(SECONDARY, receiving=RECEIVING)), curves=(zeros,)), width=101)
    assert any("▁" * 60 in line for line in found)
    assert columns_of(101) == 60
