"""What status says of a supplier that shares partitions."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from replicate.daemon.files import DaemonFiles
from replicate.instance.instance import Instance
from replicate.roles.merge_losses import settle
from replicate.status.collect import collect
from replicate.status.merging import merging_findings, who_has_what
from replicate.status.text import lines
from tests.harness.instances import with_settings
from tests.harness.suppliers import Suppliers, run, shared


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path)


def found(instance: Instance, now_s: float | None = None) -> list[tuple[str, str]]:
    return [(one.code, one.text) for one in merging_findings(instance, time.time() if now_s is None else now_s)]


def test_values_that_were_lost_are_told_until_they_are_settled(two: Suppliers) -> None:
    site = two.by["a"]
    run(two, "a", "INSERT INTO ta VALUES (1, 'of a', 0)")
    run(two, "b", "INSERT INTO ta VALUES (1, 'of b', 0)")
    assert found(site) == []
    two.level()
    assert found(site) == [("MERGES_OPEN", "1 value that was lost in a merge was not looked at")]
    settle(site, ["m1"])
    assert found(site) == []


def test_a_supplier_that_is_silent_for_an_hour_is_named(two: Suppliers, monkeypatch: pytest.MonkeyPatch) -> None:
    site = two.by["a"]
    facts: dict[str, Any] = {"awaited": {"b": 1000.0}}

    class Status:
        is_running = True

    Status.facts = facts  # type: ignore[attr-defined]
    monkeypatch.setattr(DaemonFiles, "read_status", lambda _self: Status)
    warn_s = site.config.status.silent_warn_s
    assert found(site, 1000.0 + warn_s - 1) == []
    ((code, text),) = found(site, 1000.0 + 3 * warn_s)
    assert (code, text[:35]) == ("SUPPLIER_SILENT", "supplier b has not told for 3 h tha")
    ((_, text),) = found(with_settings(site, "[status]\nsilent_warn_s = 5\n"), 1005.0)
    assert text.startswith("supplier b has not told for 5 s that")


def test_who_has_what_of_whom_is_as_the_update_process_last_said(
    two: Suppliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = two.by["a"]
    before = collect(site)
    facts: dict[str, Any] = {"told": {"a": {"a 1": 9, "b 1": 5}, "b": {"a 1": 7, "b 1": 5}}}

    class Status:
        is_running = False

    Status.facts = facts  # type: ignore[attr-defined]
    monkeypatch.setattr(DaemonFiles, "read_status", lambda _self: Status)
    assert who_has_what(site) == facts["told"]
    text = "\n".join(lines(replace(before, told=who_has_what(site)), 120))
    assert "  a has a 1 up to 9, b 1 up to 5, by what it has told\n" in text
    assert "  b has a 1 up to 7, b 1 up to 5, by what it has told\n" in text
    for nonsense in (None, 7, [], {"a": 7}, {"a": {"a 1": "9"}}):
        facts["told"] = nonsense
        assert not any(who_has_what(site).values())


def test_who_is_no_supplier_says_nothing(tmp_path: Path) -> None:
    primary = Instance.create(tmp_path / "p", role="primary", name="p")
    assert found(primary) == []


def test_a_region_that_cannot_be_read_is_anothers_finding(two: Suppliers) -> None:
    path = two.by["a"].regions[0].path
    os.rename(path, path.with_name("away"))
    assert found(two.by["a"]) == []
