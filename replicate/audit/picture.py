"""Changes over time by table, as a picture.

Guarantees: one picture of 1600 x 900 (PNG) or any size (SVG), whose times are UTC and whose rates have a unit; a time
without changes is drawn as none. Leaves to others: what is counted (count.py). Matplotlib is an extra (`plot`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from replicate.system.os_errors import io_error

TABLES_MAX: Final = 9
"""More tables than that nobody tells apart: the least of them are drawn as one."""
_SPANS: Final = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}


def draw(rows: Iterable[tuple[object, ...]], span: str, path: Path) -> None:
    """Write the picture, over one that is there. `rows`: of counts by time and table. JournalIOError, DiskFullError."""
    from matplotlib.figure import Figure

    amounts: dict[str, dict[datetime, int]] = defaultdict(dict)
    for when, table, _, changes in rows:
        if table:
            amounts[str(table)][datetime.fromisoformat(str(when))] = int(str(changes))
    names = sorted(amounts, key=lambda name: -sum(amounts[name].values()))
    if len(names) > TABLES_MAX:
        rest: dict[datetime, int] = defaultdict(int)
        for name in names[TABLES_MAX - 1 :]:
            for at, count in amounts[name].items():
                rest[at] += count
        names = [*names[: TABLES_MAX - 1], f"{len(names) - TABLES_MAX + 1} others"]
        amounts[names[-1]] = dict(rest)
    figure = Figure(figsize=(16, 9), dpi=100, layout="constrained")
    axes = figure.subplots()
    _stack(axes, {name: amounts[name] for name in names}, _SPANS[span])
    axes.set_ylabel(f"changes per {span}")
    axes.set_xlabel("UTC")
    axes.grid(visible=True, alpha=0.3)
    figure.suptitle("Dualsite Replicate: changes by table", fontsize=14, fontweight="bold")
    kind = path.suffix.lower()[1:]
    try:
        figure.savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else {})
    except OSError as error:
        raise io_error(error, "the picture cannot be written", str(path)) from error


def _stack(axes: Any, amounts: dict[str, dict[datetime, int]], span: timedelta) -> None:
    """Bars on bars: a time that nothing is known of has none."""
    below: dict[datetime, int] = defaultdict(int)
    for name, counts in amounts.items():
        times = sorted(counts)
        bottoms = [below[at] for at in times]
        axes.bar(times, [counts[at] for at in times], width=span, bottom=bottoms, align="edge", label=name)
        for at in times:
            below[at] += counts[at]
    if amounts:
        axes.legend(loc="upper right")
    else:
        axes.text(0.5, 0.5, "no changes", transform=axes.transAxes, ha="center", va="center", color="gray")
