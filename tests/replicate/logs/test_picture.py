"""logs/picture.py: a picture of every story, and one clear error where none can be made."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from replicate.errors import JournalIOError, PrerequisiteMissingError, ReplicateError, UsageError
from replicate.logs.line import Teller, read_line
from replicate.logs.picture import check_picture, draw
from replicate.logs.story import LogStory
from replicate.logs.table import LogTable, table_of
from tests.harness.logs import RECEIVER, SOURCE, UPDATE, raw, statistics

pytestmark = pytest.mark.slow  # the first picture loads the library, and looks for fonts


def table(*found: bytes) -> LogTable:
    story = LogStory()
    for one in found:
        line = read_line(one)
        assert line is not None
        story.take(line)
    story.end()
    return table_of(story, most=1000)


def street() -> list[bytes]:
    made = []
    for teller, role in ((SOURCE, "primary"), (RECEIVER, "secondary"), (UPDATE, "secondary")):
        made.append(raw(0, teller, "daemon started", role=role))
        for step in range(50):
            unknown: dict[str, Any] = {"backlog_max": None, "backlog_at_least_max": 1} if 20 < step < 25 else {}
            made.append(statistics(60 * step + 1, teller, 100 + step, **unknown))
    made += [
        raw(2, SOURCE, "streaming"),
        raw(900, SOURCE, "now reading from journal files; journal pool does not contain the next transaction"),
        raw(1200, SOURCE, "now reading from the journal pool"),
        raw(1300, SOURCE, "XOFF received"),
        raw(1350, SOURCE, "XON received"),
        raw(1400, SOURCE, "connection closed", reason="connection lost", error="gone"),
        raw(2000, UPDATE, "daemon ended", state="stopped"),
        raw(2500, UPDATE, "daemon started", role="primary"),
    ]
    return made


def test_a_png_of_1600_by_900(tmp_path: Path) -> None:
    path = tmp_path / "street.png"
    draw(table(*street()), path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (1600, 900)
    draw(table(*street()), path)  # over the one that is there


def test_an_svg_has_its_units_its_legend_and_its_lanes(tmp_path: Path) -> None:
    import matplotlib

    path = tmp_path / "street.SVG"
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # texts as texts
        draw(table(*street()), path)
    text = " ".join(re.findall(r">([^<>]+)</(?:text|tspan)>", path.read_text()))
    for wanted in (
        "transactions", "per second", "backlog", "(seconds)", "time (UTC)", "UTC", "east/source-west", "west/update",
        "stream lost (1)", "paused (XOFF) (1)", "reads files (1)", "role changed (1)", "at least so much",
        "role: primary", "role: secondary", "reads journal files", "no stream",
    ):  # fmt: skip
        assert wanted in text, wanted


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [raw(0, UPDATE, "daemon started")],
        [statistics(0, UPDATE)],
        [statistics(0, UPDATE, 0, lag_s_max=0.0, backlog_max=0), statistics(1, UPDATE, 0, backlog_max=0)],
        [statistics(0, UPDATE, lag_s_max=None), statistics(10**9, UPDATE)],
        [*(statistics(step, UPDATE, lag_s_max=0.1) for step in range(50)), statistics(60, UPDATE, lag_s_max=9e6)],
        [statistics(1, Teller("", f"/{number}", "update")) for number in range(30)],
        [raw(step, SOURCE, "streaming") for step in range(200)],
    ],
    ids=["nothing", "no figures", "one", "zeros", "33 years", "far", "30 daemons", "200 events"],
)
def test_every_story_has_a_picture(tmp_path: Path, lines: list[bytes]) -> None:
    draw(table(*lines), tmp_path / "any.png")
    assert (tmp_path / "any.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("street.jpg", UsageError, "which kind of picture"),
        ("street", UsageError, r"ends with \.png or \.svg"),
        ("nowhere/street.png", JournalIOError, "cannot be written"),
    ],
)
def test_what_is_no_picture(tmp_path: Path, name: str, kind: type[ReplicateError], text: str) -> None:
    with pytest.raises(kind, match=text):
        draw(table(), tmp_path / name)


def test_where_the_library_is_not_there_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PrerequisiteMissingError, match=r"Run: .*python.* -m pip install 'matplotlib") as caught:
        check_picture(Path("street.png"))
    assert caught.value.exit_code == 69
