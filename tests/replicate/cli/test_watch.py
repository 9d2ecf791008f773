"""cli/watch.py: `replicate watch --once`: for several instances, for scripts, and with an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicate.cli import screen
from replicate.cli.main import run
from replicate.cli.screen import Draw, Watching
from replicate.seeing.terminal import text_of_line
from tests.harness.others import unreadable
from tests.harness.pair import Pair
from tests.harness.ports import free_port


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.delenv("REPLICATE_INSTANCE", raising=False)
    made = Pair.create(tmp_path)
    made.write(7)
    return made


def test_once_prints_each_instance_and_whether_something_is_wrong(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["-i", str(pair.primary.path), "watch", "--once", "-i", str(pair.secondary.path)]
    assert run(both) == 1  # its daemons do not run
    out = capsys.readouterr().out
    assert out.index("primary east") < out.index("secondary west")
    assert f"written {pair.last_seqno()}" in out
    assert "Next: replicate -i" in out


def test_each_instance_is_shown_once(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(pair.primary.path)
    run(["-i", path, "--json", "watch", "-i", path, "-i", path])
    (picture,) = json.loads(capsys.readouterr().out)
    assert (picture["name"], picture["role"]) == ("east", "primary")
    assert picture["rows"][0]["ways"][0] == {
        "key": "written", "label": "written", "seqno": pair.last_seqno(), "per_s": None, "waiting": None,
        "state": "", "mood": "well", "is_line": False, "is_at_least": False,
    }  # fmt: skip


def test_the_environment_names_one_too(
    pair: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_INSTANCE", str(pair.primary.path))
    run(["watch", "--once", "--past", "2h"])
    assert "primary east" in capsys.readouterr().out


def test_a_site_that_is_not_reached_stands_beside_the_others_and_ends_it_with_69(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    page = f"http://127.0.0.1:{free_port()}"
    words = ["-i", str(pair.primary.path), "watch", "--once", "-i", f"{page}#west"]
    assert run(words) == 69
    out = " ".join(capsys.readouterr().out.split())
    assert "primary east" in out
    assert f"UNREACHABLE: nobody is reached: Connection refused [{page}]" in out
    assert run(["--json", *words]) == 69
    here, there = json.loads(capsys.readouterr().out)
    assert (here["name"], here["error"], there["name"]) == ("east", "", "west")
    assert there["error"].startswith("UNREACHABLE")
    assert not there["rows"]


def test_an_instance_that_may_not_be_read_is_named(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    run(["watch", "--once", "-i", str(pair.primary.path)])  # all is imported, as what follows may not
    with unreadable(pair.primary.path):
        assert run(["watch", "--once", "-i", str(pair.primary.path)]) == 77
    assert capsys.readouterr().err.endswith("Run as the owner of the instance\n")


def test_nothing_is_drawn_before_it_was_looked_at(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def watched(watching: Watching, draw: Draw, **_: object) -> None:
        drawn.extend(text_of_line(line) for line in draw(watching, 150))

    monkeypatch.setattr(screen, "watch", watched)
    monkeypatch.setattr(screen, "check_terminal", lambda: None)
    assert run(["watch", "-i", str(pair.primary.path), "-i", str(pair.secondary.path)]) == 0
    text = "\n".join(drawn)
    assert "not looked at yet" not in text
    assert f"written {pair.last_seqno()}" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["watch"], "this is no terminal that can be drawn on. Print it once: --once"),
        (["watch", "--once"], "no instance is named"),
        (["watch", "--once", "-i", "/nowhere/at/all"], "there is no such instance directory [/nowhere/at/all]"),
        (["watch", "--once", "--past", "soon"], "'soon' is no period; write 30, 30s, 5m, 2h or 1d"),
        (["watch", "--once", "--past", "8d"], "'8d' is no period"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REPLICATE_INSTANCE", raising=False)
    assert run(arguments) in (2, 69)
    assert said in capsys.readouterr().err
