"""The seeded simulation as a part of the campaign: as many worlds as fit the time, in both modes, of each kind.

    python -m tests.faults.simulated [--seed N] [--seconds S]

Guarantees: the seed of each world follows from ours; a bad one leaves its transcript below tests/simulation/kept.
Leaves to others: what is in a world (tests/simulation).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.faults.part import parser, run_part
from tests.simulation.campaign import KEPT, KINDS, sweep

WORLDS: Final = 200
SEEDS_APART: Final = 1_000_000
"""Our seeds lead to worlds that are so far apart, so that no two runs live the same."""
LEAST: Final = ("simulated: worlds", "simulated: acknowledged")


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    count = SEEDS_APART if math.isfinite(options.seconds) else WORLDS
    swept = sweep(
        options.seed * SEEDS_APART,
        count,
        tuple(mode for kind in KINDS for mode in kind.modes),
        keep=options.keep,
        stop=lambda _: time.monotonic() > options.deadline_s,
    )
    for name, number in swept.figures.items():
        if name != "violations" and ":" not in name:  # which fault how often, and who died where, is their own table's
            figures[f"simulated: {name}"] = number
    figures["simulated violations"] = len(swept.violations)
    for mode, seed, text in swept.violations:
        print(f"{mode} {seed}: {text} (its story: {options.keep / f'{mode}-{seed}.txt'})", flush=True)


def main() -> int:
    made = parser("tests.faults.simulated")
    made.add_argument("--keep", type=Path, default=KEPT, help="a directory for the transcripts of bad worlds")
    return run_part(made.parse_args(), work, ("simulated violations", "parts that failed"), least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
