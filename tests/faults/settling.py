"""The end of an episode: no more faults, a last few commits, then both sides are judged.

Guarantees: the figures of the judgement are there also when it fails. Leaves to others: what was done before.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

from replicate.instance.instance import Instance
from tests.faults.oracle import Told, judge_both, read_told
from tests.faults.report import merge
from tests.faults.shares import wants_of
from tests.faults.town import Town

CONVERGED_WITHIN_S = 120.0


def settle(
    town: Town,
    figures: Counter[str],
    *,
    strange: list[str] | None = None,
    lost_may: frozenset[int] = frozenset(),
    within_s: float = CONVERGED_WITHIN_S,
) -> Told:
    """Faults have ended: all converges, and nothing is missing, twice or in disorder. Adds to `figures`."""
    town.stop_clients()
    town.reap()
    town.start_daemons()
    last = town.client(count=3)
    assert last.wait(120), "the last client does not end"
    town.reap()
    figures["unexpected ends"] += len(town.strange)
    if strange is not None:
        strange += town.strange
    town.strange.clear()
    town.start_daemons()
    told = read_told(town.told)
    out = town.told / "figures.json"
    out.unlink(missing_ok=True)
    try:
        town.do("judge", lambda: _judge(town, told, out, lost_may, within_s))
    finally:
        if out.exists():
            merge(figures, json.loads(out.read_text()))
    return told


def _judge(town: Town, told: Told, out: Path, lost_may: frozenset[int], within_s: float) -> None:
    figures: Counter[str] = Counter()
    began_s = time.monotonic()
    try:
        judge_both(
            Instance.open(town.primary), Instance.open(town.secondary), told, figures, timeout_s=within_s,
            caught_up=lambda: figures.update({"catch-up ms, most": int(1000 * (time.monotonic() - began_s))}),
            lost_may=lost_may, wants=wants_of(town.share),
        )  # fmt: skip
    finally:
        out.write_text(json.dumps(figures))


def count_told(told: Told, figures: Counter[str]) -> None:
    """What the clients of an episode were told, added up."""
    figures["submitted"] += told.submitted
    figures["acknowledged"] += len(told.ok)
    figures["failed"] += len(told.failed)
    figures["unknown"] += len(told.unknown)
