"""Standing aside for one that changes the schema: what was written before, and while one is restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.dbapi import OperationalError
from replicate.errors import TryAgainError
from replicate.roles.restored_supplier import settle, turn_back
from replicate.roles.schema_fence import fence, fences
from tests.harness.suppliers import Suppliers, shared


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """Both write ta."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path)


def test_what_was_written_before_it_was_known_is_there_when_all_stand_aside(two: Suppliers) -> None:
    """An application has the region as the word of the fence comes: its commit passes, and comes to the one that
    fences; the next one is refused."""
    theirs = two.connect("b")
    theirs.execute("INSERT INTO ta VALUES (1, 'of b', 0)")
    with pytest.raises(TryAgainError):
        fence(two.by["a"], timeout_s=0)
    theirs.commit()
    two.level()
    assert fences(two.by["a"])[0].is_closed
    assert two.rows("a")["ta"] == [(1, "of b", 0)]
    theirs.execute("INSERT INTO ta VALUES (2, 'of b', 0)")
    with pytest.raises(OperationalError, match="all other suppliers stand aside"):
        theirs.commit()
    theirs.close()


def test_one_that_waits_for_what_it_had_does_not_stand_aside(two: Suppliers) -> None:
    with pytest.raises(TryAgainError):
        fence(two.by["a"], timeout_s=0)
    assert turn_back(two.by["b"])
    two.carry("a", "b")
    two.carry("b", "a")
    assert fences(two.by["a"])[0].awaited == ("b",)
    assert settle(two.by["b"])
    two.level()
    assert fences(two.by["a"])[0].is_closed
