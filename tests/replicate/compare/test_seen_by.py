"""Who has what of whom: exact where it was told, and never more than there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.compare.seen_by import SeenBy, seen_by
from replicate.door.snapshot import door_of
from replicate.errors import NotPrimaryError
from tests.harness.pair import Pair
from tests.harness.suppliers import Suppliers, shared, tell


def rows(made: Suppliers, name: str) -> dict[str, SeenBy]:
    return {one.name: one for one in seen_by(made.by[name])}


def true(made: Suppliers, name: str) -> dict[str, int]:
    return rows(made, name)[name].last


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path, 3)


def tell_all(made: Suppliers) -> None:
    for name in made.names:
        with door_of(made.by[name]) as door:
            tell(door)
    made.level()


@pytest.mark.slow
def test_each_supplier_has_at_least_what_is_said_of_it(three: Suppliers) -> None:
    for name in three.names:
        three.write(name, 3, table="ta")
        for other in three.names:
            for one in rows(three, other).values():
                has = true(three, one.name)
                assert all(number <= has.get(origin, 0) for origin, number in one.last.items()), (other, one)


@pytest.mark.slow
def test_what_was_written_is_lacked_until_it_was_told_of(three: Suppliers) -> None:
    tell_all(three)
    before = {name: one.lacks for name, one in rows(three, "a").items()}
    three.write("a", 4, table="ta")
    assert {name: one.lacks for name, one in rows(three, "a").items()} == {
        "a": 0, "b": before["b"] + 4, "c": before["c"] + 4,
    }  # fmt: skip
    three.level()
    tell_all(three)
    found = rows(three, "a")
    last = max(number for origin, number in found["a"].last.items() if origin.startswith("a "))
    newest = next(origin for origin, number in found["a"].last.items() if number == last and origin.startswith("a "))
    assert found["b"].last[newest] == found["c"].last[newest] == last


def test_where_nothing_is_shared_there_is_our_own_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Suppliers.create(tmp_path)
    (own,) = seen_by(made.by["a"])
    assert (own.name, own.lacks) == ("a", 0)


def test_a_primary_is_told_nothing(pair: Pair) -> None:
    with pytest.raises(NotPrimaryError, match="suppliers tell each other"):
        seen_by(pair.primary)
