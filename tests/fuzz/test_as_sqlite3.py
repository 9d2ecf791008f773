"""A few programs of the fuzzer against the standard library's sqlite3 (as_sqlite3.py), the same ones in every run.

Guarantees: these draw every kind of step, and end alike on both sides and on the secondary.
Leaves to others: what new programs would find; for these, run tests.fuzz.as_sqlite3.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sqlite3
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fuzz.as_sqlite3 import Home, homes, run
from tests.fuzz.as_sqlite3_programs import Step, draw
from tests.fuzz.as_sqlite3_reference import Died, Reference
from tests.fuzz.as_sqlite3_rules import left_out
from tests.fuzz.as_sqlite3_side import Side

SEEDS = tuple(f"1-{number}" for number in range(30))


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with homes() as made:
        yield made


def test_the_programs_draw_every_kind_of_step() -> None:
    kinds = {name for name, value in vars(Side).items() if callable(value) and not name.startswith("_")}
    drawn = {step.kind for seed in SEEDS for step in draw(seed).steps}
    assert drawn == kinds - {"perform", "stands", "look_at"}


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_ends_as_with_sqlite3(home: Home, seed: str) -> None:
    made = run(draw(seed), home)
    if made.died:
        warnings.warn(f"program {seed} was compared for {made.compared} steps: {made.died}", stacklevel=1)
    assert made.compared > 10
    assert not list(home.path.iterdir())


def test_the_reference_says_for_which_release_it_speaks(home: Home) -> None:
    release = home.reference.release
    assert release.python == sys.version_info[:3]
    assert str(release) == f"sqlite3 of Python {platform.python_version()} with SQLite {sqlite3.sqlite_version}"


def test_the_death_of_the_reference_is_named_and_the_next_program_has_a_new_one(home: Home) -> None:
    program = draw(SEEDS[0])
    home.reference.open(home.path / "one.db", program)
    os.kill(home.reference.pid, signal.SIGKILL)
    with pytest.raises(Died, match=r"sqlite3 of Python 3\..* died of SIGKILL at Step\(kind='look'"):
        home.reference.perform(Step("look"))
    home.reference.open(home.path / "two.db", program)
    assert home.reference.perform(Step("look"))[0] == "done"
    for path in home.path.iterdir():
        path.unlink()


def test_another_end_of_the_reference_is_an_error_of_ours() -> None:
    with contextlib.closing(Reference()) as reference:
        with pytest.raises(AssertionError, match="ended with exit code 1"):
            reference.rollback()  # of no connection


def test_a_program_whose_reference_dies_is_compared_up_to_there(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    perform, count = home.reference.perform, 0

    def dies_at_the_twelfth(step: Step) -> Any:
        nonlocal count
        count += 1
        if count == 12:
            os.kill(home.reference.pid, signal.SIGKILL)
        return perform(step)

    monkeypatch.setattr(home.reference, "perform", dies_at_the_twelfth)
    made = run(draw(SEEDS[0]), home)
    assert made.compared == 11
    assert "died of SIGKILL at Step" in made.died


@pytest.mark.parametrize(
    "step",
    [
        Step("many", (0, "INSERT INTO log VALUES (?, ?) RETURNING what", ((1, 2),), "list")),
        Step("nested", (0, "execute")),
    ],
)
def test_what_a_release_cannot_be_asked_is_left_out_beside_that_one_alone(step: Step) -> None:
    assert left_out(step, (3, 11, 7)) is None
    assert left_out(step, (3, 12, 0))
    assert left_out(step, (3, 13, 5))
    assert left_out(Step("nested", (0, "close")), (3, 12, 0)) is None
