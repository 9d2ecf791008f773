"""The kill campaign: episodes of rounds under each durability policy, judged at their end.

    python -m tests.faults.campaign [--seed N] [--rounds N] [--seconds S] [--classes writer,source,…] [--keep DIR]

An episode is a new primary and secondary, a shuffled list of rounds (each failpoint of its classes once, and kills at
any moment between), then the judgement. A failpoint that nobody came by in time gets further rounds at the end.
With --seconds both are reached, and each failpoint is tried once. Exit code 0 only when every figure that must be zero
is, and no failpoint was missed that was tried.
Guarantees: the same seed chooses the same rounds in the same order. Leaves to others: how a round is run, and judged.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.faults import places
from tests.faults.oracle import ZERO
from tests.faults.part import parser, run_part
from tests.faults.report import HIT, bad, merge
from tests.faults.rounds import ANYWHERE, Rounds
from tests.faults.settling import CONVERGED_WITHIN_S, count_told, settle
from tests.faults.shares import KINDS
from tests.faults.town import Town

POLICIES: Final = ("durable", "interval", "off")
ROUNDS_IN_EPISODE: Final = 60
ROUNDS_IN_LONG_EPISODE: Final = 30
"""Of a run by time: an episode is ended and judged whatever the time."""
KILLED_ANYWHERE: Final = ("writer", "source", "receiver", "update", "both", "files")
CLASSES: Final = tuple(sorted({*places.CLASSES, *KILLED_ANYWHERE} - {"replay"}))
"""Of a replay: its three failpoints are those of tests/update_process/replay."""
FILES_MORE: Final = 7
MORE_TRIES: Final = 8
CAMPAIGN_ZERO: Final = (
    *ZERO, "rolled back and in no lost file", "in a lost file and not rolled back", "failpoints missed",
    "parts that failed",
)  # fmt: skip
LEAST: Final = ("rounds", "acknowledged", "digests compared", "transactions over two regions")


@dataclass
class Campaign:
    """All episodes of a run."""

    seed: int
    classes: tuple[str, ...] = CLASSES
    figures: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    tried: Counter[str] = field(default_factory=Counter)
    converged_s: float = CONVERGED_WITHIN_S
    """How long the secondary may take in the end."""
    keep: Path | None = None
    """Where the instances of an episode are copied in which something ended that should not have."""
    strange: list[str] = field(default_factory=list)
    """What ended otherwise than planned, and the tracebacks of that episode."""

    share: str | None = None
    """What the secondary gets (shares.py); None: of each kind, in turns."""

    def run(self, rounds: int, deadline_s: float = -math.inf) -> None:
        """Episodes until both are reached (`deadline_s` on the monotonic clock)."""
        dice = random.Random(self.seed)
        number = 0
        todo: list[tuple[str, str]] = []
        while self.figures["rounds"] < rounds or time.monotonic() < deadline_s:
            left = rounds - self.figures["rounds"]
            count = min(ROUNDS_IN_EPISODE, left) if left > 0 else ROUNDS_IN_LONG_EPISODE
            while len(todo) < count:
                more = places.plan(self.classes)
                more += [(one, ANYWHERE) for one in KILLED_ANYWHERE if one in self.classes]
                if (
                    "files" in self.classes and self.figures["rounds"]
                ):  # it has no failpoints that come up of themselves
                    more += [("files", ANYWHERE)] * FILES_MORE
                dice.shuffle(more)
                todo += more
            chosen, todo = todo[:count], todo[count:]
            self.episode(number, POLICIES[number % len(POLICIES)], chosen)
            number += 1
        self.try_again(number)

    def try_again(self, number: int) -> None:
        """Rounds for those failpoints that nobody came by in time: the machine was busy."""
        for again in range(MORE_TRIES):
            missed = [(kind, name) for kind, name in places.plan(self.classes) if name in self.missed()]
            if not missed or bad(self.figures, ZERO):
                return
            self.episode(number + again, POLICIES[(number + again) % len(POLICIES)], missed)

    def episode(self, number: int, durability: str, chosen: Sequence[tuple[str, str]]) -> None:
        """One pair of instances, from its making to its judgement."""
        seed = self.seed * 10_007 + number
        with tempfile.TemporaryDirectory(prefix="replicate-faults-", ignore_cleanup_errors=True) as directory:
            share = KINDS[number % len(KINDS)] if self.share is None else self.share
            rounds_with = f"episodes of a secondary with some {share}" if share else "episodes of one that gets all"
            self.figures[rounds_with] += 1
            town = Town(Path(directory), durability, seed=seed, share=share)
            rounds = Rounds(town, random.Random(seed))
            try:
                rounds.begin()
                for kind, place in chosen:
                    rounds.run(kind, place)
                    print(".", end="", flush=True)
                told = settle(town, rounds.figures, strange=rounds.strange, within_s=self.converged_s)
                count_told(told, rounds.figures)
            except BaseException:
                print(town.errors.read_text() if town.errors.exists() else "", file=sys.stderr)
                raise
            finally:
                town.close()
                if rounds.strange and self.keep is not None:
                    shutil.copytree(directory, self.keep / f"episode-{number}", symlinks=True)
                if rounds.strange:
                    self.strange += [*rounds.strange, town.errors.read_text()[-8000:]]
                merge(self.figures, rounds.figures)
                merge(self.figures, {HIT + name: count for name, count in rounds.hits.items()})
                self.hits += rounds.hits
                self.tried += rounds.tried
                self.figures["episodes"] += 1

    def missed(self) -> list[str]:
        """Failpoints that were tried, and that no process died at."""
        return sorted(self.tried.keys() - self.hits.keys())


def once(classes: Sequence[str]) -> int:
    """How many rounds it takes to kill at each failpoint of these classes and at any moment, once."""
    return len(places.plan(tuple(classes))) + sum(one in classes for one in KILLED_ANYWHERE)


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    classes = tuple(options.classes.split(","))
    campaign = Campaign(options.seed, classes, figures, converged_s=options.converged_s, keep=options.keep)
    figures["failpoints of the product"] = len(places.product_failpoints())
    figures["failpoints defined"] = len({name for _, name in places.plan(CLASSES)})
    try:
        is_timed = math.isfinite(options.seconds)
        rounds = max(options.rounds, once(classes)) if is_timed or not options.rounds else options.rounds
        campaign.run(rounds, options.deadline_s if is_timed else -math.inf)
    finally:
        figures["failpoints missed"] = len(campaign.missed())
        print("\n".join([*campaign.strange, f"failpoints missed: {' '.join(campaign.missed()) or 'none'}"]))


def main() -> int:
    made = parser("tests.faults.campaign")
    made.add_argument("--rounds", type=int, default=0)
    made.add_argument("--classes", default=",".join(CLASSES))
    made.add_argument("--converged-s", type=float, default=CONVERGED_WITHIN_S)
    made.add_argument("--keep", type=Path, help="where to copy the instances when something went wrong")
    return run_part(made.parse_args(), work, CAMPAIGN_ZERO, least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
