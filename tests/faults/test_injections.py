"""Faults that are no kills, the short ones: one town, one after another; the long form is `deploy/test --faults`.

Which fault of the project's catalogue is injected where stands in catalogue.py, whose every line is checked here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import catalogue, injections
from tests.faults.oracle import ZERO
from tests.faults.places import ROOT

injections.load()
SHORT = tuple(
    pytest.param(
        name,
        marks=pytest.mark.skipif(bool(injections.hindrance(one)), reason=injections.hindrance(one) or "-"),
    )
    for name, one in injections.INJECTIONS.items()
    if one.short
)


@pytest.fixture(scope="module")
def place() -> Iterator[injections.Place]:
    with injections.make_place(11) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_injection(name: str, place: injections.Place) -> None:
    compared = place.figures["digests compared"]
    injections.inject(name, place)
    figures = {one: place.figures[one] for one in (*ZERO, "noticed too late")}
    assert figures == dict.fromkeys(figures, 0), place.figures
    assert place.figures["digests compared"] == compared + 1


def test_every_fault_of_the_list_has_its_line() -> None:
    assert set(catalogue.FAULTS) == catalogue.WANTED


@pytest.mark.turns(4)
@pytest.mark.parametrize("fault", sorted(catalogue.FAULTS))
def test_what_is_said_to_inject_a_fault_is_there(fault: int) -> None:
    for where in catalogue.FAULTS[fault]:
        kind, _, name = where.partition(" ")
        if kind == "injection":
            assert fault in injections.INJECTIONS[name].faults, f"{name} does not say that it injects fault {fault}"
        elif kind == "kills":
            assert name in catalogue.CLASSES_OF_ROUNDS, where
        elif kind == "part":
            assert (ROOT / "tests" / "faults" / f"{name}.py").exists(), where
        else:
            assert name in _functions(ROOT / "tests" / kind), f"{kind} has no {name}"


def test_no_injection_is_for_a_fault_that_the_catalogue_does_not_know() -> None:
    for name, one in injections.INJECTIONS.items():
        for fault in one.faults:
            assert f"injection {name}" in catalogue.FAULTS.get(fault, ()), f"{name} injects fault {fault}"


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
