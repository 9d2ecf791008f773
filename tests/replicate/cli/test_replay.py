"""Which engine a replay or a rebuild takes: the local one, unless Spark is asked for by its name, or by a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.cli.replay import journal_named, sessions_for
from replicate.errors import UsageError
from update_process.replay import command
from update_process.replay.spark.session import SUBMITTED


@pytest.mark.parametrize(
    ("engine", "master", "submitted", "found"),
    [
        (None, None, False, "local"),
        ("local", None, False, "local"),
        ("spark", None, False, "spark at None"),
        (None, "spark://host:7077", False, "spark at spark://host:7077"),
        ("spark", "local[2]", False, "spark at local[2]"),
        (None, None, True, "spark at None"),
        ("local", None, True, "local"),
        ("local", "local[2]", False, "refused"),
        ("local", "local[2]", True, "refused"),
    ],
)
def test_the_engine(
    engine: str | None, master: str | None, submitted: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SUBMITTED, raising=False)
    if submitted:
        monkeypatch.setenv(SUBMITTED, "12345")
    monkeypatch.setattr(command, "spark_sessions", lambda master: f"spark at {master}")
    try:
        sessions = sessions_for(engine, master)
    except UsageError:
        assert found == "refused"
    else:
        assert (sessions or "local") == found


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
