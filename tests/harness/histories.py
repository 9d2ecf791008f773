"""Random histories of a primary with one region or two: schema changes between row changes, unique values that swap,
tables without keys, values and transactions that are large.

Guarantees: each is drawn from its text alone, so a text is the same history in every process.
Leaves to others: what is made of it on another site.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from replicate import connect
from tests.harness.pair import Pair
from tests.harness.sql_calls import Calls
from tests.harness.sql_programs import Program, Step, schema

LARGE = [("large", b"y" * 1000)] * 700


@dataclass(frozen=True)
class History:
    """What a seed is. `steps`: the region each is for, and the step. `stop`: the first of two replays ends so many
    transactions before the end. `keys_max`: rows of a piece."""

    scripts: tuple[str, ...]
    steps: tuple[tuple[int, Step], ...]
    stop: int
    keys_max: int

    @classmethod
    def draw(cls, text: str) -> History:
        dice = Random(text)
        scripts, programs = [], []
        for _ in range(dice.choice((1, 1, 2))):
            tables, statements = schema([dice.getrandbits(32) for _ in range(dice.randint(1, 3))], wild=True)
            scripts.append(";\n".join(statements))
            programs.append(Program(tables, connections=1, wild=True))
        steps = []
        for _ in range(dice.randint(20, 120)):
            number = dice.randrange(len(programs))
            steps.append((number, programs[number].step(dice.getrandbits(32))))
            if dice.random() < 0.01:
                steps.append((number, Step(0, "commit")))
                steps.append((number, Step(0, "many", (("INSERT INTO log (what, value) VALUES (?, ?)", LARGE),))))
                steps.append((number, Step(0, "commit")))
        ends = [(number, Step(0, "commit")) for number in range(len(programs))]
        return cls(tuple(scripts), (*steps, *ends), dice.randint(0, 80), dice.choice((1, 5, 1_000_000)))


def connecting(path: Path, region: str) -> Callable[[str | None], Any]:
    return lambda level: connect(path, region, timeout=0, isolation_level=level)


def perform(pair: Pair, history: History) -> None:
    """What fails, fails on the primary, and leaves nothing."""
    regions = ("main", "two")[: len(history.scripts)]
    calls = [Calls(connecting(pair.primary.path, region), (), (0,)) for region in regions]
    try:
        for number, step in history.steps:
            calls[number].perform(step)
    finally:
        for one in calls:
            one.close()
