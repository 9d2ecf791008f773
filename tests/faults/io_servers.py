"""A write, sync or rename of a server, of the Update Process, of a seed or below a writer's SQLite fails: at each place
in the code, with each error, and then for every n of a short run.

    python -m tests.faults.io_servers [--roles source,…] [--calls fdatasync,…] [--errors EIO,…] [--seconds S]

Each failing process is one of a real town: it starts, works through a few transactions (one of them large, with a
segment of its own), and is ended by SIGTERM, and one of its calls fails somewhere on the way; `region …` are the calls
of SQLite below it (region_disk.py). A place is one way through the code to a call: the first call from each fails with
each of the errors, EIO first (once more, if it did not come). The table has those that were met beside those that there
are. Then every other n comes, with each error, by dice and as far as the time goes: hundreds of them are pages that
SQLite writes one after the other.
Guarantees: such a process goes on, or ends by an error that has a name; after it the operator's way (start again what
was stopped) leads on without a hand; nothing is missing, twice or torn at the end.
Leaves to others: which call is which.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from replicate.door.wait import wait_for_seqno
from replicate.instance.instance import Instance
from tests.faults.beside import run_beside
from tests.faults.io_errors import ERRORS, Plant
from tests.faults.oracle import ZERO, read_told
from tests.faults.part import parser, run_part
from tests.faults.region_disk import CALLS as REGION_CALLS
from tests.faults.region_disk import Counted, RegionDisk
from tests.faults.report import PLACES, PLACES_MET, merge
from tests.faults.settling import count_told, settle
from tests.faults.town import DAEMONS, Child, Town

OWN_CALLS: Final = ("fdatasync", "fsync", "pwrite", "write", "rename", "replace")
ROLES: Final[dict[str, tuple[str, ...]]] = {
    "writer": (*OWN_CALLS, *REGION_CALLS),
    "update": (*OWN_CALLS, *REGION_CALLS),
    "source": OWN_CALLS,
    "receiver": OWN_CALLS,
    "seed": (*OWN_CALLS, *REGION_CALLS),
    "source of a seed": OWN_CALLS,
    "receiver of a seed": OWN_CALLS,
}
"""Who meets the error, and in which calls."""
ALL_ERRORS: Final = (*ERRORS, "EROFS")
SETTLED_EVERY: Final = 20
TOWNS: Final = 3
"""At once: each of them mostly waits."""
WITHIN_S: Final = 60.0
SOURCE_WAIT_S: Final = 5.0
"""How long a seed waits for a source that has ended."""
LAST_EVENTS: Final = 6
INTERNAL: Final = 70
SERVERS_ZERO: Final = (*ZERO, "violations", "parts that failed")
LEAST: Final = ("I/O errors made", "acknowledged", "digests compared")


class Sweep:
    """One role in one town, error by error."""

    def __init__(self, role: str, seed: int, directory: Path) -> None:
        self.role, self.town = role, Town(directory, "durable", seed=seed, heartbeat_s=0.2)
        self.figures: Counter[str] = Counter()
        self.town.start_daemons()

    def close(self) -> None:
        self.town.close()

    def run(self, calls: Sequence[str], errors: Sequence[str], deadline_s: float, dice: random.Random) -> None:
        """Every n of these calls and errors: the first one from each place in the code first, with each error; then the
        others. With a deadline in an order of the seed, as many as fit."""
        counted = {call: Counted() for call in calls}

        def count() -> None:
            for call in calls:
                self._plant(call, 0, errors[0], counted[call])

        self.once("count", count)
        first = [(call, number, place) for call in calls for place, number in counted[call].places().items()]
        every = [(call, number) for call in calls for number in range(1, counted[call].count + 1)]
        rest = sorted({*every} - {(call, number) for call, number, _ in first})
        self.figures["I/O errors planned"] += len(every) * len(errors)
        for error in errors:
            self.figures[PLACES] += len(first)
            self.figures[f"{PLACES}: {error}"] += len(first)
        todo = _mixed(first, errors, dice) + _mixed([(call, number, 0) for call, number in rest], errors, dice)
        for done, (call, number, place, error) in enumerate(todo, 1):
            if time.monotonic() > deadline_s:
                break
            met = self.fail(call, number, error, place) or (place and self.fail(call, number, error, place))
            if place:
                self.figures[PLACES_MET] += bool(met)
                self.figures[f"{PLACES_MET}: {error}"] += bool(met)
            if not done % SETTLED_EVERY:
                settle(self.town, self.figures)
        settle(self.town, self.figures)

    def fail(self, call: str, number: int, error: str, place: int = 0) -> bool:
        """Have one call fail, the first from `place` or (0) the `number`-th; whether it came."""
        counted = Counted(place)
        self.once(f"{call} {number} {error}", partial(self._plant, call, number, error, counted))
        met = counted.has_come(number)
        self.figures[f"I/O errors: {self.role}, {call} {error}"] += met
        self.figures["I/O errors made"] += met
        return met

    def _plant(self, call: str, number: int, error: str, counted: Counted) -> None:
        """In the process that is to fail."""
        if call in REGION_CALLS:
            RegionDisk(call, number, error, str(self.town.directory), counted=counted)
        else:
            on_primary = self.role in ("writer", "source", "source of a seed")
            side = self.town.primary if on_primary else self.town.secondary
            Plant(call, number, getattr(errno, error), side, counted)

    def once(self, what: str, before: Callable[[], object]) -> None:
        """One short run; `before` is called in the process that is to fail."""
        try:
            self._short_run(before)
        except AssertionError as failure:
            self.figures["violations"] += 1
            print(f"{self.role}, {what}: {str(failure)[-1500:]}", flush=True)
            for role in DAEMONS:
                events = [(line.get("timestamp"), line["event"], line.get("error", "")) for line in self.town.log(role)]
                print(f"  {role}: {events[-LAST_EVENTS:]}", flush=True)
            self.town.kill_all()
            self.town.strange.clear()
            self.town.start_daemons()

    def _short_run(self, before: Callable[[], object]) -> None:
        if self.role == "writer":
            self._writer(before)
        elif self.role == "seed":
            self._seed(before)
        elif self.role.endswith("of a seed"):
            self._seed(lambda: None, self.role.split()[0], before)
        else:
            self._daemon(self.role, before)

    def _writer(self, before: Callable[[], object]) -> None:
        """Small ones, then a large one and a switch of segments; after a fatal error everything there starts again."""
        town = self.town
        for mode, count in (("several", 3), ("spooler", 3)):
            child = town.client(mode, count=count, before=before, pause_s=0.0, attached=True)
            self._end(child, stop=False)
        town.kill("source")
        town.start_daemons()

    def _daemon(self, role: str, before: Callable[[], object]) -> None:
        town = self.town
        town.kill(role)
        child = town.start(role, before=before)
        self._load()
        goal = town.last_told_seqno()
        deadline_s = time.monotonic() + WITHIN_S
        while not child.poll() and self._known() < goal:
            assert time.monotonic() < deadline_s, f"{role} neither goes on nor ends: {self._known()} of {goal}"
            time.sleep(0.02)
        self._end(child)
        if role != "source":  # of what an error left behind in shared memory everybody there lets go
            town.kill("receiver")
            town.kill("update")
        town.start_daemons()
        self._reach(goal)

    def _load(self) -> None:
        for mode in ("mixed", "spooler"):
            client = self.town.client(mode, count=2, pause_s=0.0)
            assert client.wait(WITHIN_S), f"a client does not end while {self.role} fails"
        self.town.reap()
        self.town.strange = [one for one in self.town.strange if not one.startswith(self.role)]  # _end looks at it
        self._not_strange()

    def _known(self) -> int:
        """What the source has written down of what is applied."""
        return int(self.town.facts("source").get("last_applied_seqno", 0))

    def _reach(self, seqno: int) -> None:
        secondary = self.town.secondary
        self.town.do("wait", lambda: wait_for_seqno(Instance.open(secondary), seqno, timeout_s=WITHIN_S))

    def _seed(
        self, before: Callable[[], object], server: str = "", before_server: Callable[[], object] = lambda: None
    ) -> None:
        """The secondary again; the same command once more leads on."""
        town = self.town
        town.kill("update")
        failing: Child | None = None
        if server:
            town.kill(server)
            failing = town.start(server, before=before_server)
        town.start_daemons_but("update")
        town.wait_ready("receiver", or_ended=server == "receiver")
        child = town.seeder(before=before, source_wait_s=SOURCE_WAIT_S)
        self._end(child, stop=False)
        if failing is not None:
            self._end(failing)
        town.start_daemons_but("update")
        town.wait_ready("receiver")
        again = town.seeder()
        assert again.wait(WITHIN_S), "the second seed does not end"
        assert again.status == 0, f"the second seed: {again.status}: {town.errors.read_text()[-1500:]}"
        town.reap()
        self._not_strange()
        town.start_daemons()

    def _end(self, child: Child, *, stop: bool = True) -> None:
        """It ends (`stop`: because we say so), in good order or by an error with a name."""
        if stop and not child.poll():
            os.kill(child.pid, signal.SIGTERM)
        assert child.wait(WITHIN_S), f"{child.role} does not end"
        self.figures["ended by a named error"] += child.status != 0
        assert child.status is not None
        assert 0 <= child.status != INTERNAL, f"exit code {child.status}: {self.town.errors.read_text()[-1500:]}"
        self.town.reap()
        self.town.strange.clear()

    def _not_strange(self) -> None:
        strange, self.town.strange = self.town.strange, []
        assert not strange, f"{strange}: {self.town.errors.read_text()[-1500:]}"


def _mixed(
    calls: Sequence[tuple[str, int, int]], errors: Sequence[str], dice: random.Random
) -> list[tuple[str, int, int, str]]:
    """With each error; all of the first error before those of the next."""
    return [(*one, error) for error in errors for one in dice.sample(calls, len(calls))]


def sweep(
    role: str, calls: tuple[str, ...], errors: tuple[str, ...], seed: int, figures: Counter[str], deadline_s: float
) -> None:
    """All of a role."""
    with tempfile.TemporaryDirectory(prefix="replicate-io-", ignore_cleanup_errors=True) as directory:
        one = Sweep(role, seed, Path(directory))
        try:
            todo = [call for call in calls if call in ROLES[role]]
            one.run(todo, errors, deadline_s, random.Random(f"{seed} {role}"))
        finally:
            count_told(read_told(one.town.told), one.figures)
            merge(figures, one.figures)
            one.close()


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    calls, errors = tuple(options.calls.split(",")), tuple(options.errors.split(","))

    def job(role: str, deadline_s: float, found: Counter[str]) -> None:
        sweep(role, calls, errors, options.seed, found, deadline_s)
        made = sum(count for name, count in found.items() if name.startswith(f"I/O errors: {role},"))
        print(f"{role:<20} {made} made", flush=True)

    jobs = dict.fromkeys(options.roles.split(","), 1)
    run_beside(jobs, job, figures, deadline_s=options.deadline_s, at_once=TOWNS)


def main() -> int:
    made = parser("tests.faults.io_servers")
    made.add_argument("--roles", default=",".join(ROLES))
    made.add_argument("--calls", default=",".join((*OWN_CALLS, *REGION_CALLS)))
    made.add_argument("--errors", default=",".join(ALL_ERRORS))
    return run_part(made.parse_args(), work, SERVERS_ZERO, least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
