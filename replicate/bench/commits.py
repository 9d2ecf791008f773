"""What the commit door costs an application: single-row transactions here and in plain SQLite, in turns.

Guarantees: both use the same driver, the same table and the same values, in one process; plain SQLite is compared with
the policy that promises what it promises (NORMAL with `interval`, FULL with `durable`).
Leaves to others: several writers, and bulk statements (tests/benchmarks/bench_commit.py).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import replicate
from replicate.bench.street import make_database, value
from replicate.region.sqlite.create import plain_connection

SYNCHRONOUS: Final = {"interval": "NORMAL", "durable": "FULL"}
"""Policy -> what of plain SQLite it is measured against."""
_INSERT: Final = "INSERT INTO item (id, value) VALUES (?, ?)"


def _spend(one: Callable[[int], None], first: int, seconds: float) -> tuple[float, int]:
    """Transactions a second of `one`, called with first, first + 1, … for so long; and the next number."""
    begun = time.perf_counter()
    number = first
    while time.perf_counter() < begun + seconds:
        one(number)
        number += 1
    return (number - first) / (time.perf_counter() - begun), number


def commit_cost(
    primary: Path, directory: Path, policy: str, *, rounds: int, round_s: float
) -> tuple[float, float, float]:
    """Commits a second of `primary`, whose policy that is, and of plain SQLite in `directory`; the ratio.

    Each the median of `rounds` rounds of `round_s` seconds; the ratio is the median of the rounds' own ones. The region
    must have an empty table `item`, and has rows in it afterwards.
    """
    path = directory / f"plain-{policy}.db"
    make_database(path, 0, 0)
    plain = plain_connection(path)
    plain.execute("PRAGMA journal_mode = WAL")
    plain.execute(f"PRAGMA synchronous = {SYNCHRONOUS[policy]}")
    cursor = plain.cursor()
    ours = replicate.connect(primary)

    def bare(number: int) -> None:
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(_INSERT, (number, value(number, 0, 100)))
        cursor.execute("COMMIT")

    def journalled(number: int) -> None:
        ours.execute(_INSERT, (number, value(number, 0, 100)))
        ours.commit()

    found: list[tuple[float, float]] = []
    next_bare = next_journalled = 1
    try:
        for _ in range(rounds):
            theirs, next_bare = _spend(bare, next_bare, round_s)
            mine, next_journalled = _spend(journalled, next_journalled, round_s)
            found.append((mine, theirs))
    finally:
        ours.close()
        plain.close()
    return (
        statistics.median(mine for mine, _ in found),
        statistics.median(theirs for _, theirs in found),
        statistics.median(mine / theirs for mine, theirs in found),
    )
