"""`replicate help`: the chapters, from wherever the package runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from replicate.cli import main
from replicate.cli.manual import title_of
from tests.harness.checkout import ROOT
from tests.replicate.cli.test_main import command

CHAPTERS = ROOT / "deploy" / "manual"


def test_it_lists_every_chapter_with_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["help"]) == 0
    told = capsys.readouterr().out.splitlines()
    files = sorted(CHAPTERS.glob("*.md"), key=lambda path: path.stem.lower())
    assert len(files) > 15
    wanted = [
        (path.stem.lower(), path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")) for path in files
    ]
    assert [tuple(re.split("  +", line, maxsplit=1)) for line in told[: len(files)]] == wanted
    assert main.run(["help", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["topic"], row["title"]) for row in rows] == wanted


@pytest.mark.parametrize("chapter", sorted(CHAPTERS.glob("*.md")), ids=lambda path: path.stem)
def test_it_prints_a_chapter_as_it_is(chapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["help", chapter.stem]) == 0
    assert capsys.readouterr().out == chapter.read_text(encoding="utf-8")
    assert main.run(["help", "--json", chapter.name.upper().replace(".MD", ".md")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["topic"], told["title"]) == (chapter.stem.lower(), title_of(chapter))
    assert told["text"] == chapter.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("disater", "there is no chapter disater. Did you mean disaster?"),
        ("seed", "`replicate seed --help` describes that command"),
        ("WAL_PINNED", "`replicate status --explain WAL_PINNED` says what that code means"),
        ("GAP", "`replicate status --explain GAP` says what that code means"),
        ("42", "`replicate help` lists the chapters"),
    ],
)
def test_a_topic_that_is_none_names_what_may_be_meant(
    topic: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["help", topic]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert told.err.count("\n") == 1


def test_a_package_without_its_manual_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("replicate.cli.help.MANUAL", tmp_path)
    assert main.run(["help"]) == 69
    assert "pip install" in capsys.readouterr().err


def test_a_shell_completes_topics(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "replicate help dis", "COMP_CWORD": "2"}
    done = command(home=tmp_path, _REPLICATE_COMPLETE="bash_complete", **words)
    assert (done.returncode, done.stdout) == (0, "plain,disaster\n"), done.stderr
