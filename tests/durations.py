"""How long each test takes, and the rule that a test that takes long says why (tests/slow_reasons.txt).

Guarantees: a test that is not marked `slow` and takes more than twice `LONG_S` seconds in its set-up or its run fails,
unless a line of the list names it. A loaded machine fails no test: what counts is processor time, of this
process and of those that it started and that have ended, and of the time beyond it only what no process of the
machine had to wait in for a processor or a disk (Linux's pressure figures; without them processor time alone counts).
`--record-durations=FILE` writes the seconds of each test into a file. The rule holds with `--full`, which
`deploy/test --long` gives, as no one waits for it: another machine may be three times as slow. A debugger (`--pdb`)
switches it off.
Leaves to others: why a test is slow.
"""

from __future__ import annotations

import fnmatch
import json
import resource
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

REASONS: Final = Path(__file__).with_name("slow_reasons.txt")
LONG_S: Final = 3.0
MARGIN: Final = 2.0  # another processor, or one that shares its caches, takes up to this factor longer
PRESSURE: Final = tuple(Path(f"/proc/pressure/{name}") for name in ("cpu", "io"))


class Reading(NamedTuple):
    """What the clocks say, in seconds."""

    wall: float
    processor: float
    stalled: float | None  # None: this kernel does not say

    @classmethod
    def now(cls) -> Reading:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.monotonic(), time.process_time() + ended.ru_utime + ended.ru_stime, stalled_s())


def stalled_s(pressure: Sequence[Path] = PRESSURE) -> float | None:
    """For how many seconds since the machine's start some process waited for a processor or a disk."""
    try:
        first_lines = [path.read_text(encoding="ascii").partition("\n")[0] for path in pressure]
        return sum(int(line.rpartition("total=")[2]) for line in first_lines) / 1e6
    except (OSError, ValueError):
        return None


def taken_s(before: Reading, after: Reading) -> float:
    """How long something took by itself: what others did to the machine meanwhile is taken off."""
    processor = after.processor - before.processor
    if before.stalled is None or after.stalled is None:
        return processor
    return max(processor, after.wall - before.wall - (after.stalled - before.stalled))


def reasons(text: str) -> dict[str, str]:
    """Pattern → reason, of a list with one a line; `#` begins a comment.

    Raises ValueError for a line without a reason."""
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, reason = line.split(maxsplit=1)
            found[pattern] = reason
    return found


def is_named(node_id: str, patterns: dict[str, str]) -> bool:
    """Whether the list names the test, by its node id or by the id before the parameters in brackets."""
    return any(fnmatch.fnmatchcase(node_id, pattern.replace("[", "[[]")) for pattern in patterns)


class Durations:
    """Pytest's plugin: it takes the time of each phase of each test."""

    def __init__(self, record: str, judges: bool) -> None:
        self._record = record
        self._judges = judges
        self._patterns = reasons(REASONS.read_text(encoding="utf-8"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._timed(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._timed(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._timed(item))

    def _timed(self, item: pytest.Item) -> Generator[None, object, object]:
        before = Reading.now()
        try:
            return (yield)
        finally:
            item.stash[TAKEN] = taken_s(before, Reading.now())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, pytest.TestReport]:
        report: pytest.TestReport = yield
        taken = item.stash.get(TAKEN, 0.0)
        if self._record and taken >= 0.01:
            with open(self._record, "a", encoding="utf-8") as file:
                words = [round(taken, 2), round(call.duration, 2), report.when, item.nodeid, is_slow(item)]
                file.write(json.dumps(words) + "\n")
        # At its end a test waits for processes of its module, which may have worked for many tests.
        is_long = taken > LONG_S * MARGIN and report.when != "teardown" and not is_slow(item)
        if self._judges and report.passed and is_long and not is_named(item.nodeid, self._patterns):
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} ({report.when}) takes {taken:.1f} s by itself, and {LONG_S:g} is the most. Make it "
                f"quicker, mark it slow, or write its reason into tests/{REASONS.name}"
            )
        return report


TAKEN: Final = pytest.StashKey[float]()


def is_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "long"))
