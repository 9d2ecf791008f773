"""What an Update Process does how long under a benchmark, and what bounds it whatever its commits take.

The stamps are taken in the daemon (in_daemons/sitecustomize.py).

Guarantees: while `stamped` is open, each daemon that is started takes its stamps; nothing of it is left behind.
Leaves to others: what the daemons are given to do.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from replicate.bench.street import Bench

LOADED_BY_DAEMONS: Final = Path(__file__).with_name("in_daemons")


@contextmanager
def stamped(bench: Bench, file: Path) -> Iterator[None]:
    """Have the daemons of the bench tell their steps in `file`, at their end."""
    os.environ["BENCH_STAMPS"] = os.fspath(file)
    bench.paths.append(LOADED_BY_DAEMONS)
    try:
        yield
    finally:
        bench.paths.remove(LOADED_BY_DAEMONS)
        del os.environ["BENCH_STAMPS"]


def told(file: Path) -> dict[str, float]:
    """What the Update Process that has ended last has told; it is told once. FileNotFoundError: none has."""
    found: dict[str, float] = json.loads(file.read_text())
    file.unlink()
    return found


def bound_per_s(one: dict[str, float]) -> float:
    """Transactions a second, if commits took no time and nobody had ever waited: the same thread reads and makes."""
    return one["transactions"] / (one["make_cpu_s"] + one["read_cpu_s"])


def middle(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """The medians, in µs a transaction, and of the bound."""
    steps = {
        f"{step}_us": round(statistics.median(one[f"{step}_s"] / one["transactions"] * 1e6 for one in rounds), 2)
        for step in ("make", "make_cpu", "read_cpu", "commit")
    }
    return {
        **steps,
        "batches": statistics.median(one["batches"] for one in rounds),
        "bound_per_s": int(statistics.median(map(bound_per_s, rounds))),
    }
