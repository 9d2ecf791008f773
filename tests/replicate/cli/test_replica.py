"""The suppliers that are known here, and one that was restored."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from replicate.cli.root import root
from replicate.roles.restored_supplier import turn_back
from tests.harness.suppliers import Suppliers
from tests.replicate.cli.test_partition import said


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return Suppliers.create(tmp_path)


def test_the_list_names_each_what_it_writes_and_how_it_comes_here(two: Suppliers) -> None:
    told = said("-i", "a", "replica", "list")
    assert re.search(r"^a +2 +\d+ +all others +this one *$", told, re.MULTILINE)
    assert re.search(r"^b +3 +0 +Pb +a peer *$", told, re.MULTILINE)
    found = json.loads(said("-i", "b", "--json", "replica", "list"))
    assert [(one["name"], one["writes"], one["told"]) for one in found] == [
        ("a", ["all others"], "comes by way of others"), ("b", ["2"], "this one"),
    ]  # fmt: skip


def test_one_that_was_restored_waits_and_may_be_told_not_to(two: Suppliers) -> None:
    assert "b takes writes" in said("-i", "b", "replica", "restore")
    turn_back(two.by["b"])
    assert "waits for what it had" in said("-i", "b", "replica", "list")
    with root.make_context("replicate", ["-i", "b", "replica", "restore"]) as context:
        assert root.invoke(context) == 1
    status = json.loads(said("-i", "b", "--json", "status"))
    (finding,) = (one for one in status["findings"] if one["code"] == "RESTORING")
    assert "waiting for the first supplier that sends" in finding["text"]
    assert "replicate -i b replica restore --force" in finding["do"]
    assert "b takes writes\n" in said("-i", "b", "replica", "restore", "--force", "--yes")
    assert "b takes writes, as before" in said("-i", "b", "replica", "restore", "--force")
    two.by["b"].reload()
    two.write("b")
    two.level()
    two.assert_converged()
