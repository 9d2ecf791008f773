"""What a replay is told on the command line: the journal that is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.cli.replay import journal_named


def test_a_journal_is_named_as_an_instance_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below REPLICATE_HOME; a path, a URI, what lies in this directory and what is nowhere stay as they were said."""
    (tmp_path / "home" / "east").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    assert journal_named("east") == str(tmp_path / "home" / "east")
    for text in ("./east", "/srv/east", "hdfs://host/east", "hdfs:east", "west", "so so", "."):
        assert journal_named(text) == text
    (tmp_path / "here" / "east").mkdir()
    assert journal_named("east") == "east"
