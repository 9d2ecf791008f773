"""The storm of the journal pool as a part of the campaign: one after the other, as many as fit the time.

    python -m tests.faults.pool_storm [--seed N] [--seconds S]

Guarantees: each storm reaches its kills, its transactions and its end, or that is counted; no process is left behind.
Leaves to others: what a storm is (tests/harness/pool_storm.py).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, Final

from replicate.pool.shared_memory import DIRECTORY_VARIABLE
from tests.faults.part import parser, run_part
from tests.faults.town import SHM
from tests.harness.pool_storm import Director

KILLS: Final = 80
TRANSACTIONS: Final = 20_000
SEEDS_APART: Final = 1000
STORM_ZERO: Final = (
    "pool readers or writers failed", "damaged pool records", "pool storms not finished", "parts that failed",
)  # fmt: skip
LEAST: Final = ("pool storm: storms", "pool storm: transactions read")


def take(told: Mapping[str, Any], figures: Counter[str]) -> None:
    """Count what one storm tells; print what went wrong."""
    figures["pool storm: storms"] += 1
    figures["pool storm: kills"] += sum(told["killed"].values()) + told["killed_outside"]
    figures["pool readers or writers failed"] += told["failed"]
    figures["pool storms not finished"] += not told["finished"]
    for reader in told["readers"]:
        figures["pool storm: transactions read"] += reader.get("from_pool", 0) + reader.get("from_files", 0)
        figures["pool storm: laps"] += reader.get("laps", 0)
        figures["damaged pool records"] += reader.get("damaged_records", 0)
    if told["failed"] or not told["finished"]:
        print(told["log"] or told, flush=True)


def storm(seed: int) -> dict[str, object]:
    """One storm in a directory and shared memory of its own; what it tells."""
    before = os.environ.get(DIRECTORY_VARIABLE)
    with (
        tempfile.TemporaryDirectory(prefix="replicate-storm-") as directory,
        tempfile.TemporaryDirectory(prefix="replicate-storm-", dir=os.environ.get(SHM, "/dev/shm")) as memory,
    ):
        os.environ[DIRECTORY_VARIABLE] = memory
        try:
            director = Director(Path(directory), seed, KILLS, TRANSACTIONS)
            try:
                return director.run()
            finally:
                director.close()
        finally:
            if before is None:
                os.environ.pop(DIRECTORY_VARIABLE)
            else:
                os.environ[DIRECTORY_VARIABLE] = before


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    for number in count():
        take(storm(options.seed * SEEDS_APART + number), figures)
        if math.isinf(options.seconds) or monotonic() > options.deadline_s:
            return


def main() -> int:
    return run_part(parser("tests.faults.pool_storm").parse_args(), work, STORM_ZERO, least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
