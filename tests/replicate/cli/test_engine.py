"""Which engine does the work: the local one, unless Spark is asked for by its name, or by a cluster."""

from __future__ import annotations

import pytest

from replicate.cli.engine import sessions_for
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
