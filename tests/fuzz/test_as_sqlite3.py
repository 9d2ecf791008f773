"""A few programs of the fuzzer against the standard library's sqlite3 (as_sqlite3.py), the same ones in every run.

Guarantees: these draw every kind of step, and end alike on both sides and on the secondary.
Refuses to know: what new programs would find; for these, run tests.fuzz.as_sqlite3.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.as_sqlite3 import homes, run
from tests.fuzz.as_sqlite3_programs import draw
from tests.fuzz.as_sqlite3_side import Side

SEEDS = tuple(f"1-{number}" for number in range(30))


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with homes() as made:
        yield made


def test_the_programs_draw_every_kind_of_step() -> None:
    kinds = {name for name, value in vars(Side).items() if callable(value) and not name.startswith("_")}
    drawn = {step.kind for seed in SEEDS for step in draw(seed).steps}
    assert drawn == kinds - {"perform", "stands", "look_at"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_ends_as_with_sqlite3(home: Path, seed: str) -> None:
    assert run(draw(seed), home).compared > 10
    assert not list(home.iterdir())
