"""What status says of clocks that differ."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replicate.daemon.files import DaemonFiles
from replicate.instance.instance import Instance
from replicate.status.clocks import clock_findings


def found(monkeypatch: pytest.MonkeyPatch, instance: Instance, status: Any) -> list[tuple[str, str, str]]:
    monkeypatch.setattr(DaemonFiles, "read_status", lambda _self: status)
    return [(one.code, one.text, one.subject) for one in clock_findings(instance)]


@pytest.mark.parametrize(("ahead_s", "said"), [(61, "61 s ahead of this host's"), (-5, "5 s behind this host's")])
def test_a_clock_that_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: int, said: str
) -> None:
    instance = Instance.create(tmp_path / "s", role="secondary", name="s", network=b"n" * 16)
    running = SimpleNamespace(is_running=True, facts={"clocks": {"east": ahead_s}})
    ((code, text, subject),) = found(monkeypatch, instance, running)
    assert (code, subject) == ("CLOCK_SKEW", "east")
    assert f"the clock of east is {said}" in text


@pytest.mark.parametrize(
    "status",
    [
        None,
        SimpleNamespace(is_running=False, facts={"clocks": {"east": 61}}),
        SimpleNamespace(is_running=True, facts={}),
        SimpleNamespace(is_running=True, facts={"clocks": {"east": 0}}),
        SimpleNamespace(is_running=True, facts={"clocks": "of another release"}),
    ],
)
def test_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Any) -> None:
    instance = Instance.create(tmp_path / "s", role="secondary", name="s", network=b"n" * 16)
    assert found(monkeypatch, instance, status) == []
