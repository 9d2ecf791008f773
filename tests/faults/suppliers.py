"""The campaign of suppliers: three sites that all write, round after round of kills, cuts and restorations under load.

    python -m tests.faults.suppliers [--seed N] [--seconds S] [--rounds N]
    python -m tests.faults.suppliers --island-s S [--seed N] [--keep DIR]

A round is one of ROUNDS: daemons or writers are killed, hosts are lost, lines are cut, a site is an island while all
write on, files come back from a backup, or a machine from a snapshot. After each all must come to rest with equal
vectors and tables; after an episode, what the journals hold is judged. `--island-s`: one island of so many seconds
instead (supplier_island.py).
Guarantees: the same seed chooses the same rounds and victims. What a site that is restored had alone, nobody wrote.
Leaves to others: kills at named steps (tests/update_process/test_merging.py), what is judged (supplier_judge.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from replicate.daemon.lock_file import LockFile
from replicate.instance.instance import Instance
from tests.faults.part import parser, run_part
from tests.faults.report import merge
from tests.faults.supplier_island import ISLAND_LEAST, island_settings, live_island
from tests.faults.supplier_judge import DIVERGED, JUDGED_ZERO, NOT_LEVEL, STOPPED, judge
from tests.faults.supplier_writer import (
    APART,
    COUNTED,
    PROGRAM,
    SCHEMA,
    SHARED,
    SHARED_APART,
    SUM,
    Acknowledged,
    read_told,
)
from tests.harness.street import state_of
from tests.harness.supplier_street import MESH, NAMES, STAR, SupplierStreet
from tests.harness.waiting import PATIENCE_S, wait_until

LEVEL_S: Final = 120.0
SETTINGS: Final = """
[journal]
durability = "{durability}"
pool_bytes = 1048576
segment_bytes = {segment_bytes}
cap_bytes = {cap_bytes}
[receiver]
pool_bytes = 4194304
heartbeat_period_s = 0.5
dead_after_s = {dead_after_s}
[source]
heartbeat_period_s = 0.5
dead_after_s = {dead_after_s}
hard_period_s = 0.1
soft_period_s = 0.2
connect_timeout_s = 2
[update]
tell_seen_s = 0.5
[status]
silent_warn_s = {silent_s}
"""
CAP: Final = 10 * 1024 * 1024 * 1024
SILENT_S: Final = 5.0
DEAD_AFTER_S: Final = 2
"""The longest of the timeouts after which a line counts as dead."""
OUTLASTED: Final = "suppliers: timeouts outlasted by islands"
SILENT: Final = "suppliers: islands named as silent"
KEEPS: Final = 2 * 1024 * 1024 * 1024
PRUNES: Final = 1024 * 1024
"""Bytes of a segment: so large that a journal keeps all of an episode, or so small that it does not."""
SUPPLIERS_ZERO: Final = (*JUDGED_ZERO, STOPPED, NOT_LEVEL, "suppliers: unexpected ends", "parts that failed")
LEAST: Final = ("supplier rounds", "suppliers: acknowledged", "suppliers: values lost in merges")
ROUNDS_IN_EPISODE: Final = 8


class FaultyStreet(SupplierStreet):
    """Every line leads over a relay; all write three tables."""

    shared = (*SHARED, COUNTED)
    sums = (SUM,)
    over_relays = True


class NotAtRest(Exception):
    """An episode cannot go on."""


@dataclass
class Three:
    """Three suppliers that run, and what was done to them. `load`: transactions of a writer before something happens;
    `backlog`: of each while one is an island; `cut_s`: how long it is a long one at least. `width`, `pause_s`: what a
    writer writes where nothing else is said; `patience_s`: how long what it writes is waited for."""

    street: FaultyStreet
    dice: random.Random
    load: int = 20
    backlog: int = 1500
    cut_s: float = 60.0
    level_s: float = LEVEL_S
    patience_s: float = PATIENCE_S
    width: int = 20
    pause_s: float = 0.001
    figures: Counter[str] = field(default_factory=Counter)
    _files: dict[tuple[str, int], Path] = field(default_factory=dict)
    """By site and writer."""
    _writers: dict[str, tuple[int, subprocess.Popen[str]]] = field(default_factory=dict)
    _down: set[tuple[str, str]] = field(default_factory=set)
    """Daemons that were killed or stopped by us."""
    _copies: int = 0

    def live(self, name: str, act: Callable[[Three], None] | None = None) -> None:
        """One round, until all is at rest. Raises NotAtRest."""
        (act or ROUNDS[name])(self)
        self.level()
        self.figures["supplier rounds"] += 1
        self.figures[f"supplier rounds: {name}"] += 1

    def judge(self) -> None:
        told = self.told()
        self.figures["suppliers: acknowledged"] = sum(one.last for one in told.values())
        judge(self.street, told, self.figures)

    def told(self) -> dict[tuple[str, int], Acknowledged]:
        """What the writers of each site were told so far."""
        return {of: read_told(file) for of, file in self._files.items()}

    # Writers.

    def write(self, *names: str, width: int | None = None, pause_s: float | None = None) -> None:
        """A writer at each of these sites (all), if there is none."""
        width = self.width if width is None else width
        pause_s = self.pause_s if pause_s is None else pause_s
        for name in names or NAMES:
            if name in self._writers:
                continue
            number = len(self._files) + 1
            file = self._files[name, number] = self.street.directory / f"told-{name}-{number}.jsonl"
            words = (str(self.street.by[name]), name, str(number), str(file), f"{self.dice.random()}")
            process = self.street.python(PROGRAM, *words, str(width), str(pause_s))
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            self._writers[name] = number, process

    def end(self, *names: str) -> None:
        """SIGKILL the writers of these sites (of all)."""
        for name in names or NAMES:
            if name in self._writers:
                _, process = self._writers.pop(name)
                process.kill()
                _, errors = process.communicate()
                if process.returncode not in (0, -signal.SIGKILL):
                    self.figures["suppliers: unexpected ends"] += 1
                    print(f"the writer of {name}: {process.returncode}: {errors[-3000:]}", flush=True)

    def counted(self, more: int, *names: str) -> None:
        """Until the writers of these sites (all that write) have that many further transactions, or have ended."""
        chosen = {name: self._writers[name] for name in names or tuple(self._writers)}
        lines = {name: _lines(self._files[name, number]) for name, (number, _) in chosen.items()}
        for name, (number, process) in chosen.items():
            wait_until(
                lambda file=self._files[name, number], before=lines[name], process=process: (
                    _lines(file) >= before + more or process.poll() is not None
                ),
                timeout_s=self.patience_s,
                what=f"{name} commits {more}",
            )

    # Sites.

    def kill(self, name: str, daemon: str) -> None:
        if LockFile(self.street.by[name], daemon).probe() is not None:
            self.street.kill(self.street.by[name], daemon)
        self._down.add((name, daemon))

    def start(self, name: str, daemon: str) -> None:
        self.street.start_daemon(name, daemon)
        self._down.discard((name, daemon))

    def lose(self, *names: str) -> None:
        """These hosts go down, writers and all, and boot: nothing is in shared memory any more."""
        self.end(*names)
        for name in names:
            for daemon in self.street.daemons(name):
                self.kill(name, daemon)
            self.street.boot(name)

    def come_up(self, *names: str) -> None:
        for name in names:
            self.look_for_stopped(name)
            self.street.start_site(name)
            self._down -= {(name, daemon) for daemon in self.street.daemons(name)}

    def look_for_stopped(self, name: str) -> None:
        """A daemon that has ended by itself is one too many."""
        for daemon in self.street.daemons(name):
            site = self.street.by[name]
            if (name, daemon) not in self._down and LockFile(site, daemon).probe() is None:
                self.figures[STOPPED] += 1
                self._down.add((name, daemon))
                last = [one for one in self.street.log(site, daemon) if one.get("level") in ("error", "warning")][-2:]
                print(f"{daemon} of {name} has ended: {last}", flush=True)

    def level(self) -> None:
        """No more faults: all come to rest, level and equal. Raises NotAtRest."""
        self.end()
        self.heal()
        until_s, is_up = time.monotonic() + self.level_s, False
        while not (is_up and self._is_at_rest()):
            for name in NAMES:
                self.look_for_stopped(name)
            if self.figures[STOPPED] or time.monotonic() > until_s:
                self.tell_where_it_stands()
                raise NotAtRest
            if not is_up:
                self.come_up(*NAMES)
                is_up = True
            time.sleep(0.05)

    def _is_at_rest(self) -> bool:
        if any(Instance.open(self.street.by[name]).content.is_restoring for name in NAMES):
            return False
        return self.street.is_level() and self.street.rows("a") == self.street.rows("b") == self.street.rows("c")

    def tell_where_it_stands(self) -> None:
        if self.street.is_level():
            self.judge()
            self.figures[DIVERGED] += not self.figures[DIVERGED]
        elif not self.figures[STOPPED]:
            self.figures[NOT_LEVEL] += 1
        for name in NAMES:
            status = self.street.on(self.street.by[name], "status", check=False).stdout
            print(f"{name}: {self.street.vector(name)}\n{status}", flush=True)

    def heal(self) -> None:
        for relay in self.street.relays.values():
            relay.is_refusing = False
            relay.heal()

    # Rounds.

    def daemons_die(self) -> None:
        """One after the other, at any moment, under load."""
        self.write()
        for _ in range(4):
            self.counted(self.dice.randrange(self.load))
            name = self.dice.choice(NAMES)
            daemon = self.dice.choice(self.street.daemons(name))
            self.kill(name, daemon)
            if self.dice.random() < 0.5:
                self.counted(self.load)
            self.start(name, daemon)
        self.counted(self.load)

    def writers_die(self) -> None:
        """Between two transactions and in them: what is unfinished the next one mends, or the Update Process."""
        self.write(pause_s=0)
        for _ in range(6):
            name = self.dice.choice(NAMES)
            self.counted(self.dice.randrange(self.load), name)
            self.end(name)
            self.write(name, pause_s=0)
        self.counted(self.load)

    def a_host_is_lost(self) -> None:
        """With all that runs on it; the others write on meanwhile."""
        name = self.dice.choice(NAMES)
        self.write()
        self.counted(self.load)
        self.lose(name)
        self.counted(self.load)
        self.come_up(name)
        self.write(name)
        self.counted(self.load)

    def all_hosts_are_lost(self) -> None:
        """At once; they come up one after the other."""
        self.write()
        self.counted(self.load)
        self.lose(*NAMES)
        for name in self.dice.sample(NAMES, len(NAMES)):
            self.come_up(name)
            self.write(name)
            self.counted(self.dice.randrange(self.load), name)
        self.counted(self.load)

    def lines_are_cut(self) -> None:
        """One after the other, some in one direction only: refused, silent, or ended in the middle of a piece."""
        self.write()
        for _ in range(4):
            self.counted(self.dice.randrange(self.load))
            relay = self.street.relays[self.dice.choice(sorted(self.street.relays))]
            how = self.dice.choice(["there", "back", "both", "ended", "reset", "refused"])
            if how in ("ended", "reset"):
                relay.cut_next(reset=how == "reset")
            elif how == "refused":
                relay.is_refusing = True
                relay.cut_next(reset=False)
            else:
                relay.part(there=how != "back", back=how != "there")
            self.counted(self.load)
            if self.dice.random() < 0.5:
                relay.forget()
            self.heal()
        self.counted(self.load)

    def island(self) -> None:
        """No line leads to one of them while all write what takes an hour on other days. Something dies on it, too."""
        name = self.dice.choice(NAMES)
        relays = [relay for way, relay in self.street.relays.items() if name in way]
        self.write(pause_s=0, width=self.dice.choice([20, 400]))
        self.counted(self.load)
        for relay in relays:
            relay.is_refusing = True
            relay.part()
            relay.forget()
        self.counted(self.backlog // 2)
        daemon = self.dice.choice(self.street.daemons(name))
        self.kill(name, daemon)
        self.start(name, daemon)
        self.counted(self.backlog // 2)
        self.heal()
        self.counted(self.load)

    def long_island(self) -> None:
        """The same for many times each timeout, as for an hour on other days: what all write meanwhile is more than any
        pool holds, journals begin segments and keep them, and who wrote which row is remembered for who is away."""
        name = self.dice.choice(NAMES)
        others = [one for one in NAMES if one != name]
        relays = [relay for way, relay in self.street.relays.items() if name in way]
        self.write(pause_s=0.005, width=4000)
        self.counted(self.load)
        for relay in relays:
            relay.is_refusing = True
            relay.part()
            relay.forget()
        begun_s = time.monotonic()
        self.counted(self.backlog)
        while time.monotonic() < begun_s + self.cut_s:
            self.counted(self.load)
        self.figures["suppliers: rows remembered for islands"] += min(map(self.street.stamped, others))
        self.figures[OUTLASTED] += int((time.monotonic() - begun_s) / DEAD_AFTER_S)
        for other in others:
            wait_until(lambda other=other: name in self.silent_at(other), what=f"{other} says that {name} is silent")
        self.figures[SILENT] += len(others)
        self.heal()
        self.counted(self.load)
        for other in NAMES:
            wait_until(lambda other=other: not self.silent_at(other), what=f"{other} says that nobody is silent")

    def silent_at(self, name: str) -> set[str]:
        """Who has told nothing for long, by the word of that site's status."""
        told = json.loads(self.street.on(self.street.by[name], "--json", "status", check=False).stdout)
        return {one["subject"] for one in told["findings"] if one["code"] == "SUPPLIER_SILENT"}

    def files_come_back(self) -> None:
        """Those of a backup at rest; its applications wait until it takes writes again, and the others write on."""
        name, copy = self.dice.choice(NAMES), self.copy()
        self.write()
        self.counted(self.load)
        self.lose(name)
        self.street.keep(name, copy)
        self.write_until_others_have_it(name)
        self.lose(name)
        self.street.restore(name, copy)
        self.come_up(name)
        self.write(name)
        self.counted(self.load, name)

    def machine_is_turned_back(self) -> None:
        """To a snapshot that was taken while all ran. It takes no writes before the others have told it."""
        name, copy = self.dice.choice(NAMES), self.copy()
        self.write()
        self.counted(self.load)
        with self.standing_still(name):
            self.street.keep(name, copy)
        self.write_until_others_have_it(name)
        self.lose(name)
        self.street.turn_back(name, copy)
        self.come_up(name)
        if self.dice.random() < 0.5:
            self.counted(self.load)

    # What they share.

    def copy(self) -> Path:
        self._copies += 1
        return self.street.directory / f"copy-{self._copies}"

    def write_until_others_have_it(self, name: str) -> None:
        """What a site that will be restored writes meanwhile, somebody has afterwards."""
        self.come_up(name)
        self.write()
        self.counted(2 * self.load)
        self.end(name)
        own = {of: last for of, last in self.street.vector(name).items() if of.startswith(f"{name}/")}
        others = [one for one in NAMES if one != name]

        def has_all(other: str) -> bool:
            there = self.street.vector(other)
            return all(there.get(of, -1) >= last for of, last in own.items())

        wait_until(lambda: any(map(has_all, others)), what=f"what {name} wrote is elsewhere")

    @contextmanager
    def standing_still(self, name: str) -> Iterator[None]:
        """All processes of a site are stopped for a block, wherever they are."""
        site = self.street.by[name]
        pids = [self._writers[name][1].pid] if name in self._writers else []
        pids += [self.street.pid(site, daemon) for daemon in self.street.daemons(name)]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
                wait_until(lambda pid=pid: state_of(pid) in "TZ", what=f"a process of {name} stands still")
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


