"""The n-th write, sync, rename or link of a change of role fails, for every n: what must hold then.

    python -m tests.faults.role_errors [--calls fsync,rename,…] [--errors EIO,ENOSPC,…] [--stride N | --seconds S]

The runs are those of role_runs.py, each a child in which one call in `os` fails on the disk of its instance.
Guarantees: the command ends well or with an error of ours, by name; given again, once the disk works, it ends as if
nothing had happened: nothing acknowledged is missing, and what was taken back stands in one file.
Leaves to others: SQLite's own calls, which are not Python's, and kills (crash_states.py has every state of the disk).
"""

from __future__ import annotations

import argparse
import errno
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from replicate.errors import ReplicateError
from tests.faults import role_runs
from tests.faults.every_call import Step, every_call
from tests.faults.io_errors import Plant
from tests.faults.part import parser, run_part

CALLS: Final = ("fdatasync", "fsync", "pwrite", "write", "rename", "link")
ERRORS: Final = ("EIO", "ENOSPC")
LEAST: Final = ("I/O errors of role changes",)


def work(name: str, root: Path, outside: Path, call: str, number: int, error: str) -> None:
    """The child: the run with its n-th call failing. What it was told, a value a line; at last how it ended, and how
    many calls there were."""
    told: list[Any] = []
    ended = ""
    plant = Plant(call, number, getattr(errno, error), root)
    try:
        role_runs.run(name, root, outside, told.append)
    except ReplicateError as failure:
        ended = failure.code
    finally:
        plant.undo()
    (outside / "told.json").write_text(json.dumps([told, ended, plant.failed, plant.counted.count]))


def judge(name: str, root: Path, outside: Path, number: int) -> None:
    """Another process: given again, it ends, and all is as it should be."""
    told, ended, failed, _ = json.loads((outside / "told.json").read_text())
    assert number or not ended, f"{name} ends with {ended}, and nothing failed"
    assert bool(failed) == bool(number), f"call {number} of {name} did not come"
    assert ended or len(told) == len(all_told(name)), f"{name} was cut short without an error: {told}"
    role_runs.judge(name, root, outside, told)


def all_told(name: str) -> list[object]:
    """What a run that ends well tells."""
    return ["primary", *role_runs.NEW] if name == "promote" else ["done"]


def sweep(
    name: str,
    call: str,
    error: str,
    figures: Counter[str],
    *,
    stride: int = 1,
    seed: int = 0,
    deadline_s: float = math.inf,
) -> list[str]:
    """Every n of one call of a run, or every `stride`-th; with a deadline in an order of the seed. The violations."""
    violations: list[str] = []

    def steps(disk: Path, outside: Path, number: int) -> list[Step]:
        return [
            ("build", lambda: role_runs.prepare(name, disk, outside)),
            ("work", lambda: work(name, disk, outside, call, number, error)),
            ("judge", lambda: judge(name, disk, outside, number)),
        ]

    def count(outside: Path) -> int:
        return int(json.loads((outside / "told.json").read_text())[3])

    dice = f"{seed} {name} {call} {error}"
    for run in every_call(steps, count, stride=stride, dice=dice, deadline_s=deadline_s):
        figures["I/O errors of role changes"] += run.number > 0
        if run.failed:
            figures["violations"] += 1
            violations.append(f"{name}: {call} {run.number} {error}: {run.failed}")
    return violations


def work_all(options: argparse.Namespace, figures: Counter[str]) -> None:
    todo = [
        (name, call, error)
        for name in role_runs.NAMES
        for call in options.calls.split(",")
        for error in options.errors.split(",")
    ]
    for number, one in enumerate(todo):
        left_s = (options.deadline_s - time.monotonic()) / (len(todo) - number)
        deadline_s = time.monotonic() + left_s
        for violation in sweep(*one, figures, stride=options.stride, seed=options.seed, deadline_s=deadline_s):
            print(violation, flush=True)


def main() -> int:
    made = parser("tests.faults.role_errors")
    made.add_argument("--calls", default=",".join(CALLS))
    made.add_argument("--errors", default=",".join((*ERRORS, "EROFS")))
    made.add_argument("--stride", type=int, default=1)
    return run_part(
        made.parse_args(), work_all, ("violations", "parts that failed"), least=("I/O errors of role changes",)
    )


if __name__ == "__main__":
    sys.exit(main())
