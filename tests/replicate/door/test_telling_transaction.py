"""A transaction that only tells what was applied of others."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from replicate.dbapi import second_library
from replicate.door import telling_transaction
from replicate.door.door import Door
from replicate.door.primary import RegionSession
from replicate.door.seen_told import is_news
from replicate.door.snapshot import door_of
from replicate.door.telling_transaction import SeenTeller
from replicate.errors import BusyError
from tests.harness.suppliers import Suppliers, run, shared, tell


def test_it_is_committed_where_there_is_news_and_only_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = shared(tmp_path)
    run(two, "a", "INSERT INTO ta VALUES (1, 'x', 0)")
    two.carry("a", "b")
    before = two.last_seqno("b")
    for _ in range(2):
        with door_of(two.by["b"]) as door:
            tell(door)
            assert not is_news(door)
    assert two.last_seqno("b") == before + 1
    two.level()
    two.assert_converged()


def test_what_only_tells_is_applied_as_a_transaction_of_nothing(tmp_path: Path) -> None:
    two: Suppliers = shared(tmp_path)
    run(two, "a", "INSERT INTO ta VALUES (1, 'x', 0)")
    two.carry("a", "b")
    with door_of(two.by["b"]) as door:
        tell(door)
    rows = two.rows("a")
    assert two.carry("b", "a").transactions == 1
    assert two.rows("a") == rows


def test_what_it_commits_by_is_opened_once_and_again_after_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = shared(tmp_path)
    opened = []

    class Counted(RegionSession):
        def __init__(self, door: Door, region_name: str) -> None:
            opened.append(region_name)
            super().__init__(door, region_name)

    monkeypatch.setattr(telling_transaction, "RegionSession", Counted)
    # In life it is in another process than applications. Here SQLite keeps descriptors of closed connections while it
    # has the file open, and a sqlite3 connection of some other test's thread would be suspected of them.
    monkeypatch.setattr(second_library, "_standard_library_has", lambda _: False)
    with door_of(two.by["b"]) as door, closing(SeenTeller(door)) as teller:
        for number in range(1, 4):
            run(two, "a", f"INSERT INTO ta VALUES ({number}, 'x', 0)")
            two.carry("a", "b")
            assert is_news(door)
            teller.tell(timeout_s=30)
            assert not is_news(door), number
            run(two, "b", f"INSERT INTO ta VALUES ({10 + number}, 'between', 0)")
        assert len(opened) == 1
        run(two, "a", "INSERT INTO ta VALUES (4, 'x', 0)")
        two.carry("a", "b")
        application = two.connect("b")
        application.execute("INSERT INTO ta VALUES (20, 'open', 0)")
        with pytest.raises(BusyError):
            teller.tell(timeout_s=0.05)
        application.rollback()
        application.close()
        teller.tell(timeout_s=30)
        assert not is_news(door)
        assert len(opened) == 2
    two.level()
    two.assert_converged()
