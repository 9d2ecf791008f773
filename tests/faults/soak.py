"""The soak: daemons that live on through cuts, pauses and load, whose memory, descriptors and disk must stay bounded.

    python -m tests.faults.soak [--seed N] [--seconds S]

No daemon is killed: what leaks would be lost with it. Memory is what a process has of its own (RssAnon); it and the
descriptors are compared between the second and the last quarter of the run: by the least of each, which no passing load
raises, and by the median, which no connection that is just being made lowers. What leaks raises both.
Guarantees: looked at twice a second; too short a run is an error, not a pass.
Leaves to others: what grows where.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from tests.faults.injections import Place, make_place
from tests.faults.oracle import ZERO, read_told
from tests.faults.part import parser, run_part
from tests.faults.report import merge
from tests.faults.settling import count_told, settle
from tests.faults.town import DAEMONS
from tests.harness.memory import anonymous_mib
from tests.harness.waiting import wait_until

LOOK_S: Final = 0.5
SECONDS_MIN: Final = 10.0
MEMORY_SLACK_KIB: Final = 3 * 1024
DESCRIPTOR_SLACK: Final = 1
DISK_SLACK_KIB: Final = 6 * 1024
"""Of journals and logs: a few segments of 1 MiB may wait to be pruned, which is looked after each ten seconds."""
SLACK: Final = {"memory KiB": MEMORY_SLACK_KIB, "descriptors": DESCRIPTOR_SLACK, "disk KiB": DISK_SLACK_KIB}
SHORT_CUTS: Final = 4
"""Of each kind, in the short form: a descriptor that each of them leaves is more than the slack."""
SOAK_ZERO: Final = (*ZERO, "memory grows", "descriptors leaked", "disk grows", "parts that failed")
LEAST: Final = ("acknowledged", "digests compared")


@dataclass
class Series:
    """Looks at one figure over the run."""

    looks: list[int] = field(default_factory=list)

    def grown(self, slack: int) -> bool:
        """Whether the last quarter lies above the second one by more than that."""
        quarter = len(self.looks) // 4
        before, after = self.looks[quarter : 2 * quarter], self.looks[-quarter:]
        return all(of(after) > of(before) + slack for of in (min, median))


def looks(place: Place) -> dict[str, Callable[[], int]]:
    """What is looked at: the name of each figure, and how it is read."""
    town = place.town
    pids = {role: town.children[role].pid for role in DAEMONS}
    found: dict[str, Callable[[], int]] = {}
    for role, pid in pids.items():
        found[f"memory KiB, {role}"] = lambda pid=pid: int(1024 * anonymous_mib(pid))  # type: ignore[misc]
        found[f"descriptors, {role}"] = lambda pid=pid: len(os.listdir(f"/proc/{pid}/fd"))  # type: ignore[misc]
    for path in (town.primary, town.secondary):
        found[f"disk KiB, {path.name}"] = lambda path=path: _disk_kib(path)  # type: ignore[misc]
    return found


def _disk_kib(instance: Path) -> int:
    """What journal, conflict files and logs of an instance take; the databases hold what was committed."""
    size = 0
    for directory in ("journal", "log", "conflict", "consumers", "run"):
        for path in (instance / directory).glob("*"):
            try:
                size += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return size // 1024


def soak(place: Place, deadline_s: float, figures: Counter[str]) -> None:
    """Load and faults until the deadline, looked at all the time; then what has grown is counted."""
    town, dice = place.town, place.dice
    readers = looks(place)
    series = {name: Series() for name in readers}
    next_fault_s = time.monotonic() + 2.0
    while time.monotonic() < deadline_s:
        for name, read in readers.items():
            series[name].looks.append(read())
        if time.monotonic() >= next_fault_s:
            _disturb(place, figures)
            next_fault_s = time.monotonic() + 0.5 + dice.random() * 2.0
        town.reap()
        if not any(role.startswith("client-") for role in town.children):
            town.client(dice.choice(["mixed", "mixed", "filler"]), count=dice.randrange(100, 600), pause_s=0.004)
        time.sleep(LOOK_S)
    for name, one in series.items():
        kind, _, whose = name.partition(", ")
        figures[f"peak {kind}, most: {whose}"] = max(one.looks)
        if one.grown(SLACK[kind]):
            verdict = {"memory KiB": "memory grows", "descriptors": "descriptors leaked", "disk KiB": "disk grows"}
            figures[verdict[kind]] += 1
            print(f"{name}: {one.looks[:: max(1, len(one.looks) // 40)]}", flush=True)


def _disturb(place: Place, figures: Counter[str]) -> None:
    """One fault that ends nobody."""
    kind = place.dice.choice(["reset", "end", "pause", "one way", "forget"])
    figures[f"soak: {kind}"] += 1
    if kind in ("reset", "end"):
        place.line.tell("cut", kind == "reset")
    elif kind == "pause":
        place.freeze("update")
        time.sleep(place.dice.random())
        place.thaw("update")
    elif kind == "one way":
        place.line.tell("part", True, False)
        time.sleep(place.dice.random())
        place.line.tell("heal")
    else:
        place.line.tell("forget")


def short(place: Place) -> None:
    """The short form: connections that end, again and again, leave no descriptor and hardly any memory behind."""
    kinds = ("reset", "end")
    for kind in kinds:
        _cut(place, kind)
    before = {name: read() for name, read in looks(place).items()}
    for kind in kinds * SHORT_CUTS:
        _cut(place, kind)
    for name, read in looks(place).items():
        kind = name.partition(", ")[0]
        if kind != "disk KiB":
            wait_until(
                lambda name=name, read=read, kind=kind: read() <= before[name] + SLACK[kind],  # type: ignore[misc]
                timeout_s=120,
                what=f"{name} is what it was ({before[name]})",
            )


def _cut(place: Place, kind: str) -> None:
    """One more connection."""
    made = len(place.lines("source", "connection made"))
    place.line.tell("cut", kind == "reset")
    wait_until(
        lambda: len(place.lines("source", "connection made")) > made, timeout_s=120, what="a connection is made again"
    )
    place.reach(place.goal())
    place.figures[f"soak: {kind}"] += 1


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    seconds = options.seconds if math.isfinite(options.seconds) else 60.0
    assert seconds >= SECONDS_MIN, f"a soak of {seconds:.0f} s tells nothing: {SECONDS_MIN:.0f} at least"
    with make_place(options.seed, "interval") as place:
        place.begin()
        try:
            soak(place, time.monotonic() + seconds, place.figures)
            settle(place.town, place.figures)
        finally:
            count_told(read_told(place.town.told), place.figures)
            merge(figures, place.figures)


def main() -> int:
    return run_part(parser("tests.faults.soak").parse_args(), work, SOAK_ZERO, least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