def _lines(file: Path) -> int:
    return file.read_bytes().count(b'"number"') if file.exists() else 0


ROUNDS: Final[Mapping[str, Callable[[Three], None]]] = {
    "daemons die": Three.daemons_die,
    "writers die": Three.writers_die,
    "a host is lost": Three.a_host_is_lost,
    "all hosts are lost": Three.all_hosts_are_lost,
    "lines are cut": Three.lines_are_cut,
    "island": Three.island,
    "long island": Three.long_island,
    "files come back": Three.files_come_back,
    "machine is turned back": Three.machine_is_turned_back,
}
NEEDS_ALL: Final = ("files come back", "machine is turned back")
"""Where journals do not hold what was lost with the files, it cannot come back."""


@contextmanager
def suppliers(
    directory: Path,
    dice: random.Random,
    *,
    keeps: bool = True,
    ways: Mapping[str, Sequence[str]] | None = None,
    cap_bytes: int = CAP,
    silent_s: float = SILENT_S,
    have_stock: bool = False,
) -> Iterator[Three]:
    """Three that run and share tables. `keeps`: their journals hold all. `ways`: who sends to whom. `silent_s`: after
    how long one is named that tells nothing. `have_stock`: each has a second region, and tables that all write are
    there, too."""
    durability = dice.choice(["durable", "interval"])
    settings = SETTINGS.format(
        durability=durability,
        segment_bytes=KEEPS if keeps else PRUNES,
        cap_bytes=cap_bytes,
        dead_after_s=DEAD_AFTER_S,
        silent_s=silent_s,
    )
    street = FaultyStreet(directory, settings=settings, schema=SCHEMA)
    street.ways = dice.choice([STAR, MESH]) if ways is None else ways
    if have_stock:
        street.apart = APART
        street.shared = (*street.shared, *(f"stock.{table}" for table in SHARED_APART))
    try:
        street.build()
        street.share()
        yield Three(street, dice)
    finally:
        street.close()


