"""The list of what tests cost, and the turns that follow from it: see costs.py."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests import costs
from tests.costs import averaged, function_of, is_there, read_costs, told, turns_of
from tests.costs import costs as known_costs


@pytest.mark.parametrize(
    ("cost", "turns"), [(0, 1), (0.035, 1), (0.07, 1), (0.08, 2), (0.14, 2), (0.315, 3), (3.5, 10)]
)
def test_turns_are_the_root_of_the_cost(cost: float, turns: int) -> None:
    assert turns_of(cost) == turns


def test_no_other_turns_find_a_defect_sooner_for_the_same_cost() -> None:
    """Against each choice of turns there is, of three tests. Rounded turns cost something else, so it is near."""
    seconds = (0.24, 0.96, 6.0)
    ours = [turns_of(cost) for cost in seconds]
    budget = sum(cost / turns for cost, turns in zip(seconds, ours, strict=True))
    for others in itertools.product(range(1, 25), repeat=3):
        if sum(cost / turns for cost, turns in zip(seconds, others, strict=True)) <= budget:
            assert sum(ours) <= sum(others) + 1


def test_a_record_becomes_a_list_and_the_list_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = "tests/test_costs.py::test_turns_are_the_root_of_the_cost"
    other = "tests/test_costs.py::test_a_record_becomes_a_list_and_the_list_is_read"
    gone, cheap = "tests/test_costs.py::test_gone", "tests/test_full.py::test_others_are_in_every_run"
    lines = [(3.0, "setup", f"{here}[a]"), (1.0, "call", f"{here}[a]"), (2.0, "call", f"{here}[b]")]
    lines += [(9.0, "call", gone), (0.05, "call", cheap)]
    record = tmp_path / "record"
    record.write_text("".join(json.dumps([taken, 0, when, test, False]) + "\n" for taken, when, test in lines))
    monkeypatch.setattr(costs, "COSTS", tmp_path / "costs.txt")
    monkeypatch.setattr(costs, "costs", lambda: {other: 7.0, here: 50.0, cheap: 2.0})
    costs.main([str(record)])
    assert read_costs((tmp_path / "costs.txt").read_text()) == {here: 3.0, other: 7.0}


def test_what_is_recorded_of_a_test_is_added_up() -> None:
    lines = [json.dumps([seconds, 0, "call", node, False]) for seconds, node in [(1.0, "a::b[1]"), (2.0, "a::b[1]")]]
    assert averaged(lines) == {"a::b": 3.0}


def test_the_list_names_tests_that_there_are() -> None:
    known = known_costs()
    assert [function for function in known if not is_there(function)] == []
    assert all(function_of(function) == function for function in known)
    assert told(known) == costs.COSTS.read_text(encoding="utf-8")
