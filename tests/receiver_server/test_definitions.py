"""The tables that a secondary will have when what is in its pool is applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from receiver_server.definitions import definitions_here
from replicate.door.recovery.opening import close_door, open_door
from tests.harness.pair import Pair, work_all


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    door = open_door(made.primary)
    yield made
    close_door(door)


def columns(pair: Pair, pool: object) -> dict[str, list[str]]:
    """By table, of those that are in force."""
    found = definitions_here(pair.secondary, pool)  # type: ignore[arg-type]
    return {one.table: [column.name for column in one.columns] for one in found.values()}


def change(pair: Pair, column: str, rows: int = 1) -> None:
    connection = pair.connect()
    connection.execute(f"ALTER TABLE account ADD COLUMN {column}")
    connection.executemany("INSERT INTO account(owner, note) VALUES ('o', ?)", [("x" * 1000,)] * rows)
    connection.commit()
    connection.close()


def test_they_are_those_of_the_own_journal_and_of_the_pool_in_their_order(pair: Pair) -> None:
    pair.seed()
    with pair.receive_pool(16 << 20) as pool:
        first = columns(pair, pool)
        assert first == {"account": ["id", "owner", "balance", "note"], "entry": ["at", "amount", "data"]}
        change(pair, "one")
        pair.write(3)
        change(pair, "two", rows=2000)
        last = pair.write(1)
        assert pair.deliver(pool) == last
        assert columns(pair, pool) == {**first, "account": [*first["account"], "one", "two"]}
        with pair.applier(pool) as applier:
            work_all(applier)
        assert columns(pair, pool) == {**first, "account": [*first["account"], "one", "two"]}
