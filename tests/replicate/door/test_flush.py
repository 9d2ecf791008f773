"""Flushing while in use: writers go on, and a region that cannot be flushed keeps no other one from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.admin.regions import add_region
from replicate.door.flush import flush
from replicate.door.recovery.opening import close_door, open_door
from replicate.pool import control as word
from tests.harness.pair import Pair
from tests.harness.street import make_database


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return Pair.create(tmp_path, settings='[journal]\ndurability = "interval"\n')


def test_journal_and_databases_have_it_and_a_region_that_is_gone_is_told(pair: Pair, tmp_path: Path) -> None:
    make_database(tmp_path / "other.db", "CREATE TABLE gone(id INTEGER PRIMARY KEY)")
    add_region(pair.primary, tmp_path / "other.db", name="other")
    pair.primary.reload()
    main = pair.primary.region("main")
    door = open_door(pair.primary)
    writer = pair.connect()
    try:
        writer.execute("INSERT INTO account(owner, note) VALUES ('o', ?)", ("x" * 3000,))
        writer.commit()
        assert b"x" * 1000 not in main.path.read_bytes()
        (tmp_path / "other.db").rename(tmp_path / "elsewhere.db")
        problems = flush(door)
        assert b"x" * 1000 in main.path.read_bytes()
        assert door.words[word.LAST_DURABLE_SEQNO] == door.words[word.LAST_SEQNO]
        assert [("NOT_FOUND" in one, "other.db" in one) for one in problems] == [(True, True)]
        (tmp_path / "elsewhere.db").rename(tmp_path / "other.db")
        writer.execute("INSERT INTO account(owner, note) VALUES ('o', ?)", ("y" * 3000,))
        writer.commit()
        assert flush(door) == []
        assert b"y" * 1000 in main.path.read_bytes()
    finally:
        writer.close()
        close_door(door)
