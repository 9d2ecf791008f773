"""Saying that a supplier is gone for good: who may, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicate.cli.root import root
from replicate.dbapi import OperationalError
from replicate.errors import ConfigurationError, NotFoundError, NotPrimaryError
from replicate.instance.instance import Instance
from replicate.roles.retiring import gone_of, retire, writers_of
from tests.harness.suppliers import Suppliers, run


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path, 3)


def command(site: Instance, *words: str) -> Result:
    return CliRunner().invoke(root, ["-i", str(site.path), *words], standalone_mode=False)


def test_who_is_unknown_or_this_one_is_refused(three: Suppliers, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no supplier x"):
        retire(three.by["a"], "x", timeout_s=0)
    with pytest.raises(ConfigurationError, match="a is this one"):
        retire(three.by["a"], "a", timeout_s=0)
    primary = Instance.create(tmp_path / "p", role="primary", name="p")
    with pytest.raises(NotPrimaryError, match="p is primary"):
        retire(primary, "b", timeout_s=0)
    assert gone_of(three.by["a"]) == []


def test_it_is_said_once(three: Suppliers) -> None:
    retire(three.by["a"], "b", timeout_s=0)
    before = three.last_seqno("a")
    assert retire(three.by["a"], "b", timeout_s=0).heir == "a"
    assert three.last_seqno("a") == before
    three.carry("a", "c")
    before = three.last_seqno("c")
    assert retire(three.by["c"], "b", timeout_s=0).heir == "a", "who has said it first gets what it wrote"
    assert three.last_seqno("c") == before


@pytest.mark.slow
def test_two_that_say_it_at_once_agree_on_the_heir(three: Suppliers) -> None:
    for name in ("a", "c"):
        retire(three.by[name], "b", timeout_s=0)
    left = Suppliers(three.directory, ("a", "c"))
    left.by = three.by
    left.level()
    left.level()
    left.assert_converged()
    heir = min(three.by[name].content.uuid for name in ("a", "c"))
    assert all(writers_of(three.by[name]).of(2) == heir for name in ("a", "c"))


def test_one_that_is_gone_retires_nobody(three: Suppliers) -> None:
    retire(three.by["a"], "b", timeout_s=0)
    three.carry("a", "b")
    with pytest.raises(ConfigurationError, match="b itself is gone"):
        retire(three.by["b"], "c", timeout_s=0)


def test_one_that_hears_that_it_is_gone_takes_no_writes(three: Suppliers) -> None:
    """They would be lost; comments, which are anybody's, it takes."""
    retire(three.by["a"], "b", timeout_s=0)
    run(three, "b", "INSERT INTO tb (v) VALUES ('before it is told')")
    three.carry("a", "b")
    connection = three.connect("b")
    connection.execute("INSERT INTO tb (v) VALUES ('after')")
    with pytest.raises(OperationalError, match="b was said to be gone for good"):
        connection.commit()
    connection.rollback()
    connection.log_comment("still here")
    connection.commit()
    connection.close()


def test_by_command(three: Suppliers) -> None:
    site = three.by["a"]
    found = command(site, "replica", "retire", "b", "--yes", "--timeout", "0")
    assert found.return_value == 1
    assert "b is gone; waited for: a, c." in found.output
    assert "gone; waited for: a, c" in command(site, "replica", "list").output
    found = command(site, "replica", "retire", "c", "--yes", "--timeout", "0")
    assert "c is gone; waited for: a." in found.output, "one that is gone is waited for by nobody"
    shown = command(site, "journal", "show", "--last", "1").output
    assert f"{three.by['c'].content.uuid.hex()} is gone for good, says {site.content.uuid.hex()}" in shown
