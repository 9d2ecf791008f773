"""Which tests a run has, and in which order: see pytest_collection_modifyitems in conftest.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import conftest
from tests.conftest import SLOW_S, has_turn, pytest_collection_modifyitems
from tests.costs import UNIT_S, turns_of
from tests.harness.checkout import ROOT


class Item:
    """What is asked of a test. `turns`, `together`: of its mark; 0: it has none."""

    def __init__(self, name: str, *marks: str, turns: int = 0, together: int = 0) -> None:
        self.name = self.nodeid = name
        self.path = Path(name.partition("::")[0])
        self._marks = {name: getattr(pytest.mark, name).mark for name in marks}
        if turns:
            self._marks["turns"] = pytest.mark.turns(turns).mark
        if together:
            self._marks["together"] = pytest.mark.together(together).mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)


class Config:
    """With its two options; what is deselected is noted."""

    def __init__(self, *arguments: str, full: bool = False, left_out: int = 0) -> None:
        self._options = {"--full": full, "--left-out": left_out}
        self.args = arguments or ("tests",)
        self.deselected: list[str] = []
        self.hook = self

    def getoption(self, name: str) -> int:
        return self._options[name]

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
        Item("a.py::1"), Item("b.py::1", "slow", "long"), Item("b.py::2"), Item("b.py::3", "slow", turns=1),
        Item("c.py::1", "long"), Item("c.py::2"), Item("d.py::1", "slow", turns=1),
    ]  # fmt: skip
    config: Any = Config(full=full)
    pytest_collection_modifyitems(config, items)
    assert [item.name for item in items] == run
    assert config.deselected == deselected


@pytest.mark.parametrize(("marks", "turns", "every"), [((), 3, 3), (("slow",), 0, turns_of(SLOW_S)), (("slow",), 2, 2)])
def test_each_has_its_turn_within_as_many_commits_as_it_says(marks: tuple[str, ...], turns: int, every: int) -> None:
    many: list[Any] = [Item(f"a.py::test[{number}]", *marks, turns=turns) for number in range(60)]
    for item in many:
        assert [has_turn(item, turn) for turn in range(every)].count(True) == 1
    assert 60 / every / 2 < sum(has_turn(item, 0) for item in many) < 60 / every * 2


def test_what_is_measured_has_turns_by_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "costs", lambda: {"a.py::test": 9 * UNIT_S, "a.py::cheap": UNIT_S})
    for name, marks, every in (("test", ("slow",), 3), ("test", (), 3), ("cheap", ("slow",), 1), ("cheap", (), 1)):
        item: Any = Item(f"a.py::{name}[1]", *marks)
        assert [has_turn(item, turn) for turn in range(12)].count(True) == 12 // every


def test_a_file_whose_set_up_costs_has_its_turn_as_a_whole() -> None:
    items: list[Any] = [Item(f"a.py::test[{number}]", "slow", together=4) for number in range(20)]
    runs = [[has_turn(item, turn) for item in items] for turn in range(8)]
    assert sorted(map(tuple, runs)) == [(False,) * 20] * 6 + [(True,) * 20] * 2


@pytest.mark.parametrize("item", [Item("a.py::1"), Item("a.py::1", "slow", turns=1)])
def test_others_are_in_every_run(item: Any) -> None:
    assert all(has_turn(item, turn) for turn in range(10))


@pytest.mark.parametrize(
    ("config", "has_all"),
    [
        (Config(full=True), True),
        (Config("tests/a.py"), True),
        (Config("tests/a.py::test"), True),
        (Config("tests/system"), True),
        (Config(), False),
        (Config(str(ROOT / "tests")), False),
    ],
)
def test_the_full_run_and_one_of_named_files_or_directories_have_all_turns(config: Any, has_all: bool) -> None:
    marked: list[Any] = [Item(f"a.py::test[{number}]", "slow") for number in range(60)]
    items = list(marked)
    pytest_collection_modifyitems(config, items)
    assert (items == marked) == has_all


def test_what_is_left_out_has_its_turn_in_a_run_of_its_own() -> None:
    marked = [Item(f"a.py::long[{number}]", "long") for number in range(60)]
    marked += [Item(f"a.py::turns[{number}]", turns=3) for number in range(60)]
    plain = [Item("a.py::1"), Item("b.py::1", "slow", turns=1)]

    def run(**how: Any) -> set[str]:
        items: list[Any] = marked + plain
        config: Any = Config(**how)
        pytest_collection_modifyitems(config, items)
        assert {item.name for item in items} | {*config.deselected} == {item.name for item in marked + plain}
        return {item.name for item in items}

    usual, others, all_others = run(), run(left_out=4), run(left_out=1)
    assert usual >= {item.name for item in plain}
    assert usual | all_others == run(full=True)
    assert not usual & all_others
    assert others < all_others
    assert len(all_others) / 8 < len(others) < len(all_others) / 2
