"""A transaction that only tells what was applied of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.door.seen_told import is_news
from replicate.door.snapshot import door_of
from replicate.door.telling_transaction import tell
from tests.harness.suppliers import Suppliers, run, shared


def test_it_is_committed_where_there_is_news_and_only_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = shared(tmp_path)
    run(two, "a", "INSERT INTO ta VALUES (1, 'x', 0)")
    two.carry("a", "b")
    before = two.last_seqno("b")
    for _ in range(2):
        with door_of(two.by["b"]) as door:
            tell(door, timeout_s=30)
            assert not is_news(door)
    assert two.last_seqno("b") == before + 1
    two.level()
    two.assert_converged()


def test_what_only_tells_is_applied_as_a_transaction_of_nothing(tmp_path: Path) -> None:
    two: Suppliers = shared(tmp_path)
    run(two, "a", "INSERT INTO ta VALUES (1, 'x', 0)")
    two.carry("a", "b")
    with door_of(two.by["b"]) as door:
        tell(door, timeout_s=30)
    rows = two.rows("a")
    assert two.carry("b", "a").transactions == 1
    assert two.rows("a") == rows
