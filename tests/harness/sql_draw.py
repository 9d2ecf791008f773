"""Whole programs of the differential test, drawn from one text; and a smaller program that still fails.

Guarantees: equal seeds give equal programs, in whatever process, whatever else is loaded there (hypothesis, for one,
draws other things when other modules are loaded). Leaves to others: who runs them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.harness.sql_programs import Program, Step, schema

STEPS_MIN, STEPS_MAX = 60, 240
PRAGMAS = ("PRAGMA foreign_keys = ON", "PRAGMA recursive_triggers = ON")
PROCESSES_EVERY = 3
"""Which programs' connections are in processes of their own: every third one."""

_HOW = ((1, 1), (1, 1000), (400, 3), (64 * 1024, 1), (64 * 1024, 1000))


@dataclass(frozen=True)
class Drawn:
    """One program. `wild`: where our guards change what SQLite does (see sql_programs.table), so without the plain
    side. `processes`: each connection is in a process of its own. Then bytes of a received record, transactions of a
    batch."""

    seed: str
    wild: bool
    processes: bool
    pragmas: tuple[str, ...]
    record_bytes: int
    batch_transactions: int
    script: str
    steps: tuple[Step, ...]

    @property
    def head(self) -> str:
        """What it is, without its statements."""
        return (
            f"-- seed {self.seed}, processes {self.processes}, record_bytes {self.record_bytes}, "
            f"batch_transactions {self.batch_transactions}, {'; '.join(self.pragmas)}"
        )


def draw(seed: str) -> Drawn:
    """The program of a seed "NUMBER-MODE-SHARD-PLACE"; MODE is plain or wild."""
    _, mode, _, place = seed.split("-")
    wild, processes = mode == "wild", int(place) % PROCESSES_EVERY == PROCESSES_EVERY - 1
    dice = Random(seed)
    tables, script = schema([dice.getrandbits(32) for _ in range(dice.randint(1, 4))], wild=wild)
    pragmas = dice.choice(((), PRAGMAS[:1], PRAGMAS[1:], PRAGMAS))
    record_bytes, batch_transactions = dice.choice(_HOW)
    program = Program(tables, wild=wild)
    steps = tuple(
        _killed(program.step(dice.getrandbits(32)), dice, processes) for _ in range(dice.randint(STEPS_MIN, STEPS_MAX))
    )
    text = ";\n".join(script) + ";"
    return Drawn(seed, wild, processes, pragmas, record_bytes, batch_transactions, text, steps)


def _killed(step: Step, dice: Random, processes: bool) -> Step:
    if processes and step.kind == "reopen" and dice.random() < 0.7:
        return dataclasses.replace(step, kind="kill")
    return step


def shrink(drawn: Drawn, fails: Callable[[Drawn], bool]) -> Drawn:
    """`drawn` without the steps that it needs not to fail: none of the steps that are left can be left out."""
    length = max(len(drawn.steps) // 2, 1)
    while True:
        at, shorter = 0, False
        while at < len(drawn.steps):
            less = dataclasses.replace(drawn, steps=drawn.steps[:at] + drawn.steps[at + length :])
            if fails(less):
                drawn, shorter = less, True
            else:
                at += length
        if length == 1 and not shorter:
            return drawn
        length = max(length // 2, 1)
