"""What status says while suppliers stand aside for a change of the schema."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from replicate.errors import TryAgainError
from replicate.model.findings import Finding
from replicate.roles.retiring import writers_of
from replicate.roles.schema_fence import fence, unfence
from replicate.status.collect import collect
from replicate.status.schema_fences import schema_fence_findings
from tests.harness.suppliers import Suppliers, shared


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """All write ta."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path, 3)


def found(made: Suppliers, site: str, after_s: float = 0.0) -> list[Finding]:
    return list(schema_fence_findings(made.by[site], time.time() + after_s))


def test_who_stands_aside_and_who_does_not_is_told_everywhere(three: Suppliers) -> None:
    assert found(three, "a") == []
    before_s = time.time()
    with pytest.raises(TryAgainError):
        fence(three.by["a"], timeout_s=0)
    three.carry("a", "b")
    three.carry("b", "a")
    (own,) = found(three, "a")
    since = time.strftime("%Y-%m-%d %H:%M", time.gmtime(before_s))
    assert own.text.startswith(f"since {since}:")
    assert own.text.endswith(
        " UTC a has all other suppliers stand aside for a change of the schema; standing aside, and writing nothing: "
        "b; waited for: c"
    )
    assert (own.code, own.severity, own.subject) == ("SCHEMA_FENCE", "info", "a")
    assert "Update Process of c runs" in own.do
    assert own.do.endswith("To let all write again: replicate -i INSTANCE schema unfence")
    (others,) = found(three, "b")
    assert others.text == own.text
    assert others.do.endswith(
        "replicate -i a schema unfence. Where a is gone for good: replicate -i INSTANCE replica retire a"
    )
    assert found(three, "c") == []
    three.level()
    (own,) = found(three, "a")
    assert own.text.endswith("schema; standing aside, and writing nothing: b, c")
    assert own.do == "once the schema is changed, or where it is not to be: replicate -i INSTANCE schema unfence"
    assert "SCHEMA_FENCE" in [one.code for one in collect(three.by["c"]).findings]
    unfence(three.by["a"], timeout_s=30)
    three.level()
    assert not any(found(three, name, 1e6) for name in three.names)


def test_one_that_lasts_is_a_warning(three: Suppliers) -> None:
    """From the moment of the command, not that of the last transaction before it."""
    before_us = time.time_ns() // 1000
    with pytest.raises(TryAgainError):
        fence(three.by["a"], timeout_s=0)
    assert writers_of(three.by["a"]).fences.since_us(three.by["a"].content.uuid) >= before_us
    warn_s = three.by["a"].config.status.fence_warn_s
    assert [one.code for one in found(three, "a", warn_s - 60)] == ["SCHEMA_FENCE"]
    assert [(one.code, one.severity) for one in found(three, "a", warn_s)] == [("SCHEMA_FENCE_LASTS", "warning")]


def test_a_region_or_a_journal_that_cannot_be_read_is_anothers_finding(three: Suppliers) -> None:
    with pytest.raises(TryAgainError):
        fence(three.by["a"], timeout_s=0)
    journal, region = three.by["a"].journal_directory, three.by["a"].regions[0].path
    for path in (journal, region):
        os.rename(path, path.with_name("away"))
        assert found(three, "a") == []
        os.rename(path.with_name("away"), path)
    assert found(three, "a")
