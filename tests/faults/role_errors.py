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
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from replicate.errors import ReplicateError
from tests.faults import role_runs
from tests.faults.io_errors import Plant
from tests.faults.part import parser, run_part
from tests.faults.town import fork

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
    todo: list[int] | None = None
    number = 0  # the first run fails nothing: it counts
    before = os.environ.get("REPLICATE_SHM_DIR")
    try:
        while number >= 0:
            with tempfile.TemporaryDirectory(prefix="replicate-roles-io-") as place:
                root, outside = Path(place) / "disk", Path(place) / "outside"
                for path in (root, outside, outside / "shm"):
                    path.mkdir()
                os.environ["REPLICATE_SHM_DIR"] = str(outside / "shm")
                steps: tuple[tuple[str, Callable[[], None]], ...] = (
                    ("build", lambda r=root, o=outside: role_runs.prepare(name, r, o)),
                    ("work", lambda r=root, o=outside, n=number: work(name, r, o, call, n, error)),
                    ("judge", lambda r=root, o=outside, n=number: judge(name, r, o, n)),
                )
                failed = next((why for what, step in steps if (why := _child(what, step, outside))), "")
                figures["I/O errors of role changes"] += number > 0
                if failed:
                    figures["violations"] += 1
                    violations.append(f"{name}: {call} {number} {error}: {failed}")
                if todo is None:
                    count = json.loads((outside / "told.json").read_text())[3]
                    todo = list(range(1, count + 1, stride))
                    if math.isfinite(deadline_s):
                        random.Random(f"{seed} {name} {call} {error}").shuffle(todo)
            number = todo.pop(0) if todo and time.monotonic() < deadline_s else -1
    finally:
        if before is None:
            os.environ.pop("REPLICATE_SHM_DIR", None)
        else:
            os.environ["REPLICATE_SHM_DIR"] = before
    return violations


def _child(what: str, call: Callable[[], Any], outside: Path) -> str:
    """Why it did not end well; "" for one that did."""
    errors = outside / "errors.txt"
    child = fork(what, call, errors)
    if not child.wait(120):
        child.kill()
        return f"{what} does not end"
    return "" if child.status == 0 else f"{what}: {errors.read_text().strip().splitlines()[-1]}"


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
