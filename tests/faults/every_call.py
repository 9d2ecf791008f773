"""A short run on a disk of its own, again and again: in the first nothing fails, in each later one the n-th call does.

Guarantees: each run begins with nothing, and each of its steps is a process of its own; with a deadline the order
follows from the dice, so that what was not reached is another part each time.
Leaves to others: what a run does, makes fail and must come to.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.town import fork

STEP_S = 120

Step = tuple[str, Callable[[], Any]]
"""Its name, and what its process does."""


class Trial(NamedTuple):
    """`number`: of the call that was to fail; 0: none. `failed`: which step ended badly, and why; "" for none.
    `planned`: how many runs are to come, told by the first one."""

    number: int
    failed: str
    planned: int


def every_call(
    steps: Callable[[Path, Path, int], Sequence[Step]],
    count: Callable[[Path], int],
    *,
    stride: int = 1,
    dice: str = "",
    deadline_s: float = math.inf,
) -> Iterator[Trial]:
    """All runs, or every `stride`-th. `steps`: those of a run, by its disk, a directory beside that, and the number.
    `count`: how many calls the first run has made, by that directory; where it ended badly, it is
    the last. REPLICATE_SHM_DIR is beside both meanwhile."""
    todo: list[int] | None = None
    number = 0
    while number >= 0:
        with tempfile.TemporaryDirectory(prefix="replicate-io-") as place, shared_memory_in(Path(place)):
            disk, outside = Path(place) / "disk", Path(place) / "outside"
            disk.mkdir()
            outside.mkdir()
            planned = 0
            failed = next((why for step in steps(disk, outside, number) if (why := _ended(step, outside))), "")
            if todo is None and not failed:
                todo = list(range(1, count(outside) + 1, stride))
                planned = len(todo)
                if math.isfinite(deadline_s):
                    random.Random(dice).shuffle(todo)
        yield Trial(number, failed, planned)
        number = todo.pop(0) if todo and time.monotonic() < deadline_s else -1


@contextmanager
def shared_memory_in(directory: Path) -> Iterator[None]:
    """What this process forks has its shared memory there, for a block."""
    before = os.environ.get("REPLICATE_SHM_DIR")
    (directory / "shm").mkdir()
    os.environ["REPLICATE_SHM_DIR"] = str(directory / "shm")
    try:
        yield
    finally:
        if before is None:
            del os.environ["REPLICATE_SHM_DIR"]
        else:
            os.environ["REPLICATE_SHM_DIR"] = before


def _ended(step: Step, outside: Path) -> str:
    """Why it did not end well; "" for one that did."""
    what, call = step
    errors = outside / "errors.txt"
    child = fork(what, call, errors)
    if not child.wait(STEP_S):
        child.kill()
        return f"{what} does not end"
    return "" if child.status == 0 else f"{what}: {errors.read_text().strip().splitlines()[-1]}"
