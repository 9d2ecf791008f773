"""Which tests a run has, and in which order: see pytest_collection_modifyitems in conftest.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import has_turn, pytest_collection_modifyitems


class Item:
    """What is asked of a test."""

    def __init__(self, name: str, *marks: str) -> None:
        self.name = name
        self.path = Path(name.partition("::")[0])
        self._marks = marks

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return getattr(pytest.mark, name)(3).mark if name in self._marks else None


class Config:
    """With `--full` or without; what is deselected is noted."""

    def __init__(self, *, full: bool) -> None:
        self._full = full
        self.deselected: list[str] = []
        self.hook = self

    def getoption(self, name: str) -> bool:
        assert name == "--full"
        return self._full

    def pytest_deselected(self, items: list[Item]) -> None:
        self.deselected += [item.name for item in items]


@pytest.mark.parametrize(
    ("full", "run", "deselected"),
    [
        (False, ["b.py::2", "b.py::3", "d.py::1", "a.py::1", "c.py::2"], ["b.py::1", "c.py::1"]),
        (True, ["b.py::1", "b.py::2", "b.py::3", "d.py::1", "a.py::1", "c.py::1", "c.py::2"], []),
    ],
)
def test_long_ones_are_for_the_full_run_and_files_with_slow_ones_come_first(
    full: bool, run: list[str], deselected: list[str]
) -> None:
    items: list[Any] = [
        Item("a.py::1"), Item("b.py::1", "slow", "long"), Item("b.py::2"), Item("b.py::3", "slow"),
        Item("c.py::1", "long"), Item("c.py::2"), Item("d.py::1", "slow"),
    ]  # fmt: skip
    config: Any = Config(full=full)
    pytest_collection_modifyitems(config, items)
    assert [item.name for item in items] == run
    assert config.deselected == deselected


def test_each_has_its_turn_within_as_many_commits_as_it_says() -> None:
    for number in range(50):
        item: Any = Item(f"a.py::test[{number}]", "turns")
        assert [has_turn(item, turn) for turn in range(3)].count(True) == 1
    plain: Any = Item("a.py::1", "slow")
    assert has_turn(plain, 0)
    marked: list[Any] = [Item(f"a.py::test[{number}]", "turns") for number in range(60)]
    assert 10 < sum(has_turn(item, 0) for item in marked) < 30
    config: Any = Config(full=True)
    items = list(marked)
    pytest_collection_modifyitems(config, items)
    assert items == marked
