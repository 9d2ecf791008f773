"""How often a test is run: by what it costs. tests/costs.txt has the processor time of each test that takes much.

`.venv/bin/python -m tests.costs RECORD…` writes the list from what `pytest --record-durations RECORD` has recorded.

Guarantees: a test has its turn in one of so many runs as the square root of its cost says; what costs little is in each
run. Of all ways to spend the time that a run may take this one finds a new defect the soonest on average: a defect
waits for as many runs as there are turns, and the sum of the turns is least for a given sum of costs by turns where
each turn is proportional to the root of its cost (Lagrange). A list written again keeps what was not recorded.
Leaves to others: which run a test's turn is (conftest.py), and when a test is too slow (durations.py).
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.harness.checkout import ROOT

COSTS: Final = Path(__file__).with_name("costs.txt")
UNIT_S: Final = 0.035
"""What costs that much is in each run, four times as much in every second one. With it a run of deploy/test takes
about 8 minutes of two processors."""


def turns_of(cost_s: float) -> int:
    """In one of how many runs a test is that takes `cost_s` seconds of a processor."""
    return max(1, round(math.sqrt(cost_s / UNIT_S)))


def function_of(node_id: str) -> str:
    """The test function of a test: its node id without its parameters."""
    return node_id.partition("[")[0]


def read_costs(text: str) -> dict[str, float]:
    """Test function → seconds, of a list with one a line. ValueError for another line."""
    found = {}
    for line in text.splitlines():
        seconds, function = line.split()
        found[function] = float(seconds)
    return found


@cache
def costs() -> Mapping[str, float]:
    """Those of the list."""
    return read_costs(COSTS.read_text(encoding="utf-8"))


def averaged(lines: Iterable[str]) -> dict[str, float]:
    """Test function → seconds of one of its tests, set-up and the rest together, of what was recorded."""
    tests: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        seconds, _, _, node_id, _ = json.loads(line)
        tests[node_id] += seconds
    functions: defaultdict[str, list[float]] = defaultdict(list)
    for node_id, taken in tests.items():
        functions[function_of(node_id)].append(taken)
    return {function: sum(taken) / len(taken) for function, taken in functions.items()}


def told(known: Mapping[str, float]) -> str:
    """The list: of functions that are still there, those that are not in each run."""
    lines = [
        f"{cost:.2f} {function}\n"
        for function, cost in sorted(known.items())
        if turns_of(cost) > 1 and is_there(function)
    ]
    return "".join(lines)


def is_there(function: str, root: Path = ROOT) -> bool:
    """Whether its file has a function of that name."""
    path, *_, name = function.split("::")
    try:
        text = (root / path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return re.search(rf"^\s*(async )?def {re.escape(name)}\(", text, re.MULTILINE) is not None


def main(records: Sequence[str]) -> None:
    """Write the list again from these files, and from itself."""
    known = dict(costs())
    for record in records:
        with open(record, encoding="utf-8") as file:
            known |= averaged(file)
    COSTS.write_text(told(known), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