def episode(number: int, seed: int, rounds: Sequence[str], figures: Counter[str], until_s: float = math.inf) -> None:
    """New suppliers, some rounds, and the judgement. `until_s`: no further round begins then."""
    dice = random.Random(f"{seed} {number}")
    keeps = number % 3 != 2
    begun = ""
    with tempfile.TemporaryDirectory(prefix="replicate-suppliers-", ignore_cleanup_errors=True) as directory:
        with suppliers(Path(directory), dice, keeps=keeps, have_stock=bool(number % 2)) as three:
            three.figures["supplier episodes with two regions"] += number % 2
            try:
                for name in rounds:
                    if (keeps or name not in NEEDS_ALL) and not (begun and time.monotonic() > until_s):
                        begun = name
                        three.live(name)
                        print(".", end="", flush=True)
                three.judge()
            except NotAtRest:
                print(f"episode {number} of seed {seed}, {three.street.ways}, {rounds}: {begun}", flush=True)
            finally:
                merge(figures, three.figures)
                figures["supplier episodes"] += 1


def one_island(seed: int, island_s: float, figures: Counter[str], keep: Path | None = None) -> None:
    """New suppliers, one of which is an island for so long. `keep`: where their files are put if something is wrong."""
    dice = random.Random(f"{seed} island")
    limits = island_settings(island_s)
    with tempfile.TemporaryDirectory(prefix="replicate-suppliers-", ignore_cleanup_errors=True) as directory:
        is_well = False
        try:
            with suppliers(Path(directory), dice, keeps=False, ways=MESH, **limits) as three:
                try:
                    live_island(three, island_s)
                    is_well = True
                except NotAtRest:
                    print(f"an island of {island_s:.0f} s, seed {seed}: not at rest", flush=True)
                except AssertionError:
                    three.tell_where_it_stands()
                    raise
                finally:
                    merge(figures, three.figures)
                    figures["supplier episodes"] += 1
        finally:
            if keep is not None and (not is_well or any(figures[name] for name in SUPPLIERS_ZERO)):
                shutil.copytree(
                    directory, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.socket", "*.doorbell")
                )


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    if options.island_s:
        one_island(options.seed, options.island_s, figures, options.keep)
        return
    dice = random.Random(options.seed)
    is_timed = math.isfinite(options.seconds)
    least = options.rounds or (0 if is_timed else len(ROUNDS))
    todo: list[str] = []
    number = 0
    while figures["supplier rounds"] < least or (is_timed and time.monotonic() < options.deadline_s):
        while len(todo) < ROUNDS_IN_EPISODE:
            todo += dice.sample(sorted(ROUNDS), len(ROUNDS))
        left = least - figures["supplier rounds"]
        count = ROUNDS_IN_EPISODE if is_timed else min(ROUNDS_IN_EPISODE, left)
        chosen, todo = todo[:count], todo[count:]
        until_s = options.deadline_s if is_timed and left <= 0 else math.inf
        episode(number, options.seed, chosen, figures, until_s)
        number += 1
        if any(figures[name] for name in SUPPLIERS_ZERO):
            break


def main() -> int:
    made = parser("tests.faults.suppliers")
    made.add_argument("--rounds", type=int, default=0)
    made.add_argument("--island-s", type=float, default=0.0, help="one island of so many seconds, and nothing else")
    made.add_argument("--keep", type=Path, help="a directory for the files of an island that ended badly")
    options = made.parse_args()
    return run_part(options, work, SUPPLIERS_ZERO, least=ISLAND_LEAST if options.island_s else LEAST)


if __name__ == "__main__":
    sys.exit(main())
