"""A split brain with real processes: both sites take writes until they hear one another, and the old one gives way.

Guarantees: writers are told by one error where to go, and everything that either site has committed is on the new
primary in the end, once: by the stream, or by the lost file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.both_sites import KEPT, Both, kept_once, numbers_of
from tests.harness.street import QUICK
from tests.harness.waiting import wait_until
from tests.system.test_switchover import again

pytestmark = pytest.mark.slow


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    made = Both(tmp_path, settings=QUICK, schema=KEPT).build()
    try:
        assert isinstance(made, Both)
        yield made.start()
    finally:
        made.close()


def cut(both: Both) -> None:
    """The secondary hears nothing, and takes over; the primary goes on, and has the daemons that it had."""
    for name in ("receiver", "source"):
        both.on(both.secondary, name, "stop")
    both.on(both.secondary, "promote", "--force")


def wait_for_more(both: Both, instance: Path, name: str) -> None:
    """The writer of that name commits on this site."""
    both.primary, other = instance, both.primary
    try:
        before = len(numbers_of(both, name))
        wait_until(lambda: len(numbers_of(both, name)) > before, what=f"{name} writes on {instance.name}")
    finally:
        both.primary = other


def lost_of(file: Path, name: str) -> list[int]:
    """What a writer had committed on the old primary alone."""
    lines = [json.loads(line) for line in file.read_text().splitlines()[1:-1]]
    rows = [change["after"] for line in lines for change in line["changes"] if change["what"] == "INSERT"]
    return [row[1] for row in rows if row[0] == name]


@pytest.mark.parametrize(
    ("failpoint", "parted_s"), [("", 0.0), ("fence.noted", 0.0), pytest.param("", 60.0, marks=pytest.mark.long)]
)
def test_a_split_brain_ends_when_the_sites_hear_one_another_and_nothing_is_lost(
    both: Both, failpoint: str, parted_s: float
) -> None:
    """Also when the daemon of the old primary that hears of it is killed there, and started again. (One that is killed
    before that costs a writer a transaction, by POOL_REPLACED, as each loss of a pool does: test_superseded.py.)"""
    old, new = both.primary, both.secondary
    both.on(old, "config", "set", "receiver.auto_rollback", "true")
    both.on(old, "config", "set", "receiver.listen", both.listen)
    both.on(old, "source", "stop")
    both.on(old, "receiver", "stop")
    if failpoint:
        both.environment["REPLICATE_FAILPOINT"] = f"{failpoint}:1:kill"
    both.on(old, "receiver", "start")
    both.environment.pop("REPLICATE_FAILPOINT", None)
    rovers = [both.rover(number) for number in range(2)]
    cut(both)
    began_s = time.monotonic()
    there = both.rover(2, new, old)  # while both are primary each has writers
    for number in range(2):
        wait_for_more(both, old, f"rover {number}")
    wait_for_more(both, new, "rover 2")
    while time.monotonic() - began_s < parted_s:
        wait_for_more(both, old, "rover 0")
        wait_for_more(both, new, "rover 2")
    pid = both.pid(old, "receiver")
    again(both, new, "receiver")
    again(both, new, "source-primary")
    if failpoint:
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="it was killed there")
        again(both, old, "receiver")
    wait_until(lambda: both.role(old) == "secondary", what="the old one gives way")
    wait_until(lambda: bool(list(old.parent.glob("primary-lost-*.jsonl"))), what="what is only there is kept")
    for number in range(3):
        wait_for_more(both, new, f"rover {number}")
    committed, stayed_there = both.ended(rovers), both.ended([there], 2)
    both.exchange()
    both.equal()
    kept_once(both, stayed_there)
    (file,) = old.parent.glob("primary-lost-*.jsonl")
    for name, count in committed.items():
        rolled_back, stayed = lost_of(file, name), numbers_of(both, name)
        assert rolled_back
        assert sorted(rolled_back + stayed) == list(range(1, len(rolled_back) + len(stayed) + 1)), name
        assert len(rolled_back) + len(stayed) in (count, count + 1), "the last may have been killed before it said so"

    def nothing_is_left() -> bool:  # figures are told once a second
        codes = {one["code"] for site in (old, new) for one in both.status(site)["findings"]}
        return not codes & {"FENCED", "SPLIT_BRAIN", "HANDED_OVER"}

    wait_until(nothing_is_left, what="no finding is left of it")
