"""The kill campaign: episodes of rounds under each durability policy, judged at their end.

    python -m tests.faults.campaign [--seed N] [--rounds N | --hours H] [--report FILE] [--classes writer,source,…]

An episode is a new primary and secondary, a shuffled list of rounds (each failpoint of its classes once, and kills at
any moment between), then the judgement. Exit code 0 only when every figure that must be zero is, and no failpoint was
left out. Guarantees: the same seed chooses the same rounds in the same order.
Refuses to know: how a round is run, what is judged.
"""

from __future__ import annotations

import argparse
import json
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

from replicate.instance import Instance
from tests.faults import places
from tests.faults.oracle import judge_both, read_told
from tests.faults.report import machine, table
from tests.faults.rounds import ANYWHERE, Rounds
from tests.faults.town import Town

POLICIES: Final = ("durable", "interval", "off")
ROUNDS_IN_EPISODE: Final = 60
KILLED_ANYWHERE: Final = ("writer", "source", "receiver", "update", "both")
CLASSES: Final = tuple(one for one in places.CLASSES if one != "replay")
"""Of a replay: its three failpoints are those of tests/update_process/replay."""
CONVERGED_WITHIN_S: Final = 60.0


@dataclass
class Campaign:
    """All episodes of a run."""

    seed: int
    classes: tuple[str, ...] = CLASSES
    figures: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    tried: Counter[str] = field(default_factory=Counter)
    keep: Path | None = None
    """Where the instances of an episode are copied in which something ended that should not have."""
    strange: list[str] = field(default_factory=list)
    """What ended otherwise than planned, and the tracebacks of that episode."""
    began_s: float = field(default_factory=time.monotonic)

    def run(self, rounds: int, hours: float = 0.0) -> None:
        """Episodes until both are reached."""
        dice = random.Random(self.seed)
        deadline = self.began_s + hours * 3600
        number = 0
        todo: list[tuple[str, str]] = []
        while self.figures["rounds"] < rounds or time.monotonic() < deadline:
            count = ROUNDS_IN_EPISODE if hours else min(ROUNDS_IN_EPISODE, rounds - self.figures["rounds"])
            if len(todo) < count:
                more = places.plan(self.classes)
                more += [(one, ANYWHERE) for one in KILLED_ANYWHERE if one in self.classes]
                dice.shuffle(more)
                todo += more
            chosen, todo = todo[:count], todo[count:]
            self.episode(number, POLICIES[number % len(POLICIES)], chosen)
            number += 1

    def episode(self, number: int, durability: str, chosen: Sequence[tuple[str, str]]) -> None:
        """One pair of instances, from its making to its judgement."""
        with tempfile.TemporaryDirectory(prefix="replicate-faults-", ignore_cleanup_errors=True) as directory:
            town = Town(Path(directory), durability)
            rounds = Rounds(town, random.Random(self.seed * 10_007 + number))
            try:
                rounds.begin()
                for kind, place in chosen:
                    rounds.run(kind, place)
                    print(".", end="", flush=True)
                self._judge(town, rounds)
            except BaseException:
                print(town.errors.read_text() if town.errors.exists() else "", file=sys.stderr)
                raise
            finally:
                town.close()
                if rounds.strange and self.keep is not None:
                    shutil.copytree(directory, self.keep / f"episode-{number}", symlinks=True)
                if rounds.strange:
                    self.strange += [*rounds.strange, town.errors.read_text()[-8000:]]
                self.figures += rounds.figures
                self.hits += rounds.hits
                self.tried += rounds.tried
                self.figures["episodes"] += 1

    def _judge(self, town: Town, rounds: Rounds) -> None:
        town.stop_clients()
        last = town.client(count=3)
        assert last.wait(60), "the last client does not end"
        town.reap()
        rounds.figures["unexpected ends"] += len(town.strange)
        rounds.strange += town.strange
        town.start_daemons()
        told = read_told(town.told)
        out = town.told / "figures.json"

        def judge() -> None:
            figures: Counter[str] = Counter()
            began_s = time.monotonic()
            try:
                judge_both(
                    Instance.open(town.primary), Instance.open(town.secondary), told, figures,
                    timeout_s=CONVERGED_WITHIN_S,
                )  # fmt: skip
            finally:
                figures["catch-up ms, most"] = int(1000 * (time.monotonic() - began_s))
                out.write_text(json.dumps(figures))

        try:
            town.do("judge", judge)
        finally:
            if out.exists():
                found = Counter(json.loads(out.read_text()))
                most = found.pop("catch-up ms, most")
                rounds.figures["catch-up ms, most"] = 0
                self.figures["catch-up ms, most"] = max(self.figures["catch-up ms, most"], most)
                self.figures += found
        self.figures["submitted"] += told.submitted
        self.figures["acknowledged"] += len(told.ok)
        self.figures["failed"] += len(told.failed)
        self.figures["unknown"] += len(told.unknown)

    def missed(self) -> list[str]:
        """Failpoints that no process died at."""
        wanted = {name for kind, name in places.plan(self.classes)}
        return sorted(wanted - self.hits.keys())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--classes", default=",".join(CLASSES))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--keep", type=Path, help="where to copy the instances when something went wrong")
    options = parser.parse_args()
    campaign = Campaign(options.seed, tuple(options.classes.split(",")), keep=options.keep)
    rounds = options.rounds or (0 if options.hours else len(places.plan(campaign.classes)) + len(KILLED_ANYWHERE))
    try:
        campaign.run(rounds, options.hours)
    finally:
        text = table(
            campaign.figures, campaign.hits, campaign.missed(), seed=options.seed,
            seconds=time.monotonic() - campaign.began_s, machine=machine(tempfile.gettempdir()),
        )  # fmt: skip
        print("\n" + text)
        print("\n".join(campaign.strange), file=sys.stderr)
        if options.report:
            options.report.write_text(text)
    return 0 if is_well(campaign) else 1


def is_well(campaign: Campaign) -> bool:
    """Every figure that must be zero is zero, and every failpoint was hit."""
    from tests.faults.oracle import ZERO

    return not any(campaign.figures[name] for name in ZERO) and not campaign.missed()


if __name__ == "__main__":
    sys.exit(main())
