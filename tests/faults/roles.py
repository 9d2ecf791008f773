"""The campaign of roles: two sites, round after round of what changes who is primary, under load and kills.

    python -m tests.faults.roles [--seed N] [--seconds S] [--rounds N]

A round is one of ROUNDS: a switchover in which something is killed, a host that is lost and comes back with what it had
alone, both hosts lost at once, a host that stood still meanwhile, or two primaries that both commit for a while and
then meet. At the end of each, both sites must be equal, and hold every transaction that was acknowledged, once: what
was rolled back stands in a lost file, travels to the primary, and is applied there, however often that command is
killed.
Guarantees: the same seed chooses the same rounds and victims.
Leaves to others: kills at named steps (test_switchover.py, the tests of roles/ and lost/).
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from replicate.daemon.lock_file import LockFile
from replicate.lost.read import LostReader
from tests.faults.part import parser, run_part
from tests.harness.both_sites import KEPT, Both, numbers_of
from tests.harness.fork_server import popen
from tests.harness.street import QUICK
from tests.harness.waiting import wait_until

LEVEL_S: Final = 120.0
WRITTEN_ALONE: Final = 20
"""Transactions of a primary that nobody is told of before it is lost, at least."""
ROLES_ZERO: Final = (
    "role changes that lost a transaction", "role changes that doubled a transaction", "lost files without an end",
    "two primaries that agreed", "rolled back and in no lost file", "in a lost file and not rolled back",
    "parts that failed",
)  # fmt: skip
LEAST: Final = ("role changes", "acknowledged over role changes", "rolled back", "in lost files")


@dataclass
class Sites:
    """`both.primary` is who is primary; `committed`: how much each writer has, by its own word."""

    both: Both
    dice: random.Random
    figures: Counter[str] = field(default_factory=Counter)
    committed: dict[str, int] = field(default_factory=dict)
    _writers: int = 0
    _put_back: set[Path] = field(default_factory=set)

    def live(self, name: str) -> None:
        """One round, and its judgement."""
        ROUNDS[name](self)
        self.level()
        self.judge()
        self.figures["role rounds"] += 1
        self.figures[f"role rounds: {name}"] += 1

    def writer(self, *places: Path) -> tuple[int, subprocess.Popen[str]]:
        self._writers += 1
        return self._writers, self.both.rover(self._writers, *places)

    def end(self, number: int, writer: subprocess.Popen[str]) -> None:
        found = self.both.ended([writer], number)
        self.committed |= found
        self.figures["acknowledged over role changes"] += sum(found.values())

    def counted(self, writer: int, more: int) -> None:
        """Until that writer has committed `more` on the primary."""
        name = f"rover {writer}"
        before = len(numbers_of(self.both, name))
        wait_until(lambda: len(numbers_of(self.both, name)) >= before + more, what=f"{name} commits")

    def level(self) -> None:
        """All daemons run, and the secondary has what the primary has."""
        self.both.all_start()
        wait_until(lambda: not self.problems(), what="the way back is ready", timeout_s=LEVEL_S)
        self.both.equal()

    def problems(self) -> str:
        """What bars a switchover, as the command says it; "": nothing."""
        done = self.both.on(self.both.primary, "switchover", "--dry-run", check=False)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def judge(self) -> None:
        """Every acknowledged transaction is there once."""
        for name, count in self.committed.items():
            numbers = numbers_of(self.both, name)
            if len(numbers) != len(set(numbers)) or len(numbers) > count + 1:
                self.figures["role changes that doubled a transaction"] += 1
                print(f"{name} acknowledged {count}, and there are {len(numbers)}", flush=True)
            if not set(range(1, count + 1)) <= set(numbers):
                self.figures["role changes that lost a transaction"] += 1
                lacking = sorted(set(range(1, count + 1)) - set(numbers))
                print(f"{name} acknowledged {count}; {len(lacking)} are not there: {lacking[:20]}", flush=True)

    # Rounds.

    def switchover(self) -> None:
        """The roles change with something killed meanwhile, or the command itself; given again, it finishes."""
        both = self.both
        giver, taker = both.primary, both.secondary
        number, writer = self.writer()
        words = [sys.executable, "-m", "replicate.cli.main", "-i", str(giver), "switchover", "--to", taker.name]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = popen([*words, "--timeout", "20"], env=both.environment, **quiet)
        victim = self.dice.choice([*VICTIMS, "command", "nothing"])
        time.sleep(self.dice.random() * 0.6)  # at any moment
        if victim == "command":
            command.kill()
        elif victim != "nothing":
            site, daemon = VICTIMS[victim]
            instance, other = (giver, taker) if site == "giver" else (taker, giver)
            name = daemon if daemon != "source" else f"source-{other.name}"
            if LockFile(instance, name).probe() is not None:
                both.kill(instance, name)
        command.wait(120)

        def finished() -> bool:
            both.all_start()
            done = both.on(giver, "switchover", "--to", taker.name, "--timeout", "20", check=False)
            assert done.returncode in (0, 1, 69, 73, 75, 76), done.stdout + done.stderr
            if [both.role(giver), both.role(taker)] == ["primary", "primary"]:
                self.figures["two primaries that agreed"] += 1
            return done.returncode == 0

        wait_until(finished, what="the same command finishes", timeout_s=LEVEL_S)
        both.exchange()
        self.figures["role changes"] += 1
        self.figures[f"killed in a role change: {victim}"] += 1
        self.counted(number, 3)
        self.end(number, writer)

    def host_lost(self) -> None:
        """The primary commits what nobody is told of, and is lost with its writers. It comes back by itself."""
        both = self.both
        self.alone(both.primary)
        both.host_is_lost(both.primary)
        self.take_over()
        self.come_back()

    def both_lost(self) -> None:
        """Both hosts go down at once, and come up one after the other: the primary is primary again."""
        both = self.both
        number, writer = self.writer()
        self.counted(number, 5)
        sites = [both.primary, both.secondary]
        self.dice.shuffle(sites)
        for site in sites:
            both.host_is_lost(site)
        self.end(number, writer)
        if self.dice.random() < 0.5:
            both.all_start()

    def both_lost_and_the_other_comes_first(self) -> None:
        """Both hosts go down; the secondary comes up first and takes over, and the primary returns ahead of it."""
        both = self.both
        self.alone(both.primary)
        both.host_is_lost(both.secondary)
        both.host_is_lost(both.primary)
        self.take_over()
        self.come_back()

    def split(self) -> None:
        """The secondary takes over although the primary lives. Both commit, then they meet."""
        both = self.both
        old, new = both.primary, both.secondary
        there, one = self.writer(old, old)
        self.counted(there, 3)
        both.kill(old, f"source-{new.name}")
        self.counted(there, WRITTEN_ALONE)
        self.take_over()
        both.all_start()
        both.exchange()
        self.counted(there, 0)
        both.exchange()
        self.end(there, one)
        self.come_back()

    def frozen(self) -> None:
        """The primary's host stands still, with daemons and a writer, for longer than it takes the other site to take
        over. Then it goes on as if nothing had been, until the two hear one another."""
        both = self.both
        old, new = both.primary, both.secondary
        there, writer = self.writer(old, old)
        self.counted(there, 3)
        daemons = (f"source-{new.name}", "receiver", "update")
        both.kill(old, daemons[0], signal.SIGSTOP)
        self.counted(there, WRITTEN_ALONE)
        for name in daemons[1:]:
            both.kill(old, name, signal.SIGSTOP)
        writer.send_signal(signal.SIGSTOP)
        try:
            self.take_over()
        finally:
            for name in daemons:
                both.kill(old, name, signal.SIGCONT)
            writer.send_signal(signal.SIGCONT)
        both.all_start()
        wait_until(lambda: both.role(old) == "secondary", what="who was frozen is fenced", timeout_s=LEVEL_S)
        self.end(there, writer)
        self.come_back()

    # What they share.

    def alone(self, primary: Path) -> None:
        """Its Source Server is killed, and then it commits what nobody else will have."""
        number, writer = self.writer()
        self.counted(number, 3)
        self.both.kill(primary, f"source-{self.both.secondary.name}")
        self.counted(number, WRITTEN_ALONE)
        self.end(number, writer)

    def take_over(self) -> None:
        """The secondary becomes primary, with daemons and a writer of its own."""
        both = self.both
        new = both.secondary
        for daemon in (("receiver",), ("update",), ("source", "--peer", both.primary.name)):
            both.on(new, daemon[0], "stop", *daemon[1:], check=False)
        both.on(new, "promote", "--force")
        self.figures["role changes"] += 1
        both.exchange()
        number, writer = self.writer()
        self.counted(number, 5)
        self.end(number, writer)

    def come_back(self) -> None:
        """The old primary is made a secondary, goes back by itself (killed now and then), and what it had alone is
        applied on the new one."""
        both = self.both
        old, new = both.secondary, both.primary
        for daemon in (f"source-{new.name}", "receiver", "update"):
            if LockFile(old, daemon).probe() is not None:
                both.kill(old, daemon)
        both.on(old, "demote")
        for _ in range(self.dice.randrange(3)):
            both.all_start("--auto-rollback")
            time.sleep(self.dice.random())  # at any moment
            both.host_is_lost(old)
        both.all_start("--auto-rollback")
        # Its own numbers are beyond the new primary's until it is back: to wait for a number would prove nothing.
        wait_until(lambda: not self.problems(), what="it is back, and could be primary", timeout_s=LEVEL_S)
        both.equal()
        kept = list(old.parent.glob(f"{old.name}-lost-[0-9]*.jsonl"))  # not those that came to it
        wait_until(lambda: len(self.arrived()) >= len(kept), what="the lost files have travelled", timeout_s=LEVEL_S)
        for file in self.arrived():
            if file not in self._put_back:
                self.conserved(file)
                self.put_back(file)
                self._put_back.add(file)

    def arrived(self) -> list[Path]:
        """The lost files of the other site that the primary has."""
        new, old = self.both.primary, self.both.secondary
        return sorted(new.parent.glob(f"{new.name}-lost-{old.name}-*.jsonl"))

    def conserved(self, file: Path) -> None:
        """What was rolled back is in the file, and what is in the file was rolled back: writers' rows, one by one."""
        with LostReader(file) as reader:
            changes = [one for each in reader.transactions() for one in reader.changes(each)]
        in_file = {(one.after[0], one.after[1]) for one in changes if one.after and one.table.endswith(".kept")}
        there = {(name, number) for name in self.committed for number in numbers_of(self.both, name)}
        gone = {(name, number) for name, count in self.committed.items() for number in range(1, count + 1)} - there
        self.figures["rolled back"] += len(gone)
        self.figures["in lost files"] += len(in_file)
        self.figures["rolled back and in no lost file"] += len(gone - in_file)
        self.figures["in a lost file and not rolled back"] += len(in_file & there)

    def put_back(self, file: Path) -> None:
        """`lost apply`, killed now and then, until nothing waits."""
        both = self.both
        words = [sys.executable, "-m", "replicate.cli.main", "-i", str(both.primary), "lost", "apply", str(file)]
        for _ in range(self.dice.randrange(3)):
            command = popen(words, env=both.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(self.dice.random() * 0.5)  # at any moment
            command.send_signal(signal.SIGKILL)
            command.wait(60)
        both.on(both.primary, "lost", "apply", file)
        if both.on(both.primary, "lost", "list", check=False).returncode:
            self.figures["lost files without an end"] += 1


ROUNDS: Final[Mapping[str, Callable[[Sites], None]]] = {
    "switchover": Sites.switchover,
    "host lost": Sites.host_lost,
    "both lost": Sites.both_lost,
    "both lost, the other first": Sites.both_lost_and_the_other_comes_first,
    "split": Sites.split,
    "frozen": Sites.frozen,
}
VICTIMS: Final = {
    f"{daemon} of the {site}": (site, daemon)
    for site, daemon in (
        ("giver", "source"), ("giver", "receiver"), ("giver", "update"),
        ("taker", "source"), ("taker", "receiver"), ("taker", "update"),
    )
}  # fmt: skip


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    """Rounds on one pair until both are reached, the count and the time; each kind once at least."""
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="replicate-roles-", ignore_cleanup_errors=True) as directory:
        both = Both(Path(directory), settings=QUICK, schema=KEPT).build()
        try:
            both.start()
            sites = Sites(both, dice, figures)
            done = 0
            while done < max(options.rounds, len(ROUNDS)) or time.monotonic() < options.deadline_s < math.inf:
                kinds = list(ROUNDS)
                dice.shuffle(kinds)
                for name in kinds:
                    print(name, end=" ", flush=True)
                    sites.live(name)
                    done += 1
        finally:
            both.close()


def main() -> int:
    made = parser("tests.faults.roles")
    made.add_argument("--rounds", type=int, default=0)
    os.environ.setdefault("REPLICATE_CHECK_CAPTURE", "1")
    return run_part(made.parse_args(), work, ROLES_ZERO, least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
