"""The legal disk states of short recorded runs, each recovered from and judged: I1 to I4 and I6.

    python -m tests.faults.crash_states [--samples N] [--stride N | --seconds S] [--seed N] [--runs durable,off,…]
                                        [--every durable,seed,…]

Runs: commits under `durable` and `off`, segment switches, the recovery of a torn tail, changes of the instance file,
and those of crash_runs.py. After each operation the extreme states are looked at (all, nothing, names or data alone)
and some by dice; of the small runs (SMALL, or those of `--every`) then every state within the bound that every_state.py
names. Of states that
no reader can tell apart one is judged: the table has those enumerated (one that is legal after two operations counts
after each) and those judged, and after how many of the operations it looked. With `--seconds` some operations are
left out where the time is short. strace writes the system calls of a real process down, SQLite's among them; disk.py
makes states of them.
Guarantees: an acknowledgement counts from the moment when the process told it on its pipe; the states after the last
one are always looked at. The states after an operation depend on the seed, the run and the operation's number alone,
however many others are looked at.
Leaves to others: what a disk may do (disk.py).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from replicate.errors import DamagedError
from replicate.instance.instance import Instance
from replicate.journal import durable
from replicate.journal.segment import segment_name
from tests.faults import crash_runs
from tests.faults.beside import run_beside
from tests.faults.disk import CALLS, Op, State, TracedDisk, read_trace
from tests.faults.every_state import Every, Key, key_of
from tests.faults.part import parser, run_part
from tests.faults.town import SHM, fork
from tests.harness import instances

SMALL: Final = ("instance", "torn", "durable", "off", "switch")
"""At most some 150 operations each: every state of theirs is looked at."""
SHARES: Final = {
    "instance": 1, "torn": 18, "durable": 45, "off": 30, "create": 55, "apply": 40, "redo": 30, "redo apply": 50,
    "several": 20, "several off": 20, "hole": 28, "seed": 32, "seed again": 32, "switch": 60,
    "demote": 20, "promote": 30, "rollback": 40, "lost apply": 30,
    "lying syncs": 6, "cut not synced": 4,
}  # fmt: skip
"""Of the time: about so many seconds of a processor, judges and all."""
JUDGES: Final = 2
"""Runs that are looked at beside one another."""
RUNS: Final = (*SMALL, *crash_runs.ROWS)
Command = Sequence[object]
LEAST: Final = ("crash states", "operations looked at")


@dataclass
class Run:
    """What is recorded. `commands`: of tests/harness/writer.py; `acknowledged`: answers bind."""

    instance: Path
    commands: list[Command] = field(default_factory=list)
    acknowledged: bool = True


def prepare(name: str, root: Path, outside: Path) -> Run:
    """The state before the run, all of it synced, and the run."""
    if name in crash_runs.ROWS:
        crash_runs.prepare(name, root, outside)
        return Run(root)
    policy = "off" if name in ("off", "torn") else "durable"
    instance = instances.make_primary(root / "alpha", durability=policy, segment_bytes=1 << 20)
    with instances.session_of(instance) as session:
        for row_id in range(1, 4):  # those of a switch: so that its segment is nearly full when the run begins
            instances.insert(session, row_id, "f" * (330_000 if name == "switch" else 1))
    if name in ("durable", "off"):
        large = [["many", "main", 100, 2, 9000]]  # several pages, so that one may be missing before another
        return Run(instance.path, [*insert_more(10, 3), *large, *insert_more(20, 2)], name == "durable")
    if name == "switch":
        return Run(instance.path, [["many", "main", 100 + n, 1, 30_000] for n in range(3)])
    if name == "torn":
        return Run(tear(instance), [["recover"], *insert_more(10, 2)], False)
    return Run(instance.path, [["recover"]])


def insert_more(first: int, count: int) -> list[Command]:
    return [["insert", "main", row_id] for row_id in range(first, first + count)]


def tear(instance: Instance) -> Path:
    """A torn tail that the region does not have."""
    path = instance.region("main").path
    instances.save_region(path, instance.path.parent / "aside")
    with instances.session_of(instance) as session:
        from replicate.pool import control as word

        end = int(session.door.words[word.END_OFFSET])
        instances.insert(session, 900)
    instances.restore_region(path, instance.path.parent / "aside")
    shutil.rmtree(instance.path.parent / "aside")
    instances.power_loss(instance, end + 60)
    return instance.path


PEERS: Final = (["west", "127.0.0.1", 7430], ["east", "127.0.0.1", 7431])
INSTANCE_PROGRAM: Final = f"""
import sys
from replicate.instance.instance import Instance
from tests.harness.telling import tell
instance = Instance.open(sys.argv[1])
peers = {json.dumps(PEERS)}
def tell_peers(count):
    tell([count, Instance.open(sys.argv[1]).content.incarnation])
