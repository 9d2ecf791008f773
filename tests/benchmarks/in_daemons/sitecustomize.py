"""What an Update Process loads at its start under `bench_catch_up --stamps`: it tells at its end what its steps took.

The thread that reads from the receive pool and makes the rows has one step after the other, and the interpreter; of the
other thread, which commits, it mostly waits for the disk. So had a commit taken no time at all, and had nobody ever
waited for anything, the processor time of making and reading would still have passed, one after the other: that is what
bounds one process, and bound_per_s() in stamps.py is it.

Guarantees: BENCH_STAMPS names a file that does not exist while the process runs, and holds the totals as JSON when it
has ended. Leaves to others: what is measured with it. (The interpreter imports a module of this name by itself.)
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

_totals: Counter[str] = Counter()
"""Seconds of each step by the clock, and what of them is processor time of the thread that works (`…_cpu`)."""
_working: list[int] = []
"""That thread."""


def _stamped(owner: type, method: str, step: str) -> None:
    call: Callable[..., Any] = getattr(owner, method)

    @wraps(call)
    def timed(*arguments: Any, **named: Any) -> Any:
        if step == "work":
            _working[:] = [threading.get_ident()]
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        try:
            return call(*arguments, **named)
        finally:
            _totals[step] += time.perf_counter() - begun
            if threading.get_ident() in _working:
                _totals[f"{step}_cpu"] += time.thread_time() - begun_cpu

    setattr(owner, method, timed)


def _counted(owner: type, method: str) -> None:
    call: Callable[..., Any] = getattr(owner, method)

    @wraps(call)
    def counting(self: Any, batch: Any) -> Any:
        _totals["batches"] += 1
        _totals["transactions"] += batch.transactions
        return call(self, batch)

    setattr(owner, method, counting)


def _tell(file: Path) -> None:
    told = {
        "make_s": _totals["make"],
        "make_cpu_s": _totals["make_cpu"],
        "read_cpu_s": _totals["work_cpu"] - _totals["make_cpu"] - _totals["commit_cpu"],
        "commit_s": _totals["commit"],
        "batches": _totals["batches"],
        "transactions": _totals["transactions"],
    }
    file.with_suffix(".part").write_text(json.dumps(told))
    file.with_suffix(".part").rename(file)


def _install(file: Path) -> None:
    from update_process.applier import Applier

    _stamped(Applier, "work", "work")
    for making in ("_make_put_off", "_apply"):
        _stamped(Applier, making, "make")
    _stamped(Applier, "_commit_batch", "commit")
    _counted(Applier, "_commit_batch")
    atexit.register(_tell, file)


if {"update", "run"} <= set(sys.orig_argv) and os.environ.get("BENCH_STAMPS"):
    _install(Path(os.environ["BENCH_STAMPS"]))
