"""AUTOINCREMENT counters of the secondary: the stream says what each was before a transaction, and is after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.region.sqlite.apply import rows
from tests.harness.pair import Pair, run
from tests.harness.replaying import assert_equal

SCHEMA = """
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE TABLE wide (id INTEGER PRIMARY KEY, a, b, c, d);
INSERT INTO counted (v) VALUES ('first');
INSERT INTO wide VALUES (1, 0, 0, 0, 0);
"""
UPDATES = "UPDATE wide SET a = 1; UPDATE wide SET b = 1; UPDATE wide SET c = 1; UPDATE wide SET d = 1"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    made.seed()
    return made


@pytest.mark.parametrize("plans", [1, 2, 3, 4])
def test_a_full_table_of_statements_forgets_no_counter(pair: Pair, monkeypatch: pytest.MonkeyPatch, plans: int) -> None:
    monkeypatch.setattr(rows, "PLANS_MAX", plans)
    run(pair, f"INSERT INTO counted (v) VALUES (2); {UPDATES}; INSERT INTO counted (v) VALUES (3)", UPDATES)
    pair.catch_up()
    assert_equal(pair)


def test_a_schema_change_between_inserts_and_the_step_of_their_counter(pair: Pair) -> None:
    run(
        pair,
        "INSERT INTO counted (v) VALUES (2); CREATE INDEX wide_a ON wide (a); INSERT INTO counted (v) VALUES (3); "
        "ALTER TABLE counted ADD COLUMN z; INSERT INTO counted (v, z) VALUES (4, 4); "
        "ALTER TABLE counted RENAME TO other; INSERT INTO other (v) VALUES (5)",
    )
    pair.catch_up()
    assert_equal(pair)
