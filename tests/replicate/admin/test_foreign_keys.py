"""Foreign keys that lead from one partition to another, and the partitions that go along."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.admin.foreign_keys import ForeignReference, outside, references_of, with_parents
from replicate.admin.partitions import assign, create
from tests.harness.pair import Pair

SCHEMA = """
CREATE TABLE country (id INTEGER PRIMARY KEY);
CREATE TABLE "Account" (id INTEGER PRIMARY KEY, home REFERENCES country);
CREATE TABLE bill (id INTEGER PRIMARY KEY, of REFERENCES account, also REFERENCES account, old REFERENCES bill);
CREATE TABLE line (id INTEGER PRIMARY KEY, of REFERENCES bill ON DELETE CASCADE, gone REFERENCES nowhere);
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    for name, tables in (("places", ["country"]), ("people", ["Account"]), ("money", ["bill", "line"])):
        create(made.primary, name)
        assign(made.primary, name, tables)
    made.primary.reload()
    return made


def test_those_that_lead_elsewhere(pair: Pair) -> None:
    assert sorted(references_of(pair.primary), key=lambda one: one.child) == [
        ForeignReference("main", "Account", 3, "country", 2),
        ForeignReference("main", "bill", 4, "Account", 3),
    ]
    assert references_of(pair.secondary) == []
    pair.seed()
    assert references_of(pair.secondary) == references_of(pair.primary)


def test_parents_of_parents_go_along(pair: Pair) -> None:
    found = references_of(pair.primary)
    assert with_parents(found, [4]) == (2, 3, 4)
    assert with_parents(found, [3]) == (2, 3)
    assert with_parents(found, [1, 2]) == (1, 2)
    assert [one.parent for one in outside(found, [4])] == ["Account"]


@given(st.sets(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=9), st.sets(st.integers(1, 6), min_size=1))
def test_nothing_is_outside_and_nothing_too_much(pairs: set[tuple[int, int]], numbers: set[int]) -> None:
    references = [ForeignReference("main", f"c{a}", a, f"p{b}", b) for a, b in pairs if a != b]
    whole = with_parents(references, numbers)
    assert outside(references, whole) == []
    assert set(whole) >= numbers
    for more in set(whole) - numbers:  # each is there because something that is there refers to it
        assert any(one.parent_partition == more and one.child_partition in whole for one in references)