instance.register_peer(*peers[0])
tell_peers(1)
instance.raise_incarnation()
tell_peers(1)
instance.register_peer(*peers[1])
tell_peers(2)
"""
"""Each line: how many of the peers are entered from then on, and the incarnation."""


def record(name: str, run: Run, outside: Path, environment: dict[str, str]) -> None:
    """Run it under strace."""
    program = ["-c", INSTANCE_PROGRAM] if name == "instance" else ["-m", "tests.harness.writer"]
    arguments = [os.fspath(run.instance)]
    if name in crash_runs.ROWS:
        program, arguments = ["-m", "tests.faults.crash_runs", name], [*arguments, os.fspath(outside)]
    done = subprocess.run(
        ["strace", "-y", "-xx", "-s", "4000000", "-e", f"trace={CALLS}", "-o", os.fspath(outside / "trace"),
         sys.executable, *program, *arguments],
        input="".join(json.dumps(command) + "\n" for command in run.commands),
        capture_output=True, text=True, cwd=instances.ROOT, env=environment, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def ids_of(command: Command) -> range:
    """The rows that a command inserts."""
    if command[0] == "insert":
        return range(int(str(command[2])), int(str(command[2])) + 1)
    if command[0] == "many":
        return range(int(str(command[2])), int(str(command[2])) + int(str(command[3])))
    return range(0)


def judge(path: Path, must: set[int], may: set[int], may_refuse: bool = False) -> set[int] | None:
    """Recover, and look; AssertionError or the product's error for a violation. In a process of its own. The rows that
    are there; None: recovery has named damage, and `may_refuse` calls that well, too.

    If it does not, all is there that the mark beside the journal calls durable."""
    durable._BOOT = 4711  # type: ignore[misc]  # the machine was started again
    mark = durable.DurableSidecar(path / "journal" / "durable")
    known = mark.read()
    mark.close()
    try:
        found = instances.check(Instance.open(path))
    except DamagedError:
        if may_refuse:
            return None
        raise
    assert max(found.transactions) >= known, (max(found.transactions), known)
    there = set(found.rows["main"])
    assert must <= there <= may, (sorted(must - there), sorted(there - may))
    with instances.session_of(Instance.open(path)) as session:
        instances.insert(session, 999_999)
    again = instances.check(Instance.open(path))
    assert set(again.rows["main"]) == there | {999_999}
    return there


def judge_instance(path: Path, told: bytes) -> None:
    """The instance file is one that was written, and not older than what was told; then the rest of the instance."""
    content = Instance.open(path).content
    count, incarnation = json.loads(told.splitlines()[-1]) if told else (0, 0)
    peers = [[peer.name, peer.host, peer.port] for peer in content.peers]
    assert peers in [list(PEERS[:number]) for number in range(count, len(PEERS) + 1)], f"{count} were told, not {peers}"
    assert content.incarnation >= incarnation, f"incarnation {incarnation} was told, {content.incarnation} is there"
    judge(path, {1, 2, 3}, {1, 2, 3})


def judge_run(name: str, root: Path, outside: Path, told: bytes) -> None:
    """The same for a run of crash_runs.py."""
    durable._BOOT = 4711  # type: ignore[misc]  # the machine was started again
    crash_runs.judge(name, root, outside, [json.loads(line) for line in told.splitlines()])


Edit = Callable[[list[Op]], list[Op]]


@dataclass(frozen=True, slots=True)
class Faulty:
    """`run`, and what its recording loses. `may_refuse`: a recovery that names damage is no violation then, and an
    acknowledgement binds no more."""

    run: str
    edit: Edit
    may_refuse: bool = False


def without_the_sync_of_the_cut(ops: list[Op]) -> list[Op]:
    """The bug "cut without fsync", planted into the recording: the first sync of the segment whose tail was zeroed."""
    cut = next(
        place
        for place, op in enumerate(ops)
        if op.kind == "write" and op.path.endswith(".journal") and op.data and not op.data.strip(b"\0")
    )
    name = ops[cut].path
    synced = next(place for place in range(cut, len(ops)) if ops[place].kind == "sync" and ops[place].path == name)
    return ops[:synced] + ops[synced + 1 :]


def without_any_sync_of_segments(ops: list[Op]) -> list[Op]:
    return [op for op in ops if not (op.kind == "sync" and op.path.endswith(".journal"))]


FAULTY: Final = {
    "lying syncs": Faulty("durable", without_any_sync_of_segments, may_refuse=True),
    "cut not synced": Faulty("torn", without_the_sync_of_the_cut),
}
"""Disks that lie, and a bug that is none: see plants.py."""


def explore(
    name: str,
    *,
    samples: int,
    stride: int,
    seed: int,
    figures: Counter[str],
    deadline_s: float = math.inf,
    every: bool = False,
) -> list[str]:
    """The states of one run, after every `stride`-th operation or, with a deadline, as many as fit; what was violated.
    `name`: of RUNS, or of FAULTY, whose operations are changed after the recording. `every`: then, in the
    time that is left, after each all states of every_state.py."""
    spoilt = FAULTY.get(name, Faulty(name, lambda ops: ops))
    before = os.environ.get("REPLICATE_SHM_DIR")
    memory = os.environ.get(SHM, "/dev/shm")  # a sync there costs nothing, and what it is worth disk.py knows
    with tempfile.TemporaryDirectory(prefix="replicate-test-states-", dir=memory) as place:
        root, outside = Path(place) / "disk", Path(place) / "outside"
        for path in (root, outside, outside / "shm"):
            path.mkdir()
        os.environ["REPLICATE_SHM_DIR"] = str(outside / "shm")
        try:
            prepared = outside / "run.json"

            def build() -> None:
                run = prepare(spoilt.run, root, outside)
                prepared.write_text(json.dumps([str(run.instance), run.commands, run.acknowledged]))

            _in_child("build", build, outside)
            instance, commands, acknowledged = json.loads(prepared.read_text())
            run = Run(Path(instance), commands, acknowledged)
            disk = TracedDisk(root)
            _clear(outside / "shm")
            record(spoilt.run, run, outside, {**os.environ, "PYTHONPATH": str(instances.ROOT)})
            with open(outside / "trace", encoding="ascii", errors="replace") as trace:
                ops = spoilt.edit(list(read_trace(trace, str(disk.root))))
            made = {op.target or op.path for op in ops if op.kind in ("create", "rename")}
            assert name != "switch" or any(Path(path).suffix == Path(segment_name(1)).suffix for path in made), (
                "no switch"
            )
            walk = Walk(name, run, disk, ops, outside, spoilt.may_refuse)
            looks = Looks(seed, samples, stride, deadline_s)
            walk.look(looks, figures)
            if every:
                walk.look(dataclasses.replace(looks, every=True), figures)
        finally:
            if before is None:
                os.environ.pop("REPLICATE_SHM_DIR", None)
            else:
                os.environ["REPLICATE_SHM_DIR"] = before
    return walk.violations


@dataclass(frozen=True, slots=True)
class Looks:
    """Which states are looked at."""

    seed: int
    samples: int
    stride: int
    deadline_s: float
    every: bool = False


class Pace:
    """Which operations are looked at: one of each `stride`, or as many as fit the time."""

    def __init__(self, count: int, looks: Looks, dice: random.Random) -> None:
        self._count, self._stride, self._deadline_s, self._dice = count, looks.stride, looks.deadline_s, dice
        self._chosen = 0
        self._looked, self._spent_s = 0, 0.0
        self._began_s: float | None = None

    def takes(self, number: int) -> bool:
        """Whether this one is (the first has number 0); the time until the next call is what it took."""
        now = time.monotonic()
        if self._began_s is not None:
            self._spent_s += now - self._began_s
            self._began_s = None
        if math.isinf(self._deadline_s):
            place = number % self._stride
            if not place:
                self._chosen = self._dice.randrange(self._stride)
            takes = place == self._chosen
        else:
            each_s = self._spent_s / self._looked if self._looked else 0.1
            wanted_s = each_s * (self._count - number)
            takes = self._dice.random() < (self._deadline_s - now) / max(wanted_s, 0.001)
        if takes:
            self._looked += 1
            self._began_s = now
        return takes


class Walk:
    """The states after the operations of one run; each that no reader can tell from another is judged once."""

    def __init__(self, name: str, run: Run, disk: TracedDisk, ops: list[Op], outside: Path, may_refuse: bool) -> None:
        self.violations: list[str] = []
        self._name, self._run, self._start, self._ops = name, run, disk, ops
        self._outside, self._may_refuse = outside, may_refuse
        self._recorded = FAULTY[name].run if name in FAULTY else name
        self._judged: dict[object, list[int] | None] = {}
        """By what counts of a state: the rows that were there, where that is all that is asked (`_is_by_rows`)."""
        self._is_by_rows = self._recorded != "instance" and self._recorded not in crash_runs.ROWS
        self._enumerated: dict[int, int] = {}
        """After which operation how many."""

    def look(self, looks: Looks, figures: Counter[str]) -> None:
        """Once from the first operation to the last."""
        disk = copy.deepcopy(self._start)
        whole = Every(disk)
        changes = sum(op.kind != "told" for op in self._ops)
        pace = Pace(changes, looks, random.Random(f"{looks.seed} {self._name} {looks.every}"))
        made, looked = ("operations of the small runs", "operations with every state") if looks.every else (
            "operations", "operations looked at"
        )  # fmt: skip
        told, number = b"", -1
        last_told = max((place for place, op in enumerate(self._ops) if op.kind == "told"), default=-1)
        for place, op in enumerate(self._ops):
            if op.kind == "told":
                told += op.data
                if place != last_told:
                    continue
            else:
                disk.take(op)
                number += 1  # what is told is none: how often a run tells must not move the looks
                figures[made] += 1
                if not pace.takes(number):
                    continue
                figures[looked] += 1
            figures["crash states enumerated"] -= self._enumerated.get(place, 0)
            where = f"after operation {number} ({op.kind} {op.path})"
            if looks.every:
                self._enumerated[place] = 0
                for count, states in whole.at():
                    self._enumerated[place] += count
                    for key, make in states:
                        self._try(key, make, told, f"{where}, one of every state", figures)
            else:
                found = set()
                for label, state in disk.states(random.Random(f"{looks.seed} {self._name} {number}"), looks.samples):
                    found.add(hash(frozenset(state.items())))
                    self._try(key_of(disk, state), lambda state=state: state, told, f"{where}, {label}", figures)  # type: ignore[misc]
                self._enumerated[place] = len(found)
            figures["crash states enumerated"] += self._enumerated[place]

    def _try(self, key: Key, make: Callable[[], State], told: bytes, where: str, figures: Counter[str]) -> None:
        """Judge a state; one that was, only by what has been told since."""
        by = key if self._is_by_rows else (len(told), key)
        error = ""
        if by not in self._judged:
            self._start.put(make())
            _clear(self._outside / "shm")
            figures["crash states"] += 1
            figures[f"crash states: {self._name}"] += 1
            answer = self._outside / "there.json"
            answer.write_text("null")
            error = _in_child("judge", lambda: self._judge(told, answer), self._outside, check=False)
            self._judged[by] = json.loads(answer.read_text())
        elif (there := self._judged[by]) is not None and not self._must(told) <= {*there}:
            error = f"acknowledged and missing: {sorted(self._must(told) - {*there})}"
        if error:
            figures["violations"] += 1
            self.violations.append(f"{self._name}: {where}: {error}")

    def _must(self, told: bytes) -> set[int]:
        """The rows that must be there."""
        binds = self._run.acknowledged and not self._may_refuse
        commands = self._run.commands[: told.count(b"\n")] if binds else []
        return {1, 2, 3, *(row_id for command in commands for row_id in ids_of(command))}

    def _judge(self, told: bytes, answer: Path) -> None:
        run = self._run
        if self._recorded == "instance":
            judge_instance(run.instance, told)
        elif not self._is_by_rows:
            judge_run(self._recorded, run.instance, self._outside, told)
        else:
            may = {1, 2, 3, 900} | {row_id for command in run.commands for row_id in ids_of(command)}
            there = judge(run.instance, self._must(told), may, self._may_refuse)
            answer.write_text(json.dumps(None if there is None else sorted(there)))


def _in_child(what: str, call: Callable[[], Any], outside: Path, *, check: bool = True) -> str:
    errors = outside / "errors.txt"
    errors.unlink(missing_ok=True)
    child = fork(what, call, errors)
    assert child.wait(120), f"{what} does not end"
    text = errors.read_text().strip() if errors.exists() else ""
    assert not check or child.status == 0, text
    return (text.splitlines()[-1] if text else f"exit code {child.status}") if child.status else ""


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    def job(name: str, deadline_s: float, found: Counter[str]) -> None:
        for violation in explore(
            name, samples=options.samples, stride=options.stride, seed=options.seed, figures=found,
            deadline_s=deadline_s, every=name in every and options.stride == 1,
        ):  # fmt: skip
            print(violation, flush=True)

    every = options.every.split(",")
    runs = sorted(options.runs.split(","), key=every.__contains__)  # they take what is left
    jobs = {name: SHARES[name] for name in runs}
    run_beside(jobs, job, figures, deadline_s=options.deadline_s, at_once=JUDGES)


def main() -> int:
    made = parser("tests.faults.crash_states")
    made.add_argument("--samples", type=int, default=1)
    made.add_argument("--stride", type=int, default=1)
    made.add_argument("--runs", default=",".join((*RUNS, *FAULTY)))
    made.add_argument("--every", default=",".join(SMALL), help="of which runs every state is looked at")
    return run_part(made.parse_args(), work, ("violations", "parts that failed"), least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
