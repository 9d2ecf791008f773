"""The table of a campaign's figures, as text.

Guarantees: every figure that must be zero stands in it, also when it is zero. Refuses to know: how they came about.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faults.oracle import ZERO

ORDER = (
    "episodes", "rounds", "kills at failpoints", "kills from outside", "ended beside", "submitted", "acknowledged",
    "failed", "unknown", "transactions walked", "digests compared", "catch-up ms, most",
)  # fmt: skip


def machine(directory: str) -> str:
    """Kernel, processors, and the file system of `directory`."""
    found = ""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, kind, *_ = line.split()
        if os.path.realpath(directory).startswith(mounted) and len(mounted) >= len(found.partition(" ")[0]):
            found = f"{mounted} {kind}"
    return f"Linux {platform.release()}, {os.cpu_count()} processors, {found.partition(' ')[2]}"


def commit() -> str:
    """The commit that is checked out; "unknown" outside of a checkout."""
    made = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return made.stdout.strip() or "unknown"


def table(
    figures: Mapping[str, int],
    hits: Counter[str] | None = None,
    missed: Sequence[str] = (),
    *,
    zero: Sequence[str] = ZERO,
    seed: int,
    seconds: float,
    machine: str,
) -> str:
    """One figure a line; those that must be zero at the end."""
    lines = [("seed", str(seed)), ("commit", commit()), ("machine", machine), ("seconds", f"{seconds:.0f}")]
    lines += [(name, str(figures[name])) for name in ORDER if name in figures]
    known = {*ORDER, *zero}
    lines += sorted((name, str(count)) for name, count in figures.items() if name not in known)
    if hits is not None:
        lines.append(("failpoints hit", f"{len(hits)} ({hits.total()} times); missed: {' '.join(missed) or 'none'}"))
    lines += [(f"must be 0: {name}", str(figures.get(name, 0))) for name in zero]
    width = max(len(name) for name, _ in lines)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in lines)
