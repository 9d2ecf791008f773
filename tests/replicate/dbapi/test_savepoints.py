"""The savepoints of a transaction: which one a name means, and when RELEASE commits."""

from __future__ import annotations

from typing import Any

from replicate.dbapi.savepoints import Savepoints

FIRST, SECOND, THIRD = places = ("first", "second", "third")


def nested(*names: str, begins: bool) -> Savepoints:
    made = Savepoints()
    for at, (name, place) in enumerate(zip(names, places, strict=False)):
        mark: Any = place
        made.add(name, mark, begins=begins and at == 0)
    return made


def test_the_innermost_of_a_name_counts() -> None:
    savepoints = nested("a", "b", "a", begins=False)
    assert savepoints.roll_back_to("a") == (THIRD,)
    assert savepoints.names == ["a", "b", "a"]  # it stands after ROLLBACK TO
    savepoints.release("a")
    assert savepoints.roll_back_to("a") == (FIRST,)
    assert savepoints.names == ["a"]  # with all that were within it gone
    assert savepoints.roll_back_to("b") is None


def test_only_the_outermost_commits_and_only_if_it_began_the_transaction() -> None:
    assert nested("a", "b", begins=True).commits("a")
    assert not nested("a", "b", begins=True).commits("b")
    assert not nested("a", "a", begins=True).commits("a")  # that is the inner one
    assert not nested("a", begins=False).commits("a")
    ended = nested("a", begins=True)
    ended.clear()
    ended.add("a", None, begins=False)
    assert not ended.commits("a")
